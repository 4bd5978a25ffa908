//! A short run in each mode, on real processes.

use std::time::Duration;

use chaos::{Fault, Mode, Options, Verdict, run};
use harness::Program;

fn short_run(mode: Mode, seed: u64) -> Verdict {
    let options = Options {
        mode,
        program: Program::redoubt(),
        other: None,
        seed,
        lasting: Duration::from_secs(25),
        rounds: usize::MAX,
        faults: Fault::usual(mode),
        logs: None,
    };
    let verdict = run(&options).expect("the servers start");
    let report = chaos::report::html(&options, &verdict).expect("a report of it");
    assert!(report.contains("</html>"));
    verdict
}

fn assert_good(verdict: &Verdict) {
    assert!(verdict.is_good(), "{:#?}\n{:#?}", verdict.findings, verdict.timeline.healings);
    let done = verdict.ops.iter().filter(|op| op.error.is_none()).count();
    assert!(done > 1000, "the clients worked: {done}");
    assert!(!verdict.timeline.faults.is_empty());
}

#[test]
fn a_cluster_loses_nothing_that_is_not_explained() {
    assert_good(&short_run(Mode::Cluster, 1));
}

#[test]
fn a_group_with_sentinels_loses_nothing_that_is_not_explained() {
    assert_good(&short_run(Mode::Sentinel, 1));
}
