//! Tests of a single sentinel. The simulator (crate `sim`) tests groups of sentinels.

mod foreign_servers;
mod handover;
mod options_and_commands;
mod transactions;
mod world;

use std::time::Duration;

use clock::Instant;
use consensus::{GroupChange, GroupRecord, Term};
use driver::Driver;
use resp::{Protocol, Value};

use crate::{
    Addr, ClientCommand, ClientId, FileWrite, LinkId, LinkKind, SavedJournal, Sentinel, SentinelAction,
    SentinelConfig, SentinelInput,
};

const CONFIG: &str = "sentinel myid aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
sentinel monitor mymaster 10.0.0.1 6379 2
sentinel down-after-milliseconds mymaster 1000
";
const PEER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const OTHER: &str = "cccccccccccccccccccccccccccccccccccccccc";

struct TestSentinel {
    sentinel: Sentinel,
    now: Instant,
    /// Whether the test reports the end of writes. Otherwise writes end at once.
    has_slow_disk: bool,
}

impl TestSentinel {
    /// Creates a sentinel with established links to its master.
    fn new() -> Self {
        let now = Instant::from_millis(100_000);
        let config = SentinelConfig::parse(CONFIG).unwrap();
        let mut out = Vec::new();
        let sentinel = Sentinel::new(now, config, SavedJournal::default(), 1, &mut out);
        let mut bench = Self { sentinel, now, has_slow_disk: false };
        assert!(matches!(out[0], SentinelAction::Write(FileWrite::Config(_))), "{out:?}");
        bench.input(SentinelInput::Written { journal_bytes: 0 });
        for (link, kind) in [(1, LinkKind::Command), (2, LinkKind::Hello)] {
            let addr = Addr::new("10.0.0.1", 6379);
            let connect = SentinelAction::Connect { link: LinkId(link), addr, kind };
            if link == 1 {
                out = bench.deadline();
            }
            assert!(out.contains(&connect), "{out:?}");
        }
        for link in [1, 2] {
            let local_ip = "10.0.0.9".into();
            bench.input(SentinelInput::Connected { link: LinkId(link), local_ip });
        }
        // Replies to CLIENT SETNAME, PING and INFO.
        for value in [Value::Simple("OK".into()), Value::Simple("PONG".into()), info("role:master\r\n")] {
            bench.input(SentinelInput::Reply { link: LinkId(1), value });
        }
        bench
    }

    fn input(&mut self, input: SentinelInput) -> Vec<SentinelAction> {
        let mut out = Vec::new();
        self.sentinel.handle(self.now, input, &mut out);
        let mut done = 0;
        while !self.has_slow_disk && done < out.len() {
            if let SentinelAction::Write(_) = out[done] {
                self.sentinel.handle(self.now, SentinelInput::Written { journal_bytes: 0 }, &mut out);
            }
            done += 1;
        }
        out
    }

    fn deadline(&mut self) -> Vec<SentinelAction> {
        self.input(SentinelInput::Deadline)
    }

    /// Advances the time and handles all deadlines in between. Returns the published events.
    fn advance_time(&mut self, millis: u64) -> Vec<String> {
        let end = self.now + Duration::from_millis(millis);
        let mut events = Vec::new();
        while let Some(due) = self.sentinel.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            let out = self.deadline();
            events.extend(published(&out));
        }
        self.now = end;
        events
    }

    fn command(&mut self, line: &str) -> String {
        let out = self.input(command(line));
        let reply = out.into_iter().find_map(|action| match action {
            SentinelAction::Reply { reply, .. } => Some(String::from_utf8(reply).unwrap()),
            _ => None,
        });
        reply.expect("every command is answered")
    }

    fn deliver_hello_of(&mut self, run_id: &str, port: u16) -> Vec<SentinelAction> {
        self.hello(&format!("10.0.0.8,{port},{run_id},0,mymaster,10.0.0.1,6379,0"))
    }

    fn hello(&mut self, payload: &str) -> Vec<SentinelAction> {
        let words = ["message", "__sentinel__:hello", payload];
        let value = Value::Array(words.iter().map(|word| Value::Bulk(word.as_bytes().to_vec())).collect());
        self.input(SentinelInput::Reply { link: LinkId(2), value })
    }
}

