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

/// Everything up to the grant.
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
    let expected = [
        Action::Send(Message::RequestPause),
        Action::Send(Message::RequestFailover),
        Action::Claim { before: at(6) + CLAIM_WITHIN },
    ];
    assert_eq!(actions, expected);
    let mut out = Vec::new();
    // Whatever comes now, the claim's outcome decides.
    for input in [Input::Closed, Input::Flushed, Input::Demoted, Input::TakenByOther, Input::Deadline] {
        machine.handle(at(10), input, &mut out);
    }
    assert_eq!((out.len(), machine.next_deadline()), (0, None));
    machine.handle(at(11), Input::Claimed, &mut out);
    assert_eq!(out, [Action::End(Ok(()))]);
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

/// A pause was asked for with the changes of the whole snapshot still to be applied: writers waited for that.
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
        (Input::Flushed, "Data was flushed"),
        (Input::Demoted, "A failover occurred during slot import"),
        (Input::TakenByOther, "Slots are no longer owned by source node."),
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
        assert_eq!(out.last(), Some(&Action::Claim { before: asked + CLAIM_WITHIN }), "{length}");
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
