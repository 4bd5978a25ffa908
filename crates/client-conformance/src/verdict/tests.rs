//! Tests verdicts on hand-written runs.

use serde_json::json;

use super::*;
use crate::event_log::{LogEntry, LogEvent};
use crate::scenario::Expectation;
use crate::scenario_run::RequestAttempt;
use crate::simulation::{ExecutedCommand, RefusedCommand};

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn scenario() -> Scenario {
    let text = "story: s\ntheme: replies\nmode: cluster\nnodes: {a: {slots: [0-16383]}}\nsteps: []\n";
    Scenario::parse("t", text).unwrap()
}

fn step_with_command(
    line: &str,
    errors: ErrorPolicy,
    reply: Option<Value>,
    outcomes: &[Result<AdapterOutcome, AdapterFailure>],
) -> StepResult {
    let attempts = outcomes.iter().zip(1_u64..).map(|(outcome, number)| RequestAttempt {
        step: number as usize,
        request_ms: number * 100,
        answer_ms: number * 100 + 50,
        commands: vec![words(line)],
        outcome: outcome.clone(),
    });
    StepResult {
        action: StepAction::Command(words(line)),
        expectation: Expectation { reply, errors, tries: 5, within_ms: 1000 },
        attempts: attempts.collect(),
        has_message_arrived: false,
    }
}

fn executed_commands(lines: &[&str]) -> Vec<ExecutedCommand> {
    lines.iter().map(|line| ExecutedCommand { ms: 1, step: 1, node: 0, args: words(line) }).collect()
}

fn grade_and_findings(
    steps: Vec<StepResult>,
    executed_commands: Vec<ExecutedCommand>,
) -> (Grade, Vec<String>) {
    let verdict = grade_run(&scenario(), &ScenarioRun { steps, executed_commands, ..ScenarioRun::default() });
    (verdict.grade, verdict.findings.into_iter().map(|finding| finding.text).collect())
}

fn ok_reply(value: Value) -> Result<AdapterOutcome, AdapterFailure> {
    Ok(AdapterOutcome::Ok(value))
}

fn error_reply(text: &str) -> Result<AdapterOutcome, AdapterFailure> {
    Ok(AdapterOutcome::Error(text.to_owned()))
}

#[test]
fn commands_executed_and_acknowledged_once_are_good() {
    let one = step_with_command("INCR n", ErrorPolicy::Forbidden, Some(json!(1)), &[ok_reply(json!(1))]);
    assert_eq!(grade_and_findings(vec![one], executed_commands(&["incr n"])), (Grade::Good, vec![]));
    // The command ran, and the error correctly says that the outcome is unknown.
    let unknown = step_with_command("INCR n", ErrorPolicy::Allowed, None, &[error_reply("connection lost")]);
    assert_eq!(grade_and_findings(vec![unknown], executed_commands(&["INCR n"])).0, Grade::Good);
    // The caller asked for three executions, because two of the three attempts failed after execution.
    let tries = [error_reply("lost"), error_reply("lost"), ok_reply(json!(3))];
    let thrice = step_with_command("INCR n", ErrorPolicy::Forbidden, None, &tries);
    assert_eq!(grade_and_findings(vec![thrice], executed_commands(&["INCR n"; 3])).0, Grade::Good);
}

#[test]
fn lost_or_repeated_commands_are_harmful() {
    let lost = || step_with_command("INCR n", ErrorPolicy::Allowed, None, &[error_reply("connection lost")]);
    let (grade, texts) = grade_and_findings(vec![lost()], executed_commands(&["INCR n", "INCR n"]));
    assert_eq!(
        (grade, &texts[..]),
        (Grade::Harmful, &["executes twice: INCR n was requested once and ran 2 times".to_owned()][..])
    );
    let said = step_with_command("RPUSH l x", ErrorPolicy::Forbidden, None, &[ok_reply(json!(1))]);
    let (grade, texts) = grade_and_findings(vec![said], Vec::new());
    assert_eq!(grade, Grade::Harmful);
    assert_eq!(texts, ["reports success without effect: RPUSH l x was acknowledged once and never ran"]);
    // Reads may run more often than requested.
    let read = step_with_command("GET n", ErrorPolicy::Forbidden, None, &[ok_reply(json!("1"))]);
    assert_eq!(grade_and_findings(vec![read], executed_commands(&["GET n", "GET n"])).0, Grade::Good);
}

