//! Tests of MIGRATE's state machine: each scenario lists results of steps and the expected next steps.

use std::time::Duration;

use super::*;
use crate::migration::Destination;

const WALL: Millis = Millis(1000);

fn order(keys: &[&str]) -> MigrateArgs {
    let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    let destination = Destination { host: "h".into(), port: "1".into(), db: 0, auth: Vec::new() };
    MigrateArgs { destination, keys, timeout: Duration::from_secs(5), copy: false, replace: false }
}

fn value(payload: &str) -> CapturedKey {
    CapturedKey { payload: payload.into(), dialect: Dialect::Redis, expiry: None }
}

fn captured(payloads: &[&str]) -> MigrateStepResult {
    MigrateStepResult::Captured(payloads.iter().map(|payload| Some(value(payload))).collect())
}

fn capture(keys: &[usize]) -> MigrateStep {
    MigrateStep::Capture { hold: Vec::new(), keys: keys.iter().map(|key| (*key, Dialect::Redis)).collect() }
}

/// Encodes requests separated by `|`.
fn send(lines: &str) -> MigrateStep {
    let mut wire = Vec::new();
    for line in lines.split('|') {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        encode_request(&mut wire, words);
    }
    MigrateStep::Send(wire)
}

fn ok() -> MigrateStepResult {
    MigrateStepResult::Answered(Value::Simple("OK".into()))
}

fn error(text: &str) -> MigrateStepResult {
    MigrateStepResult::Answered(Value::Error(text.into()))
}

fn release(key: usize, payload: &str) -> MigrateStep {
    MigrateStep::Release { key, captured: value(payload) }
}

const LINKED: MigrateStepResult = MigrateStepResult::Linked { kept: false, to_self: false };
const KEPT: MigrateStepResult = MigrateStepResult::Linked { kept: true, to_self: false };
const GONE: MigrateStepResult = MigrateStepResult::Released(Ok(ReleaseResult::Gone(None)));
const CHANGED: MigrateStepResult = MigrateStepResult::Released(Ok(ReleaseResult::Changed));
const DONE: MigrateStep = MigrateStep::Reply { result: Ok("OK"), keep_link: true };

/// Creates a migration whose first step captures all keys.
fn begun(order: MigrateArgs, asking: bool) -> Migration {
    let all: Vec<usize> = (0..order.keys.len()).collect();
    let (machine, first) = Migration::new(Instant::ORIGIN, order, asking);
    assert_eq!(first, capture(&all));
    machine
}

#[track_caller]
fn check_scenario_asking(asking: bool, order: MigrateArgs, story: &[(MigrateStepResult, MigrateStep)]) {
    let mut machine = begun(order, asking);
    for (number, (outcome, step)) in story.iter().enumerate() {
        assert_eq!(machine.handle(WALL, outcome.clone()), *step, "step {number}, after {outcome:?}");
    }
}

#[track_caller]
fn check_scenario(order: MigrateArgs, story: &[(MigrateStepResult, MigrateStep)]) {
    check_scenario_asking(false, order, story);
}

fn failed(failure: MigrateError) -> MigrateStep {
    reply(Err(failure))
}

#[test]
fn existing_keys_are_moved_and_connection_is_cached() {
    check_scenario(
        order(&["a", "b", "c"]),
        &[
            (
                MigrateStepResult::Captured(vec![Some(value("1")), None, Some(value("3"))]),
                MigrateStep::Link { anew: false },
            ),
            (LINKED, send("RESTORE a 0 1|RESTORE c 0 3")),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok(), release(0, "1")),
            (GONE, MigrateStep::Read),
            (ok(), release(2, "3")),
            (GONE, DONE),
        ],
    );
    check_scenario(order(&["a"]), &[(MigrateStepResult::Captured(vec![None]), reply(Ok("NOKEY")))]);
    check_scenario(order(&[]), &[(MigrateStepResult::Captured(vec![]), reply(Ok("NOKEY")))]);
}

