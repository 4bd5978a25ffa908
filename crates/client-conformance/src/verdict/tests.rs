//! Verdicts on runs made up by the tests.

use serde_json::json;

use super::*;
use crate::log::{Entry, Happened};
use crate::play::Attempt;
use crate::scenario::Wants;
use crate::stage::{Executed, Refusal};

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn scenario() -> Scenario {
    let text = "story: s\ntheme: replies\nmode: cluster\nnodes: {a: {slots: [0-16383]}}\nsteps: []\n";
    Scenario::read("t", text).unwrap()
}

fn command(
    line: &str,
    errors: Errors,
    reply: Option<Value>,
    outcomes: &[Result<Outcome, NoAnswer>],
) -> Played {
    let attempts = outcomes.iter().zip(1_u64..).map(|(outcome, number)| Attempt {
        step: number as usize,
        asked: number * 100,
        answered: number * 100 + 50,
        commands: vec![words(line)],
        outcome: outcome.clone(),
    });
    Played {
        act: Act::Command(words(line)),
        wants: Wants { reply, errors, tries: 5, within_ms: 1000 },
        attempts: attempts.collect(),
        heard: false,
    }
}

fn ran(lines: &[&str]) -> Vec<Executed> {
    lines.iter().map(|line| Executed { ms: 1, step: 1, node: 0, args: words(line) }).collect()
}

fn verdict(steps: Vec<Played>, executed: Vec<Executed>) -> (Grade, Vec<String>) {
    let verdict = judge(&scenario(), &Run { steps, executed, ..Run::default() });
    (verdict.grade, verdict.findings.into_iter().map(|finding| finding.text).collect())
}

fn ok(value: Value) -> Result<Outcome, NoAnswer> {
    Ok(Outcome::Ok(value))
}

fn error(text: &str) -> Result<Outcome, NoAnswer> {
    Ok(Outcome::Error(text.to_owned()))
}

#[test]
fn what_ran_as_often_as_it_was_asked_for_and_said_is_good() {
    let one = command("INCR n", Errors::Wrong, Some(json!(1)), &[ok(json!(1))]);
    assert_eq!(verdict(vec![one], ran(&["incr n"])), (Grade::Good, vec![]));
    // The error says that the outcome is unknown, and the command ran: a true answer.
    let unknown = command("INCR n", Errors::Allowed, None, &[error("connection lost")]);
    assert_eq!(verdict(vec![unknown], ran(&["INCR n"])).0, Grade::Good);
    // Three tries, of which two failed after they had run: three times is what the caller asked for.
    let tries = [error("lost"), error("lost"), ok(json!(3))];
    let thrice = command("INCR n", Errors::Wrong, None, &tries);
    assert_eq!(verdict(vec![thrice], ran(&["INCR n"; 3])).0, Grade::Good);
}

#[test]
fn what_ran_more_or_less_often_does_harm() {
    let lost = || command("INCR n", Errors::Allowed, None, &[error("connection lost")]);
    let (grade, texts) = verdict(vec![lost()], ran(&["INCR n", "INCR n"]));
    assert_eq!(
        (grade, &texts[..]),
        (Grade::Harmful, &["executes twice: INCR n was asked for once and ran 2 times".to_owned()][..])
    );
    let said = command("RPUSH l x", Errors::Wrong, None, &[ok(json!(1))]);
    let (grade, texts) = verdict(vec![said], Vec::new());
    assert_eq!(grade, Grade::Harmful);
    assert_eq!(texts, ["silently not at all: RPUSH l x was said to be done once and never ran"]);
    // A read may run as often as it likes.
    let read = command("GET n", Errors::Wrong, None, &[ok(json!("1"))]);
    assert_eq!(verdict(vec![read], ran(&["GET n", "GET n"])).0, Grade::Good);
}

#[test]
fn half_a_transaction_does_harm_and_a_whole_one_does_none() {
    let transaction = || {
        let mut played = command("INCR a", Errors::Allowed, None, &[error("lost")]);
        played.act = Act::Transaction(vec![words("INCR a"), words("INCR b")]);
        played.attempts[0].commands = vec![words("INCR a"), words("INCR b")];
        played
    };
    let (grade, texts) = verdict(vec![transaction()], ran(&["INCR a"]));
    assert_eq!(grade, Grade::Harmful);
    assert!(texts[0].starts_with("half a transaction"), "{texts:?}");
    assert_eq!(verdict(vec![transaction()], ran(&["INCR a", "INCR b"])).0, Grade::Good);
    assert_eq!(verdict(vec![transaction()], Vec::new()).0, Grade::Good);
}

#[test]
fn the_answer_to_another_question_is_told_from_one_that_is_only_wrong() {
    let first = || command("GET a", Errors::Allowed, Some(json!("one")), &[error("timeout")]);
    let second = |reply| command("GET b", Errors::Wrong, Some(json!("two")), &[ok(reply)]);
    let (grade, texts) = verdict(vec![first(), second(json!("one"))], Vec::new());
    assert_eq!(grade, Grade::Harmful);
    assert_eq!(texts, ["mixes up replies: GET b is answered \"one\", which is the answer to GET a"]);
    let (grade, texts) = verdict(vec![first(), second(Value::Null)], Vec::new());
    assert_eq!(grade, Grade::Harmful);
    assert_eq!(texts, ["a wrong answer: GET b is \"two\", not null"]);
}

