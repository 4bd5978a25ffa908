use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn run(inputs: &[ImportEvent]) -> (Vec<ImportAction>, Import) {
    let (mut machine, mut out) = (Import::new(at(0), TIMEOUT, false), Vec::new());
    for (millis, input) in (1..).zip(inputs) {
        machine.handle(at(millis), input.clone(), &mut out);
    }
    (out, machine)
}

const HEALTHY: ImportConditions = ImportConditions { is_master: true, source_serves: true, flushed: false };
const DEMOTED: ImportConditions = ImportConditions { is_master: false, ..HEALTHY };
const TAKEN: ImportConditions = ImportConditions { source_serves: false, ..HEALTHY };
const FLUSHED: ImportConditions = ImportConditions { flushed: true, ..HEALTHY };

/// Returns all events up to the grant.
fn granted() -> Vec<ImportEvent> {
    vec![
        ImportEvent::Received(Message::Ack),
        ImportEvent::DataApplied,
        ImportEvent::Received(Message::SnapshotEof),
        ImportEvent::DataApplied,
        ImportEvent::CaughtUp,
        ImportEvent::Received(Message::Paused),
        ImportEvent::Received(Message::FailoverGranted),
    ]
}

#[test]
fn slots_are_claimed_after_the_grant() {
    let (actions, mut machine) = run(&granted());
    let expected = [
        ImportAction::Send(Message::RequestPause),
        ImportAction::Send(Message::RequestFailover),
        ImportAction::AwaitReplicas,
    ];
    assert_eq!(actions, expected);
    let mut out = Vec::new();
    let mut others =
        vec![ImportEvent::Closed, ImportEvent::Cancel, ImportEvent::CaughtUp, ImportEvent::Deadline];
    others.extend([DEMOTED, TAKEN, FLUSHED].map(ImportEvent::Conditions));
    // The conditions are checked again once the replicas have received all data. After that check only the result of
    // the claim counts.
    others.iter().for_each(|input| machine.handle(at(10), input.clone(), &mut out));
    assert_eq!((out.len(), machine.next_deadline()), (0, None));
    machine.handle(at(11), ImportEvent::ReplicasCaughtUp(HEALTHY), &mut out);
    others.push(ImportEvent::ReplicasCaughtUp(DEMOTED));
    others.iter().for_each(|input| machine.handle(at(12), input.clone(), &mut out));
    assert_eq!((&out[..], machine.next_deadline()), (&[ImportAction::Claim][..], None));
    machine.handle(at(13), ImportEvent::Claimed, &mut out);
    assert_eq!(out[1..], [ImportAction::End(Ok(()))]);
}

#[test]
fn slots_are_not_claimed_late_or_after_a_change_of_conditions() {
    let late = at(6) + CLAIM_TIMEOUT;
    for (now, around, why) in [
        (late, HEALTHY, "The slots were granted too long ago"),
        (at(8), DEMOTED, "A failover occurred during slot import"),
        (at(8), TAKEN, "Slots are no longer owned by source node."),
        (at(8), FLUSHED, "Data was flushed"),
        (late, FLUSHED, "Data was flushed"),
    ] {
        let (_, mut machine) = run(&granted());
        let mut out = Vec::new();
        machine.handle(now, ImportEvent::ReplicasCaughtUp(around), &mut out);
        assert_eq!(out, [ImportAction::End(Err(why.to_owned()))]);
    }
    let (_, mut machine) = run(&granted());
    let mut out = Vec::new();
    machine.handle(late - Duration::from_millis(1), ImportEvent::ReplicasCaughtUp(HEALTHY), &mut out);
    assert_eq!(out, [ImportAction::Claim]);
}

#[test]
fn late_grants_are_ignored() {
    let before = &granted()[..6];
    let (_, mut machine) = run(before);
    let mut out = Vec::new();
    machine.handle(at(6) + GRANT_TIMEOUT, ImportEvent::Received(Message::FailoverGranted), &mut out);
    let why = "Source node sent FAILOVER-GRANTED out of order".to_owned();
    assert_eq!(out, [ImportAction::End(Err(why))]);

    let (_, mut machine) = run(before);
    out.clear();
    machine.handle(at(1000), ImportEvent::Deadline, &mut out);
    assert_eq!(machine.next_deadline(), Some(at(2000)));
    machine.handle(at(6) + GRANT_TIMEOUT, ImportEvent::Deadline, &mut out);
    let why = "The source node did not grant the slots in time".to_owned();
    assert_eq!(out, [ImportAction::Send(Message::Ack), ImportAction::End(Err(why))]);
}

