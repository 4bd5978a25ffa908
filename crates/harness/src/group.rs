//! A master, its replicas and the sentinels that monitor them, as real processes.
//!
//! Sentinels announce only one port per server. If a group uses TLS, its members and redirected clients therefore
//! connect only to TLS ports. The plain ports serve the connections of the test itself.
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::{Connection, Node, Program, Reply, TestNetwork, eventually, eventually_within};

/// The name of the monitored master in every group.
pub const MASTER_NAME: &str = "mymaster";

const SERVER_COUNT: usize = 3;
const SENTINEL_COUNT: usize = 3;

/// Time limit for changes in the group. It is long, because all tests share two cores.
const GROUP_TIMEOUT: Duration = Duration::from_secs(60);

/// A group of server and sentinel processes. The first server starts as the master.
#[derive(Debug)]
pub struct SentinelGroup {
    /// The servers; the first one starts as master, the others as its replicas.
    pub servers: Vec<Node>,
    /// The sentinels, which all monitor [`MASTER_NAME`].
    pub sentinels: Vec<Node>,
}

impl SentinelGroup {
    /// Starts a master with two replicas, and one sentinel per given program with quorum 2 and
    /// `down-after-milliseconds` 2000. Waits until all sentinels know each other and the replicas.
    ///
    /// # Panics
    /// The group does not form in time.
    #[must_use]
    pub fn start(server: &Program, sentinels: &[Program]) -> Self {
        Self::start_with_nodes(|place| Node::prepare(program_for_member(place, server, sentinels), ""))
    }

    /// Like [`Self::start`], but each process runs on its own host: first the servers, then the sentinels.
    ///
    /// # Panics
    /// The group does not form in time.
    #[must_use]
    pub fn start_on(network: &TestNetwork, server: &Program, sentinels: &[Program]) -> Self {
        Self::start_with_nodes(|place| {
            Node::prepare_on(&network.hosts[place], program_for_member(place, server, sentinels), "")
        })
    }

    /// Like [`Self::start`], but with nodes created by `prepare`: first three servers, then three sentinels. Either all
    /// of them use TLS ([`Node::enable_tls`]) or none.
    ///
    /// # Panics
    /// The group does not form in time.
    #[must_use]
    pub fn start_with_nodes(prepare: impl Fn(usize) -> Node) -> Self {
        let mut servers: Vec<Node> = (0..SERVER_COUNT).map(&prepare).collect();
        let (ip, port) = (servers[0].ip(), Self::port_of(&servers[0]));
        for (place, node) in servers.iter_mut().enumerate() {
            node.add_options("--repl-diskless-sync-delay 0");
            // Sentinels make a server store its new master in the configuration file. Without such a file, or with a
            // command line option for the master, the server would follow the first master again after each restart.
            let file = node.folder().join("server.conf");
            let follows = if place > 0 { format!("replicaof {ip} {port}\n") } else { String::new() };
            fs::write(&file, format!("# A server that sentinels watch.\n{follows}"))
                .expect("the folder can be written to");
            node.set_configuration(&file);
            replicate_over_tls(node);
            node.launch();
        }
        eventually_within(GROUP_TIMEOUT, "both replicas are in sync", || {
            let synced =
                |node: &Node| node.info("replication", "master_link_status").as_deref() == Some("up");
            servers[1..].iter().all(synced).then_some(())
        });
        let sentinels = (SERVER_COUNT..SERVER_COUNT + SENTINEL_COUNT).map(|place| {
            let mut node = prepare(place);
            start_sentinel(&mut node, &servers[0]);
            node
        });
        let group = Self { sentinels: sentinels.collect(), servers };
        group.wait_until_connected();
        group
    }

    /// Shortens timeouts, so that failures are detected and returning masters are reconfigured sooner than by default.
    ///
    /// # Panics
    /// A sentinel refuses the setting.
    pub fn shorten_timeouts(&self) {
        for node in &self.sentinels {
            node.run("SENTINEL DEBUG publish-period 500").expect_ok();
            node.run(&format!("SENTINEL SET {MASTER_NAME} down-after-milliseconds 500")).expect_ok();
        }
    }

    /// Returns the port at which the group and its clients reach a server: the TLS port if the server has one.
    #[must_use]
    pub fn port_of(server: &Node) -> u16 {
        server.tls_port().unwrap_or(server.port)
    }

    /// Waits until every sentinel is connected to all other sentinels and has received the state of the replicas. It
    /// does not suffice that the sentinels know each other: votes are requested only over established links, and
    /// Valkey's sentinels did not retry a failover that was requested too early.
    fn wait_until_connected(&self) {
        eventually_within(GROUP_TIMEOUT, "every sentinel knows everybody, and has heard from them", || {
            let follows = |replica: &BTreeMap<String, String>| {
                replica.get("master-link-status").is_some_and(|link| link == "ok")
            };
            let knows = |node: &Node| {
                let usable = node.run(&format!("SENTINEL CKQUORUM {MASTER_NAME}"));
                let followers = Self::connected_entries(node, "REPLICAS").into_iter().filter(follows).count();
                matches!(usable, Reply::Simple(text) if text.starts_with("OK 3 usable"))
                    && Self::connected_entries(node, "SENTINELS").len() == self.sentinels.len() - 1
                    && followers == self.servers.len() - 1
            };
            self.sentinels.iter().all(knows).then_some(())
        });
    }