#[test]
fn partial_transaction_is_harmful() {
    let transaction = || {
        let mut played = step_with_command("INCR a", ErrorPolicy::Allowed, None, &[error_reply("lost")]);
        played.action = StepAction::Transaction(vec![words("INCR a"), words("INCR b")]);
        played.attempts[0].commands = vec![words("INCR a"), words("INCR b")];
        played
    };
    let (grade, texts) = grade_and_findings(vec![transaction()], executed_commands(&["INCR a"]));
    assert_eq!(grade, Grade::Harmful);
    assert!(texts[0].starts_with("partial transaction"), "{texts:?}");
    assert_eq!(
        grade_and_findings(vec![transaction()], executed_commands(&["INCR a", "INCR b"])).0,
        Grade::Good
    );
    assert_eq!(grade_and_findings(vec![transaction()], Vec::new()).0, Grade::Good);
}

#[test]
fn reply_to_another_request_is_distinguished_from_a_wrong_reply() {
    let first =
        || step_with_command("GET a", ErrorPolicy::Allowed, Some(json!("one")), &[error_reply("timeout")]);
    let second =
        |reply| step_with_command("GET b", ErrorPolicy::Forbidden, Some(json!("two")), &[ok_reply(reply)]);
    let (grade, texts) = grade_and_findings(vec![first(), second(json!("one"))], Vec::new());
    assert_eq!(grade, Grade::Harmful);
    assert_eq!(texts, ["mixes up replies: GET b returns \"one\", which is the reply to GET a"]);
    let (grade, texts) = grade_and_findings(vec![first(), second(Value::Null)], Vec::new());
    assert_eq!(grade, Grade::Harmful);
    assert_eq!(texts, ["wrong reply: GET b must return \"two\", not null"]);
}

#[test]
fn errors_are_graded_by_the_error_policy() {
    let graded = |errors, outcome| {
        grade_and_findings(vec![step_with_command("GET a", errors, None, &[outcome])], Vec::new()).0
    };
    for (errors, of_error, of_reply) in [
        (ErrorPolicy::Forbidden, Grade::Fails, Grade::Good),
        (ErrorPolicy::Allowed, Grade::Good, Grade::Good),
        (ErrorPolicy::Required, Grade::Good, Grade::Fails),
    ] {
        assert_eq!(graded(errors, error_reply("no")), of_error, "{errors:?}");
        assert_eq!(graded(errors, ok_reply(json!("x"))), of_reply, "{errors:?}");
        assert_eq!(graded(errors, Err(AdapterFailure::TimedOut)), Grade::Fails, "{errors:?}");
        assert_eq!(
            graded(errors, Ok(AdapterOutcome::Unsupported("none".into()))),
            Grade::Unsupported,
            "{errors:?}"
        );
    }
}

#[test]
fn retry_storms_and_missing_refreshes_are_costly() {
    let entry = |ms, event| LogEntry { ms, node: "a".to_owned(), connection: 1, event };
    let slammed = (0..300).map(|number| entry(number * 3, LogEvent::ConnectionRejected)).collect();
    let verdict = grade_run(&scenario(), &ScenarioRun { log: slammed, ..ScenarioRun::default() });
    assert_eq!(verdict.grade, Grade::Costly);
    assert_eq!(verdict.costs.rejected_connections, 300);
    assert!(verdict.findings[0].text.starts_with("retry storm: 300 connections"), "{verdict:?}");
    let spread = (0..300).map(|number| entry(number * 10, LogEvent::ConnectionRejected)).collect();
    let verdict = grade_run(&scenario(), &ScenarioRun { log: spread, ..ScenarioRun::default() });
    assert_eq!((verdict.grade, verdict.costs.rejected_connections), (Grade::Good, 100));
    let moved = |number| RefusedCommand {
        ms: number,
        step: 1,
        node: 0,
        code: "MOVED".to_owned(),
        args: words(&format!("GET {number}")),
    };
    let verdict = grade_run(
        &scenario(),
        &ScenarioRun { refused_commands: (0..11).map(moved).collect(), ..ScenarioRun::default() },
    );
    assert_eq!(
        verdict.findings[0].text,
        "never refreshes its map: 11 redirects in total (expected at most 10)"
    );
}