/// Regression test: the pause was requested before the changes of the whole snapshot were applied, so clients' writes
/// were paused for longer than necessary.
#[test]
fn pause_is_requested_once_everything_received_is_applied() {
    let (actions, mut machine) = run(&granted()[..4]);
    assert_eq!(actions, []);
    let mut out = Vec::new();
    machine.handle(at(5), ImportEvent::CaughtUp, &mut out);
    machine.handle(at(6), ImportEvent::CaughtUp, &mut out);
    assert_eq!(out, [ImportAction::Send(Message::RequestPause)]);

    let (_, mut machine) = run(&granted()[..4]);
    out.clear();
    machine.handle(at(3) + CATCH_UP_TIMEOUT, ImportEvent::Deadline, &mut out);
    assert_eq!(out[0], ImportAction::Send(Message::RequestPause), "it never catches up");
}

#[test]
fn writes_are_held_longer_than_grants_are_valid() {
    assert!(crate::export::MAX_HOLD_TIME >= 2 * GRANT_TIMEOUT);
}

#[test]
fn any_failure_before_the_claim_deletes_the_imported_keys() {
    let lost =
        "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.";
    let table = [
        (ImportEvent::Closed, lost),
        (ImportEvent::EndedByPeer, lost),
        (ImportEvent::Cancel, "Cancelled"),
        (ImportEvent::Conditions(FLUSHED), "Data was flushed"),
        (ImportEvent::Conditions(DEMOTED), "A failover occurred during slot import"),
        (ImportEvent::Conditions(TAKEN), "Slots are no longer owned by source node."),
        (ImportEvent::Failed("x".to_owned()), "x"),
        (ImportEvent::Received(Message::RequestPause), "Source node sent REQUEST-PAUSE out of order"),
    ];
    for length in 0..granted().len() - 1 {
        for (input, why) in &table {
            let mut inputs = granted()[..length].to_vec();
            inputs.push(input.clone());
            let (actions, machine) = run(&inputs);
            assert_eq!(actions.last(), Some(&ImportAction::End(Err((*why).to_owned()))), "{inputs:?}");
            assert_eq!(machine.next_deadline(), None);
        }
    }
    let (actions, _) = run(&[granted(), vec![ImportEvent::NotClaimed("no".to_owned())]].concat());
    assert_eq!(actions.last(), Some(&ImportAction::End(Err("no".to_owned()))));
}

#[test]
fn job_resumes_on_a_new_link_and_repeats_its_request() {
    let said = |length| match length {
        5 => vec![ImportAction::Send(Message::RequestPause)],
        6 => vec![ImportAction::Send(Message::RequestFailover)],
        _ => Vec::new(),
    };
    for length in 0..granted().len() {
        let (mut machine, mut out) = (Import::new(at(0), TIMEOUT, true), Vec::new());
        for (millis, input) in (1..).zip(&granted()[..length]) {
            machine.handle(at(millis), input.clone(), &mut out);
        }
        out.clear();
        machine.handle(at(10), ImportEvent::Closed, &mut out);
        machine.handle(at(1500), ImportEvent::Deadline, &mut out);
        assert_eq!(out, [], "without a link nothing is said");
        machine.handle(at(1600), ImportEvent::Resumed, &mut out);
        assert_eq!(std::mem::take(&mut out), said(length), "{length}");
        for input in &granted()[length..] {
            machine.handle(at(1601), input.clone(), &mut out);
        }
        let asked = at(if length < 6 { 1601 } else { 6 });
        assert_eq!(out.last(), Some(&ImportAction::AwaitReplicas), "{length}");
        machine.handle(asked + CLAIM_TIMEOUT, ImportEvent::ReplicasCaughtUp(HEALTHY), &mut out);
        assert!(matches!(out.last(), Some(ImportAction::End(Err(_)))), "{length}");
    }
}

#[test]
fn job_without_link_times_out() {
    let (mut machine, mut out) = (Import::new(at(0), TIMEOUT, true), Vec::new());
    machine.handle(at(1), ImportEvent::Received(Message::Ack), &mut out);
    machine.handle(at(10), ImportEvent::Closed, &mut out);
    assert_eq!(machine.next_deadline(), Some(at(10) + RESUME_TIMEOUT));
    machine.handle(at(10) + RESUME_TIMEOUT, ImportEvent::Deadline, &mut out);
    assert!(matches!(out.as_slice(), [ImportAction::End(Err(_))]));
}
