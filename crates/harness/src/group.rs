//! A master, its replicas and the sentinels that watch them, as processes.
//!
//! Sentinels tell one address of a server. So a group whose nodes speak TLS speaks nothing else among its members: it
//! replicates, watches and sends clients to ports for TLS. The plain ports are there for the test's own questions.
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::{Connection, Network, Node, Program, Value, eventually, eventually_within};

/// The name under which every group's master is watched.
pub const MASTER: &str = "mymaster";

const SERVERS: usize = 3;
const SENTINELS: usize = 3;

/// Generous: tests share two cores with others.
const BOUND: Duration = Duration::from_secs(60);

/// The processes. The first server begins as the master.
#[derive(Debug)]
pub struct Group {
    /// The master first, then its replicas.
    pub servers: Vec<Node>,
    /// The sentinels.
    pub sentinels: Vec<Node>,
}

impl Group {
    /// Starts a master with two replicas and a sentinel of each of these programs, with a quorum of two
    /// and `down-after-milliseconds` 2000, and waits until all sentinels know each other and the replicas.
    ///
    /// # Panics
    /// If that does not come about.
    #[must_use]
    pub fn start(server: &Program, sentinels: &[Program]) -> Self {
        Self::assemble(|place| Node::prepare(program_of(place, server, sentinels), ""))
    }

    /// The same, each on a host of its own: first the servers, then the sentinels.
    ///
    /// # Panics
    /// If that does not come about.
    #[must_use]
    pub fn start_on(network: &Network, server: &Program, sentinels: &[Program]) -> Self {
        Self::assemble(|place| {
            Node::prepare_on(&network.hosts[place], program_of(place, server, sentinels), "")
        })
    }

    /// The same from nodes that `prepare` makes: first the three servers, then the three sentinels. All speak TLS
    /// ([`Node::speak_tls`]) or none.
    ///
    /// # Panics
    /// If that does not come about.
    #[must_use]
    pub fn assemble(prepare: impl Fn(usize) -> Node) -> Self {
        let mut servers: Vec<Node> = (0..SERVERS).map(&prepare).collect();
        let (ip, port) = (servers[0].ip(), Self::port_of(&servers[0]));
        for (place, node) in servers.iter_mut().enumerate() {
            node.add_options("--repl-diskless-sync-delay 0");
            // Sentinels have a server write down its master: a server without a file, or with an option for it, would
            // follow the first master whenever it is started again.
            let file = node.folder().join("server.conf");
            let follows = if place > 0 { format!("replicaof {ip} {port}\n") } else { String::new() };
            fs::write(&file, format!("# A server that sentinels watch.\n{follows}"))
                .expect("the folder can be written to");
            node.set_configuration(&file);
            keep_to_tls(node);
            node.launch();
        }
        eventually_within(BOUND, "both replicas are in sync", || {
            let synced =
                |node: &Node| node.info("replication", "master_link_status").as_deref() == Some("up");
            servers[1..].iter().all(synced).then_some(())
        });
        let sentinels = (SERVERS..SERVERS + SENTINELS).map(|place| {
            let mut node = prepare(place);
            watch(&mut node, &servers[0]);
            node
        });
        let group = Self { sentinels: sentinels.collect(), servers };
        group.wait_until_known();
        group
    }

    /// Has failures be noticed, and a master that comes back be told its new master, in less than the seconds that this
    /// takes by default.
    ///
    /// # Panics
    /// If a sentinel will not.
    pub fn hurry(&self) {
        for node in &self.sentinels {
            node.run("SENTINEL DEBUG publish-period 500").expect_ok();
            node.run(&format!("SENTINEL SET {MASTER} down-after-milliseconds 500")).expect_ok();
        }
    }

    /// Where a server's group knows it, and sends clients.
    #[must_use]
    pub fn port_of(server: &Node) -> u16 {
        server.tls_port().unwrap_or(server.port)
    }

    /// Known is not enough. A sentinel that is told to fail over asks the others for their votes once, those alone to
    /// which its link stands, and chooses among the replicas that have told of themselves: Valkey's gave up, and did not
    /// try again, when it was told so in the moment in which it had come to know the others.
    fn wait_until_known(&self) {
        eventually_within(BOUND, "every sentinel knows everybody, and has heard from them", || {
            let follows = |replica: &BTreeMap<String, String>| {
                replica.get("master-link-status").is_some_and(|link| link == "ok")
            };
            let knows = |node: &Node| {
                let usable = node.run(&format!("SENTINEL CKQUORUM {MASTER}"));
                let followers = Self::linked(node, "REPLICAS").into_iter().filter(follows).count();
                matches!(usable, Value::Simple(text) if text.starts_with("OK 3 usable"))
                    && Self::linked(node, "SENTINELS").len() == self.sentinels.len() - 1
                    && followers == self.servers.len() - 1
            };
            self.sentinels.iter().all(knows).then_some(())
        });
    }