fn command(line: &str) -> SentinelInput {
    let args = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    let (client, protocol) = (Some(ClientId(7)), Protocol::Resp2);
    SentinelInput::Command(ClientCommand { client, protocol, args, rejected_script: None })
}

fn info(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

fn published(out: &[SentinelAction]) -> Vec<String> {
    let line = |action: &SentinelAction| match action {
        SentinelAction::Publish { channel, payload } => Some(format!("{channel} {payload}")),
        _ => None,
    };
    out.iter().filter_map(line).collect()
}

#[test]
fn refused_connections_after_a_broken_link_mean_down_within_refused_after() {
    let mut bench = TestSentinel::new();
    let out = bench.input(SentinelInput::Disconnected { link: LinkId(1) });
    let addr = Addr::new("10.0.0.1", 6379);
    let connect = SentinelAction::Connect { link: LinkId(1), addr, kind: LinkKind::Command };
    assert_eq!(out, [connect], "the first attempt is made at once");
    bench.input(SentinelInput::ConnectFailed { link: LinkId(1), refused: true });
    assert_eq!(bench.advance_time(140), Vec::<String>::new());
    assert_eq!(bench.advance_time(20), ["+sdown master mymaster 10.0.0.1 6379"]);
}

#[test]
fn broken_link_without_refusals_waits_for_down_after() {
    let mut bench = TestSentinel::new();
    bench.input(SentinelInput::Disconnected { link: LinkId(1) });
    assert_eq!(bench.advance_time(990), Vec::<String>::new());
    assert_eq!(bench.advance_time(100), ["+sdown master mymaster 10.0.0.1 6379"]);
}

#[test]
fn restart_within_refused_after_is_no_failure() {
    let mut bench = TestSentinel::new();
    bench.input(SentinelInput::Disconnected { link: LinkId(1) });
    bench.input(SentinelInput::ConnectFailed { link: LinkId(1), refused: true });
    assert_eq!(bench.advance_time(100), Vec::<String>::new());
    bench.input(SentinelInput::Connected { link: LinkId(1), local_ip: "10.0.0.9".into() });
    for value in
        [Value::Simple("OK".into()), Value::Error("LOADING Redis is loading the dataset in memory".into())]
    {
        bench.input(SentinelInput::Reply { link: LinkId(1), value });
    }
    assert_eq!(bench.advance_time(90), Vec::<String>::new());
}

#[test]
fn vote_is_given_once_per_epoch_after_it_is_durable() {
    let mut bench = TestSentinel::new();
    bench.deliver_hello_of(PEER, 26380);
    bench.deliver_hello_of(OTHER, 26381);
    let ask = |id: &str, epoch: u64| format!("SENTINEL IS-MASTER-DOWN-BY-ADDR 10.0.0.1 6379 {epoch} {id}");
    bench.has_slow_disk = true;
    let out = bench.input(command(&ask(PEER, 5)));
    let vote = u64::from_str_radix("bbbbbbbbbbbbbbbb", 16).unwrap();
    let ballot = GroupChange::Ballot { term: Term(5), vote, commit: 0 };
    let record = GroupRecord { group: "mymaster".into(), changes: vec![ballot] };
    assert!(out.contains(&SentinelAction::Write(FileWrite::AppendJournal(vec![record]))), "{out:?}");
    assert!(!out.iter().any(|action| matches!(action, SentinelAction::Reply { .. })), "{out:?}");
    let reply = format!("*3\r\n:0\r\n$40\r\n{PEER}\r\n:5\r\n").into_bytes();
    let reply = SentinelAction::Reply { client: ClientId(7), reply };
    assert_eq!(bench.input(SentinelInput::Written { journal_bytes: 0 }), [reply]);
    bench.has_slow_disk = false;
    assert_eq!(published(&out), ["+new-epoch 5".into(), format!("+vote-for-leader {PEER} 5")]);
    // Another candidate requests a vote in the same epoch, followed by a candidate in an earlier epoch.
    let taken = format!("*3\r\n:0\r\n$40\r\n{PEER}\r\n:5\r\n");
    assert_eq!(bench.command(&ask(OTHER, 5)), taken);
    assert_eq!(bench.command(&ask(OTHER, 4)), taken);
    assert_eq!(bench.command(&ask(OTHER, 6)), format!("*3\r\n:0\r\n$40\r\n{OTHER}\r\n:6\r\n"));
}

#[test]
fn sentinels_discovered_by_hello_count_until_replaced() {
    let mut bench = TestSentinel::new();
    let out = bench.deliver_hello_of(PEER, 26380);
    let event = format!("+sentinel sentinel {PEER} 10.0.0.8 26380 @ mymaster 10.0.0.1 6379");
    assert_eq!(published(&out), [event]);
    assert_eq!(published(&bench.deliver_hello_of(PEER, 26380)), Vec::<String>::new());
    // The sentinel restarted without its file and has a new run id at the same address. It counts once.
    let out = bench.deliver_hello_of(OTHER, 26380);
    assert!(published(&out)[0].starts_with(&format!("+sentinel-invalid-addr sentinel {PEER}")), "{out:?}");
    assert_eq!(bench.sentinel.status("mymaster").unwrap().sentinels, 2);
    bench.deliver_hello_of(PEER, 26381);
    bench.advance_time(1500);
    let text = bench.command("SENTINEL CKQUORUM mymaster");
    assert!(text.starts_with("-NOQUORUM 1 usable Sentinels."), "{text}");
    assert!(text.contains(&format!("{PEER} at 10.0.0.8:26381")), "{text}");
    assert_eq!(bench.sentinel.status("mymaster").unwrap().sentinels, 3);
    assert_eq!(bench.command(&format!("SENTINEL FORGET-PEER mymaster {PEER}")), "+OK\r\n");
    assert_eq!(bench.sentinel.status("mymaster").unwrap().sentinels, 2);
    // The sentinel moves to the address that another sentinel had before.
    bench.deliver_hello_of(PEER, 26381);
    assert_eq!(bench.sentinel.status("mymaster").unwrap().sentinels, 3);
    bench.deliver_hello_of(PEER, 26380);
    assert_eq!(bench.sentinel.status("mymaster").unwrap().sentinels, 2);
}

/// A sentinel that lost its files has forgotten its vote. Together with a sentinel that was away, it forms a majority
/// only once the third sentinel has reported its epochs or counts as gone.
#[test]
fn sentinel_without_files_forms_no_majority_with_one_that_was_away() {
    const THIRD: &str = "dddddddddddddddddddddddddddddddddddddddd";
    let two_are_most = |bench: &TestSentinel| bench.sentinel.masters["mymaster"].sentinels().majority() == 2;
    for third_is_heard in [true, false] {
        let mut bench = TestSentinel::new();
        bench.deliver_hello_of(PEER, 26380);
        bench.deliver_hello_of(THIRD, 26381);
        assert!(two_are_most(&bench));
        bench.advance_time(100);
        bench.deliver_hello_of(OTHER, 26380);
        assert!(!two_are_most(&bench));
        assert_eq!(bench.sentinel.status("mymaster").unwrap().sentinels, 3, "as operators count");
        bench.advance_time(100);
        bench.deliver_hello_of(OTHER, 26380);
        assert!(!two_are_most(&bench));
        if third_is_heard {
            bench.deliver_hello_of(THIRD, 26381);
        } else {
            bench.advance_time(180_000);
            bench.deliver_hello_of(OTHER, 26380);
        }
        assert!(two_are_most(&bench), "{third_is_heard}");
    }
}

#[test]
fn newer_configuration_in_a_hello_is_adopted_and_saved_at_once() {
    let mut bench = TestSentinel::new();
    bench.deliver_hello_of(PEER, 26380);
    let out = bench.hello(&format!("10.0.0.8,26380,{PEER},3,mymaster,10.0.0.2,6379,3"));
    let events = published(&out);
    assert!(events.contains(&"+switch-master mymaster 10.0.0.1 6379 10.0.0.2 6379".to_owned()), "{events:?}");
    assert!(events.contains(&"+slave slave 10.0.0.1:6379 10.0.0.1 6379 @ mymaster 10.0.0.2 6379".to_owned()));
    let written = out.iter().any(|action| {
        matches!(action, SentinelAction::Write(FileWrite::Config(text)) if std::str::from_utf8(text).unwrap().contains("sentinel monitor mymaster 10.0.0.2 6379 2"))
    });
    assert!(written, "{out:?}");
    let older = bench.hello(&format!("10.0.0.8,26380,{PEER},3,mymaster,10.0.0.1,6379,2"));
    assert_eq!(published(&older), Vec::<String>::new());
}

/// Delivers a hello message with a newer configuration while writes take time.
fn deliver_newer_hello(bench: &mut TestSentinel) -> Vec<SentinelAction> {
    bench.deliver_hello_of(PEER, 26380);
    bench.has_slow_disk = true;
    bench.hello(&format!("10.0.0.8,26380,{PEER},3,mymaster,10.0.0.2,6379,3"))
}

/// Handles deadlines for half a second and connects all links. Returns the writes and the sent hello messages.
fn collect_writes_and_hellos(
    bench: &mut TestSentinel,
    mut pending: Vec<SentinelAction>,
) -> (Vec<SentinelAction>, Vec<String>) {
    let (mut writes, mut hellos) = (Vec::new(), Vec::new());
    let end = bench.now + Duration::from_millis(500);
    while bench.now < end {
        while let Some(action) = pending.pop() {
            match action {
                SentinelAction::Connect { link, .. } => {
                    pending
                        .extend(bench.input(SentinelInput::Connected { link, local_ip: "10.0.0.9".into() }));
                }
                SentinelAction::Write(_) => writes.push(action),
                SentinelAction::Send { request, .. } if request[0] == b"PUBLISH" => {
                    hellos.push(String::from_utf8(request[2].clone()).unwrap());
                }
                _ => {}
            }
        }
        bench.now = bench.now.max(bench.sentinel.next_deadline().expect("ticks never end"));
        pending.extend(bench.deadline());
    }
    (writes, hellos)
}

fn all_announce_the_switch(hellos: &[String]) -> bool {
    !hellos.is_empty() && hellos.iter().all(|hello| hello.ends_with("mymaster,10.0.0.2,6379,3"))
}

/// Found by the simulator (6 nodes, seed 65): a sentinel crashed before its configuration was on disk, and restarted
/// with a lower configuration epoch than it had announced.
#[test]
fn configuration_epoch_is_announced_once_it_is_on_disk() {
    let mut bench = TestSentinel::new();
    let out = deliver_newer_hello(&mut bench);
    let (writes, hellos) = collect_writes_and_hellos(&mut bench, out);
    assert!(matches!(writes[..], [SentinelAction::Write(FileWrite::Config(_))]), "{writes:?}");
    assert_eq!(hellos, Vec::<String>::new());
    let out = bench.input(SentinelInput::Written { journal_bytes: 0 });
    let (_, hellos) = collect_writes_and_hellos(&mut bench, out);
    assert!(all_announce_the_switch(&hellos), "{hellos:?}");
}

#[test]
fn configuration_that_could_not_be_written_is_announced_and_written_again() {
    let mut bench = TestSentinel::new();
    let out = deliver_newer_hello(&mut bench);
    let (first, _) = collect_writes_and_hellos(&mut bench, out);
    let out = bench.input(SentinelInput::WriteFailed);
    let (writes, hellos) = collect_writes_and_hellos(&mut bench, out);
    assert_eq!(writes, [], "the write is repeated with a delay");
    assert!(all_announce_the_switch(&hellos), "{hellos:?}");
    bench.now += Duration::from_millis(500);
    let out = bench.deadline();
    let (writes, _) = collect_writes_and_hellos(&mut bench, out);
    assert_eq!(writes, first);
}

/// Found by the simulator: the reply to a query about the old master arrived after the switch and made the new master
/// objectively down in the view of one sentinel.
#[test]
fn reply_about_a_replaced_master_does_not_affect_the_new_one() {
    let mut bench = TestSentinel::new();
    let mut out = bench.deliver_hello_of(PEER, 26380);
    let mut peer = None;
    let mut requests = Vec::new();
    let is_question =
        |request: &Vec<Vec<u8>>| request.get(1).is_some_and(|word| word == b"IS-MASTER-DOWN-BY-ADDR");
    let began = bench.now;
    while !requests.iter().any(is_question) {
        for action in std::mem::take(&mut out) {
            match action {
                SentinelAction::Connect { link, addr, .. } if addr.host == "10.0.0.8" => {
                    peer = Some(link);
                    out.extend(bench.input(SentinelInput::Connected { link, local_ip: "10.0.0.9".into() }));
                }
                SentinelAction::Send { link, request, .. } if Some(link) == peer => requests.push(request),
                _ => {}
            }
        }
        assert!(bench.now.since(began) < Duration::from_secs(10), "the other was never asked");
        bench.now = bench.now.max(bench.sentinel.next_deadline().expect("it always looks again"));
        out.extend(bench.deadline());
    }
    bench.hello(&format!("10.0.0.8,26380,{PEER},3,mymaster,10.0.0.2,6379,3"));
    for request in requests {
        let down = Value::Array(vec![Value::Integer(1), Value::Bulk(b"*".to_vec()), Value::Integer(0)]);
        let value = if is_question(&request) { down } else { Value::Simple("OK".into()) };
        bench.input(SentinelInput::Reply { link: peer.expect("it was asked"), value });
    }
    let events = bench.advance_time(1500);
    assert!(events.contains(&"+sdown master mymaster 10.0.0.2 6379".to_owned()), "{events:?}");
    assert!(!events.iter().any(|event| event.starts_with("+odown")), "{events:?}");
}

#[test]
fn clock_jump_enters_tilt_mode() {
    let mut bench = TestSentinel::new();
    bench.now += Duration::from_secs(3);
    let out = bench.deadline();
    assert_eq!(published(&out), ["+tilt #tilt mode entered"]);
    assert_eq!(bench.advance_time(29_000), Vec::<String>::new(), "silence proves nothing now");
    let events = bench.advance_time(3_000);
    assert_eq!(events[..2], ["-tilt #tilt mode exited", "+sdown master mymaster 10.0.0.1 6379"]);
}

/// Found by the simulator (6 nodes, seed 2969): the first event after TILT mode was an INFO reply, and a leader
/// selected a replica by the states from before TILT mode.
#[test]
fn instances_are_reevaluated_when_tilt_ends() {
    let mut bench = TestSentinel::new();
    bench.now += Duration::from_secs(3);
    bench.deadline();
    bench.advance_time(29_900);
    bench.now += Duration::from_millis(300);
    let out = bench.deliver_hello_of(PEER, 26380);
    let events = published(&out);
    assert_eq!(
        events[..2],
        ["-tilt #tilt mode exited", "+sdown master mymaster 10.0.0.1 6379"],
        "{events:?}"
    );
}

#[test]
fn five_hundred_masters_share_one_link_to_each_sentinel() {
    let mut config = String::new();
    for number in 0..500 {
        config += &format!("sentinel monitor m{number} 10.1.{}.{} 6379 2\n", number / 250, number % 250 + 1);
        config += &format!("sentinel known-sentinel m{number} 10.0.0.8 26380 {PEER}\n");
        config += &format!("sentinel known-sentinel m{number} 10.0.0.8 26381 {OTHER}\n");
    }
    let config = SentinelConfig::parse(&config).unwrap();
    let sentinel =
        Sentinel::new(Instant::from_millis(1000), config, SavedJournal::default(), 1, &mut Vec::new());
    assert_eq!(sentinel.link_count(), 500 * 2 + 2);
}
