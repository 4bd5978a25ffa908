//! Connections that hold their replies, over real sockets, with a cursor of the tests' own in the log.

use config::Config;
use durability::stream::{EngineLogHandle, SharedLog};
use engine::{Commands, Engine};
use keyspace::Keyspace;
use net::scratch::install_scratch;
use replication::CursorId;
use slot_routing::ReplOffset;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::*;
use crate::server::Identity;
use crate::server::settings;
use crate::workers::connection_slot::Slots;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A server without threads and sockets, whose log must be committed before a write is answered.
struct Fixture {
    server: Arc<Server>,
    cursor: CursorId,
    read: ReplOffset,
}

impl Fixture {
    fn new(parameters: &[(&str, &[&str])]) -> Self {
        let config = Config::default();
        for (name, words) in parameters {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            config.load(name, &words).unwrap();
        }
        let log = SharedLog::new(1 << 20);
        let commands = Commands::new(::commands::of_server());
        let catalogue = commands.registry().catalogue();
        let engine =
            Engine::new(catalogue, Keyspace::new(7, 1), None, Box::new(EngineLogHandle(log.clone())));
        let server = Server::new((engine, commands), config, Identity::default(), log.clone(), None);
        settings::apply(&server);
        install_scratch(&server.engine, &server.network);
        server.replication.commit_point.set_required(true);
        let mut log = log.lock();
        server.replication.log.open(&mut log);
        let read = log.position().offset;
        let cursor = log.add_cursor(read);
        drop(log);
        Self { server, cursor, read }
    }

    /// A client and the task that serves it.
    fn connect(&self) -> (UnixStream, Arc<Client>, JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.server.network.connected.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(self.server.clone(), Stream::Unix(theirs), 1).unwrap();
        let client = connection.session.client.clone();
        (ours, client, tokio::spawn(Arc::<Slots>::default().serve(Box::new(connection))))
    }

    /// Reads the log to its end and commits it.
    fn commit(&mut self) {
        let mut bytes = Vec::new();
        self.server.replication.log.lock().read(self.cursor, 1 << 20, &mut bytes).unwrap();
        self.read.0 += bytes.len() as u64;
        self.server.replication.commit_point.publish(self.read);
    }
}

async fn until(condition: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < TIMEOUT, "it does not come to that");
        tokio::task::yield_now().await;
    }
}

/// Waits until so many bytes wait for the client, and sees that it has been sent none.
async fn held(socket: &UnixStream, client: &Client, bytes: usize) {
    until(|| client.unsent_bytes.load(Ordering::Relaxed) == bytes).await;
    let read = socket.try_read(&mut [0]);
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock, "a held reply was sent");
}

async fn answered(socket: &mut UnixStream, reply: &str) {
    let mut bytes = vec![0; reply.len()];
    socket.read_exact(&mut bytes).await.unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), reply);
}

/// One client writes and waits for the log; another reads and is answered at once.
#[tokio::test]
async fn a_write_is_answered_when_its_effect_is_committed() {
    let mut fixture = Fixture::new(&[]);
    let (mut writer, client, _) = fixture.connect();
    let (mut reader, ..) = fixture.connect();
    writer.write_all(b"GET k\r\n").await.unwrap();
    answered(&mut writer, "$-1\r\n").await;
    writer.write_all(b"SET k v\r\n").await.unwrap();
    held(&writer, &client, 5).await;
    reader.write_all(b"GET k\r\n").await.unwrap();
    answered(&mut reader, "$1\r\nv\r\n").await;
    fixture.commit();
    answered(&mut writer, "+OK\r\n").await;
    // A write that is committed already is not waited for.
    writer.write_all(b"GET k\r\n").await.unwrap();
    answered(&mut writer, "$1\r\nv\r\n").await;
}

/// Two batches, the second sent while the first is held, and nothing of them committed out of order. A read before a
/// write may be answered before it: the connection's turn may end in between, if the machine lets it wait.
#[tokio::test]
async fn later_replies_stay_behind_a_held_one() {
    let mut fixture = Fixture::new(&[]);
    let (mut socket, client, _) = fixture.connect();
    socket.write_all(b"SET k v\r\nPING\r\n").await.unwrap();
    held(&socket, &client, 12).await;
    socket.write_all(b"PING\r\n").await.unwrap();
    held(&socket, &client, 19).await;
    fixture.commit();
    answered(&mut socket, "+OK\r\n+PONG\r\n+PONG\r\n").await;
    socket.write_all(b"SET k v\r\nGET k\r\n").await.unwrap();
    held(&socket, &client, 12).await;
    fixture.commit();
    answered(&mut socket, "+OK\r\n$1\r\nv\r\n").await;
}

/// WAIT, which the shell carries out, does not begin before what was asked earlier is answered. The write behind it
/// keeps the transaction's replies together, wherever the connection's turn ends.
#[tokio::test]
async fn a_command_of_the_shell_runs_when_nothing_is_held() {
    let mut fixture = Fixture::new(&[]);
    let (mut socket, client, _) = fixture.connect();
    socket.write_all(b"SET k v\r\nWAIT 0 0\r\nSET k w\r\nMULTI\r\nSET k x\r\nEXEC\r\n").await.unwrap();
    until(|| fixture.server.replication.commit_point.has_waiters()).await;
    held(&socket, &client, 5).await;
    fixture.commit();
    answered(&mut socket, "+OK\r\n:0\r\n").await;
    held(&socket, &client, 28).await;
    fixture.commit();
    answered(&mut socket, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n").await;
}

/// A client that says good-bye behind a write hears that the write was done, and then the connection ends.
#[tokio::test]
async fn a_connection_closes_behind_what_it_holds() {
    let mut fixture = Fixture::new(&[]);
    let (mut socket, client, served) = fixture.connect();
    socket.write_all(b"SET k v\r\nQUIT\r\n").await.unwrap();
    held(&socket, &client, 10).await;
    assert!(!served.is_finished());
    fixture.commit();
    answered(&mut socket, "+OK\r\n+OK\r\n").await;
    assert_eq!(socket.read(&mut [0]).await.unwrap(), 0);
    served.await.unwrap();
}

/// A client leaves, another is killed, while their replies are held: no connection is kept for the commit.
#[tokio::test]
async fn a_client_that_leaves_is_not_held() {
    let fixture = Fixture::new(&[]);
    let (mut leaver, client, served) = fixture.connect();
    leaver.write_all(b"SET k v\r\n").await.unwrap();
    held(&leaver, &client, 5).await;
    drop(leaver);
    served.await.unwrap();
    let (mut victim, client, served) = fixture.connect();
    victim.write_all(b"SET k v\r\nWAIT 0 0\r\n").await.unwrap();
    held(&victim, &client, 5).await;
    client.kill();
    served.await.unwrap();
    assert!(!fixture.server.replication.commit_point.has_waiters());
    assert_eq!(fixture.server.network.connected.load(Ordering::Relaxed), 0);
}

/// The log stands still, and a client writes on: what is held for it counts for its limit.
#[tokio::test]
async fn held_replies_count_for_the_output_limit() {
    let fixture = Fixture::new(&[("client-output-buffer-limit", &["normal", "100", "0", "0"])]);
    let (mut socket, client, served) = fixture.connect();
    for sent in 1..=20 {
        socket.write_all(b"SET k v\r\n").await.unwrap();
        held(&socket, &client, sent * 5).await;
    }
    socket.write_all(b"SET k v\r\n").await.unwrap();
    served.await.unwrap();
    let cut_off = &fixture.server.network.stats.output_limit_disconnections;
    assert_eq!(cut_off.load(Ordering::Relaxed), 1);
}
