//! Tests of the order of writes, and of the actions that wait for them.

use std::iter;

use consensus::{GroupChange, Term};

use super::*;

const NOW: Instant = Instant::from_millis(1000);
const PEER: LinkId = LinkId(1);
const OTHER: LinkId = LinkId(2);
const CLIENT: ClientId = ClientId(7);

fn record(number: u64) -> JournalRecord {
    let ballot = GroupChange::Ballot { term: Term(number), vote: 9, commit: 0 };
    JournalRecord { number, record: GroupRecord { group: "mymaster".into(), changes: vec![ballot] } }
}

fn send(link: LinkId, word: &str) -> SentinelAction {
    SentinelAction::Send { link, request: vec![word.into()] }
}

fn reply(text: &str) -> SentinelAction {
    SentinelAction::Reply { client: CLIENT, reply: text.into() }
}

struct TestWrites(FileWrites);

impl TestWrites {
    fn new() -> Self {
        Self(FileWrites::new(0))
    }

    /// Calls `work`, and begins the next write after it.
    fn run(
        &mut self,
        now: Instant,
        work: impl FnOnce(&mut FileWrites, &mut Vec<SentinelAction>),
    ) -> Vec<SentinelAction> {
        let mut out = Vec::new();
        work(&mut self.0, &mut out);
        let saved = SavedGroup::default();
        self.0.begin_write(now, iter::once(("mymaster", &saved)), &mut out);
        out
    }

    fn step(&mut self, records: &[u64], actions: Vec<(Condition, SentinelAction)>) -> Vec<SentinelAction> {
        let records = records.iter().map(|number| record(*number)).collect();
        self.run(NOW, |writes, out| writes.add_step(StepOutput { records, config: None, actions }, out))
    }

    fn config(&mut self, text: &str, condition: Condition) -> Vec<SentinelAction> {
        let step = StepOutput {
            records: Vec::new(),
            config: Some(text.into()),
            actions: vec![(condition, reply("+OK\r\n"))],
        };
        self.run(NOW, |writes, out| writes.add_step(step, out))
    }

    fn written(&mut self) -> Vec<SentinelAction> {
        self.run(NOW, |writes, out| writes.on_written(100, out))
    }

    fn failed(&mut self) -> Vec<SentinelAction> {
        self.run(NOW, |writes, out| writes.on_failed(NOW, out))
    }
}

fn append(numbers: &[u64]) -> SentinelAction {
    let records = numbers.iter().map(|number| record(*number).record).collect();
    SentinelAction::Write(FileWrite::AppendJournal(records))
}

fn replace() -> SentinelAction {
    let groups = BTreeMap::from([("mymaster".to_owned(), SavedGroup::default())]);
    SentinelAction::Write(FileWrite::ReplaceJournal(groups))
}

#[test]
fn vote_leaves_after_its_record_and_blocks_only_its_own_link() {
    let mut bench = TestWrites::new();
    let actions = vec![
        (Condition::Record(1), send(PEER, "vote")),
        (Condition::Nothing, send(PEER, "ping")),
        (Condition::Nothing, send(OTHER, "ping")),
    ];
    assert_eq!(bench.step(&[1], actions), [send(OTHER, "ping"), append(&[1])]);
    assert_eq!(bench.written(), [send(PEER, "vote"), send(PEER, "ping")]);
    assert_eq!(bench.step(&[], vec![(Condition::Record(1), send(PEER, "again"))]), [send(PEER, "again")]);
}

#[test]
fn records_that_arrive_during_a_write_are_written_together() {
    let mut bench = TestWrites::new();
    assert_eq!(bench.step(&[1], Vec::new()), [append(&[1])]);
    assert_eq!(bench.step(&[2], vec![(Condition::Record(2), send(PEER, "vote"))]), []);
    assert_eq!(bench.step(&[3], Vec::new()), []);
    assert_eq!(bench.written(), [append(&[2, 3])]);
    assert_eq!(bench.written(), [send(PEER, "vote")]);
}

#[test]
fn failed_append_is_followed_by_a_replacement() {
    let mut bench = TestWrites::new();
    assert_eq!(bench.step(&[1], vec![(Condition::Record(1), send(PEER, "vote"))]), [append(&[1])]);
    assert_eq!(bench.failed(), [replace()]);
    assert_eq!(bench.written(), [send(PEER, "vote")]);
    assert_eq!(bench.step(&[2], Vec::new()), [append(&[2])]);
}

