use super::*;

const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);

fn at_millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn run_events(events: &[ImportEvent]) -> (Vec<ImportAction>, ImportStateMachine) {
    let (mut machine, mut out) = (ImportStateMachine::new(at_millis(0), IMPORT_TIMEOUT, false), Vec::new());
    for (millis, input) in (1..).zip(events) {
        machine.handle(at_millis(millis), input.clone(), &mut out);
    }
    (out, machine)
}

const HEALTHY_CONDITIONS: ImportConditions =
    ImportConditions { is_master: true, source_owns_slots: true, was_flushed: false };
const DEMOTED_CONDITIONS: ImportConditions = ImportConditions { is_master: false, ..HEALTHY_CONDITIONS };
const SLOTS_TAKEN_CONDITIONS: ImportConditions =
    ImportConditions { source_owns_slots: false, ..HEALTHY_CONDITIONS };
const FLUSHED_CONDITIONS: ImportConditions = ImportConditions { was_flushed: true, ..HEALTHY_CONDITIONS };

/// Returns all events up to the grant.
fn events_up_to_grant() -> Vec<ImportEvent> {
    vec![
        ImportEvent::Received(MigrationMessage::Ack),
        ImportEvent::DataApplied,
        ImportEvent::Received(MigrationMessage::SnapshotEof),
        ImportEvent::DataApplied,
        ImportEvent::CaughtUp,
        ImportEvent::Received(MigrationMessage::Paused),
        ImportEvent::Received(MigrationMessage::FailoverGranted),
    ]
}

#[test]
fn slots_are_claimed_after_the_grant() {
    let (actions, mut machine) = run_events(&events_up_to_grant());
    let expected = [
        ImportAction::Send(MigrationMessage::RequestPause),
        ImportAction::Send(MigrationMessage::RequestFailover),
        ImportAction::AwaitReplicas,
    ];
    assert_eq!(actions, expected);
    let mut out = Vec::new();
    let mut others =
        vec![ImportEvent::Closed, ImportEvent::Cancel, ImportEvent::CaughtUp, ImportEvent::Deadline];
    others.extend(
        [DEMOTED_CONDITIONS, SLOTS_TAKEN_CONDITIONS, FLUSHED_CONDITIONS].map(ImportEvent::ConditionsChanged),
    );
    // The conditions are checked again once the replicas have received all data. After that check only the result of
    // the claim counts.
    others.iter().for_each(|input| machine.handle(at_millis(10), input.clone(), &mut out));
    assert_eq!((out.len(), machine.next_deadline()), (0, None));
    machine.handle(at_millis(11), ImportEvent::ReplicasCaughtUp(HEALTHY_CONDITIONS), &mut out);
    others.push(ImportEvent::ReplicasCaughtUp(DEMOTED_CONDITIONS));
    others.iter().for_each(|input| machine.handle(at_millis(12), input.clone(), &mut out));
    assert_eq!((&out[..], machine.next_deadline()), (&[ImportAction::ClaimSlots][..], None));
    machine.handle(at_millis(13), ImportEvent::SlotsClaimed, &mut out);
    assert_eq!(out[1..], [ImportAction::End(Ok(()))]);
}

#[test]
fn slots_are_not_claimed_late_or_after_a_change_of_conditions() {
    let late = at_millis(6) + CLAIM_TIMEOUT;
    for (now, around, why) in [
        (late, HEALTHY_CONDITIONS, "The slots were granted too long ago"),
        (at_millis(8), DEMOTED_CONDITIONS, "A failover occurred during slot import"),
        (at_millis(8), SLOTS_TAKEN_CONDITIONS, "Slots are no longer owned by source node."),
        (at_millis(8), FLUSHED_CONDITIONS, "Data was flushed"),
        (late, FLUSHED_CONDITIONS, "Data was flushed"),
    ] {
        let (_, mut machine) = run_events(&events_up_to_grant());
        let mut out = Vec::new();
        machine.handle(now, ImportEvent::ReplicasCaughtUp(around), &mut out);
        assert_eq!(out, [ImportAction::End(Err(why.to_owned()))]);
    }
    let (_, mut machine) = run_events(&events_up_to_grant());
    let mut out = Vec::new();
    machine.handle(
        late - Duration::from_millis(1),
        ImportEvent::ReplicasCaughtUp(HEALTHY_CONDITIONS),
        &mut out,
    );
    assert_eq!(out, [ImportAction::ClaimSlots]);
}

#[test]
fn late_grants_are_ignored() {
    let before = &events_up_to_grant()[..6];
    let (_, mut machine) = run_events(before);
    let mut out = Vec::new();
    machine.handle(
        at_millis(6) + GRANT_TIMEOUT,
        ImportEvent::Received(MigrationMessage::FailoverGranted),
        &mut out,
    );
    let why = "Source node sent FAILOVER-GRANTED out of order".to_owned();
    assert_eq!(out, [ImportAction::End(Err(why))]);

    let (_, mut machine) = run_events(before);
    out.clear();
    machine.handle(at_millis(1000), ImportEvent::Deadline, &mut out);
    assert_eq!(machine.next_deadline(), Some(at_millis(2000)));
    machine.handle(at_millis(6) + GRANT_TIMEOUT, ImportEvent::Deadline, &mut out);
    let why = "The source node did not grant the slots in time".to_owned();
    assert_eq!(out, [ImportAction::Send(MigrationMessage::Ack), ImportAction::End(Err(why))]);
}

