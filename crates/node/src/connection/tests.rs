//! Tests of connections that hold replies until the log is committed. The tests use real sockets, and commit the log
//! with their own cursor.

use config::Config;
use durability::stream::{EngineLogHandle, SharedLog};
use engine::{CommandSet, Engine};
use keyspace::Keyspace;
use net::scratch::install_scratch;
use replication::CursorId;
use slot_routing::ReplOffset;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::*;
use crate::server::ServerIdentity;
use crate::server::settings;
use crate::workers::connection_slot::ConnectionSlots;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A server without threads and listeners that replies to writes only after its log is committed.
struct TestServer {
    server: Arc<Server>,
    cursor: CursorId,
    read_offset: ReplOffset,
}

impl TestServer {
    fn new(parameters: &[(&str, &[&str])]) -> Self {
        let config = Config::default();
        for (name, words) in parameters {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            config.load(name, &words).unwrap();
        }
        let log = SharedLog::new(1 << 20);
        let commands = CommandSet::new(::commands::server_registry());
        let catalogue = commands.registry().catalogue();
        let engine =
            Engine::new(catalogue, Keyspace::new(7, 1), None, Box::new(EngineLogHandle(log.clone())));
        let server = Server::new(engine, commands, config, ServerIdentity::default(), log.clone(), None);
        settings::apply_settings(&server);
        install_scratch(&server.engine, &server.network);
        server.replication.commit_point.set_required(true);
        let mut log = log.lock();
        server.replication.log.open(&mut log);
        let read = log.position().offset;
        let cursor = log.add_cursor(read);
        drop(log);
        Self { server, cursor, read_offset: read }
    }

    /// Opens a client connection, and spawns the task that serves it.
    fn connect(&self) -> (UnixStream, Arc<Client>, JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.server.network.client_count.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(self.server.clone(), Stream::Unix(theirs), 1).unwrap();
        let client = connection.session.client().clone();
        (ours, client, tokio::spawn(Arc::<ConnectionSlots>::default().serve(Box::new(connection))))
    }

    /// Reads the log to its end with the cursor, and publishes this position as committed.
    fn commit(&mut self) {
        let mut bytes = Vec::new();
        self.server.replication.log.lock().read(self.cursor, 1 << 20, &mut bytes).unwrap();
        self.read_offset.0 += bytes.len() as u64;
        let point = &self.server.replication.commit_point;
        point.publish(HistoryOffset { history: point.history(), offset: self.read_offset });
    }
}

async fn wait_until(condition: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < TEST_TIMEOUT, "it does not come to that");
        tokio::task::yield_now().await;
    }
}

/// Waits until `bytes` bytes are pending for the client, and checks that nothing was sent.
async fn assert_output_is_held(socket: &UnixStream, client: &Client, bytes: usize) {
    wait_until(|| client.unsent_bytes.load(Ordering::Relaxed) == bytes).await;
    let read = socket.try_read(&mut [0]);
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock, "a held reply was sent");
}

async fn assert_reply(socket: &mut UnixStream, reply: &str) {
    let mut bytes = vec![0; reply.len()];
    socket.read_exact(&mut bytes).await.unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), reply);
}

/// One client writes and waits for the commit, while another client reads and is answered at once.
#[tokio::test]
async fn write_is_answered_after_its_effect_is_committed() {
    let mut fixture = TestServer::new(&[]);
    let (mut writer, client, _) = fixture.connect();
    let (mut reader, ..) = fixture.connect();
    writer.write_all(b"GET k\r\n").await.unwrap();
    assert_reply(&mut writer, "$-1\r\n").await;
    writer.write_all(b"SET k v\r\n").await.unwrap();
    assert_output_is_held(&writer, &client, 5).await;
    reader.write_all(b"GET k\r\n").await.unwrap();
    assert_reply(&mut reader, "$1\r\nv\r\n").await;
    fixture.commit();
    assert_reply(&mut writer, "+OK\r\n").await;
    // The write is already committed, so the reply to this read is sent at once.
    writer.write_all(b"GET k\r\n").await.unwrap();
    assert_reply(&mut writer, "$1\r\nv\r\n").await;
}

/// A client sends a second batch while replies to the first are held, and gets all replies in order. A read before a
/// write may be answered early, since the time slice can end between them.
#[tokio::test]
async fn later_replies_stay_behind_a_held_reply() {
    let mut fixture = TestServer::new(&[]);
    let (mut socket, client, _) = fixture.connect();
    socket.write_all(b"SET k v\r\nPING\r\n").await.unwrap();
    assert_output_is_held(&socket, &client, 12).await;
    socket.write_all(b"PING\r\n").await.unwrap();
    assert_output_is_held(&socket, &client, 19).await;
    fixture.commit();
    assert_reply(&mut socket, "+OK\r\n+PONG\r\n+PONG\r\n").await;
    socket.write_all(b"SET k v\r\nGET k\r\n").await.unwrap();
    assert_output_is_held(&socket, &client, 12).await;
    fixture.commit();
    assert_reply(&mut socket, "+OK\r\n$1\r\nv\r\n").await;
}

