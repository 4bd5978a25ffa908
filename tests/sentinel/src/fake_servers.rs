//! Many simulated servers that implement only what a sentinel needs of a master or replica.
//!
//! Each server is a listener in this process with its own address in 127.77.0.0/16; all use the same port. The servers
//! answer PING and INFO, deliver published messages, and change their role on command. Killing a server closes its
//! connections and makes it refuse new ones.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use harness::{Node, PortClaim, Program, claim_port, eventually, field_map};
use resp::{Protocol, Value, Writer, parse_value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// Starts three Redoubt sentinels that monitor the first `masters` of the fake servers, named `m0`, `m1` and so on,
/// with Redis's defaults.
///
/// # Panics
/// A sentinel does not start.
#[must_use]
pub fn start_sentinels(servers: &FakeServers, masters: usize) -> [Node; 3] {
    std::array::from_fn(|_| {
        let mut node = Node::prepare(&Program::redoubt(), "");
        let monitor =
            |number| format!("sentinel monitor m{number} {} {} 2\n", server_address(number), servers.port());
        let file = node.folder().join("sentinel.conf");
        std::fs::write(&file, (0..masters).map(monitor).collect::<String>()).expect("a folder of its own");
        node.set_configuration(&file);
        node.add_options("--sentinel");
        node.launch();
        node
    })
}

/// Waits until every sentinel knows the two others for every master.
///
/// # Panics
/// The sentinels do not find each other in time.
pub fn wait_until_sentinels_know_each_other(sentinels: &[Node]) {
    for node in sentinels {
        eventually("every master has three sentinels", || {
            let reply = node.run("SENTINEL MASTERS");
            let known = |fields: &harness::Reply| field_map(fields)["num-other-sentinels"] == "2";
            reply.items().iter().all(known).then_some(())
        });
    }
}

/// The address of master `number` according to each sentinel.
///
/// # Panics
/// A sentinel does not reply.
#[must_use]
pub fn master_addresses(sentinels: &[Node], number: usize) -> Vec<String> {
    let question = format!("SENTINEL GET-MASTER-ADDR-BY-NAME m{number}");
    sentinels.iter().map(|node| node.run(&question).items()[0].text()).collect()
}

/// The address of server `number`.
#[must_use]
pub fn server_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, (number / 250) as u8, (number % 250 + 1) as u8)
}

#[derive(Debug)]
struct FakeServer {
    number: usize,
    port: u16,
    master: Option<Ipv4Addr>,
    /// Open connections by id, with a sender of messages for each subscribed connection.
    connections: BTreeMap<u64, Option<UnboundedSender<Vec<u8>>>>,
    accepted_connections: u64,
    is_alive: watch::Sender<bool>,
}

type ServerMap = Arc<Mutex<BTreeMap<Ipv4Addr, FakeServer>>>;

fn lock_servers(servers: &ServerMap) -> MutexGuard<'_, BTreeMap<Ipv4Addr, FakeServer>> {
    servers.lock().expect("no stub panics")
}

/// The simulated servers, which stop when this value is dropped.
#[derive(Debug)]
pub struct FakeServers {
    port_claim: PortClaim,
    servers: ServerMap,
    shutdown: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeServers {
    /// Starts `masters` masters numbered from 0 and, with `replicas`, one replica for each, numbered after them.
    ///
    /// # Panics
    /// The system cannot open enough listeners.
    #[must_use]
    pub fn start(masters: usize, with_replicas: bool) -> Self {
        let claim = claim_port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime for the stubs");
        let servers = ServerMap::default();
        for number in 0..masters * (1 + usize::from(with_replicas)) {
            let master = (number >= masters).then(|| server_address(number - masters));
            let (alive, watched) = watch::channel(true);
            let ip = server_address(number);
            let port = claim.port;
            let server = FakeServer {
                number,
                port,
                master,
                connections: BTreeMap::new(),
                accepted_connections: 0,
                is_alive: alive,
            };
            lock_servers(&servers).insert(ip, server);
            let listener = runtime.block_on(TcpListener::bind((ip, claim.port)));
            let listener = listener.unwrap_or_else(|error| panic!("{ip}:{}: {error}", claim.port));
            runtime.spawn(accept_connections(listener, ip, servers.clone(), watched));
        }
        let (end, ended) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            // The thread ends when the sender is dropped.
            let _ = runtime.block_on(ended);
        });
        Self { port_claim: claim, servers, shutdown: Some(end), thread: Some(thread) }
    }

    /// The port of all servers.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port_claim.port
    }

    /// Waits until these sentinels monitor the replicas of the first `masters` masters.
    ///
    /// # Panics
    /// The sentinels do not discover the replicas in time.
    pub fn wait_until_replicas_are_watched(&self, masters: usize, sentinels: &[Node]) {
        eventually("the replicas are watched", || {
            let watched = |number| self.connection_counts(number).0 == 2 * sentinels.len();
            (masters..2 * masters).all(watched).then_some(())
        });
    }

    /// Kills the servers with these numbers at the same time.
    pub fn kill(&self, numbers: impl Iterator<Item = usize>) {
        let servers = lock_servers(&self.servers);
        for number in numbers {
            servers[&server_address(number)].is_alive.send_replace(false);
        }
    }

    /// The number of open connections to a server, and the number of all connections that it has accepted.
    #[must_use]
    pub fn connection_counts(&self, number: usize) -> (usize, u64) {
        let server = &lock_servers(&self.servers)[&server_address(number)];
        (server.connections.len(), server.accepted_connections)
    }

    /// Whether the server has the master role.
    #[must_use]
    pub fn is_master(&self, number: usize) -> bool {
        lock_servers(&self.servers)[&server_address(number)].master.is_none()
    }
}

