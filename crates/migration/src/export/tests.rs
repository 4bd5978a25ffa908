use super::*;

const CONFIG: ExportConfig = ExportConfig {
    connect_timeout: Duration::from_secs(1),
    timeout: Duration::from_secs(60),
    authenticate: false,
    max_remaining: 100,
};

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Processes the events, one per millisecond. Returns the actions and the final state.
fn run(config: ExportConfig, inputs: &[ExportEvent]) -> (Vec<ExportAction>, Export) {
    let (mut machine, mut out) = (Export::new(at(0), config), Vec::new());
    for (millis, input) in (1..).zip(inputs) {
        machine.handle(at(millis), input.clone(), &mut out);
    }
    (out, machine)
}

fn heard(message: Message) -> ExportEvent {
    ExportEvent::Received(message)
}

/// Returns Valkey's error reply to an unknown subcommand.
fn not_known() -> ExportEvent {
    ExportEvent::Refused("ERR syntax error".to_owned())
}

/// Returns all events up to the grant, for a migration that cannot be resumed.
fn granted() -> Vec<ExportEvent> {
    vec![
        ExportEvent::Connected,
        not_known(),
        ExportEvent::Accepted,
        ExportEvent::SnapshotTaken,
        ExportEvent::SnapshotSent,
        heard(Message::RequestPause),
        ExportEvent::Behind(101),
        ExportEvent::Behind(100),
        ExportEvent::Drained,
        heard(Message::RequestFailover),
    ]
}

#[test]
fn slots_are_granted_once_everything_is_sent_and_writes_are_held() {
    let (actions, mut machine) = run(CONFIG, &granted());
    let expected = [
        ExportAction::AskResumable,
        ExportAction::Establish { resumable: false },
        ExportAction::Send(Message::Ack),
        ExportAction::TakeSnapshot,
        ExportAction::Send(Message::SnapshotEof),
        ExportAction::HoldWrites,
        ExportAction::Send(Message::Paused),
        ExportAction::Send(Message::FailoverGranted),
    ];
    assert_eq!((actions.as_slice(), machine.state_name()), (&expected[..], "failover-granted"));
    let mut out = Vec::new();
    // Whether the link is up does not matter any more: only the claim of the target decides.
    machine.handle(at(20), ExportEvent::Closed, &mut out);
    machine.handle(at(21), ExportEvent::Cancel, &mut out);
    assert_eq!(out, []);
    machine.handle(at(22), ExportEvent::TakenByTarget, &mut out);
    assert_eq!(out, [ExportAction::End(ExportOutcome::Success)]);
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn writes_are_held_for_a_limited_time() {
    let (_, mut machine) = run(CONFIG, &granted());
    let mut out = Vec::new();
    machine.handle(at(20), ExportEvent::Closed, &mut out);
    assert_eq!(machine.next_deadline(), Some(at(10) + MAX_HOLD_TIME));
    machine.handle(at(10) + MAX_HOLD_TIME, ExportEvent::Deadline, &mut out);
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
        (ExportEvent::TakenByOther, ExportOutcome::Failed("Slots are no longer owned by myself.".to_owned())),
        (
            ExportEvent::TakenByTarget,
            ExportOutcome::Failed("Slots are no longer owned by myself.".to_owned()),
        ),
        (ExportEvent::Failed("x".to_owned()), ExportOutcome::Failed("x".to_owned())),
        (
            heard(Message::FailoverGranted),
            ExportOutcome::Failed("Target node sent FAILOVER-GRANTED out of order".to_owned()),
        ),
    ];
    for length in 0..granted().len() - 1 {
        for (input, outcome) in &table {
            let mut inputs = granted()[..length].to_vec();
            inputs.push(input.clone());
            let (actions, machine) = run(CONFIG, &inputs);
            assert_eq!(actions.last(), Some(&ExportAction::End(outcome.clone())), "{inputs:?}");
            assert_eq!(machine.next_deadline(), None);
        }
    }
}

#[test]
fn error_of_the_target_is_reported() {
    let text = "ERR Slot migration can only be used on primary nodes.";
    let (actions, _) =
        run(CONFIG, &[ExportEvent::Connected, not_known(), ExportEvent::Refused(text.to_owned())]);
    let outcome = ExportOutcome::Failed(format!("Received error during handshake to target: -{text}"));
    let establish = |resumable| ExportAction::Establish { resumable };
    assert_eq!(actions, [ExportAction::AskResumable, establish(false), ExportAction::End(outcome)]);
    let (actions, _) = run(
        ExportConfig { authenticate: true, ..CONFIG },
        &[
            ExportEvent::Connected,
            ExportEvent::Accepted,
            ExportEvent::Accepted,
            ExportEvent::NotConnected("refused".to_owned()),
        ],
    );
    let outcome = ExportOutcome::Failed("Unable to connect to target node: refused".to_owned());
    assert_eq!(
        actions,
        [ExportAction::LogIn, ExportAction::AskResumable, establish(true), ExportAction::End(outcome)]
    );
}