/// Regression test: the pause was requested before the changes of the whole snapshot were applied, so clients' writes
/// were paused for longer than necessary.
#[test]
fn pause_is_requested_once_all_received_data_is_applied() {
    let (actions, mut machine) = run_events(&events_up_to_grant()[..4]);
    assert_eq!(actions, []);
    let mut out = Vec::new();
    machine.handle(at_millis(5), ImportEvent::CaughtUp, &mut out);
    machine.handle(at_millis(6), ImportEvent::CaughtUp, &mut out);
    assert_eq!(out, [ImportAction::Send(MigrationMessage::RequestPause)]);

    let (_, mut machine) = run_events(&events_up_to_grant()[..4]);
    out.clear();
    machine.handle(at_millis(3) + CATCH_UP_TIMEOUT, ImportEvent::Deadline, &mut out);
    assert_eq!(out[0], ImportAction::Send(MigrationMessage::RequestPause), "it never catches up");
}

#[test]
fn writes_are_paused_longer_than_grants_are_valid() {
    assert!(crate::export::MAX_WRITE_PAUSE >= 2 * GRANT_TIMEOUT);
}

#[test]
fn any_failure_before_the_claim_deletes_the_imported_keys() {
    let lost =
        "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.";
    let table = [
        (ImportEvent::Closed, lost),
        (ImportEvent::EndedByPeer, lost),
        (ImportEvent::Cancel, "Cancelled"),
        (ImportEvent::ConditionsChanged(FLUSHED_CONDITIONS), "Data was flushed"),
        (ImportEvent::ConditionsChanged(DEMOTED_CONDITIONS), "A failover occurred during slot import"),
        (ImportEvent::ConditionsChanged(SLOTS_TAKEN_CONDITIONS), "Slots are no longer owned by source node."),
        (ImportEvent::Failed("x".to_owned()), "x"),
        (
            ImportEvent::Received(MigrationMessage::RequestPause),
            "Source node sent REQUEST-PAUSE out of order",
        ),
    ];
    for length in 0..events_up_to_grant().len() - 1 {
        for (input, why) in &table {
            let mut inputs = events_up_to_grant()[..length].to_vec();
            inputs.push(input.clone());
            let (actions, machine) = run_events(&inputs);
            assert_eq!(actions.last(), Some(&ImportAction::End(Err((*why).to_owned()))), "{inputs:?}");
            assert_eq!(machine.next_deadline(), None);
        }
    }
    let (actions, _) =
        run_events(&[events_up_to_grant(), vec![ImportEvent::ClaimFailed("no".to_owned())]].concat());
    assert_eq!(actions.last(), Some(&ImportAction::End(Err("no".to_owned()))));
}

#[test]
fn job_resumes_on_a_new_link_and_repeats_its_request() {
    let said = |length| match length {
        5 => vec![ImportAction::Send(MigrationMessage::RequestPause)],
        6 => vec![ImportAction::Send(MigrationMessage::RequestFailover)],
        _ => Vec::new(),
    };
    for length in 0..events_up_to_grant().len() {
        let (mut machine, mut out) =
            (ImportStateMachine::new(at_millis(0), IMPORT_TIMEOUT, true), Vec::new());
        for (millis, input) in (1..).zip(&events_up_to_grant()[..length]) {
            machine.handle(at_millis(millis), input.clone(), &mut out);
        }
        out.clear();
        machine.handle(at_millis(10), ImportEvent::Closed, &mut out);
        machine.handle(at_millis(1500), ImportEvent::Deadline, &mut out);
        assert_eq!(out, [], "without a link nothing is said");
        machine.handle(at_millis(1600), ImportEvent::Resumed, &mut out);
        assert_eq!(std::mem::take(&mut out), said(length), "{length}");
        for input in &events_up_to_grant()[length..] {
            machine.handle(at_millis(1601), input.clone(), &mut out);
        }
        let asked = at_millis(if length < 6 { 1601 } else { 6 });
        assert_eq!(out.last(), Some(&ImportAction::AwaitReplicas), "{length}");
        machine.handle(asked + CLAIM_TIMEOUT, ImportEvent::ReplicasCaughtUp(HEALTHY_CONDITIONS), &mut out);
        assert!(matches!(out.last(), Some(ImportAction::End(Err(_)))), "{length}");
    }
}

#[test]
fn job_without_link_times_out() {
    let (mut machine, mut out) = (ImportStateMachine::new(at_millis(0), IMPORT_TIMEOUT, true), Vec::new());
    machine.handle(at_millis(1), ImportEvent::Received(MigrationMessage::Ack), &mut out);
    machine.handle(at_millis(10), ImportEvent::Closed, &mut out);
    assert_eq!(machine.next_deadline(), Some(at_millis(10) + RESUME_TIMEOUT));
    machine.handle(at_millis(10) + RESUME_TIMEOUT, ImportEvent::Deadline, &mut out);
    assert!(matches!(out.as_slice(), [ImportAction::End(Err(_))]));
}
