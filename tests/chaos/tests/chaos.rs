//! Runs the chaos test briefly in each mode.

use std::time::Duration;

use chaos::{ChaosOptions, DeploymentMode, FaultKind, RunResult, run};
use harness::Program;

fn run_briefly(mode: DeploymentMode, seed: u64) -> RunResult {
    let options = ChaosOptions {
        mode,
        program: Program::redoubt(),
        last_replica_program: None,
        seed,
        duration: Duration::from_secs(25),
        rounds: usize::MAX,
        faults: FaultKind::default_faults(mode),
        log_folder: None,
    };
    let result = run(&options).expect("the servers start");
    let report = chaos::report::render_html(&options, &result).expect("a report of it");
    assert!(report.contains("</html>"));
    result
}

fn assert_success(result: &RunResult) {
    assert!(result.is_success(), "{:#?}\n{:#?}", result.findings, result.timeline.recoveries);
    let done = result.ops.iter().filter(|op| op.error.is_none()).count();
    assert!(done > 1000, "the clients worked: {done}");
    assert!(!result.timeline.faults.is_empty());
}

#[test]
fn cluster_loses_no_acknowledged_write_without_explanation() {
    assert_success(&run_briefly(DeploymentMode::Cluster, 1));
}

#[test]
fn sentinel_group_loses_no_acknowledged_write_without_explanation() {
    assert_success(&run_briefly(DeploymentMode::Sentinel, 1));
}
