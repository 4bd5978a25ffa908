//! Compares with Valkey the keys and databases that COMMAND GETKEYSANDFLAGS and ACL DRYRUN find in scrambled requests.
//!
//! A request that Redoubt refuses as malformed accesses no keys, so its keys are not compared. `KEY_LISTS` sets the
//! number of requests and `KEY_SEED` the first seed.

use std::collections::BTreeMap;

use differential::{Command, CommandFlags, Generator, Grammar, ReferenceServer, env_number, format_command};
use harness::{Connection, Node, Program, Reply};

const REQUEST_COUNT: u64 = 6000;
/// The number of requests sent to each server at once.
const PIPELINE_SIZE: usize = 50;
/// The maximum number of kinds of differences to report.
const MAX_REPORTED_DIFFERENCES: usize = 40;

/// A user that may read some keys, write others, and use two databases.
const ACL_USER_COMMAND: &str =
    "ACL SETUSER u on nopass resetchannels %R~a %R~g %W~b ~{t}* ~st ~z* ~s* db=0,1 +@all";

fn start_server(program: &Program) -> Node {
    let node = Node::start(program, "--save  --appendonly no");
    node.run(ACL_USER_COMMAND).expect_ok();
    node
}

/// Returns two queries per request: COMMAND GETKEYSANDFLAGS and ACL DRYRUN.
fn key_queries(requests: &[Command]) -> Vec<Command> {
    let ask = |words: &[&str], request: &Command| -> Command {
        words.iter().map(|word| word.as_bytes().to_vec()).chain(request.iter().cloned()).collect()
    };
    let both =
        |request| [ask(&["COMMAND", "GETKEYSANDFLAGS"], request), ask(&["ACL", "DRYRUN", "u"], request)];
    requests.iter().flat_map(both).collect()
}

fn query_replies(connection: &mut Connection, queries: &[Command]) -> Vec<Reply> {
    connection.send_all(queries).expect("it reads");
    queries.iter().map(|_| sort_flags(connection.read().expect("it answers"))).collect()
}

/// Sorts the flags in a reply, because flags have no order.
fn sort_flags(value: Reply) -> Reply {
    match value {
        Reply::Array(keys) => Reply::Array(keys.into_iter().map(sort_key_flags).collect()),
        other => other,
    }
}

fn sort_key_flags(key: Reply) -> Reply {
    let Reply::Array(mut parts) = key else { return key };
    if let Some(Reply::Array(flags) | Reply::Set(flags)) = parts.get_mut(1) {
        flags.sort();
    }
    Reply::Array(parts)
}

/// Returns whether both replies name the same keys, and Valkey gives no flags. Of a malformed number of keys both servers
/// read the leading digits, but Valkey then does not know how the command uses the keys.
fn differ_only_in_missing_flags(here: &Reply, there: &Reply) -> bool {
    let (Reply::Array(here), Reply::Array(there)) = (here, there) else { return false };
    let is_same_key = |(here, there): (&Reply, &Reply)| {
        here.items()[0] == there.items()[0] && there.items()[1].items().is_empty()
    };
    here.len() == there.len() && here.iter().zip(there).all(is_same_key)
}

/// Whether the server refuses the request as malformed. The request runs in a transaction, where no command blocks.
fn is_malformed(connection: &mut Connection, request: &Command) -> bool {
    connection.call_line("MULTI").expect_ok();
    connection.send_all(std::slice::from_ref(request)).expect("it reads");
    let queued = connection.read().expect("it answers");
    let ran = connection.call_line("EXEC");
    let is_error = |value: &Reply| matches!(value, Reply::Error(text) if text.starts_with("ERR "));
    is_error(&queued) || matches!(&ran, Reply::Array(replies) if replies.iter().any(is_error))
}

/// Commands for which Valkey's reply to ACL DRYRUN is wrong, each with the reason.
const COMMANDS_WRONG_IN_DRYRUN: &[(&str, &str)] =
    &[("PFMERGE", "without a source its destination is not checked, and it runs")];

/// Commands for which Valkey's replies to both queries are wrong, each with the reason.
const COMMANDS_WRONG_IN_VALKEY: &[(&str, &str)] = &[
    ("FLUSHALL", "its name stands for the databases"),
    (
        "XREADGROUP",
        "the word STREAMS is looked for from argument 4 on, though it may be a group or a consumer",
    ),
    ("SORT", "the name of the key behind STORE is read as an option"),
];

#[test]
fn keys_and_permissions_of_scrambled_requests_match_valkey() {
    let Some(valkey) = ReferenceServer::Valkey.program() else { return };
    let (ours, theirs) = (start_server(&Program::redoubt()), start_server(&valkey));
    let (mut here, mut there, mut tried) = (ours.connect(), theirs.connect(), ours.connect());
    let (grammar, table) =
        (Grammar::for_reference_server(ReferenceServer::Valkey), CommandFlags::from_node(&ours));
    let mut generator = Generator::new(&grammar, &[], env_number("KEY_SEED", 1));
    let mut report: BTreeMap<String, String> = BTreeMap::new();
    let runs = |request: &Command| {
        let flagged = |flag| {
            table
                .command_name(request)
                .is_some_and(|name| table.commands_with_flag(flag).any(|other| other == name))
        };
        table.command_name(request).is_some() && !flagged("admin") && !flagged("no_multi")
    };
    let mut left = env_number("KEY_LISTS", REQUEST_COUNT) as usize;
    while left > 0 {
        let count = left.min(PIPELINE_SIZE);
        left -= count;
        let requests: Vec<Command> = std::iter::repeat_with(|| generator.generate_scrambled_command())
            .filter(&runs)
            .take(count)
            .collect();
        let questions = key_queries(&requests);
        let answers =
            query_replies(&mut here, &questions).into_iter().zip(query_replies(&mut there, &questions));
        for (number, (here, there)) in answers.enumerate() {
            let request = &requests[number / 2];
            let name = table.command_name(request).unwrap_or_default().to_owned();
            if here == there
                || differ_only_in_missing_flags(&here, &there)
                || report.len() >= MAX_REPORTED_DIFFERENCES
                || report.contains_key(&name)
                || COMMANDS_WRONG_IN_VALKEY.iter().any(|(known, _)| *known == name)
                // The second query for each request is ACL DRYRUN.
                || number % 2 == 1 && COMMANDS_WRONG_IN_DRYRUN.iter().any(|(known, _)| *known == name)
                || is_malformed(&mut tried, request)
            {
                continue;
            }
            let question = format_command(&questions[number]);
            report.insert(name, format!("{question}\n    here    {here:?}\n    Valkey  {there:?}"));
        }
    }
    let report: Vec<String> = report.into_values().collect();
    assert!(report.is_empty(), "{}", report.join("\n"));
}