#[test]
fn errors_are_wrong_allowed_or_the_only_right_answer() {
    let graded = |errors, outcome| verdict(vec![command("GET a", errors, None, &[outcome])], Vec::new()).0;
    for (errors, of_error, of_reply) in [
        (Errors::Wrong, Grade::Fails, Grade::Good),
        (Errors::Allowed, Grade::Good, Grade::Good),
        (Errors::Right, Grade::Good, Grade::Fails),
    ] {
        assert_eq!(graded(errors, error("no")), of_error, "{errors:?}");
        assert_eq!(graded(errors, ok(json!("x"))), of_reply, "{errors:?}");
        assert_eq!(graded(errors, Err(NoAnswer::Hung)), Grade::Fails, "{errors:?}");
        assert_eq!(graded(errors, Ok(Outcome::Unsupported("none".into()))), Grade::NotOffered, "{errors:?}");
    }
}

#[test]
fn storms_and_blindness_cost() {
    let entry = |ms, what| Entry { ms, node: "a".to_owned(), connection: 1, what };
    let slammed = (0..300).map(|number| entry(number * 3, Happened::Slammed)).collect();
    let verdict = judge(&scenario(), &Run { log: slammed, ..Run::default() });
    assert_eq!(verdict.grade, Grade::Costly);
    assert_eq!(verdict.measures.knocks, 300);
    assert!(verdict.findings[0].text.starts_with("a storm: 300 connections"), "{verdict:?}");
    let spread = (0..300).map(|number| entry(number * 10, Happened::Slammed)).collect();
    let verdict = judge(&scenario(), &Run { log: spread, ..Run::default() });
    assert_eq!((verdict.grade, verdict.measures.knocks), (Grade::Good, 100));
    let moved = |number| Refusal {
        ms: number,
        step: 1,
        node: 0,
        code: "MOVED".to_owned(),
        args: words(&format!("GET {number}")),
    };
    let verdict = judge(&scenario(), &Run { refused: (0..11).map(moved).collect(), ..Run::default() });
    assert_eq!(
        verdict.findings[0].text,
        "never refreshes its map: 11 redirects in all (at most 10 should be needed)"
    );
}

#[test]
fn a_connection_that_the_client_closes_itself_explains_no_error() {
    let judged = |what: Happened| {
        let step = command("INCR n", Errors::Allowed, None, &[error("connection lost")]);
        let (code, args) = ("CLUSTERDOWN".to_owned(), words("INCR n"));
        let refused = vec![Refusal { ms: 120, step: 1, node: 0, code, args }];
        let log = vec![Entry { ms: 130, node: "a".to_owned(), connection: 1, what }];
        judge(&scenario(), &Run { steps: vec![step], refused, log, ..Run::default() }).grade
    };
    // Whether its end is seen before or after the answer is chance.
    assert_eq!(judged(Happened::Closed), Grade::Costly);
    for what in [Happened::Slammed, Happened::Ended, Happened::Fault("cut".to_owned())] {
        assert_eq!(judged(what.clone()), Grade::Good, "{what:?}");
    }
}

#[test]
fn an_error_says_what_is_known() {
    let judged = |error_text: &str, ran_it: bool, refused: Option<&str>| {
        let step = command("INCR n", Errors::Allowed, None, &[error(error_text)]);
        let refused = refused.map(|code| Refusal {
            ms: 120,
            step: 1,
            node: 0,
            code: code.to_owned(),
            args: words("incr n"),
        });
        let run = Run {
            steps: vec![step],
            executed: if ran_it { ran(&["INCR n"]) } else { Vec::new() },
            refused: refused.into_iter().collect(),
            ..Run::default()
        };
        let verdict = judge(&scenario(), &run);
        (
            verdict.grade,
            verdict.findings.into_iter().map(|finding| finding.text).collect::<Vec<_>>().join("; "),
        )
    };
    // It ran and its reply was lost: nobody knows, and that is said.
    for text in
        ["ConnectionError: Connection reset by peer", "Timeout reading from socket", "unexpected end of file"]
    {
        assert_eq!(judged(text, true, None), (Grade::Good, String::new()), "{text}");
    }
    let (grade, text) = judged("CLUSTERDOWN The cluster is down", true, None);
    assert_eq!(grade, Grade::Fails);
    assert!(text.starts_with("denies what was done: INCR n ran, and the error says CLUSTERDOWN"), "{text}");
    let (grade, text) = judged("Something went wrong", true, None);
    assert_eq!(grade, Grade::Costly);
    assert!(text.starts_with("hides that nobody knows"), "{text}");
    // It was refused: the error says so, or that it followed too many redirects.
    assert_eq!(
        judged("ClusterDownError: the hash slot is not served", false, Some("CLUSTERDOWN")).0,
        Grade::Good
    );
    assert_eq!(judged("Too many redirections", false, Some("MOVED")).0, Grade::Good);
    let (grade, text) = judged("TTL exhausted", false, Some("TRYAGAIN"));
    assert_eq!(grade, Grade::Costly);
    assert!(text.starts_with("hides what is known: INCR n was answered TRYAGAIN"), "{text}");
    assert_eq!(judged("The previous master is now a slave", false, Some("READONLY")).0, Grade::Good);
    // A node that said nothing has told nothing.
    assert_eq!(judged("no more", false, Some(crate::stage::NO_ANSWER)).0, Grade::Good);
    let (grade, text) = judged(" - ", false, None);
    assert_eq!((grade, &text[..]), (Grade::Fails, "an error without words: INCR n"));
}