impl Drop for FakeServers {
    fn drop(&mut self) {
        drop(self.shutdown.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

async fn accept_connections(
    listener: TcpListener,
    ip: Ipv4Addr,
    servers: ServerMap,
    mut is_alive: watch::Receiver<bool>,
) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => panic!("{ip}: {error}"),
            },
            _ = is_alive.changed() => return,
        };
        let id = {
            let mut servers = lock_servers(&servers);
            let server = servers.get_mut(&ip).expect("it is one of them");
            server.accepted_connections += 1;
            server.connections.insert(server.accepted_connections, None);
            server.accepted_connections
        };
        let (servers, mut alive) = (servers.clone(), is_alive.clone());
        tokio::spawn(async move {
            tokio::select! {
                // The result is ignored, because a server treats every end of a connection alike.
                _ = serve_connection(stream, ip, id, &servers) => {}
                _ = alive.changed() => {}
            }
            lock_servers(&servers).get_mut(&ip).expect("it is one of them").connections.remove(&id);
        });
    }
}

async fn serve_connection(
    mut stream: TcpStream,
    ip: Ipv4Addr,
    id: u64,
    servers: &ServerMap,
) -> io::Result<()> {
    let (queue, mut messages) = unbounded_channel();
    let mut input = Vec::new();
    loop {
        tokio::select! {
            read = stream.read_buf(&mut input) => {
                if read? == 0 {
                    return Ok(());
                }
                let mut out = Vec::new();
                let mut used = 0;
                while let Ok(Some((request, len))) = parse_value(&input[used..]) {
                    used += len;
                    reply_to(&request, ip, id, &queue, servers, &mut out);
                }
                input.drain(..used);
                stream.write_all(&out).await?;
            }
            message = messages.recv() => {
                stream.write_all(&message.expect("this function holds a sender")).await?;
            }
        }
    }
}

fn reply_to(
    request: &Value,
    ip: Ipv4Addr,
    id: u64,
    queue: &UnboundedSender<Vec<u8>>,
    servers: &ServerMap,
    out: &mut Vec<u8>,
) {
    let words: Vec<&[u8]> =
        request.as_array().unwrap_or_default().iter().filter_map(Value::as_bytes).collect();
    let mut servers = lock_servers(servers);
    let mut reply = Writer::new(out, Protocol::Resp2);
    match words.as_slice() {
        [b"PING"] => reply.simple("PONG"),
        [b"INFO", ..] => reply.bulk(info_text(&servers, ip).as_bytes()),
        [b"SUBSCRIBE", channel] => {
            let server = servers.get_mut(&ip).expect("it is one of them");
            server.connections.insert(id, Some(queue.clone()));
            reply.array(3);
            reply.bulk(b"subscribe");
            reply.bulk(channel);
            reply.integer(1);
        }
        [b"PUBLISH", channel, payload] => {
            let mut message = Vec::new();
            let mut writer = Writer::new(&mut message, Protocol::Resp2);
            writer.array(3);
            writer.bulk(b"message");
            writer.bulk(channel);
            writer.bulk(payload);
            let listeners = servers[&ip].connections.values().flatten();
            // The reply to PUBLISH does not count subscribers that have disconnected.
            let heard = listeners.filter(|listener| listener.send(message.clone()).is_ok()).count();
            reply.integer(heard as i64);
        }
        [b"SLAVEOF", host, _port] => {
            let host = std::str::from_utf8(host).expect("a sentinel names addresses");
            servers.get_mut(&ip).expect("it is one of them").master = host.parse().ok();
            reply.ok();
        }
        _ => reply.ok(),
    }
}

fn info_text(servers: &BTreeMap<Ipv4Addr, FakeServer>, ip: Ipv4Addr) -> String {
    let own = &servers[&ip];
    let (number, port) = (own.number, own.port);
    let mut text = format!("# Server\r\nrun_id:{number:040x}\r\n# Replication\r\n");
    match own.master {
        Some(master) => {
            let status = if *servers[&master].is_alive.borrow() { "up" } else { "down" };
            text += &format!(
                "role:slave\r\nmaster_host:{master}\r\nmaster_port:{port}\r\nmaster_link_status:{status}\r\n\
                 slave_repl_offset:100\r\nslave_priority:100\r\n"
            );
        }
        None => text += "role:master\r\n",
    }
    let replicas = servers.iter().filter(|(_, server)| server.master == Some(ip));
    for (index, (replica, _)) in replicas.enumerate() {
        text += &format!("slave{index}:ip={replica},port={port},state=online,offset=100,lag=0\r\n");
    }
    text
}
