use super::*;

const EXPORT_CONFIG: ExportConfig = ExportConfig {
    connect_timeout: Duration::from_secs(1),
    timeout: Duration::from_secs(60),
    requires_authentication: false,
    max_remaining_bytes: 100,
};

fn at_millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Processes the events, one per millisecond. Returns the actions and the final state.
fn run_events(config: ExportConfig, events: &[ExportEvent]) -> (Vec<ExportAction>, ExportStateMachine) {
    let (mut machine, mut out) = (ExportStateMachine::new(at_millis(0), config), Vec::new());
    for (millis, input) in (1..).zip(events) {
        machine.handle(at_millis(millis), input.clone(), &mut out);
    }
    (out, machine)
}

fn received_event(message: MigrationMessage) -> ExportEvent {
    ExportEvent::Received(message)
}

/// Returns Valkey's error reply to an unknown subcommand.
fn unknown_subcommand_error() -> ExportEvent {
    ExportEvent::Refused("ERR syntax error".to_owned())
}

/// Returns all events up to the grant, for a migration that cannot be resumed.
fn events_up_to_grant() -> Vec<ExportEvent> {
    vec![
        ExportEvent::Connected,
        unknown_subcommand_error(),
        ExportEvent::Accepted,
        ExportEvent::SnapshotTaken,
        ExportEvent::SnapshotSent,
        received_event(MigrationMessage::RequestPause),
        ExportEvent::BytesRemaining(101),
        ExportEvent::BytesRemaining(100),
        ExportEvent::LogDrained,
        received_event(MigrationMessage::RequestFailover),
    ]
}

