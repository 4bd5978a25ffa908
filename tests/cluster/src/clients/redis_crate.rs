//! Tests of the `redis` crate's cluster client, which uses all slots while a master is killed and restarted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Cluster, Program, eventually, keys_for_all_slots};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_read_routing::RandomReplicaStrategy;
use redis::streams::StreamReadReply;
use redis::{AsyncCommands, RedisResult};
use tokio::runtime::{Builder, Runtime};

/// A blocking wrapper of the asynchronous client, because only the asynchronous client finds a new master by itself.
struct BlockingClient {
    runtime: Runtime,
    connection: ClusterConnection,
}

impl BlockingClient {
    fn connect(builder: ClusterClientBuilder) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connection = runtime
            .block_on(async {
                builder
                    .connection_timeout(Duration::from_secs(5))
                    .response_timeout(Duration::from_secs(5))
                    .build()?
                    .get_async_connection()
                    .await
            })
            .expect("the client connects");
        Self { runtime, connection }
    }

    fn set(&mut self, key: &str, value: &str) -> RedisResult<()> {
        self.runtime.block_on(self.connection.set(key, value))
    }

    fn run<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        self.runtime.block_on(command.query_async(&mut self.connection))
    }

    fn get(&mut self, key: &str) -> RedisResult<Option<String>> {
        self.runtime.block_on(self.connection.get(key))
    }
}

fn connect(cluster: &Cluster) -> BlockingClient {
    BlockingClient::connect(ClusterClient::builder(cluster.redis_urls()))
}

/// Retries for as long as a failover may take on a slow machine.
fn retry_until_success<T>(description: &str, mut attempt: impl FnMut() -> RedisResult<T>) -> T {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => {
                assert!(start.elapsed() < Duration::from_secs(60), "{description}: {error}");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn write_all(client: &mut BlockingClient, keys: &[String], value: &str) {
    for key in keys {
        retry_until_success(key, || client.set(key, value));
    }
}

fn read_all(client: &mut BlockingClient, keys: &[String], value: &str) {
    for key in keys {
        let found = retry_until_success(key, || client.get(key));
        assert_eq!(found.as_deref(), Some(value), "{key}");
    }
}

fn wait_until_replicated(cluster: &Cluster) {
    eventually("every master's replica has its offset", || {
        cluster.running_nodes().try_for_each(|node| {
            let role = node.run("ROLE");
            let [kind, offset, replicas] = role.items() else { return Some(()) };
            let behind = kind.text() == "master"
                && replicas
                    .items()
                    .iter()
                    .any(|replica| replica.items()[2].text() != offset.int().to_string());
            (!behind).then_some(())
        })
    });
}

/// Every key of the first pass is replicated when the master dies, so none may be missing afterwards. All slots are
/// written and read while the master is down and again after it has come back.
#[test]
fn redis_crate_keeps_working_when_master_dies() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let keys = keys_for_all_slots();
    let mut client = connect(&cluster);
    write_all(&mut client, &keys, "first");
    wait_until_replicated(&cluster);

    // A second client writes during the whole test, including to the slots of the dead master.
    let other_keys: Vec<String> = keys.iter().step_by(16).map(|key| format!("{{{key}}}other")).collect();
    let over = AtomicBool::new(false);
    let mut other = connect(&cluster);
    thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) {
                write_all(&mut other, &other_keys, &rounds.to_string());
                rounds += 1;
            }
            (rounds, other)
        });
        cluster.nodes[0].kill();
        read_all(&mut client, &keys, "first");
        write_all(&mut client, &keys, "second");
        cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
        cluster.nodes[0].launch();
        cluster.wait_until_ok();
        read_all(&mut client, &keys, "second");
        write_all(&mut client, &keys, "third");
        over.store(true, Ordering::Relaxed);
        let (rounds, mut other) = rounds.join().expect("the other client works through it");
        assert!(rounds > 0);
        read_all(&mut other, &other_keys, &(rounds - 1).to_string());
    });
    read_all(&mut client, &keys, "third");
    assert_eq!(cluster.key_count(), (keys.len() + other_keys.len()) as i64);
}

/// A client that reads from replicas sees the data of the masters.
#[test]
fn reads_from_replicas_see_replicated_writes() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let keys = keys_for_all_slots();
    write_all(&mut connect(&cluster), &keys[..2000], "value");
    wait_until_replicated(&cluster);
    let builder = ClusterClient::builder(cluster.redis_urls()).read_routing_strategy(RandomReplicaStrategy);
    let mut reader = BlockingClient::connect(builder);
    read_all(&mut reader, &keys[..2000], "value");
}

/// Consumers block on a list and in a consumer group of a stream; the master of both keys is killed, and they continue
/// on the new master.
#[test]
fn redis_crate_consumers_continue_on_new_master() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let key = keys_for_all_slots().swap_remove(0);
    let (jobs, events) = (format!("{{{key}}}jobs"), format!("{{{key}}}events"));
    let mut client = connect(&cluster);
    let group = redis::cmd("XGROUP").arg(&["CREATE", &events, "group", "$", "MKSTREAM"]).clone();
    retry_until_success("the group is made", || client.run::<()>(&group));
    let over = AtomicBool::new(false);
    let popped = Mutex::new(Vec::<String>::new());
    let read = Mutex::new(Vec::<String>::new());
    let (mut popper, mut reader) = (connect(&cluster), connect(&cluster));
    let give = |client: &mut BlockingClient, what: &str| {
        retry_until_success("a job is given", || {
            client.run::<()>(redis::cmd("RPUSH").arg(&[jobs.as_str(), what]))
        });
        retry_until_success("an event is given", || {
            client.run::<()>(redis::cmd("XADD").arg(&[events.as_str(), "*", "event", what]))
        });
    };
    let both_have = |what: &str| {
        eventually(&format!("both have {what}"), || {
            let has =
                |list: &Mutex<Vec<String>>| list.lock().expect("no panic").iter().any(|item| item == what);
            (has(&popped) && has(&read)).then_some(())
        });
    };
    thread::scope(|scope| {
        let stop = StopOnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let pop = redis::cmd("BLPOP").arg(&jobs).arg(1).clone();
                let item =
                    retry_until_success("a job comes", || popper.run::<Option<(String, String)>>(&pop));
                popped.lock().expect("no panic").extend(item.map(|(_, job)| job));
            }
        });
        scope.spawn(|| {
            let words = ["GROUP", "group", "me", "BLOCK", "1000", "STREAMS", &events, ">"];
            let next = redis::cmd("XREADGROUP").arg(&words).clone();
            while !over.load(Ordering::Relaxed) {
                let reply =
                    retry_until_success("an event comes", || reader.run::<Option<StreamReadReply>>(&next));
                let entries = reply.into_iter().flat_map(|reply| reply.keys).flat_map(|stream| stream.ids);
                let events = entries.filter_map(|entry| entry.get::<String>("event"));
                read.lock().expect("no panic").extend(events);
            }
        });
        give(&mut client, "before");
        both_have("before");
        wait_until_replicated(&cluster);
        cluster.nodes[0].kill();
        give(&mut client, "after");
        both_have("after");
        drop(stop);
    });
}

/// Sets the flag when it is dropped, even if a test fails, so that the threads that check the flag end.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
