//! What must not leave while the journal cannot be written.

use std::fs;

use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::sentinel::clients::{Opened, Output};

const CONFIG: &str = "sentinel myid aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
sentinel monitor mymaster 127.0.0.1 1 2
";
const CANDIDATE: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// A sentinel with one client.
fn center(folder: &std::path::Path) -> (Center, UnboundedReceiver<Vec<u8>>) {
    let (files, groups) = Files::open(folder.join("sentinel.conf")).unwrap();
    let own = sentinel::Config::parse(CONFIG).unwrap();
    let began = std::time::Instant::now();
    let sentinel = Sentinel::new(time_since(began), own, groups, 1, &mut Vec::new());
    let mut center = Center {
        sentinel,
        config: Config::default(),
        files,
        synced: 0,
        links: BTreeMap::new(),
        lives: 0,
        clients: BTreeMap::new(),
        scripts: BTreeMap::new(),
        events: channel(16).0,
        began,
        commands: 0,
        connections: 0,
        ends: false,
    };
    let (output, replies) = Output::channel();
    center
        .take(Event::ClientOpened(Opened { client: 1, peer: "127.0.0.1:2".into(), output }), &mut Vec::new());
    (center, replies)
}

fn ask(center: &mut Center, line: &str) {
    let args = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    let mut out = Vec::new();
    center.take(Event::ClientRequest { client: 1, args }, &mut out);
    center.carry_out(out);
}

fn received(replies: &mut UnboundedReceiver<Vec<u8>>) -> Option<String> {
    replies.try_recv().ok().map(|bytes| String::from_utf8(bytes).unwrap())
}

/// The disk is full when a candidate asks for a vote: it gets no answer, since after a crash nobody would know of the
/// vote. What depends on no vote is answered. With room again, the candidate asks again and gets the vote.
#[test]
fn a_vote_that_cannot_be_written_is_not_given() {
    let folder = tempfile::tempdir().unwrap();
    let (mut center, mut replies) = center(folder.path());
    let vote = |epoch: u64| format!("SENTINEL IS-MASTER-DOWN-BY-ADDR 127.0.0.1 1 {epoch} {CANDIDATE}");
    let given = |epoch: u64| Some(format!("*3\r\n:0\r\n$40\r\n{CANDIDATE}\r\n:{epoch}\r\n"));
    ask(&mut center, &vote(1));
    assert_eq!(received(&mut replies), given(1));

    center.files.fill_disk();
    // Nor can a new journal take the old one's place: a folder is there.
    let journal = folder.path().join("sentinel.conf.raft");
    let before = fs::read(&journal).unwrap();
    fs::remove_file(&journal).unwrap();
    fs::create_dir(&journal).unwrap();
    ask(&mut center, &vote(2));
    assert_eq!(received(&mut replies), None);
    ask(&mut center, "SENTINEL MYID");
    assert!(received(&mut replies).is_some());

    fs::remove_dir(&journal).unwrap();
    fs::write(&journal, before).unwrap();
    ask(&mut center, &vote(3));
    assert_eq!(received(&mut replies), given(3));
    // And it is on disk.
    drop(center);
    let (_, groups) = Files::open(folder.path().join("sentinel.conf")).unwrap();
    assert_eq!(groups["mymaster"].term.0, 3);
}
