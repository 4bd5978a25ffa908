//! Tests of MIGRATE's state machine: each scenario lists results of steps and the expected next steps.

use std::time::Duration;

use super::*;
use crate::migration::Destination;

const WALL: Millis = Millis(1000);

fn order(keys: &[&str]) -> Order {
    let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    let destination = Destination { host: "h".into(), port: "1".into(), db: 0, auth: Vec::new() };
    Order { destination, keys, timeout: Duration::from_secs(5), copy: false, replace: false }
}

fn value(payload: &str) -> CapturedKey {
    CapturedKey { payload: payload.into(), dialect: Dialect::Redis, expiry: None }
}

fn captured(payloads: &[&str]) -> Input {
    Input::Captured(payloads.iter().map(|payload| Some(value(payload))).collect())
}

fn capture(keys: &[usize]) -> Step {
    Step::Capture { hold: Vec::new(), keys: keys.iter().map(|key| (*key, Dialect::Redis)).collect() }
}

/// Encodes requests separated by `|`.
fn send(lines: &str) -> Step {
    let mut wire = Vec::new();
    for line in lines.split('|') {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        encode_request(&mut wire, words);
    }
    Step::Send(wire)
}

fn ok() -> Input {
    Input::Answered(Value::Simple("OK".into()))
}

fn error(text: &str) -> Input {
    Input::Answered(Value::Error(text.into()))
}

fn release(key: usize, payload: &str) -> Step {
    Step::Release { key, captured: value(payload) }
}

const LINKED: Input = Input::Linked { kept: false, to_self: false };
const KEPT: Input = Input::Linked { kept: true, to_self: false };
const GONE: Input = Input::Released(Ok(Release::Gone(None)));
const CHANGED: Input = Input::Released(Ok(Release::Changed));
const DONE: Step = Step::Reply { result: Ok("OK"), keep_link: true };

/// Creates a migration whose first step captures all keys.
fn begun(order: Order, asking: bool) -> Migration {
    let all: Vec<usize> = (0..order.keys.len()).collect();
    let (machine, first) = Migration::new(Instant::ORIGIN, order, asking);
    assert_eq!(first, capture(&all));
    machine
}

#[track_caller]
fn plays_asking(asking: bool, order: Order, story: &[(Input, Step)]) {
    let mut machine = begun(order, asking);
    for (number, (outcome, step)) in story.iter().enumerate() {
        assert_eq!(machine.handle(WALL, outcome.clone()), *step, "step {number}, after {outcome:?}");
    }
}

#[track_caller]
fn plays(order: Order, story: &[(Input, Step)]) {
    plays_asking(false, order, story);
}

fn failed(failure: Failure) -> Step {
    reply(Err(failure))
}

#[test]
fn keys_that_are_there_go_and_the_link_is_kept() {
    plays(
        order(&["a", "b", "c"]),
        &[
            (Input::Captured(vec![Some(value("1")), None, Some(value("3"))]), Step::Link { anew: false }),
            (LINKED, send("RESTORE a 0 1|RESTORE c 0 3")),
            (Input::Sent, Step::Read),
            (ok(), release(0, "1")),
            (GONE, Step::Read),
            (ok(), release(2, "3")),
            (GONE, DONE),
        ],
    );
    plays(order(&["a"]), &[(Input::Captured(vec![None]), reply(Ok("NOKEY")))]);
    plays(order(&[]), &[(Input::Captured(vec![]), reply(Ok("NOKEY")))]);
}