    /// Returns the entries of `SENTINEL SENTINELS` or `SENTINEL REPLICAS` that describe connected instances.
    fn connected_entries(sentinel: &Node, role: &str) -> Vec<BTreeMap<String, String>> {
        let reply = sentinel.run(&format!("SENTINEL {role} {MASTER_NAME}"));
        let known = reply.items().iter().map(field_map);
        known.filter(|fields| !fields["flags"].contains("disconnected")).collect()
    }

    /// Returns the master's port as reported by a sentinel.
    ///
    /// # Panics
    /// The sentinel does not reply.
    #[must_use]
    pub fn master_port(&self, sentinel: usize) -> u16 {
        let reply = self.sentinels[sentinel].run(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER_NAME}"));
        reply.items()[1].text().parse().expect("a port")
    }

    /// Waits until all running sentinels report the same master, and returns the index of that master.
    ///
    /// # Panics
    /// The sentinels do not agree in time.
    #[must_use]
    pub fn wait_for_master(&self) -> usize {
        let running = self.running_sentinels();
        eventually_within(GROUP_TIMEOUT, "the sentinels agree", || {
            let port = self.master_port(running[0]);
            let agree = running.iter().all(|&sentinel| self.master_port(sentinel) == port);
            self.servers.iter().position(|node| Self::port_of(node) == port).filter(|_| agree)
        })
    }

    fn running_sentinels(&self) -> Vec<usize> {
        (0..self.sentinels.len()).filter(|&sentinel| self.sentinels[sentinel].is_running()).collect()
    }

    /// Waits until a sentinel reports a server other than `old` as master and that server accepts a write. Returns the
    /// index of the server and the elapsed time.
    ///
    /// # Panics
    /// No server takes over in time.
    pub fn wait_for_successor(&self, old_master: usize) -> (usize, Duration) {
        let began = Instant::now();
        let running = self.running_sentinels();
        let successor = eventually_within(GROUP_TIMEOUT, "another server takes writes", || {
            running.iter().find_map(|&sentinel| {
                let port = self.master_port(sentinel);
                let server = self.servers.iter().position(|node| Self::port_of(node) == port)?;
                let node = &self.servers[server];
                if server == old_master || !node.is_running() {
                    return None;
                }
                let reply = node.try_connect().ok()?.try_call(&["SET", "key", "value"]).ok()?;
                (reply == Reply::Simple("OK".into())).then_some(server)
            })
        });
        (successor, began.elapsed())
    }

    /// Waits until all running servers replicate the master and no failover is in progress.
    ///
    /// # Panics
    /// The group does not become healthy in time.
    pub fn wait_until_healthy(&self) {
        eventually_within(GROUP_TIMEOUT, "no failover goes on", || {
            let flags = |sentinel: usize| {
                let reply = self.sentinels[sentinel].run(&format!("SENTINEL MASTER {MASTER_NAME}"));
                field_map(&reply).get("flags").cloned()
            };
            let at_rest = |sentinel| flags(sentinel).is_some_and(|flags| !flags.contains("failover"));
            self.running_sentinels().into_iter().all(at_rest).then_some(())
        });
        let master = &self.servers[self.wait_for_master()];
        let port = Self::port_of(master).to_string();
        for node in self.servers.iter().filter(|node| node.is_running() && node.port != master.port) {
            eventually_within(GROUP_TIMEOUT, &format!("{} follows {}", node.port, master.port), || {
                let field = |name| node.info("replication", name);
                let follows = field("master_port").is_some_and(|followed| followed == port);
                (follows && field("master_link_status")? == "up").then_some(())
            });
        }
    }
}

fn program_for_member<'a>(index: usize, server: &'a Program, sentinels: &'a [Program]) -> &'a Program {
    index.checked_sub(SERVER_COUNT).map_or(server, |sentinel| &sentinels[sentinel])
}

/// Starts a sentinel that monitors this master.
fn start_sentinel(node: &mut Node, master: &Node) {
    let file = node.folder().join("sentinel.conf");
    let mut text = format!(
        "# Watches one master.\nsentinel monitor {MASTER_NAME} {} {} 2\n\
         sentinel down-after-milliseconds {MASTER_NAME} 2000\nsentinel failover-timeout {MASTER_NAME} 20000\n",
        master.ip(),
        SentinelGroup::port_of(master)
    );
    if node.is_behind_relay() {
        text += &format!("sentinel announce-ip 127.0.0.1\nsentinel announce-port {}\n", node.port);
    }
    fs::write(&file, text).expect("the folder can be written to");
    node.set_configuration(&file);
    node.add_options("--sentinel");
    replicate_over_tls(node);
    node.launch();
}

/// Makes a member with a TLS port use TLS for replication as well.
fn replicate_over_tls(node: &mut Node) {
    if node.tls_port().is_some() {
        node.add_options("--tls-replication yes");
    }
}

/// Converts a reply of alternating names and values to a map.
#[must_use]
pub fn field_map(reply: &Reply) -> BTreeMap<String, String> {
    reply.items().chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

/// Waits for an event on a connection that is subscribed to a sentinel's events. Returns the payload of the event.
///
/// # Panics
/// The event does not arrive in time.
pub fn wait_for_event(subscriber: &mut Connection, event: &str) -> String {
    eventually(&format!("{event} is published"), || {
        let message = subscriber.read().ok()?;
        let items = message.items();
        (items.len() == 4 && items[2].text() == event).then(|| items[3].text())
    })
}