#[test]
fn snapshot_is_retried_and_a_silent_target_times_out() {
    let (_, mut machine) = run(
        CONFIG,
        &[ExportEvent::Connected, not_known(), ExportEvent::Accepted, ExportEvent::SnapshotFailed],
    );
    let mut out = Vec::new();
    assert_eq!(machine.next_deadline(), Some(at(4) + SNAPSHOT_RETRY_DELAY));
    machine.handle(at(4) + SNAPSHOT_RETRY_DELAY, ExportEvent::Deadline, &mut out);
    assert_eq!(out, [ExportAction::TakeSnapshot]);
    machine.handle(at(25), ExportEvent::SnapshotTaken, &mut out);
    out.clear();
    machine.handle(at(1003), ExportEvent::Deadline, &mut out);
    assert_eq!(out, [ExportAction::Send(Message::Ack)]);
    out.clear();
    machine.handle(at(60_004), ExportEvent::Deadline, &mut out);
    let why = "Timed out after too long with no interaction".to_owned();
    assert_eq!(out, [ExportAction::End(ExportOutcome::Failed(why))]);
}

/// Returns all events up to the grant, for a resumable migration.
fn resumable() -> Vec<ExportEvent> {
    let mut inputs = granted();
    inputs[1] = ExportEvent::Accepted;
    inputs
}

#[test]
fn job_resumes_on_a_new_link_in_every_state() {
    let whole = resumable();
    // The link breaks after each event, starting with the announcement of the migration.
    for length in 2..whole.len() {
        let (before, mut machine) = run(CONFIG, &whole[..length]);
        let mut out = Vec::new();
        machine.handle(at(20), ExportEvent::Closed, &mut out);
        assert_eq!(out, [ExportAction::Reconnect], "{length}");
        assert!(machine.next_deadline() > Some(at(1100)), "nothing is sent meanwhile");
        machine.handle(at(30), ExportEvent::NotResumed, &mut out);
        assert_eq!(machine.next_deadline(), Some(at(30) + RECONNECT_DELAY));
        machine.handle(at(30) + RECONNECT_DELAY, ExportEvent::Deadline, &mut out);
        assert_eq!(out, [ExportAction::Reconnect, ExportAction::Reconnect]);
        machine.handle(at(140), ExportEvent::Resumed, &mut out);
        // The target repeats its request, because the first request may have been lost.
        if (5..8).contains(&length) {
            machine.handle(at(141), heard(Message::RequestPause), &mut out);
        }
        // If the reply to the announcement was lost, the successful reconnect replaces that reply.
        for input in &whole[length.max(3)..] {
            machine.handle(at(150), input.clone(), &mut out);
        }
        machine.handle(at(160), ExportEvent::TakenByTarget, &mut out);
        let all: Vec<ExportAction> =
            before.into_iter().chain(out).filter(|action| *action != ExportAction::Reconnect).collect();
        let expected = [
            ExportAction::AskResumable,
            ExportAction::Establish { resumable: true },
            ExportAction::Send(Message::Ack),
            ExportAction::TakeSnapshot,
            ExportAction::Send(Message::SnapshotEof),
            ExportAction::HoldWrites,
            ExportAction::Send(Message::Paused),
            ExportAction::Send(Message::FailoverGranted),
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
        let (_, mut machine) = run(CONFIG, &resumable()[..5]);
        let mut out = Vec::new();
        machine.handle(at(20), ExportEvent::Closed, &mut out);
        machine.handle(at(20) + RESUME_TIMEOUT, last, &mut out);
        assert_eq!(out, [ExportAction::Reconnect, ExportAction::End(lost.clone())]);
    }
}

#[test]
fn after_the_grant_only_the_claim_counts() {
    let (_, mut machine) = run(CONFIG, &resumable());
    let mut out = Vec::new();
    machine.handle(at(20), ExportEvent::Closed, &mut out);
    assert_eq!(out, []);
    machine.handle(at(20) + RECONNECT_DELAY, ExportEvent::Deadline, &mut out);
    assert_eq!(out, [ExportAction::Reconnect]);
    out.clear();
    // The target closed the link because it has claimed the slots.
    machine.handle(at(130), ExportEvent::EndedByPeer, &mut out);
    machine.handle(at(131), ExportEvent::Deadline, &mut out);
    assert_eq!((out.len(), machine.next_deadline()), (0, Some(at(10) + MAX_HOLD_TIME)));
    machine.handle(at(140), ExportEvent::TakenByTarget, &mut out);
    assert_eq!(out, [ExportAction::End(ExportOutcome::Success)]);
}
