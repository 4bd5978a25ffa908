use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn run(inputs: &[Input]) -> (Vec<Action>, Import) {
    let (mut machine, mut out) = (Import::new(at(0), TIMEOUT, false), Vec::new());
    for (millis, input) in (1..).zip(inputs) {
        machine.handle(at(millis), input.clone(), &mut out);
    }
    (out, machine)
}

const WELL: Around = Around { is_master: true, source_serves: true, flushed: false };
const DEMOTED: Around = Around { is_master: false, ..WELL };
const TAKEN: Around = Around { source_serves: false, ..WELL };
const FLUSHED: Around = Around { flushed: true, ..WELL };

/// All events up to the grant.
fn granted() -> Vec<Input> {
    vec![
        Input::Heard(Message::Ack),
        Input::Fed,
        Input::Heard(Message::SnapshotEof),
        Input::Fed,
        Input::CaughtUp,
        Input::Heard(Message::Paused),
        Input::Heard(Message::FailoverGranted),
    ]
}

#[test]
fn slots_are_claimed_when_they_were_granted() {
    let (actions, mut machine) = run(&granted());
    let expected =
        [Action::Send(Message::RequestPause), Action::Send(Message::RequestFailover), Action::AwaitReplicas];
    assert_eq!(actions, expected);
    let mut out = Vec::new();
    let mut others = vec![Input::Closed, Input::Cancel, Input::CaughtUp, Input::Deadline];
    others.extend([DEMOTED, TAKEN, FLUSHED].map(Input::Around));
    // Conditions are checked again once the replicas have received everything; after that only the result of the claim
    // counts.
    others.iter().for_each(|input| machine.handle(at(10), input.clone(), &mut out));
    assert_eq!((out.len(), machine.next_deadline()), (0, None));
    machine.handle(at(11), Input::ReplicasHave(WELL), &mut out);
    others.push(Input::ReplicasHave(DEMOTED));
    others.iter().for_each(|input| machine.handle(at(12), input.clone(), &mut out));
    assert_eq!((&out[..], machine.next_deadline()), (&[Action::Claim][..], None));
    machine.handle(at(13), Input::Claimed, &mut out);
    assert_eq!(out[1..], [Action::End(Ok(()))]);
}

#[test]
fn slots_are_not_claimed_when_something_came_between_or_it_is_late() {
    let late = at(6) + CLAIM_WITHIN;
    for (now, around, why) in [
        (late, WELL, "The slots were granted too long ago"),
        (at(8), DEMOTED, "A failover occurred during slot import"),
        (at(8), TAKEN, "Slots are no longer owned by source node."),
        (at(8), FLUSHED, "Data was flushed"),
        (late, FLUSHED, "Data was flushed"),
    ] {
        let (_, mut machine) = run(&granted());
        let mut out = Vec::new();
        machine.handle(now, Input::ReplicasHave(around), &mut out);
        assert_eq!(out, [Action::End(Err(why.to_owned()))]);
    }
    let (_, mut machine) = run(&granted());
    let mut out = Vec::new();
    machine.handle(late - Duration::from_millis(1), Input::ReplicasHave(WELL), &mut out);
    assert_eq!(out, [Action::Claim]);
}

#[test]
fn a_source_speaks_of_its_slots_and_of_the_job() {
    let [first, second, third] = [1, 2, 3].map(|number| Slot::new(number).expect("a slot"));
    let job: SlotSet = [first, second].into_iter().collect();
    for (name, about, may) in [
        ("SET", &[first][..], true),
        ("MSET", &[first, second], true),
        ("MSET", &[first, third], false),
        ("SET", &[third], false),
        ("FLUSHALL", &[], false),
        ("SCRIPT", &[], false),
        ("select", &[], true),
        ("MULTI", &[], true),
        ("exec", &[], true),
        ("PING", &[], true),
        ("CLUSTER", &[], true),
        ("", &[], false),
    ] {
        assert_eq!(is_of_job(name.as_bytes(), about, &job), may, "{name} {about:?}");
    }
}

#[test]
fn a_grant_that_comes_late_is_not_used() {
    let before = &granted()[..6];
    let (_, mut machine) = run(before);
    let mut out = Vec::new();
    machine.handle(at(6) + GRANT_WITHIN, Input::Heard(Message::FailoverGranted), &mut out);
    let why = "Source node sent FAILOVER-GRANTED out of order".to_owned();
    assert_eq!(out, [Action::End(Err(why))]);

    let (_, mut machine) = run(before);
    out.clear();
    machine.handle(at(1000), Input::Deadline, &mut out);
    assert_eq!(machine.next_deadline(), Some(at(2000)));
    machine.handle(at(6) + GRANT_WITHIN, Input::Deadline, &mut out);
    let why = "The source node did not grant the slots in time".to_owned();
    assert_eq!(out, [Action::Send(Message::Ack), Action::End(Err(why))]);
}

