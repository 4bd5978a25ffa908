//! Tests of MIGRATE's state machine: each scenario lists results of steps and the expected next steps.

use std::time::Duration;

use super::*;
use crate::migration::Destination;

const WALL_TIME: Millis = Millis(1000);

fn migrate_args(keys: &[&str]) -> MigrateArgs {
    let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    let destination = Destination { host: "h".into(), port: "1".into(), db: 0, auth: Vec::new() };
    MigrateArgs { destination, keys, timeout: Duration::from_secs(5), copy: false, replace: false }
}

fn captured_key(payload: &str) -> CapturedKey {
    CapturedKey { payload: payload.into(), dialect: Dialect::Redis, expiry: None }
}

fn captured_result(payloads: &[&str]) -> MigrateStepResult {
    MigrateStepResult::Captured(payloads.iter().map(|payload| Some(captured_key(payload))).collect())
}

fn capture_step(keys: &[usize]) -> MigrateStep {
    MigrateStep::Capture {
        pause_slots: Vec::new(),
        keys: keys.iter().map(|key| (*key, Dialect::Redis)).collect(),
    }
}

/// Builds the step that sends these requests, which are separated by `|`.
fn send_step(lines: &str) -> MigrateStep {
    let mut wire = Vec::new();
    for line in lines.split('|') {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        encode_request(&mut wire, words);
    }
    MigrateStep::Send(wire)
}

fn ok_reply() -> MigrateStepResult {
    MigrateStepResult::Replied(Value::Simple("OK".into()))
}

fn error_reply(text: &str) -> MigrateStepResult {
    MigrateStepResult::Replied(Value::Error(text.into()))
}

fn release_step(key: usize, payload: &str) -> MigrateStep {
    MigrateStep::Release { key, captured: captured_key(payload) }
}

const NEW_CONNECTION: MigrateStepResult =
    MigrateStepResult::Connected { is_reused: false, is_own_server: false };
const REUSED_CONNECTION: MigrateStepResult =
    MigrateStepResult::Connected { is_reused: true, is_own_server: false };
const KEY_DELETED: MigrateStepResult = MigrateStepResult::Released(Ok(ReleaseResult::Deleted(None)));
const KEY_CHANGED: MigrateStepResult = MigrateStepResult::Released(Ok(ReleaseResult::Changed));
const OK_REPLY_STEP: MigrateStep = MigrateStep::Reply { result: Ok("OK"), keep_connection: true };

/// Creates a migration whose first step captures all keys.
fn start_migration(args: MigrateArgs, asking: bool) -> Migration {
    let all: Vec<usize> = (0..args.keys.len()).collect();
    let (machine, first) = Migration::new(Instant::ORIGIN, args, asking);
    assert_eq!(first, capture_step(&all));
    machine
}

#[track_caller]
fn check_scenario_asking(asking: bool, args: MigrateArgs, steps: &[(MigrateStepResult, MigrateStep)]) {
    let mut machine = start_migration(args, asking);
    for (number, (outcome, step)) in steps.iter().enumerate() {
        assert_eq!(machine.handle(WALL_TIME, outcome.clone()), *step, "step {number}, after {outcome:?}");
    }
}

#[track_caller]
fn check_scenario(args: MigrateArgs, steps: &[(MigrateStepResult, MigrateStep)]) {
    check_scenario_asking(false, args, steps);
}

fn failed_step(failure: MigrateError) -> MigrateStep {
    reply(Err(failure))
}

#[test]
fn existing_keys_are_moved_and_connection_is_cached() {
    check_scenario(
        migrate_args(&["a", "b", "c"]),
        &[
            (
                MigrateStepResult::Captured(vec![Some(captured_key("1")), None, Some(captured_key("3"))]),
                MigrateStep::Connect { force_new: false },
            ),
            (NEW_CONNECTION, send_step("RESTORE a 0 1|RESTORE c 0 3")),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok_reply(), release_step(0, "1")),
            (KEY_DELETED, MigrateStep::Read),
            (ok_reply(), release_step(2, "3")),
            (KEY_DELETED, OK_REPLY_STEP),
        ],
    );
    check_scenario(migrate_args(&["a"]), &[(MigrateStepResult::Captured(vec![None]), reply(Ok("NOKEY")))]);
    check_scenario(migrate_args(&[]), &[(MigrateStepResult::Captured(vec![]), reply(Ok("NOKEY")))]);
}

