use super::super::finding::Severity;
use super::query::parse_master;
use super::*;

/// Returns the facts about three healthy sentinels that monitor a master with two replicas.
fn healthy_sentinels() -> Vec<SentinelFacts> {
    let reply = [
        ("name", "shop"),
        ("ip", "10.0.0.1"),
        ("port", "6379"),
        ("flags", "master"),
        ("num-slaves", "2"),
        ("num-other-sentinels", "2"),
        ("quorum", "2"),
    ];
    let reply = reply.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let sentinel = |number: usize| SentinelFacts {
        node: ServerFacts {
            address: format!("10.0.0.{number}:26379"),
            info_fields: vec![("redoubt_version".to_owned(), "0.1.0".to_owned())],
            clock_ahead_ms: Some(0),
            ..ServerFacts::default()
        },
        write_error: None,
        masters: vec![parse_master(&reply)],
    };
    [1, 2, 3].map(sentinel).into()
}

/// Returns the severity and text of each finding that is not fine.
fn list_problems(sentinels: &[SentinelFacts]) -> Vec<(Severity, String)> {
    let findings = check_sentinels(sentinels).into_iter().filter(|finding| finding.verdict != Severity::Fine);
    findings
        .map(|finding| {
            assert!(finding.fix.is_some(), "{finding:?}: a finding needs a fix");
            (finding.verdict, format!("{}: {}", finding.about, finding.text))
        })
        .collect()
}

#[test]
fn healthy_sentinels_pass_all_checks() {
    assert_eq!(list_problems(&healthy_sentinels()), []);
    assert_eq!(
        check_sentinels(&healthy_sentinels()).pop().unwrap().text,
        "3 sentinels monitor 10.0.0.1:6379"
    );
}

type SentinelsChange = fn(&mut Vec<SentinelFacts>);

/// Asserts that each change alone causes exactly this finding.
fn assert_findings(table: &[(SentinelsChange, Severity, &str)]) {
    for (change, verdict, text) in table {
        let mut sentinels = healthy_sentinels();
        change(&mut sentinels);
        assert_eq!(list_problems(&sentinels), [(*verdict, (*text).to_owned())]);
    }
}

#[test]
fn each_sentinel_problem_is_reported_alone() {
    use Severity::{Fault, Warning};
    assert_findings(&[
        (
            |all| all[2].node.connect_error = Some("refused".to_owned()),
            Fault,
            "10.0.0.3:26379: cannot connect: refused",
        ),
        (
            |all| all[1].write_error = Some("read-only".to_owned()),
            Fault,
            "10.0.0.2:26379: cannot write its configuration file: read-only",
        ),
        (|all| all[1].masters.clear(), Warning, "10.0.0.2:26379: monitors no master"),
        (
            |all| all[0].node.info_fields[0].1 = "0.2.0".to_owned(),
            Warning,
            "versions: nodes run different versions: redoubt 0.1.0, redoubt 0.2.0",
        ),
        (
            |all| all[1].node.clock_ahead_ms = Some(900),
            Warning,
            "clocks: 10.0.0.2:26379 is 900 ms ahead of 10.0.0.1:26379",
        ),
    ]);
}

#[test]
fn each_master_problem_is_reported_alone() {
    use Severity::{Fault, Warning};
    assert_findings(&[
        (
            |all| all[2].masters[0].address = "10.0.0.2:6379".to_owned(),
            Fault,
            "master shop: sentinels disagree about its address: 10.0.0.1:6379, 10.0.0.2:6379",
        ),
        (
            |all| all[2].masters[0].required_quorum = 1,
            Warning,
            "master shop: sentinels have different quorums: 1, 2",
        ),
        (
            |all| all[1].masters[0].flags.extend(["s_down".to_owned()]),
            Fault,
            "master shop: 10.0.0.2:26379 reports it as s_down",
        ),
        (
            |all| all[0].masters[0].quorum_error = Some("NOQUORUM".to_owned()),
            Fault,
            "master shop: 10.0.0.1:26379 reports that no failover is possible: NOQUORUM",
        ),
        (
            |all| {
                all.pop();
                all.iter_mut().for_each(|sentinel| sentinel.masters[0].sentinel_count = 2);
            },
            Warning,
            "master shop: 2 sentinels monitor it: if one fails, the others have no majority and cannot elect a leader",
        ),
        (
            |all| all.iter_mut().for_each(|sentinel| sentinel.masters[0].required_quorum = 3),
            Warning,
            "master shop: all 3 sentinels must agree that it is down: if one fails, no failover happens",
        ),
        (
            |all| all.iter_mut().for_each(|sentinel| sentinel.masters[0].replica_count = 0),
            Warning,
            "master shop: it has no replica: if it fails, nothing can replace it",
        ),
    ]);
}
