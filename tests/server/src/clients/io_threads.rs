//! Tests of changing the number of workers at runtime with `CONFIG SET io-threads`.

use harness::{Connection, Node, Program, Reply, eventually};

/// The number of worker threads of the process.
fn worker_thread_count(node: &Node) -> usize {
    let folder = format!("/proc/{}/task", node.pid());
    let names = std::fs::read_dir(folder).expect("the process is there").filter_map(|thread| {
        let name = std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()?;
        name.starts_with("worker-").then_some(name)
    });
    names.count()
}

fn set_io_threads(operator: &mut Connection, count: usize) {
    operator.call(&["CONFIG", "SET", "io-threads", &count.to_string()]).expect_ok();
    assert_eq!(operator.call_line("CONFIG GET io-threads").items()[1].text(), count.to_string());
}

/// The CPU time of each worker, in nanoseconds, by worker number.
fn worker_cpu_times(node: &Node) -> Vec<(String, u64)> {
    let folder = format!("/proc/{}/task", node.pid());
    let mut all: Vec<(String, u64)> = std::fs::read_dir(folder)
        .expect("the process is there")
        .filter_map(|thread| {
            let path = thread.ok()?.path();
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            let times = std::fs::read_to_string(path.join("schedstat")).ok()?;
            let number = name.trim().strip_prefix("worker-")?.to_owned();
            Some((number, times.split(' ').next()?.parse().ok()?))
        })
        .collect();
    all.sort();
    all
}

/// Returns the workers that use CPU time while every client sends some commands.
fn busy_workers(node: &Node, clients: &mut [Connection]) -> Vec<String> {
    let before = worker_cpu_times(node);
    for client in clients.iter_mut() {
        for _ in 0..200 {
            assert_eq!(client.call_line("PING"), Reply::Simple("PONG".into()));
        }
    }
    let spent = worker_cpu_times(node).into_iter().map(|(number, nanos)| {
        let old = before.iter().find(|(known, _)| *known == number).map_or(0, |(_, nanos)| *nanos);
        (number, nanos - old)
    });
    let spent: Vec<(String, u64)> = spent.collect();
    let all: u64 = spent.iter().map(|(_, nanos)| nanos).sum();
    // An idle worker wakes up occasionally, which must not count.
    let busy = spent.into_iter().filter(|(_, nanos)| *nanos > all / 20);
    busy.map(|(number, _)| number).collect()
}

/// After a reduction, the remaining workers serve existing clients. After an increase, new workers serve new clients.
#[test]
fn io_threads_can_change_while_clients_are_served() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 1");
    assert_eq!(worker_thread_count(&node), 2, "one worker and one spare");
    let mut operator = node.connect();
    set_io_threads(&mut operator, 4);
    assert_eq!(worker_thread_count(&node), 5);
    let mut clients: Vec<Connection> = (0..8).map(|_| node.connect()).collect();
    eventually("four workers serve clients", || (busy_workers(&node, &mut clients).len() == 4).then_some(()));
    let mut waiting = node.connect();
    waiting.send(&["BLPOP", "list", "0"]).expect("it reads");
    eventually("the client is blocked", || (node.info("clients", "blocked_clients")? == "1").then_some(()));
    set_io_threads(&mut operator, 1);
    clients.extend((0..4).map(|_| node.connect()));
    eventually("one worker serves all clients", || {
        (busy_workers(&node, &mut clients) == ["1"]).then_some(())
    });
    // A client blocked on a removed worker still gets its reply, and then moves to another worker.
    operator.call_line("RPUSH list x");
    assert_eq!(waiting.read().expect("it is served").items()[1].text(), "x");
    assert_eq!(waiting.call_line("PING"), Reply::Simple("PONG".into()));
    assert_eq!(worker_thread_count(&node), 5, "unused threads stay parked");
    set_io_threads(&mut operator, 3);
    assert_eq!(worker_thread_count(&node), 5);
    let mut later: Vec<Connection> = (0..6).map(|_| node.connect()).collect();
    eventually("three workers serve the new clients", || {
        let serving = busy_workers(&node, &mut later);
        (serving == ["1", "2", "3"]).then_some(())
    });
}

/// A worker gets its connections back after a spare worker served them during a slow command.
#[test]
fn worker_gets_its_connections_back_after_slow_commands() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 4");
    let mut clients: Vec<Connection> = (0..8).map(|_| node.connect()).collect();
    let owning_workers = |clients: &mut [Connection]| -> Vec<_> {
        clients.chunks_mut(1).map(|client| busy_workers(&node, client)).collect()
    };
    let before = eventually("each client has one worker", || {
        Some(owning_workers(&mut clients))
            .filter(|owning_workers| owning_workers.iter().all(|one| one.len() == 1))
    });
    for round in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            // Each script is different, so the server has no statistics about its duration.
            let script = format!("local x = {round}{number} for i = 1, 3000000 do x = x + i end return 1");
            assert_eq!(client.call(&["EVAL", &script, "0"]), Reply::Int(1));
        }
    }
    eventually("each client is back on its worker", || {
        (owning_workers(&mut clients) == before).then_some(())
    });
}

/// A client that increments a counter while workers are added and removed gets each reply once and in order.
#[test]
fn no_reply_is_lost_when_connections_move_between_workers() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 2");
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let mut client = node.connect();
            std::thread::spawn(move || {
                let key = format!("counter:{number}");
                for expected in 1..=4000 {
                    assert_eq!(client.call(&["INCR", &key]), Reply::Int(expected));
                }
            })
        })
        .collect();
    let mut operator = node.connect();
    for round in 0.. {
        if clients.iter().all(std::thread::JoinHandle::is_finished) {
            break;
        }
        set_io_threads(&mut operator, [1, 4, 2, 6][round % 4]);
    }
    for client in clients {
        client.join().expect("every reply is the next number");
    }
}

/// A long script occupies one worker; the spare worker serves the other clients even with `io-threads 1`.
#[test]
fn busy_error_is_returned_with_a_single_worker() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 4 --busy-reply-threshold 50");
    let mut operator = node.connect();
    set_io_threads(&mut operator, 1);
    let mut busy = node.connect();
    busy.send(&["EVAL", "while true do end", "0"]).expect("it reads");
    eventually("other clients get BUSY", || node.run("GET x").is_error("BUSY").then_some(()));
    kill_script(&mut operator);
    assert!(busy.read().expect("an answer").is_error("ERR"));
    assert_eq!(node.run("PING"), Reply::Simple("PONG".into()));
}

fn kill_script(operator: &mut Connection) {
    eventually("the script can be killed", || {
        (operator.call_line("SCRIPT KILL") == Reply::Simple("OK".into())).then_some(())
    });
}