    /// The `SENTINELS` or the `REPLICAS` to which the links of a sentinel stand, as it shows them.
    fn linked(sentinel: &Node, role: &str) -> Vec<BTreeMap<String, String>> {
        let reply = sentinel.run(&format!("SENTINEL {role} {MASTER}"));
        let known = reply.items().iter().map(field_map);
        known.filter(|fields| !fields["flags"].contains("disconnected")).collect()
    }

    /// Where a sentinel sends clients.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn master_port(&self, sentinel: usize) -> u16 {
        let reply = self.sentinels[sentinel].run(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER}"));
        reply.items()[1].text().parse().expect("a port")
    }

    /// Which server the sentinels that run send clients to, once they agree.
    ///
    /// # Panics
    /// If they do not agree.
    #[must_use]
    pub fn master(&self) -> usize {
        let running = self.running();
        eventually_within(BOUND, "the sentinels agree", || {
            let port = self.master_port(running[0]);
            let agree = running.iter().all(|&sentinel| self.master_port(sentinel) == port);
            self.servers.iter().position(|node| Self::port_of(node) == port).filter(|_| agree)
        })
    }

    fn running(&self) -> Vec<usize> {
        (0..self.sentinels.len()).filter(|&sentinel| self.sentinels[sentinel].is_running()).collect()
    }

    /// Waits until a server other than `old` takes a write at an address that a sentinel gives; says which,
    /// and how long that took.
    ///
    /// # Panics
    /// If it does not come about.
    pub fn wait_for_successor(&self, old: usize) -> (usize, Duration) {
        let began = Instant::now();
        let running = self.running();
        let successor = eventually_within(BOUND, "another server takes writes", || {
            running.iter().find_map(|&sentinel| {
                let port = self.master_port(sentinel);
                let server = self.servers.iter().position(|node| Self::port_of(node) == port)?;
                let node = &self.servers[server];
                if server == old || !node.is_running() {
                    return None;
                }
                let reply = node.try_connect().ok()?.try_call(&["SET", "key", "value"]).ok()?;
                (reply == Value::Simple("OK".into())).then_some(server)
            })
        });
        (successor, began.elapsed())
    }

    /// Waits until every running server but the master replicates it, and no sentinel is at a failover still.
    ///
    /// # Panics
    /// If that does not come about.
    pub fn wait_until_whole(&self) {
        eventually_within(BOUND, "no failover goes on", || {
            let flags = |sentinel: usize| {
                let reply = self.sentinels[sentinel].run(&format!("SENTINEL MASTER {MASTER}"));
                field_map(&reply).get("flags").cloned()
            };
            let at_rest = |sentinel| flags(sentinel).is_some_and(|flags| !flags.contains("failover"));
            self.running().into_iter().all(at_rest).then_some(())
        });
        let master = &self.servers[self.master()];
        let port = Self::port_of(master).to_string();
        for node in self.servers.iter().filter(|node| node.is_running() && node.port != master.port) {
            eventually_within(BOUND, &format!("{} follows {}", node.port, master.port), || {
                let field = |name| node.info("replication", name);
                let follows = field("master_port").is_some_and(|followed| followed == port);
                (follows && field("master_link_status")? == "up").then_some(())
            });
        }
    }
}

fn program_of<'a>(place: usize, server: &'a Program, sentinels: &'a [Program]) -> &'a Program {
    place.checked_sub(SERVERS).map_or(server, |sentinel| &sentinels[sentinel])
}

/// Starts a sentinel that watches this master.
fn watch(node: &mut Node, master: &Node) {
    let file = node.folder().join("sentinel.conf");
    let mut text = format!(
        "# Watches one master.\nsentinel monitor {MASTER} {} {} 2\n\
         sentinel down-after-milliseconds {MASTER} 2000\nsentinel failover-timeout {MASTER} 20000\n",
        master.ip(),
        Group::port_of(master)
    );
    if node.is_behind_relay() {
        text += &format!("sentinel announce-ip 127.0.0.1\nsentinel announce-port {}\n", node.port);
    }
    fs::write(&file, text).expect("the folder can be written to");
    node.set_configuration(&file);
    node.add_options("--sentinel");
    keep_to_tls(node);
    node.launch();
}

/// A member that speaks TLS speaks it with the others.
fn keep_to_tls(node: &mut Node) {
    if node.tls_port().is_some() {
        node.add_options("--tls-replication yes");
    }
}

/// A reply of names and values, as a map.
#[must_use]
pub fn field_map(reply: &Value) -> BTreeMap<String, String> {
    reply.items().chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

/// Waits until a sentinel's events show `event`; gives its payload.
///
/// # Panics
/// If it does not come.
pub fn wait_for_event(events: &mut Connection, event: &str) -> String {
    eventually(&format!("{event} is published"), || {
        let message = events.read().ok()?;
        let items = message.items();
        (items.len() == 4 && items[2].text() == event).then(|| items[3].text())
    })
}