#[test]
fn sent_commands_reflect_options() {
    let begin = [(captured(&["1"]), MigrateStep::Link { anew: false })];
    let whole = |sent: &str| [begin.to_vec(), vec![(LINKED, send(sent))]].concat();
    check_scenario(MigrateArgs { replace: true, ..order(&["a"]) }, &whole("RESTORE a 0 1 REPLACE"));
    check_scenario_asking(true, order(&["a"]), &whole("RESTORE-ASKING a 0 1"));
    let copied = [(MigrateStepResult::Sent, MigrateStep::Read), (ok(), DONE)];
    check_scenario(
        MigrateArgs { copy: true, ..order(&["a"]) },
        &[&whole("RESTORE a 0 1")[..], &copied].concat(),
    );
    // An expired key must not be sent with TTL 0, which means no expiry.
    for (expiry, ttl) in [(WALL.0 + 70, 70), (WALL.0, 1), (1, 1)] {
        let dying = CapturedKey { expiry: Some(Millis(expiry)), ..value("1") };
        let story = [
            (MigrateStepResult::Captured(vec![Some(dying)]), MigrateStep::Link { anew: false }),
            (LINKED, send(&format!("RESTORE a {ttl} 1"))),
        ];
        check_scenario(order(&["a"]), &story);
    }
}

/// A key changed during transfer is sent again and replaces the older value; a key deleted meanwhile is deleted on the
/// target.
#[test]
fn changed_keys_are_sent_again() {
    for (asking, restore, delete) in [(false, "RESTORE", "DEL b"), (true, "RESTORE-ASKING", "ASKING|DEL b")] {
        let mut story = vec![
            (captured(&["1", "2"]), MigrateStep::Link { anew: false }),
            (LINKED, send(&format!("{restore} a 0 1|{restore} b 0 2"))),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok(), release(0, "1")),
            (CHANGED, MigrateStep::Read),
            (ok(), release(1, "2")),
            (CHANGED, capture(&[0, 1])),
            (
                MigrateStepResult::Captured(vec![Some(value("9")), None]),
                send(&format!("{restore} a 0 9 REPLACE|{delete}")),
            ),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok(), release(0, "9")),
            (GONE, MigrateStep::Read),
        ];
        if asking {
            story.push((ok(), MigrateStep::Read));
        }
        story.push((ok(), DONE));
        check_scenario_asking(asking, order(&["a", "b"]), &story);
    }
}

/// A continuously written key arrives nevertheless, because its writers are paused.
#[test]
fn writes_are_paused_after_several_rounds() {
    let mut machine = begun(order(&["a", "b"]), false);
    assert_eq!(machine.handle(WALL, captured(&["1", "2"])), MigrateStep::Link { anew: false });
    machine.handle(WALL, LINKED);
    for round in 1..=TRIES {
        assert_eq!(machine.handle(WALL, MigrateStepResult::Sent), MigrateStep::Read);
        assert_eq!(machine.handle(WALL, ok()), release(0, &round.to_string()));
        let mut next = machine.handle(WALL, CHANGED);
        if round == 1 {
            assert_eq!(next, MigrateStep::Read);
            machine.handle(WALL, ok());
            next = machine.handle(WALL, GONE);
        }
        let hold = if round == TRIES { vec![Slot::of_key(b"a")] } else { Vec::new() };
        assert_eq!(next, MigrateStep::Capture { hold, keys: vec![(0, Dialect::Redis)] }, "{round}");
        machine.handle(WALL, captured(&[&(round + 1).to_string()]));
    }
    machine.handle(WALL, MigrateStepResult::Sent);
    machine.handle(WALL, ok());
    assert_eq!(machine.handle(WALL, GONE), DONE);
}

#[test]
fn rejected_payload_is_sent_again_in_valkey_format() {
    let valkeys = CapturedKey { dialect: Dialect::Valkey, ..value("v") };
    let again = MigrateStep::Capture { hold: Vec::new(), keys: vec![(0, Dialect::Valkey)] };
    let begin = [
        (captured(&["1"]), MigrateStep::Link { anew: false }),
        (LINKED, send("RESTORE a 0 1")),
        (MigrateStepResult::Sent, MigrateStep::Read),
        (error(UNREADABLE), again),
        (MigrateStepResult::Captured(vec![Some(valkeys.clone())]), send("RESTORE a 0 v REPLACE")),
        (MigrateStepResult::Sent, MigrateStep::Read),
    ];
    let understood = [(ok(), MigrateStep::Release { key: 0, captured: valkeys }), (GONE, DONE)];
    check_scenario(order(&["a"]), &[&begin[..], &understood].concat());
    let refused = [(error(UNREADABLE), failed(MigrateError::Refused(UNREADABLE.into())))];
    check_scenario(order(&["a"]), &[&begin[..], &refused].concat());
}