#[test]
fn the_words_that_are_sent_say_how_keys_are_moved() {
    let begin = [(captured(&["1"]), Step::Link { anew: false })];
    let whole = |sent: &str| [begin.to_vec(), vec![(LINKED, send(sent))]].concat();
    plays(Order { replace: true, ..order(&["a"]) }, &whole("RESTORE a 0 1 REPLACE"));
    plays_asking(true, order(&["a"]), &whole("RESTORE-ASKING a 0 1"));
    let copied = [(Input::Sent, Step::Read), (ok(), DONE)];
    plays(Order { copy: true, ..order(&["a"]) }, &[&whole("RESTORE a 0 1")[..], &copied].concat());
    // An expired key must not be sent with TTL 0, which means no expiry.
    for (expiry, ttl) in [(WALL.0 + 70, 70), (WALL.0, 1), (1, 1)] {
        let dying = CapturedKey { expiry: Some(Millis(expiry)), ..value("1") };
        let story = [
            (Input::Captured(vec![Some(dying)]), Step::Link { anew: false }),
            (LINKED, send(&format!("RESTORE a {ttl} 1"))),
        ];
        plays(order(&["a"]), &story);
    }
}

/// A key changed during transfer is sent again and replaces the older value; a key deleted meanwhile is deleted on the
/// target.
#[test]
fn what_changed_on_the_way_is_sent_again() {
    for (asking, restore, delete) in [(false, "RESTORE", "DEL b"), (true, "RESTORE-ASKING", "ASKING|DEL b")] {
        let mut story = vec![
            (captured(&["1", "2"]), Step::Link { anew: false }),
            (LINKED, send(&format!("{restore} a 0 1|{restore} b 0 2"))),
            (Input::Sent, Step::Read),
            (ok(), release(0, "1")),
            (CHANGED, Step::Read),
            (ok(), release(1, "2")),
            (CHANGED, capture(&[0, 1])),
            (
                Input::Captured(vec![Some(value("9")), None]),
                send(&format!("{restore} a 0 9 REPLACE|{delete}")),
            ),
            (Input::Sent, Step::Read),
            (ok(), release(0, "9")),
            (GONE, Step::Read),
        ];
        if asking {
            story.push((ok(), Step::Read));
        }
        story.push((ok(), DONE));
        plays_asking(asking, order(&["a", "b"]), &story);
    }
}

/// A continuously written key arrives nevertheless, because its writers are paused.
#[test]
fn after_some_rounds_writes_to_the_slot_wait() {
    let mut machine = begun(order(&["a", "b"]), false);
    assert_eq!(machine.handle(WALL, captured(&["1", "2"])), Step::Link { anew: false });
    machine.handle(WALL, LINKED);
    for round in 1..=TRIES {
        assert_eq!(machine.handle(WALL, Input::Sent), Step::Read);
        assert_eq!(machine.handle(WALL, ok()), release(0, &round.to_string()));
        let mut next = machine.handle(WALL, CHANGED);
        if round == 1 {
            assert_eq!(next, Step::Read);
            machine.handle(WALL, ok());
            next = machine.handle(WALL, GONE);
        }
        let hold = if round == TRIES { vec![Slot::of_key(b"a")] } else { Vec::new() };
        assert_eq!(next, Step::Capture { hold, keys: vec![(0, Dialect::Redis)] }, "{round}");
        machine.handle(WALL, captured(&[&(round + 1).to_string()]));
    }
    machine.handle(WALL, Input::Sent);
    machine.handle(WALL, ok());
    assert_eq!(machine.handle(WALL, GONE), DONE);
}

#[test]
fn a_value_that_is_not_understood_goes_once_more_in_valkeys_form() {
    let valkeys = CapturedKey { dialect: Dialect::Valkey, ..value("v") };
    let again = Step::Capture { hold: Vec::new(), keys: vec![(0, Dialect::Valkey)] };
    let begin = [
        (captured(&["1"]), Step::Link { anew: false }),
        (LINKED, send("RESTORE a 0 1")),
        (Input::Sent, Step::Read),
        (error(UNREADABLE), again),
        (Input::Captured(vec![Some(valkeys.clone())]), send("RESTORE a 0 v REPLACE")),
        (Input::Sent, Step::Read),
    ];
    let understood = [(ok(), Step::Release { key: 0, captured: valkeys }), (GONE, DONE)];
    plays(order(&["a"]), &[&begin[..], &understood].concat());
    let refused = [(error(UNREADABLE), failed(Failure::Refused(UNREADABLE.into())))];
    plays(order(&["a"]), &[&begin[..], &refused].concat());
}

