//! Compares the keys and databases that COMMAND GETKEYSANDFLAGS and ACL DRYRUN find in scrambled requests with Valkey.
//!
//! A request that this server refuses as malformed touches no keys, so its keys are not compared. `KEY_LISTS` sets the
//! number of requests and `KEY_SEED` the first seed.

use std::collections::BTreeMap;

use differential::{Command, Generator, Grammar, Peer, Table, setting, show};
use harness::{Connection, Node, Program, Value};

const LISTS: u64 = 6000;
/// The number of requests per pipeline.
const BATCH: usize = 50;
/// The maximum number of kinds for which a difference is reported.
const MOST_REPORTED: usize = 40;

/// A user that may read some keys, write others, and use two databases.
const USER: &str = "ACL SETUSER u on nopass resetchannels %R~a %R~g %W~b ~{t}* ~st ~z* ~s* db=0,1 +@all";

fn start(program: &Program) -> Node {
    let node = Node::start(program, "--save  --appendonly no");
    node.run(USER).expect_ok();
    node
}

/// Both queries for each request.
fn questions(requests: &[Command]) -> Vec<Command> {
    let ask = |words: &[&str], request: &Command| -> Command {
        words.iter().map(|word| word.as_bytes().to_vec()).chain(request.iter().cloned()).collect()
    };
    let both =
        |request| [ask(&["COMMAND", "GETKEYSANDFLAGS"], request), ask(&["ACL", "DRYRUN", "u"], request)];
    requests.iter().flat_map(both).collect()
}

fn answers(connection: &mut Connection, questions: &[Command]) -> Vec<Value> {
    connection.send_all(questions).expect("it reads");
    questions.iter().map(|_| sorted(connection.read().expect("it answers"))).collect()
}

/// Sorts flags, which have no order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(keys) => Value::Array(keys.into_iter().map(sorted_flags).collect()),
        other => other,
    }
}

fn sorted_flags(key: Value) -> Value {
    let Value::Array(mut parts) = key else { return key };
    if let Some(Value::Array(flags) | Value::Set(flags)) = parts.get_mut(1) {
        flags.sort();
    }
    Value::Array(parts)
}

/// Whether the server refuses the request as malformed. In a transaction no command blocks.
fn is_malformed(connection: &mut Connection, request: &Command) -> bool {
    connection.run("MULTI").expect_ok();
    connection.send_all(std::slice::from_ref(request)).expect("it reads");
    let queued = connection.read().expect("it answers");
    let ran = connection.run("EXEC");
    let is_error = |value: &Value| matches!(value, Value::Error(text) if text.starts_with("ERR "));
    is_error(&queued) || matches!(&ran, Value::Array(replies) if replies.iter().any(is_error))
}

/// Commands for which Valkey's reply is wrong, and why.
const WRONG_IN_VALKEY: &[(&str, &str)] = &[
    ("FLUSHALL", "its name stands for the databases"),
    ("PFMERGE", "without a source it is said to be wrong, and it runs"),
    (
        "XREADGROUP",
        "the word STREAMS is looked for from argument 4 on, though it may be a group or a consumer",
    ),
    ("SORT", "the name of the key behind STORE is read as an option"),
];

#[test]
fn keys_and_permissions_of_scrambled_requests_match_valkey() {
    let Some(valkey) = Peer::Valkey.program() else { return };
    let (ours, theirs) = (start(&Program::redoubt()), start(&valkey));
    let (mut here, mut there, mut tried) = (ours.connect(), theirs.connect(), ours.connect());
    let (grammar, table) = (Grammar::of(Peer::Valkey), Table::of(&ours));
    let mut generator = Generator::new(&grammar, &[], setting("KEY_SEED", 1));
    let mut report: BTreeMap<String, String> = BTreeMap::new();
    let runs = |request: &Command| {
        let flagged =
            |flag| table.name_of(request).is_some_and(|name| table.with(flag).any(|other| other == name));
        table.name_of(request).is_some() && !flagged("admin") && !flagged("no_multi")
    };
    let mut left = setting("KEY_LISTS", LISTS) as usize;
    while left > 0 {
        let count = left.min(BATCH);
        left -= count;
        let requests: Vec<Command> =
            std::iter::repeat_with(|| generator.scrambled()).filter(&runs).take(count).collect();
        let questions = questions(&requests);
        let answers = answers(&mut here, &questions).into_iter().zip(answers(&mut there, &questions));
        for (number, (here, there)) in answers.enumerate() {
            let request = &requests[number / 2];
            let name = table.name_of(request).unwrap_or_default().to_owned();
            if here == there
                || report.len() >= MOST_REPORTED
                || report.contains_key(&name)
                || WRONG_IN_VALKEY.iter().any(|(known, _)| *known == name)
                || is_malformed(&mut tried, request)
            {
                continue;
            }
            let question = show(&questions[number]);
            report.insert(name, format!("{question}\n    here    {here:?}\n    Valkey  {there:?}"));
        }
    }
    let report: Vec<String> = report.into_values().collect();
    assert!(report.is_empty(), "{}", report.join("\n"));
}