/// A key with an error stays here; the others have arrived and are deleted here.
#[test]
fn first_error_is_returned_after_all_replies() {
    let moved = CommandError::CrossSlot;
    check_scenario(
        order(&["a", "b", "c", "d"]),
        &[
            (captured(&["1", "2", "3", "4"]), MigrateStep::Link { anew: false }),
            (LINKED, send("RESTORE a 0 1|RESTORE b 0 2|RESTORE c 0 3|RESTORE d 0 4")),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (error("BUSYKEY x"), MigrateStep::Read),
            (ok(), release(1, "2")),
            (GONE, MigrateStep::Read),
            (ok(), release(2, "3")),
            (MigrateStepResult::Released(Err(moved)), MigrateStep::Read),
            (ok(), release(3, "4")),
            (CHANGED, failed(MigrateError::Refused("BUSYKEY x".into()))),
        ],
    );
}

#[test]
fn release_waits_for_end_of_pause() {
    check_scenario(
        order(&["a"]),
        &[
            (captured(&["1"]), MigrateStep::Link { anew: false }),
            (LINKED, send("RESTORE a 0 1")),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok(), release(0, "1")),
            (MigrateStepResult::Released(Ok(ReleaseResult::Paused)), MigrateStep::AwaitUnpause),
            (MigrateStepResult::Unpaused, release(0, "1")),
            (MigrateStepResult::Released(Ok(ReleaseResult::Paused)), MigrateStep::AwaitUnpause),
            (MigrateStepResult::Deadline, failed(MigrateError::Reading)),
        ],
    );
}

/// The target closes idle connections. Confirmed keys were executed.
#[test]
fn only_dead_cached_connection_is_reconnected() {
    let begin = [(captured(&["1"]), MigrateStep::Link { anew: false }), (KEPT, send("RESTORE a 0 1"))];
    let anew = MigrateStep::Link { anew: true };
    for lost in [
        &[(MigrateStepResult::NotSent, anew.clone())][..],
        &[(MigrateStepResult::Sent, MigrateStep::Read), (MigrateStepResult::NotAnswered, anew)],
    ] {
        let rest =
            [(LINKED, send("RESTORE a 0 1")), (MigrateStepResult::NotSent, failed(MigrateError::Writing))];
        check_scenario(order(&["a"]), &[&begin[..], lost, &rest].concat());
    }
    let begin = [(captured(&["1", "2"]), MigrateStep::Link { anew: false })];
    let answered = [
        (KEPT, send("RESTORE a 0 1|RESTORE b 0 2")),
        (MigrateStepResult::Sent, MigrateStep::Read),
        (ok(), release(0, "1")),
        (GONE, MigrateStep::Read),
        (MigrateStepResult::NotAnswered, failed(MigrateError::Reading)),
    ];
    check_scenario(order(&["a", "b"]), &[&begin[..], &answered].concat());
}

#[test]
fn unreachable_or_own_target_gets_no_keys() {
    let begin = [(captured(&["1"]), MigrateStep::Link { anew: false })];
    let here = MigrateStepResult::Linked { kept: false, to_self: true };
    for (outcome, failure) in [
        (MigrateStepResult::NotLinked(MigrateError::Writing), MigrateError::Writing),
        (
            MigrateStepResult::NotLinked(MigrateError::Refused("NOAUTH".into())),
            MigrateError::Refused("NOAUTH".into()),
        ),
        (here, MigrateError::Reading),
    ] {
        check_scenario(order(&["a"]), &[&begin[..], &[(outcome, failed(failure))]].concat());
    }
}

/// The error names the step at which the timeout expired.
#[test]
fn timeout_covers_whole_migration() {
    let steps = [
        (captured(&["1"]), MigrateError::Connecting),
        (LINKED, MigrateError::Writing),
        (MigrateStepResult::Sent, MigrateError::Reading),
        (ok(), MigrateError::Reading),
    ];
    for upto in 1..=steps.len() {
        let mut machine = begun(order(&["a"]), false);
        assert_eq!(machine.deadline(), Instant::ORIGIN + Duration::from_secs(5));
        for (outcome, _) in &steps[..upto] {
            machine.handle(WALL, outcome.clone());
        }
        let failure = steps[upto - 1].1.clone();
        assert_eq!(machine.handle(WALL, MigrateStepResult::Deadline), failed(failure), "after {upto}");
    }
}