/// A key with an error stays here; the others have arrived and are deleted here.
#[test]
fn the_first_error_is_told_when_all_keys_are_answered_for() {
    let moved = CommandError::CrossSlot;
    plays(
        order(&["a", "b", "c", "d"]),
        &[
            (captured(&["1", "2", "3", "4"]), Step::Link { anew: false }),
            (LINKED, send("RESTORE a 0 1|RESTORE b 0 2|RESTORE c 0 3|RESTORE d 0 4")),
            (Input::Sent, Step::Read),
            (error("BUSYKEY x"), Step::Read),
            (ok(), release(1, "2")),
            (GONE, Step::Read),
            (ok(), release(2, "3")),
            (Input::Released(Err(moved)), Step::Read),
            (ok(), release(3, "4")),
            (CHANGED, failed(Failure::Refused("BUSYKEY x".into()))),
        ],
    );
}

#[test]
fn a_pause_is_waited_for_before_a_key_goes() {
    plays(
        order(&["a"]),
        &[
            (captured(&["1"]), Step::Link { anew: false }),
            (LINKED, send("RESTORE a 0 1")),
            (Input::Sent, Step::Read),
            (ok(), release(0, "1")),
            (Input::Released(Ok(Release::Paused)), Step::AwaitUnpause),
            (Input::Unpaused, release(0, "1")),
            (Input::Released(Ok(Release::Paused)), Step::AwaitUnpause),
            (Input::Deadline, failed(Failure::Reading)),
        ],
    );
}

/// The target closes idle connections. Confirmed keys were executed.
#[test]
fn a_kept_link_that_is_dead_is_made_anew_and_no_other() {
    let begin = [(captured(&["1"]), Step::Link { anew: false }), (KEPT, send("RESTORE a 0 1"))];
    let anew = Step::Link { anew: true };
    for lost in
        [&[(Input::NotSent, anew.clone())][..], &[(Input::Sent, Step::Read), (Input::NotAnswered, anew)]]
    {
        let rest = [(LINKED, send("RESTORE a 0 1")), (Input::NotSent, failed(Failure::Writing))];
        plays(order(&["a"]), &[&begin[..], lost, &rest].concat());
    }
    let begin = [(captured(&["1", "2"]), Step::Link { anew: false })];
    let answered = [
        (KEPT, send("RESTORE a 0 1|RESTORE b 0 2")),
        (Input::Sent, Step::Read),
        (ok(), release(0, "1")),
        (GONE, Step::Read),
        (Input::NotAnswered, failed(Failure::Reading)),
    ];
    plays(order(&["a", "b"]), &[&begin[..], &answered].concat());
}

#[test]
fn a_target_that_is_not_there_or_is_this_server_gets_nothing() {
    let begin = [(captured(&["1"]), Step::Link { anew: false })];
    let here = Input::Linked { kept: false, to_self: true };
    for (outcome, failure) in [
        (Input::NotLinked(Failure::Writing), Failure::Writing),
        (Input::NotLinked(Failure::Refused("NOAUTH".into())), Failure::Refused("NOAUTH".into())),
        (here, Failure::Reading),
    ] {
        plays(order(&["a"]), &[&begin[..], &[(outcome, failed(failure))]].concat());
    }
}

/// The error names the step at which the timeout expired.
#[test]
fn the_time_is_for_all_of_it() {
    let steps = [
        (captured(&["1"]), Failure::Connecting),
        (LINKED, Failure::Writing),
        (Input::Sent, Failure::Reading),
        (ok(), Failure::Reading),
    ];
    for upto in 1..=steps.len() {
        let mut machine = begun(order(&["a"]), false);
        assert_eq!(machine.deadline(), Instant::ORIGIN + Duration::from_secs(5));
        for (outcome, _) in &steps[..upto] {
            machine.handle(WALL, outcome.clone());
        }
        let failure = steps[upto - 1].1.clone();
        assert_eq!(machine.handle(WALL, Input::Deadline), failed(failure), "after {upto}");
    }
}
