//! Tests of replies and votes while the journal or the configuration file cannot be written, and of users and pauses.

use std::fs;

use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::connection::{AcceptedClient, ClientOutput};

const CONFIG: &str = "sentinel deny-scripts-reconfig no
sentinel myid aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
sentinel monitor mymaster 127.0.0.1 1 2
";
const CANDIDATE: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// Creates a sentinel with one client. Returns the queue of the client's replies.
fn start(folder: &std::path::Path) -> (ServerState, UnboundedReceiver<Vec<u8>>) {
    let (files, journal) = Files::open(folder.join("sentinel.conf")).unwrap();
    let own = sentinel::SentinelConfig::parse(CONFIG).unwrap();
    let began = std::time::Instant::now();
    let mut out = Vec::new();
    let sentinel = Sentinel::new(time_since(began), own, journal, 1, &mut out);
    let engine = Arc::new(Engine::for_sentinel(::commands::sentinel_registry().catalogue(), 1));
    let process = ProcessParts {
        config: Config::default(),
        tls: Arc::default(),
        files,
        engine,
        names_default: false,
        events: channel(16).0,
        traffic: Arc::default(),
        started_at: began,
    };
    let mut state = ServerState::new(sentinel, process);
    state.save_first_config(&mut out).unwrap();
    // The test has no runtime for connections.
    out.retain(|action| matches!(action, SentinelAction::Write(_)));
    state.execute_actions(out);
    let replies = open_client(&mut state, 1);
    (state, replies)
}

fn open_client(state: &mut ServerState, client: u64) -> UnboundedReceiver<Vec<u8>> {
    let (output, replies) = ClientOutput::channel(Arc::default());
    let link = engine::ConnectionInfo::default();
    let opened = AcceptedClient { client, link, output, is_authenticated: Arc::new(true.into()) };
    state.handle_event(ServerEvent::ClientOpened(opened), &mut Vec::new());
    replies
}

fn send_request(state: &mut ServerState, line: &str) {
    send_request_as(state, 1, line);
}

fn send_request_as(state: &mut ServerState, client: u64, line: &str) {
    let args = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    let mut out = Vec::new();
    state.handle_event(ServerEvent::ClientRequest { client, args }, &mut out);
    state.execute_actions(out);
}

fn next_reply(replies: &mut UnboundedReceiver<Vec<u8>>) -> Option<String> {
    replies.try_recv().ok().map(|bytes| String::from_utf8(bytes).unwrap())
}

/// A candidate requests a vote while the disk is full. There is no reply, because the vote would be lost in a crash,
/// but other clients get replies. Once there is space, the next request makes the machine write both votes, and the
/// replies keep their order.
#[test]
fn vote_that_cannot_be_written_is_held_back() {
    let folder = tempfile::tempdir().unwrap();
    let (mut state, mut replies) = start(folder.path());
    let vote = |epoch: u64| format!("SENTINEL IS-MASTER-DOWN-BY-ADDR 127.0.0.1 1 {epoch} {CANDIDATE}");
    let given = |epoch: u64| Some(format!("*3\r\n:0\r\n$40\r\n{CANDIDATE}\r\n:{epoch}\r\n"));
    send_request(&mut state, &vote(1));
    assert_eq!(next_reply(&mut replies), given(1));

    state.files.fill_disk();
    // Compacting the journal fails as well, because a directory has the name of its temporary file.
    let journal = folder.path().join("sentinel.conf.raft");
    let before = fs::read(&journal).unwrap();
    fs::remove_file(&journal).unwrap();
    fs::create_dir(&journal).unwrap();
    send_request(&mut state, &vote(2));
    assert_eq!(next_reply(&mut replies), None);
    send_request(&mut state, "SENTINEL MYID");
    assert_eq!(next_reply(&mut replies), None, "a reply does not overtake another one");
    let mut others = open_client(&mut state, 2);
    send_request_as(&mut state, 2, "PING");
    assert_eq!(next_reply(&mut others), Some("+PONG\r\n".to_owned()));

    fs::remove_dir(&journal).unwrap();
    fs::write(&journal, before).unwrap();
    send_request(&mut state, &vote(3));
    assert_eq!(next_reply(&mut replies), given(2));
    assert!(next_reply(&mut replies).is_some_and(|id| id.starts_with("$40\r\n")));
    assert_eq!(next_reply(&mut replies), given(3));
    // The vote must be on disk after a restart.
    drop(state);
    let (_, journal) = Files::open(folder.path().join("sentinel.conf")).unwrap();
    assert_eq!(journal.groups["mymaster"].term.0, 3);
}

