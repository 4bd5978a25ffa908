//! Compares CONFIG with Valkey, parameter by parameter: the same names in the same order with the same defaults, and
//! the same errors for invalid values.

use std::fmt::Write as _;

use differential::is_waived;
use harness::{Connection, Node, Program, Reply};

/// Parameters that only Redoubt has, each with its reason.
const REDOUBT_PARAMETERS: &[(&str, &str)] = &[
    ("cluster-bus-port-protected-mode", "Redis 8.10 has it"),
    ("cluster-connect-refused-timeout", "here a refused connection makes a node suspect"),
    ("cluster-refused-timeout", "former name of cluster-connect-refused-timeout"),
    ("dynamic-hz", "Redis 8 has it"),
    ("hotkeys-sampling-percentage", "Valkey 9.2 has it"),
    ("hotkeys-top-k", "Valkey 9.2 has it"),
    ("hotkeys-window-seconds", "Valkey 9.2 has it"),
    ("io-threads-do-reads", "Redis 8 has it"),
    ("long-command-threads", "long commands run on threads of their own here"),
    ("metrics-bind", "figures over HTTP are served here"),
    ("metrics-password", "figures over HTTP are served here"),
    ("metrics-port", "figures over HTTP are served here"),
    ("metrics-tls", "figures over HTTP are served here"),
    ("sanitize-dump-payload", "Redis 8 has it"),
    ("stream-idmp-duration", "Redis 8.6 has it"),
    ("stream-idmp-maxsize", "Redis 8.6 has it"),
    ("empty-master-timeout", "here a master that returns without its data waits for a failover"),
    ("stale-master-timeout", "former name of empty-master-timeout"),
];

/// Parameters whose defaults differ, each with its reason.
const DIFFERENT_DEFAULTS: &[(&str, &str)] = &[
    ("dir", "each has its own"),
    ("port", "each has its own"),
    ("io-threads", "as many as there are cores"),
    ("syslog-ident", "the program's name"),
];

/// Values that are invalid for most parameters: values of the wrong type, out of range, or at common limits.
const INVALID_VALUES: &[&str] = &[
    "",
    " ",
    "nope",
    "a/b",
    "a b",
    "{x}",
    "yes",
    "no",
    "save nosave",
    "0",
    "1",
    "-1",
    "-2",
    "+5",
    "5 ",
    " 5",
    "1 2 3",
    "1.5",
    "nan",
    "0x10",
    "5k",
    "1mb",
    "1kx",
    "101%",
    "3000000000",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
];

/// Values that are not tested, because a server that accepts one would listen on another address or accept no clients.
const UNTESTED_VALUES: &[(&str, &[&str])] = &[
    ("port", &["0", "1", "+5"]),
    ("tls-port", &["0", "1", "+5"]),
    ("rdma-port", &["0", "1", "+5"]),
    ("maxclients", &["1", "3000000000"]),
];

fn start_pair(options: &str) -> Option<(Node, Node)> {
    Some((Node::start(&Program::redoubt(), options), Node::start(&Program::valkey()?, options)))
}

/// Returns the parameters in `CONFIG GET *`, in order.
fn list_parameters(connection: &mut Connection) -> Vec<(String, String)> {
    let shown = connection.call_line("CONFIG GET *");
    shown.items().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

#[test]
fn parameter_names_defaults_and_order_match_valkey() {
    let Some((ours, theirs)) = start_pair("--save ") else { return };
    let (ours, theirs) = (list_parameters(&mut ours.connect()), list_parameters(&mut theirs.connect()));
    let is_in = |list: &[(&str, &str)], name: &str| list.iter().any(|(known, _)| *known == name);
    let common: Vec<_> = ours.iter().filter(|(name, _)| !is_in(REDOUBT_PARAMETERS, name)).collect();
    let names = |list: &[&(String, String)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&common), names(&theirs.iter().collect::<Vec<_>>()), "names, in their order");
    assert_eq!(common.len() + REDOUBT_PARAMETERS.len(), ours.len(), "what is ours alone is there");
    let differing: Vec<_> = common
        .iter()
        .zip(&theirs)
        .filter(|(ours, theirs)| ours.1 != theirs.1 && !is_in(DIFFERENT_DEFAULTS, &ours.0))
        .collect();
    assert!(differing.is_empty(), "other defaults: {differing:#?}");
}

/// Returns the differences in the replies to setting `name` to each value, and in the resulting values.
fn compare_replies(
    ours: &mut Connection,
    theirs: &mut Connection,
    (name, default): &(String, String),
) -> String {
    let mut report = String::new();
    let not_tried =
        UNTESTED_VALUES.iter().find(|(known, _)| known == name).map_or(&[][..], |(_, values)| values);
    for value in INVALID_VALUES.iter().filter(|value| !not_tried.contains(value)) {
        let set = ["CONFIG", "SET", name, value];
        let both = [ours.call(&set), theirs.call(&set)];
        if both[0] == both[1] && both[0] == Reply::Simple("OK".into()) {
            let [a, b] = [&mut *ours, theirs].map(|server| server.call(&["CONFIG", "GET", name]));
            if a != b {
                let _ = writeln!(report, "{name} is after '{value}'\n  here {a:?}\n  there {b:?}");
            }
        }
        let words: Vec<Vec<u8>> = set.iter().map(|word| word.as_bytes().to_vec()).collect();
        if both[0] != both[1] && !is_waived(&words, &both[0], &both[1]) {
            let _ = writeln!(report, "{name} '{value}'\n  here {:?}\n  there {:?}", both[0], both[1]);
        }
        for (server, answer) in [&mut *ours, theirs].into_iter().zip(both) {
            if answer == Reply::Simple("OK".into()) {
                server.call(&["CONFIG", "SET", name, default]).expect_ok();
            }
        }
    }
    report
}

#[test]
fn invalid_config_values_get_valkey_errors() {
    let Some((ours, theirs)) = start_pair("--save  --io-threads 1") else { return };
    let (mut ours, mut theirs) = (ours.connect(), theirs.connect());
    let mut report = String::new();
    for parameter in list_parameters(&mut theirs) {
        report += &compare_replies(&mut ours, &mut theirs, &parameter);
    }
    assert!(report.is_empty(), "{report}");
}

/// If one parameter cannot be set, no parameter is set. Errors in names are reported before errors in values.
#[test]
fn config_set_of_several_parameters_matches_valkey() {
    let Some((ours, theirs)) = start_pair("--save ") else { return };
    let (mut ours, mut theirs) = (ours.connect(), theirs.connect());
    for line in [
        "maxmemory 1 2",
        "maxmemory 1 maxmemory 2",
        "maxmemory 1mb timeout x",
        "maxmemory x nosuch 2",
        "timeout x daemonize yes",
        "nosuch 1",
        "daemonize yes",
        "dir /tmp",
        "timeout 7 maxmemory 3mb",
        "slave-priority 7 replica-priority 8",
    ] {
        let set: Vec<&str> = "CONFIG SET".split(' ').chain(line.split(' ')).collect();
        assert_eq!(ours.call(&set), theirs.call(&set), "CONFIG SET {line}");
        let get = "CONFIG GET maxmemory timeout replica-priority";
        assert_eq!(ours.call_line(get), theirs.call_line(get), "after CONFIG SET {line}");
    }
}