/// Regression test: the pause used to be requested with the whole snapshot's changes unapplied, and clients had to wait
/// for that.
#[test]
fn the_pause_is_asked_for_when_all_that_came_was_applied() {
    let (actions, mut machine) = run(&granted()[..4]);
    assert_eq!(actions, []);
    let mut out = Vec::new();
    machine.handle(at(5), Input::CaughtUp, &mut out);
    machine.handle(at(6), Input::CaughtUp, &mut out);
    assert_eq!(out, [Action::Send(Message::RequestPause)]);

    let (_, mut machine) = run(&granted()[..4]);
    out.clear();
    machine.handle(at(3) + CATCH_UP_WITHIN, Input::Deadline, &mut out);
    assert_eq!(out[0], Action::Send(Message::RequestPause), "it never catches up");
}

#[test]
fn the_source_holds_writes_for_longer_than_a_grant_is_used() {
    assert!(crate::export::HOLD_FOR >= 2 * GRANT_WITHIN);
}

#[test]
fn whatever_ends_a_job_before_the_claim_deletes_what_came() {
    let lost =
        "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.";
    let table = [
        (Input::Closed, lost),
        (Input::EndedThere, lost),
        (Input::Cancel, "Cancelled"),
        (Input::Around(FLUSHED), "Data was flushed"),
        (Input::Around(DEMOTED), "A failover occurred during slot import"),
        (Input::Around(TAKEN), "Slots are no longer owned by source node."),
        (Input::Broken("x".to_owned()), "x"),
        (Input::Heard(Message::RequestPause), "Source node sent REQUEST-PAUSE out of order"),
    ];
    for length in 0..granted().len() - 1 {
        for (input, why) in &table {
            let mut inputs = granted()[..length].to_vec();
            inputs.push(input.clone());
            let (actions, machine) = run(&inputs);
            assert_eq!(actions.last(), Some(&Action::End(Err((*why).to_owned()))), "{inputs:?}");
            assert_eq!(machine.next_deadline(), None);
        }
    }
    let (actions, _) = run(&[granted(), vec![Input::NotClaimed("no".to_owned())]].concat());
    assert_eq!(actions.last(), Some(&Action::End(Err("no".to_owned()))));
}

#[test]
fn a_job_goes_on_with_another_link_and_says_once_more_what_it_awaits() {
    let said = |length| match length {
        5 => vec![Action::Send(Message::RequestPause)],
        6 => vec![Action::Send(Message::RequestFailover)],
        _ => Vec::new(),
    };
    for length in 0..granted().len() {
        let (mut machine, mut out) = (Import::new(at(0), TIMEOUT, true), Vec::new());
        for (millis, input) in (1..).zip(&granted()[..length]) {
            machine.handle(at(millis), input.clone(), &mut out);
        }
        out.clear();
        machine.handle(at(10), Input::Closed, &mut out);
        machine.handle(at(1500), Input::Deadline, &mut out);
        assert_eq!(out, [], "without a link nothing is said");
        machine.handle(at(1600), Input::Resumed, &mut out);
        assert_eq!(std::mem::take(&mut out), said(length), "{length}");
        for input in &granted()[length..] {
            machine.handle(at(1601), input.clone(), &mut out);
        }
        let asked = at(if length < 6 { 1601 } else { 6 });
        assert_eq!(out.last(), Some(&Action::AwaitReplicas), "{length}");
        machine.handle(asked + CLAIM_WITHIN, Input::ReplicasHave(WELL), &mut out);
        assert!(matches!(out.last(), Some(Action::End(Err(_)))), "{length}");
    }
}

#[test]
fn a_job_without_a_link_ends_in_time() {
    let (mut machine, mut out) = (Import::new(at(0), TIMEOUT, true), Vec::new());
    machine.handle(at(1), Input::Heard(Message::Ack), &mut out);
    machine.handle(at(10), Input::Closed, &mut out);
    assert_eq!(machine.next_deadline(), Some(at(10) + RESUME_WITHIN));
    machine.handle(at(10) + RESUME_WITHIN, Input::Deadline, &mut out);
    assert!(matches!(out.as_slice(), [Action::End(Err(_))]));
}