/// A node command such as WAIT starts only after earlier replies were sent. The replies of the transaction that follows
/// it are sent together.
#[tokio::test]
async fn node_command_runs_after_held_replies_were_sent() {
    let mut fixture = TestServer::new(&[]);
    let (mut socket, client, _) = fixture.connect();
    socket.write_all(b"SET k v\r\nWAIT 0 0\r\nSET k w\r\nMULTI\r\nSET k x\r\nEXEC\r\n").await.unwrap();
    wait_until(|| fixture.server.replication.commit_point.has_waiters()).await;
    assert_output_is_held(&socket, &client, 5).await;
    fixture.commit();
    assert_reply(&mut socket, "+OK\r\n:0\r\n").await;
    assert_output_is_held(&socket, &client, 28).await;
    fixture.commit();
    assert_reply(&mut socket, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n").await;
}

/// A client that sends QUIT after a write gets the reply to the write before the connection closes.
#[tokio::test]
async fn connection_closes_after_its_held_replies() {
    let mut fixture = TestServer::new(&[]);
    let (mut socket, client, served) = fixture.connect();
    socket.write_all(b"SET k v\r\nQUIT\r\n").await.unwrap();
    assert_output_is_held(&socket, &client, 10).await;
    assert!(!served.is_finished());
    fixture.commit();
    assert_reply(&mut socket, "+OK\r\n+OK\r\n").await;
    assert_eq!(socket.read(&mut [0]).await.unwrap(), 0);
    served.await.unwrap();
}

/// When a history ends, a client whose write may be lost gets no reply and is disconnected. The offset of that write is
/// below those of the new history.
#[tokio::test]
async fn held_reply_of_an_ended_history_is_never_sent() {
    let fixture = TestServer::new(&[]);
    let point = &fixture.server.replication.commit_point;
    let (mut waiting, client, served) = fixture.connect();
    waiting.write_all(b"SET k v\r\n").await.unwrap();
    assert_output_is_held(&waiting, &client, 5).await;
    point.end_history();
    assert_eq!(waiting.read(&mut [0]).await.unwrap(), 0);
    served.await.unwrap();
    // This client writes between the two histories, so its write may not be logged.
    let (mut between, _, served) = fixture.connect();
    between.write_all(b"GET k\r\nSET k w\r\n").await.unwrap();
    assert_eq!(between.read(&mut [0]).await.unwrap(), 0);
    served.await.unwrap();
    point.begin_history();
    point.publish(HistoryOffset { history: point.history(), offset: ReplOffset(1 << 40) });
    let (mut later, ..) = fixture.connect();
    later.write_all(b"SET k x\r\n").await.unwrap();
    assert_reply(&mut later, "+OK\r\n").await;
    assert!(!point.has_waiters());
}

/// A read is answered although the client's last write, in the ended history, has a larger offset than the new history.
#[tokio::test]
async fn reads_do_not_wait_for_an_offset_of_an_ended_history() {
    let mut fixture = TestServer::new(&[]);
    let (mut socket, client, _) = fixture.connect();
    socket.write_all(b"SET k v\r\n").await.unwrap();
    assert_output_is_held(&socket, &client, 5).await;
    fixture.commit();
    assert_reply(&mut socket, "+OK\r\n").await;
    fixture.server.replication.commit_point.begin_history();
    socket.write_all(b"GET k\r\n").await.unwrap();
    assert_reply(&mut socket, "$1\r\nv\r\n").await;
}

/// Connections that close while replies are held are released without waiting for the commit.
#[tokio::test]
async fn disconnected_client_is_released() {
    let fixture = TestServer::new(&[]);
    let (mut leaver, client, served) = fixture.connect();
    leaver.write_all(b"SET k v\r\n").await.unwrap();
    assert_output_is_held(&leaver, &client, 5).await;
    drop(leaver);
    served.await.unwrap();
    let (mut victim, client, served) = fixture.connect();
    victim.write_all(b"SET k v\r\nWAIT 0 0\r\n").await.unwrap();
    assert_output_is_held(&victim, &client, 5).await;
    client.kill();
    served.await.unwrap();
    assert!(!fixture.server.replication.commit_point.has_waiters());
    assert_eq!(fixture.server.network.client_count.load(Ordering::Relaxed), 0);
}

/// Held replies count towards the output buffer limit while the log is not committed.
#[tokio::test]
async fn held_replies_count_for_the_output_buffer_limit() {
    let fixture = TestServer::new(&[("client-output-buffer-limit", &["normal", "100", "0", "0"])]);
    let (mut socket, client, served) = fixture.connect();
    for sent in 1..=20 {
        socket.write_all(b"SET k v\r\n").await.unwrap();
        assert_output_is_held(&socket, &client, sent * 5).await;
    }
    socket.write_all(b"SET k v\r\n").await.unwrap();
    served.await.unwrap();
    let cut_off = &fixture.server.network.stats.output_limit_disconnections;
    assert_eq!(cut_off.load(Ordering::Relaxed), 1);
}