/// Sends a request line and returns the reply, with line breaks replaced by `|`.
fn send_line(state: &mut ServerState, replies: &mut UnboundedReceiver<Vec<u8>>, line: &str) -> String {
    send_request(state, line);
    let mut all = Vec::new();
    while let Ok(bytes) = replies.try_recv() {
        all.extend(bytes);
    }
    String::from_utf8(all).unwrap().trim_end().replace("\r\n", "|")
}

/// A new user is saved at once, without the plaintext password, and still exists after a restart. The unchanged user
/// `default` is not saved.
#[test]
fn users_are_saved_before_acl_setuser_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (mut state, mut replies) = start(folder.path());
    let hash = "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";
    let set = "ACL SETUSER alice on >p +@all -sentinel|set";
    assert_eq!(send_line(&mut state, &mut replies, set), "+OK");
    let text = fs::read_to_string(folder.path().join("sentinel.conf")).unwrap();
    let line = format!("user alice on #{hash} resetchannels +@all -sentinel|set");
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(!text.contains("user default"), "{text}");
    let again = Engine::for_sentinel(::commands::sentinel_registry().catalogue(), 2);
    access::create_users(&again, "", &sentinel::SentinelConfig::parse(&text).unwrap().users).unwrap();
    assert!(again.access.users.read().can_authenticate(b"alice", b"p"));
    assert_eq!(send_line(&mut state, &mut replies, "AUTH alice p"), "+OK");
    let refused = send_line(&mut state, &mut replies, "SENTINEL SET mymaster quorum 1");
    assert_eq!(refused, "-NOPERM User alice has no permissions to run the 'sentinel|set' command");
    assert_eq!(send_line(&mut state, &mut replies, "ACL DELUSER alice"), ":1");
    assert!(!fs::read_to_string(folder.path().join("sentinel.conf")).unwrap().contains("user alice"));
}

/// User names can contain any bytes except blanks, and the configuration file preserves them.
#[test]
fn users_with_non_utf8_names_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut state, mut replies) = start(folder.path());
    for name in [&b"\xff\xfe"[..], b"\xff"] {
        let args = [b"ACL", &b"SETUSER"[..], name, b"on", b">p", b"&\xfd*", b"+@all"].map(<[u8]>::to_vec);
        let mut out = Vec::new();
        state.handle_event(ServerEvent::ClientRequest { client: 1, args: args.into() }, &mut out);
        state.execute_actions(out);
        assert_eq!(next_reply(&mut replies).as_deref(), Some("+OK\r\n"));
    }
    let text = fs::read(folder.path().join("sentinel.conf")).unwrap();
    let again = Engine::for_sentinel(::commands::sentinel_registry().catalogue(), 2);
    access::create_users(&again, "", &sentinel::SentinelConfig::parse(&text).unwrap().users).unwrap();
    for name in [&b"\xff\xfe"[..], b"\xff"] {
        assert!(again.access.users.read().can_authenticate(name, b"p"));
        let user = state.engine.access.users.read().find(name).unwrap().format_rules();
        assert_eq!(again.access.users.read().find(name).unwrap().format_rules(), user);
    }
}

/// A missing script makes SENTINEL SET fail; earlier options are applied, later ones are not.
#[test]
fn missing_script_rejects_the_options_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut state, mut replies) = start(folder.path());
    let quorum = |state: &mut ServerState, replies: &mut _| {
        let fields = send_line(state, replies, "SENTINEL MASTER mymaster");
        fields.split("|quorum|").nth(1).unwrap().split('|').nth(1).unwrap().to_owned()
    };
    let set = "SENTINEL SET mymaster quorum 3 notification-script /nope quorum 4";
    let missing = "-ERR Notification script seems non existing or non executable";
    assert_eq!(send_line(&mut state, &mut replies, set), missing);
    assert_eq!(quorum(&mut state, &mut replies), "3");
    let both = "SENTINEL SET mymaster quorum 0 notification-script /nope";
    assert!(send_line(&mut state, &mut replies, both).starts_with("-ERR Invalid argument '0'"));
}

/// During a pause, requests are deferred in order and executed afterwards.
#[test]
fn pause_defers_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (mut state, mut replies) = start(folder.path());
    assert_eq!(send_line(&mut state, &mut replies, "CLIENT PAUSE 3600000"), "+OK");
    assert_eq!(send_line(&mut state, &mut replies, "PING"), "");
    assert_eq!(send_line(&mut state, &mut replies, "SENTINEL MYID"), "");
    let (settings, pauses) = (&state.engine.settings, &state.engine.scheduling.pauses);
    pauses.unpause(settings, engine::PausePurpose::Client);
    let mut out = Vec::new();
    state.execute_deferred(&mut out);
    state.execute_actions(out);
    assert_eq!(next_reply(&mut replies), Some("+PONG\r\n".to_owned()));
    assert!(next_reply(&mut replies).is_some_and(|id| id.starts_with("$40\r\n")));
}