#[test]
fn connection_closed_by_the_client_does_not_excuse_misleading_errors() {
    let judged = |event: LogEvent| {
        let step = step_with_command("INCR n", ErrorPolicy::Allowed, None, &[error_reply("connection lost")]);
        let (code, args) = ("CLUSTERDOWN".to_owned(), words("INCR n"));
        let refused = vec![RefusedCommand { ms: 120, step: 1, node: 0, code, args }];
        let log = vec![LogEntry { ms: 130, node: "a".to_owned(), connection: 1, event }];
        grade_run(
            &scenario(),
            &ScenarioRun { steps: vec![step], refused_commands: refused, log, ..ScenarioRun::default() },
        )
        .grade
    };
    // The client may close the connection before or after it reports the error.
    assert_eq!(judged(LogEvent::ClientClosed), Grade::Costly);
    for event in
        [LogEvent::ConnectionRejected, LogEvent::NodeClosed, LogEvent::FaultInjected("cut".to_owned())]
    {
        assert_eq!(judged(event.clone()), Grade::Good, "{event:?}");
    }
}

#[test]
fn error_must_report_the_known_cause() {
    let judged = |error_text: &str, ran_it: bool, refused: Option<&str>| {
        let step = step_with_command("INCR n", ErrorPolicy::Allowed, None, &[error_reply(error_text)]);
        let refused = refused.map(|code| RefusedCommand {
            ms: 120,
            step: 1,
            node: 0,
            code: code.to_owned(),
            args: words("incr n"),
        });
        let run = ScenarioRun {
            steps: vec![step],
            executed_commands: if ran_it { executed_commands(&["INCR n"]) } else { Vec::new() },
            refused_commands: refused.into_iter().collect(),
            ..ScenarioRun::default()
        };
        let verdict = grade_run(&scenario(), &run);
        (
            verdict.grade,
            verdict.findings.into_iter().map(|finding| finding.text).collect::<Vec<_>>().join("; "),
        )
    };
    // The command ran and its reply was lost; the error must say that the outcome is unknown.
    for text in
        ["ConnectionError: Connection reset by peer", "Timeout reading from socket", "unexpected end of file"]
    {
        assert_eq!(judged(text, true, None), (Grade::Good, String::new()), "{text}");
    }
    let (grade, text) = judged("CLUSTERDOWN The cluster is down", true, None);
    assert_eq!(grade, Grade::Fails);
    assert!(
        text.starts_with(
            "reports failure of an executed command: INCR n ran, and the error says CLUSTERDOWN"
        ),
        "{text}"
    );
    let (grade, text) = judged("Something went wrong", true, None);
    assert_eq!(grade, Grade::Costly);
    assert!(text.starts_with("hides an unknown result"), "{text}");
    // The command was refused. The error must say so, or mention too many redirections.
    assert_eq!(
        judged("ClusterDownError: the hash slot is not served", false, Some("CLUSTERDOWN")).0,
        Grade::Good
    );
    assert_eq!(judged("Too many redirections", false, Some("MOVED")).0, Grade::Good);
    let (grade, text) = judged("TTL exhausted", false, Some("TRYAGAIN"));
    assert_eq!(grade, Grade::Costly);
    assert!(text.starts_with("hides the cause: INCR n got TRYAGAIN"), "{text}");
    assert_eq!(judged("The previous master is now a slave", false, Some("READONLY")).0, Grade::Good);
    // The node did not reply, so no error code is known that the error could mention.
    assert_eq!(judged("no more", false, Some(crate::simulation::NO_REPLY_CODE)).0, Grade::Good);
    let (grade, text) = judged(" - ", false, None);
    assert_eq!((grade, &text[..]), (Grade::Fails, "empty error message: INCR n"));
}
