use super::*;

const CONFIG: Config = Config { timeout: Duration::from_secs(60), logs_in: false, most_behind: 100 };

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Processes the events, one per millisecond. Returns the actions and the final state.
fn run(config: Config, inputs: &[Input]) -> (Vec<Action>, Export) {
    let (mut machine, mut out) = (Export::new(at(0), config), Vec::new());
    for (millis, input) in (1..).zip(inputs) {
        machine.handle(at(millis), input.clone(), &mut out);
    }
    (out, machine)
}

fn heard(message: Message) -> Input {
    Input::Heard(message)
}

/// Valkey's reply to an unknown subcommand.
fn not_known() -> Input {
    Input::Refused("ERR syntax error".to_owned())
}

/// All events up to the grant, for a migration that cannot be resumed.
fn granted() -> Vec<Input> {
    vec![
        Input::Connected,
        not_known(),
        Input::Accepted,
        Input::Cut,
        Input::SnapshotSent,
        heard(Message::RequestPause),
        Input::Behind(101),
        Input::Behind(100),
        Input::Drained,
        heard(Message::RequestFailover),
    ]
}

#[test]
fn slots_go_once_everything_was_sent_and_writes_are_held() {
    let (actions, mut machine) = run(CONFIG, &granted());
    let expected = [
        Action::AskResumable,
        Action::Establish { resumable: false },
        Action::Send(Message::Ack),
        Action::Cut,
        Action::Send(Message::SnapshotEof),
        Action::Hold,
        Action::Send(Message::Paused),
        Action::Send(Message::FailoverGranted),
    ];
    assert_eq!((actions.as_slice(), machine.state_name()), (&expected[..], "failover-granted"));
    let mut out = Vec::new();
    // Only the target's claim counts, not its link.
    machine.handle(at(20), Input::Closed, &mut out);
    machine.handle(at(21), Input::Cancel, &mut out);
    assert_eq!(out, []);
    machine.handle(at(22), Input::TakenByTarget, &mut out);
    assert_eq!(out, [Action::End(Outcome::Success)]);
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn writes_are_not_held_for_ever() {
    let (_, mut machine) = run(CONFIG, &granted());
    let mut out = Vec::new();
    machine.handle(at(20), Input::Closed, &mut out);
    assert_eq!(machine.next_deadline(), Some(at(10) + HOLD_FOR));
    machine.handle(at(10) + HOLD_FOR, Input::Deadline, &mut out);
    let why = "Unpaused before migration completed (migration may have succeeded with lost writes)";
    assert_eq!(out, [Action::End(Outcome::Failed(why.to_owned()))]);
}

#[test]
fn whatever_ends_a_job_before_the_grant_ends_it_here() {
    let lost =
        "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information.";
    let table = [
        (Input::Cancel, Outcome::Cancelled),
        (Input::Closed, Outcome::Failed(lost.to_owned())),
        (Input::Flushed, Outcome::Failed("Data was flushed".to_owned())),
        (Input::Demoted, Outcome::Failed("A failover occurred during slot export".to_owned())),
        (Input::TakenByOther, Outcome::Failed("Slots are no longer owned by myself.".to_owned())),
        (Input::TakenByTarget, Outcome::Failed("Slots are no longer owned by myself.".to_owned())),
        (Input::Broken("x".to_owned()), Outcome::Failed("x".to_owned())),
        (
            heard(Message::FailoverGranted),
            Outcome::Failed("Target node sent FAILOVER-GRANTED out of order".to_owned()),
        ),
    ];
    for length in 0..granted().len() - 1 {
        for (input, outcome) in &table {
            let mut inputs = granted()[..length].to_vec();
            inputs.push(input.clone());
            let (actions, machine) = run(CONFIG, &inputs);
            assert_eq!(actions.last(), Some(&Action::End(outcome.clone())), "{inputs:?}");
            assert_eq!(machine.next_deadline(), None);
        }
    }
}

#[test]
fn a_target_that_refuses_is_quoted() {
    let text = "ERR Slot migration can only be used on primary nodes.";
    let (actions, _) = run(CONFIG, &[Input::Connected, not_known(), Input::Refused(text.to_owned())]);
    let outcome = Outcome::Failed(format!("Received error during handshake to target: -{text}"));
    let establish = |resumable| Action::Establish { resumable };
    assert_eq!(actions, [Action::AskResumable, establish(false), Action::End(outcome)]);
    let (actions, _) = run(
        Config { logs_in: true, ..CONFIG },
        &[Input::Connected, Input::Accepted, Input::Accepted, Input::NotConnected("refused".to_owned())],
    );
    let outcome = Outcome::Failed("Unable to connect to target node: refused".to_owned());
    assert_eq!(actions, [Action::LogIn, Action::AskResumable, establish(true), Action::End(outcome)]);
}

#[test]
fn a_cut_is_tried_again_and_silence_ends_the_job() {
    let (_, mut machine) = run(CONFIG, &[Input::Connected, not_known(), Input::Accepted, Input::NotCut]);
    let mut out = Vec::new();
    assert_eq!(machine.next_deadline(), Some(at(4) + CUT_AGAIN));
    machine.handle(at(4) + CUT_AGAIN, Input::Deadline, &mut out);
    assert_eq!(out, [Action::Cut]);
    machine.handle(at(25), Input::Cut, &mut out);
    out.clear();
    machine.handle(at(1003), Input::Deadline, &mut out);
    assert_eq!(out, [Action::Send(Message::Ack)]);
    out.clear();
    machine.handle(at(60_004), Input::Deadline, &mut out);
    let why = "Timed out after too long with no interaction".to_owned();
    assert_eq!(out, [Action::End(Outcome::Failed(why))]);
}

/// All events up to the grant, for a resumable migration.
fn resumable() -> Vec<Input> {
    let mut inputs = granted();
    inputs[1] = Input::Accepted;
    inputs
}

#[test]
fn a_job_goes_on_with_another_link_wherever_it_stood() {
    let whole = resumable();
    // From the announcement of the migration on.
    for length in 2..whole.len() {
        let (before, mut machine) = run(CONFIG, &whole[..length]);
        let mut out = Vec::new();
        machine.handle(at(20), Input::Closed, &mut out);
        assert_eq!(out, [Action::Reconnect], "{length}");
        assert!(machine.next_deadline() > Some(at(1100)), "nothing is sent meanwhile");
        machine.handle(at(30), Input::NotResumed, &mut out);
        assert_eq!(machine.next_deadline(), Some(at(30) + LINK_AGAIN));
        machine.handle(at(30) + LINK_AGAIN, Input::Deadline, &mut out);
        assert_eq!(out, [Action::Reconnect, Action::Reconnect]);
        machine.handle(at(140), Input::Resumed, &mut out);
        // The target repeats its request, because the first one may have been lost.
        if (5..8).contains(&length) {
            machine.handle(at(141), heard(Message::RequestPause), &mut out);
        }
        // If the reply was lost, the successful reconnect replaces it.
        for input in &whole[length.max(3)..] {
            machine.handle(at(150), input.clone(), &mut out);
        }
        machine.handle(at(160), Input::TakenByTarget, &mut out);
        let all: Vec<Action> =
            before.into_iter().chain(out).filter(|action| *action != Action::Reconnect).collect();
        let expected = [
            Action::AskResumable,
            Action::Establish { resumable: true },
            Action::Send(Message::Ack),
            Action::Cut,
            Action::Send(Message::SnapshotEof),
            Action::Hold,
            Action::Send(Message::Paused),
            Action::Send(Message::FailoverGranted),
            Action::End(Outcome::Success),
        ];
        assert_eq!(all, expected, "{length}");
    }
}

#[test]
fn a_job_without_a_link_ends_in_time_and_one_that_ended_there_at_once() {
    let lost = Outcome::Failed(
        "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information."
            .to_owned(),
    );
    for last in [Input::Deadline, Input::EndedThere] {
        let (_, mut machine) = run(CONFIG, &resumable()[..5]);
        let mut out = Vec::new();
        machine.handle(at(20), Input::Closed, &mut out);
        machine.handle(at(20) + RESUME_WITHIN, last, &mut out);
        assert_eq!(out, [Action::Reconnect, Action::End(lost.clone())]);
    }
}

#[test]
fn after_the_grant_another_link_is_tried_late_and_only_the_claim_counts() {
    let (_, mut machine) = run(CONFIG, &resumable());
    let mut out = Vec::new();
    machine.handle(at(20), Input::Closed, &mut out);
    assert_eq!(out, []);
    machine.handle(at(20) + LINK_AGAIN, Input::Deadline, &mut out);
    assert_eq!(out, [Action::Reconnect]);
    out.clear();
    // The target closed the link because it has claimed the slots.
    machine.handle(at(130), Input::EndedThere, &mut out);
    machine.handle(at(131), Input::Deadline, &mut out);
    assert_eq!((out.len(), machine.next_deadline()), (0, Some(at(10) + HOLD_FOR)));
    machine.handle(at(140), Input::TakenByTarget, &mut out);
    assert_eq!(out, [Action::End(Outcome::Success)]);
}