#[test]
fn slots_are_granted_once_the_log_is_sent_and_writes_are_paused() {
    let (actions, mut machine) = run_events(EXPORT_CONFIG, &events_up_to_grant());
    let expected = [
        ExportAction::QueryResumable,
        ExportAction::Establish { is_resumable: false },
        ExportAction::Send(MigrationMessage::Ack),
        ExportAction::TakeSnapshot,
        ExportAction::Send(MigrationMessage::SnapshotEof),
        ExportAction::PauseWrites,
        ExportAction::Send(MigrationMessage::Paused),
        ExportAction::Send(MigrationMessage::FailoverGranted),
    ];
    assert_eq!((actions.as_slice(), machine.state_name()), (&expected[..], "failover-granted"));
    let mut out = Vec::new();
    // Whether the link is up does not matter any more: only the claim of the target decides.
    machine.handle(at_millis(20), ExportEvent::Closed, &mut out);
    machine.handle(at_millis(21), ExportEvent::Cancel, &mut out);
    assert_eq!(out, []);
    machine.handle(at_millis(22), ExportEvent::ClaimedByTarget, &mut out);
    assert_eq!(out, [ExportAction::End(ExportOutcome::Success)]);
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn writes_are_paused_for_a_limited_time() {
    let (_, mut machine) = run_events(EXPORT_CONFIG, &events_up_to_grant());
    let mut out = Vec::new();
    machine.handle(at_millis(20), ExportEvent::Closed, &mut out);
    assert_eq!(machine.next_deadline(), Some(at_millis(10) + MAX_WRITE_PAUSE));
    machine.handle(at_millis(10) + MAX_WRITE_PAUSE, ExportEvent::Deadline, &mut out);
    let why = "Unpaused before migration completed (migration may have succeeded with lost writes)";
    assert_eq!(out, [ExportAction::End(ExportOutcome::Failed(why.to_owned()))]);
}

#[test]
fn any_failure_before_the_grant_ends_the_job() {
    let lost =
        "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information.";
    let table = [
        (ExportEvent::Cancel, ExportOutcome::Cancelled),
        (ExportEvent::Closed, ExportOutcome::Failed(lost.to_owned())),
        (ExportEvent::Flushed, ExportOutcome::Failed("Data was flushed".to_owned())),
        (ExportEvent::Demoted, ExportOutcome::Failed("A failover occurred during slot export".to_owned())),
        (
            ExportEvent::ClaimedByOther,
            ExportOutcome::Failed("Slots are no longer owned by myself.".to_owned()),
        ),
        (
            ExportEvent::ClaimedByTarget,
            ExportOutcome::Failed("Slots are no longer owned by myself.".to_owned()),
        ),
        (ExportEvent::Failed("x".to_owned()), ExportOutcome::Failed("x".to_owned())),
        (
            received_event(MigrationMessage::FailoverGranted),
            ExportOutcome::Failed("Target node sent FAILOVER-GRANTED out of order".to_owned()),
        ),
    ];
    for length in 0..events_up_to_grant().len() - 1 {
        for (input, outcome) in &table {
            let mut inputs = events_up_to_grant()[..length].to_vec();
            inputs.push(input.clone());
            let (actions, machine) = run_events(EXPORT_CONFIG, &inputs);
            assert_eq!(actions.last(), Some(&ExportAction::End(outcome.clone())), "{inputs:?}");
            assert_eq!(machine.next_deadline(), None);
        }
    }
}

#[test]
fn error_of_the_target_is_reported() {
    let text = "ERR Slot migration can only be used on primary nodes.";
    let (actions, _) = run_events(
        EXPORT_CONFIG,
        &[ExportEvent::Connected, unknown_subcommand_error(), ExportEvent::Refused(text.to_owned())],
    );
    let outcome = ExportOutcome::Failed(format!("Received error during handshake to target: -{text}"));
    let establish = |resumable| ExportAction::Establish { is_resumable: resumable };
    assert_eq!(actions, [ExportAction::QueryResumable, establish(false), ExportAction::End(outcome)]);
    let (actions, _) = run_events(
        ExportConfig { requires_authentication: true, ..EXPORT_CONFIG },
        &[
            ExportEvent::Connected,
            ExportEvent::Accepted,
            ExportEvent::Accepted,
            ExportEvent::ConnectFailed("refused".to_owned()),
        ],
    );
    let outcome = ExportOutcome::Failed("Unable to connect to target node: refused".to_owned());
    assert_eq!(
        actions,
        [
            ExportAction::Authenticate,
            ExportAction::QueryResumable,
            establish(true),
            ExportAction::End(outcome)
        ]
    );
}

#[test]
fn snapshot_is_retried_and_a_silent_target_times_out() {
    let (_, mut machine) = run_events(
        EXPORT_CONFIG,
        &[
            ExportEvent::Connected,
            unknown_subcommand_error(),
            ExportEvent::Accepted,
            ExportEvent::SnapshotFailed,
        ],
    );
    let mut out = Vec::new();
    assert_eq!(machine.next_deadline(), Some(at_millis(4) + SNAPSHOT_RETRY_DELAY));
    machine.handle(at_millis(4) + SNAPSHOT_RETRY_DELAY, ExportEvent::Deadline, &mut out);
    assert_eq!(out, [ExportAction::TakeSnapshot]);
    machine.handle(at_millis(25), ExportEvent::SnapshotTaken, &mut out);
    out.clear();
    machine.handle(at_millis(1003), ExportEvent::Deadline, &mut out);
    assert_eq!(out, [ExportAction::Send(MigrationMessage::Ack)]);
    out.clear();
    machine.handle(at_millis(60_004), ExportEvent::Deadline, &mut out);
    let why = "Timed out after too long with no interaction".to_owned();
    assert_eq!(out, [ExportAction::End(ExportOutcome::Failed(why))]);
}

/// Returns all events up to the grant, for a resumable migration.
fn resumable_events_up_to_grant() -> Vec<ExportEvent> {
    let mut inputs = events_up_to_grant();
    inputs[1] = ExportEvent::Accepted;
    inputs
}

#[test]
fn job_resumes_on_a_new_link_in_every_state() {
    let whole = resumable_events_up_to_grant();
    // The link breaks after each event, starting with the announcement of the migration.
    for length in 2..whole.len() {
        let (before, mut machine) = run_events(EXPORT_CONFIG, &whole[..length]);
        let mut out = Vec::new();
        machine.handle(at_millis(20), ExportEvent::Closed, &mut out);
        assert_eq!(out, [ExportAction::Reconnect], "{length}");
        assert!(machine.next_deadline() > Some(at_millis(1100)), "nothing is sent meanwhile");
        machine.handle(at_millis(30), ExportEvent::ResumeFailed, &mut out);
        assert_eq!(machine.next_deadline(), Some(at_millis(30) + RECONNECT_DELAY));
        machine.handle(at_millis(30) + RECONNECT_DELAY, ExportEvent::Deadline, &mut out);
        assert_eq!(out, [ExportAction::Reconnect, ExportAction::Reconnect]);
        machine.handle(at_millis(140), ExportEvent::Resumed, &mut out);
        // The target repeats its request, because the first request may have been lost.
        if (5..8).contains(&length) {
            machine.handle(at_millis(141), received_event(MigrationMessage::RequestPause), &mut out);
        }
        // If the reply to the announcement was lost, the successful reconnect replaces that reply.
        for input in &whole[length.max(3)..] {
            machine.handle(at_millis(150), input.clone(), &mut out);
        }
        machine.handle(at_millis(160), ExportEvent::ClaimedByTarget, &mut out);
        let all: Vec<ExportAction> =
            before.into_iter().chain(out).filter(|action| *action != ExportAction::Reconnect).collect();
        let expected = [
            ExportAction::QueryResumable,
            ExportAction::Establish { is_resumable: true },
            ExportAction::Send(MigrationMessage::Ack),
            ExportAction::TakeSnapshot,
            ExportAction::Send(MigrationMessage::SnapshotEof),
            ExportAction::PauseWrites,
            ExportAction::Send(MigrationMessage::Paused),
            ExportAction::Send(MigrationMessage::FailoverGranted),
            ExportAction::End(ExportOutcome::Success),
        ];
        assert_eq!(all, expected, "{length}");
    }
}

#[test]
fn job_without_link_times_out_and_ends_at_once_if_the_target_ended_it() {
    let lost = ExportOutcome::Failed(
        "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information."
            .to_owned(),
    );
    for last in [ExportEvent::Deadline, ExportEvent::EndedByPeer] {
        let (_, mut machine) = run_events(EXPORT_CONFIG, &resumable_events_up_to_grant()[..5]);
        let mut out = Vec::new();
        machine.handle(at_millis(20), ExportEvent::Closed, &mut out);
        machine.handle(at_millis(20) + RESUME_TIMEOUT, last, &mut out);
        assert_eq!(out, [ExportAction::Reconnect, ExportAction::End(lost.clone())]);
    }
}

#[test]
fn granted_migration_ends_only_by_the_claim_or_timeout() {
    let (_, mut machine) = run_events(EXPORT_CONFIG, &resumable_events_up_to_grant());
    let mut out = Vec::new();
    machine.handle(at_millis(20), ExportEvent::Closed, &mut out);
    assert_eq!(out, []);
    machine.handle(at_millis(20) + RECONNECT_DELAY, ExportEvent::Deadline, &mut out);
    assert_eq!(out, [ExportAction::Reconnect]);
    out.clear();
    // The target closed the link because it has claimed the slots.
    machine.handle(at_millis(130), ExportEvent::EndedByPeer, &mut out);
    machine.handle(at_millis(131), ExportEvent::Deadline, &mut out);
    assert_eq!((out.len(), machine.next_deadline()), (0, Some(at_millis(10) + MAX_WRITE_PAUSE)));
    machine.handle(at_millis(140), ExportEvent::ClaimedByTarget, &mut out);
    assert_eq!(out, [ExportAction::End(ExportOutcome::Success)]);
}