#[test]
fn sent_commands_reflect_options() {
    let begin = [(captured_result(&["1"]), MigrateStep::Connect { force_new: false })];
    let whole = |sent: &str| [begin.to_vec(), vec![(NEW_CONNECTION, send_step(sent))]].concat();
    check_scenario(MigrateArgs { replace: true, ..migrate_args(&["a"]) }, &whole("RESTORE a 0 1 REPLACE"));
    check_scenario_asking(true, migrate_args(&["a"]), &whole("RESTORE-ASKING a 0 1"));
    let copied = [(MigrateStepResult::Sent, MigrateStep::Read), (ok_reply(), OK_REPLY_STEP)];
    check_scenario(
        MigrateArgs { copy: true, ..migrate_args(&["a"]) },
        &[&whole("RESTORE a 0 1")[..], &copied].concat(),
    );
    // An expired key must not be sent with TTL 0, which means no expiry.
    for (expiry, ttl) in [(WALL_TIME.0 + 70, 70), (WALL_TIME.0, 1), (1, 1)] {
        let dying = CapturedKey { expiry: Some(Millis(expiry)), ..captured_key("1") };
        let story = [
            (MigrateStepResult::Captured(vec![Some(dying)]), MigrateStep::Connect { force_new: false }),
            (NEW_CONNECTION, send_step(&format!("RESTORE a {ttl} 1"))),
        ];
        check_scenario(migrate_args(&["a"]), &story);
    }
}

/// A key that changes during the transfer is sent again and replaces the older value; a key that is deleted during the
/// transfer is deleted on the target.
#[test]
fn changed_keys_are_sent_again() {
    for (asking, restore, delete) in [(false, "RESTORE", "DEL b"), (true, "RESTORE-ASKING", "ASKING|DEL b")] {
        let mut story = vec![
            (captured_result(&["1", "2"]), MigrateStep::Connect { force_new: false }),
            (NEW_CONNECTION, send_step(&format!("{restore} a 0 1|{restore} b 0 2"))),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok_reply(), release_step(0, "1")),
            (KEY_CHANGED, MigrateStep::Read),
            (ok_reply(), release_step(1, "2")),
            (KEY_CHANGED, capture_step(&[0, 1])),
            (
                MigrateStepResult::Captured(vec![Some(captured_key("9")), None]),
                send_step(&format!("{restore} a 0 9 REPLACE|{delete}")),
            ),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok_reply(), release_step(0, "9")),
            (KEY_DELETED, MigrateStep::Read),
        ];
        if asking {
            story.push((ok_reply(), MigrateStep::Read));
        }
        story.push((ok_reply(), OK_REPLY_STEP));
        check_scenario_asking(asking, migrate_args(&["a", "b"]), &story);
    }
}

/// A key that is written continuously is moved in the end, because writes are paused after a few rounds.
#[test]
fn writes_are_paused_after_several_rounds() {
    let mut machine = start_migration(migrate_args(&["a", "b"]), false);
    assert_eq!(
        machine.handle(WALL_TIME, captured_result(&["1", "2"])),
        MigrateStep::Connect { force_new: false }
    );
    machine.handle(WALL_TIME, NEW_CONNECTION);
    for round in 1..=MAX_RESEND_ROUNDS {
        assert_eq!(machine.handle(WALL_TIME, MigrateStepResult::Sent), MigrateStep::Read);
        assert_eq!(machine.handle(WALL_TIME, ok_reply()), release_step(0, &round.to_string()));
        let mut next = machine.handle(WALL_TIME, KEY_CHANGED);
        if round == 1 {
            assert_eq!(next, MigrateStep::Read);
            machine.handle(WALL_TIME, ok_reply());
            next = machine.handle(WALL_TIME, KEY_DELETED);
        }
        let hold = if round == MAX_RESEND_ROUNDS { vec![Slot::of_key(b"a")] } else { Vec::new() };
        assert_eq!(
            next,
            MigrateStep::Capture { pause_slots: hold, keys: vec![(0, Dialect::Redis)] },
            "{round}"
        );
        machine.handle(WALL_TIME, captured_result(&[&(round + 1).to_string()]));
    }
    machine.handle(WALL_TIME, MigrateStepResult::Sent);
    machine.handle(WALL_TIME, ok_reply());
    assert_eq!(machine.handle(WALL_TIME, KEY_DELETED), OK_REPLY_STEP);
}

#[test]
fn rejected_payload_is_sent_again_in_valkey_format() {
    let valkeys = CapturedKey { dialect: Dialect::Valkey, ..captured_key("v") };
    let again = MigrateStep::Capture { pause_slots: Vec::new(), keys: vec![(0, Dialect::Valkey)] };
    let begin = [
        (captured_result(&["1"]), MigrateStep::Connect { force_new: false }),
        (NEW_CONNECTION, send_step("RESTORE a 0 1")),
        (MigrateStepResult::Sent, MigrateStep::Read),
        (error_reply(BAD_FORMAT_REPLY), again),
        (MigrateStepResult::Captured(vec![Some(valkeys.clone())]), send_step("RESTORE a 0 v REPLACE")),
        (MigrateStepResult::Sent, MigrateStep::Read),
    ];
    let understood =
        [(ok_reply(), MigrateStep::Release { key: 0, captured: valkeys }), (KEY_DELETED, OK_REPLY_STEP)];
    check_scenario(migrate_args(&["a"]), &[&begin[..], &understood].concat());
    let refused =
        [(error_reply(BAD_FORMAT_REPLY), failed_step(MigrateError::Refused(BAD_FORMAT_REPLY.into())))];
    check_scenario(migrate_args(&["a"]), &[&begin[..], &refused].concat());
}