#[test]
fn failed_replacement_is_retried_after_a_delay_or_with_new_records() {
    let mut bench = TestWrites::new();
    bench.step(&[1], vec![(Condition::Record(1), send(PEER, "vote"))]);
    bench.failed();
    assert_eq!(bench.failed(), []);
    assert_eq!(bench.step(&[], vec![(Condition::Nothing, send(OTHER, "ping"))]), [send(OTHER, "ping")]);
    let retry_at = NOW + RETRY_DELAY;
    assert_eq!(bench.0.next_deadline(), Some(retry_at));
    assert_eq!(bench.run(retry_at, |_, _| {}), [replace()]);
    assert_eq!(bench.failed(), []);
    assert_eq!(bench.step(&[2], Vec::new()), [replace()]);
    assert_eq!(bench.written(), [send(PEER, "vote")]);
    assert_eq!(bench.0.next_deadline(), None);
}

#[test]
fn configuration_is_written_while_the_journal_cannot_be() {
    let mut bench = TestWrites::new();
    bench.step(&[1], Vec::new());
    bench.failed();
    bench.failed();
    let config = SentinelAction::Write(FileWrite::Config("a".into()));
    assert_eq!(bench.config("a", Condition::Config), [config]);
    // Found by the simulator (seed 31): the deadline for repeating the write of the journal had passed, so it fired
    // again and again.
    assert_eq!(bench.0.next_deadline(), None, "the end of this write comes first");
    assert_eq!(bench.written(), [reply("+OK\r\n")]);
    assert_eq!(bench.0.next_deadline(), Some(NOW + RETRY_DELAY));
}

#[test]
fn reply_to_a_change_waits_for_its_configuration_and_tells_of_a_failure() {
    let mut bench = TestWrites::new();
    let config = |text: &str| SentinelAction::Write(FileWrite::Config(text.into()));
    assert_eq!(bench.config("a", Condition::Config), [config("a")]);
    assert_eq!(bench.config("b", Condition::Config), []);
    assert_eq!(bench.written(), [reply("+OK\r\n"), config("b")]);
    let error = String::from_utf8(NOT_SAVED_REPLY.to_vec()).unwrap();
    assert_eq!(bench.failed(), [reply(&error)]);
    // An error reply confirms nothing, so it does not wait.
    assert_eq!(bench.config("c", Condition::Nothing), [reply("+OK\r\n"), config("c")]);
}

#[test]
fn long_journal_is_replaced() {
    let mut bench = TestWrites::new();
    bench.step(&[1], Vec::new());
    assert_eq!(bench.run(NOW, |writes, out| writes.on_written(MAX_JOURNAL_BYTES + 1, out)), []);
    assert_eq!(bench.step(&[2], Vec::new()), [replace()]);
    bench.written();
    assert_eq!(bench.step(&[3], Vec::new()), [append(&[3])]);
}

#[test]
fn closed_links_and_clients_get_nothing_that_was_held() {
    let mut bench = TestWrites::new();
    let vote = |action| (Condition::Record(1), action);
    bench.step(&[1], vec![vote(send(PEER, "vote")), vote(reply("vote"))]);
    assert_eq!(
        bench.step(&[], vec![(Condition::Nothing, SentinelAction::Close(PEER))]),
        [SentinelAction::Close(PEER)]
    );
    bench.0.forget_client(CLIENT);
    assert_eq!(bench.written(), []);
}

#[test]
fn client_that_causes_too_many_held_replies_is_disconnected() {
    let mut bench = TestWrites::new();
    bench.step(&[1], vec![(Condition::Record(1), reply("vote"))]);
    for _ in 1..MAX_HELD_ACTIONS {
        assert_eq!(bench.step(&[], vec![(Condition::Nothing, reply("pong"))]), []);
    }
    let closed = SentinelAction::CloseClient(CLIENT);
    assert_eq!(bench.step(&[], vec![(Condition::Nothing, reply("pong"))]), [closed]);
    assert_eq!(bench.written(), []);
}