/// A key with an error stays on this node. The other keys have arrived, so they are deleted here.
#[test]
fn first_error_is_returned_after_all_replies() {
    let moved = CommandError::CrossSlot;
    check_scenario(
        migrate_args(&["a", "b", "c", "d"]),
        &[
            (captured_result(&["1", "2", "3", "4"]), MigrateStep::Connect { force_new: false }),
            (NEW_CONNECTION, send_step("RESTORE a 0 1|RESTORE b 0 2|RESTORE c 0 3|RESTORE d 0 4")),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (error_reply("BUSYKEY x"), MigrateStep::Read),
            (ok_reply(), release_step(1, "2")),
            (KEY_DELETED, MigrateStep::Read),
            (ok_reply(), release_step(2, "3")),
            (MigrateStepResult::Released(Err(moved)), MigrateStep::Read),
            (ok_reply(), release_step(3, "4")),
            (KEY_CHANGED, failed_step(MigrateError::Refused("BUSYKEY x".into()))),
        ],
    );
}

#[test]
fn release_waits_for_end_of_pause() {
    check_scenario(
        migrate_args(&["a"]),
        &[
            (captured_result(&["1"]), MigrateStep::Connect { force_new: false }),
            (NEW_CONNECTION, send_step("RESTORE a 0 1")),
            (MigrateStepResult::Sent, MigrateStep::Read),
            (ok_reply(), release_step(0, "1")),
            (MigrateStepResult::Released(Ok(ReleaseResult::Paused)), MigrateStep::AwaitUnpause),
            (MigrateStepResult::Unpaused, release_step(0, "1")),
            (MigrateStepResult::Released(Ok(ReleaseResult::Paused)), MigrateStep::AwaitUnpause),
            (MigrateStepResult::Deadline, failed_step(MigrateError::Reading)),
        ],
    );
}

/// A target may close idle connections, so a cached connection may be dead. It is replaced only before its first reply:
/// after a reply, requests may have been executed.
#[test]
fn only_dead_cached_connection_is_reconnected() {
    let begin = [
        (captured_result(&["1"]), MigrateStep::Connect { force_new: false }),
        (REUSED_CONNECTION, send_step("RESTORE a 0 1")),
    ];
    let anew = MigrateStep::Connect { force_new: true };
    for lost in [
        &[(MigrateStepResult::SendFailed, anew.clone())][..],
        &[(MigrateStepResult::Sent, MigrateStep::Read), (MigrateStepResult::ReadFailed, anew)],
    ] {
        let rest = [
            (NEW_CONNECTION, send_step("RESTORE a 0 1")),
            (MigrateStepResult::SendFailed, failed_step(MigrateError::Writing)),
        ];
        check_scenario(migrate_args(&["a"]), &[&begin[..], lost, &rest].concat());
    }
    let begin = [(captured_result(&["1", "2"]), MigrateStep::Connect { force_new: false })];
    let answered = [
        (REUSED_CONNECTION, send_step("RESTORE a 0 1|RESTORE b 0 2")),
        (MigrateStepResult::Sent, MigrateStep::Read),
        (ok_reply(), release_step(0, "1")),
        (KEY_DELETED, MigrateStep::Read),
        (MigrateStepResult::ReadFailed, failed_step(MigrateError::Reading)),
    ];
    check_scenario(migrate_args(&["a", "b"]), &[&begin[..], &answered].concat());
}

#[test]
fn unreachable_or_own_target_gets_no_keys() {
    let begin = [(captured_result(&["1"]), MigrateStep::Connect { force_new: false })];
    let here = MigrateStepResult::Connected { is_reused: false, is_own_server: true };
    for (outcome, failure) in [
        (MigrateStepResult::ConnectFailed(MigrateError::Writing), MigrateError::Writing),
        (
            MigrateStepResult::ConnectFailed(MigrateError::Refused("NOAUTH".into())),
            MigrateError::Refused("NOAUTH".into()),
        ),
        (here, MigrateError::Reading),
    ] {
        check_scenario(migrate_args(&["a"]), &[&begin[..], &[(outcome, failed_step(failure))]].concat());
    }
}

/// The timeout error depends on the step in which the timeout expired.
#[test]
fn timeout_covers_whole_migration() {
    let steps = [
        (captured_result(&["1"]), MigrateError::Connecting),
        (NEW_CONNECTION, MigrateError::Writing),
        (MigrateStepResult::Sent, MigrateError::Reading),
        (ok_reply(), MigrateError::Reading),
    ];
    for upto in 1..=steps.len() {
        let mut machine = start_migration(migrate_args(&["a"]), false);
        assert_eq!(machine.deadline(), Instant::ORIGIN + Duration::from_secs(5));
        for (outcome, _) in &steps[..upto] {
            machine.handle(WALL_TIME, outcome.clone());
        }
        let failure = steps[upto - 1].1.clone();
        assert_eq!(
            machine.handle(WALL_TIME, MigrateStepResult::Deadline),
            failed_step(failure),
            "after {upto}"
        );
    }
}
