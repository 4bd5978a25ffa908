//! Compares data loss with another server under the same faults.
//!
//! Asynchronous replication may lose a write, but does not have to: an explanation for a loss does not prove that the
//! loss was unavoidable. Both runs draw the same rounds of faults from one seed, so the losses of the other server show
//! how many are normal.

use std::time::Duration;

use harness::Program;

use crate::{ChaosOptions, RunResult};

/// The ratio of losses from which a server is considered worse. Losses vary several-fold between runs, because the
/// exact moment of a kill matters, but not tenfold.
const MAX_LOSS_RATIO: usize = 10;
/// The run with the other server may take this many times as long for the same rounds.
const DURATION_FACTOR: u32 = 4;

/// Returns options for the same number of rounds as `result`, with another server and without a
/// tight time limit.
#[must_use]
pub fn with_same_rounds(options: &ChaosOptions, result: &RunResult, other_program: Program) -> ChaosOptions {
    ChaosOptions {
        program: other_program,
        last_replica_program: None,
        rounds: result.timeline.recoveries.len(),
        duration: options.duration.max(Duration::from_secs(1)) * DURATION_FACTOR,
        log_folder: None,
        ..options.clone()
    }
}

/// Returns whether `lost_writes` is at least ten times `others`. Zero losses of the other server count as
/// one.
#[must_use]
pub fn loses_far_more_writes(lost_writes: usize, other_lost_writes: usize) -> bool {
    lost_writes >= MAX_LOSS_RATIO * other_lost_writes.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckerFindings;
    use crate::timeline::RoundRecovery;
    use crate::{DeploymentMode, FaultKind, Timeline};

    #[test]
    fn comparison_fails_if_losses_are_tenfold() {
        for (lost, others, too_much) in [
            (0, 0, false),
            (9, 0, false),
            (10, 0, true),
            (10, 1, true),
            (19, 2, false),
            (20, 2, true),
            (5, 300, false),
        ] {
            assert_eq!(loses_far_more_writes(lost, others), too_much, "{lost} beside {others}");
        }
    }

    #[test]
    fn comparison_runs_the_same_rounds() {
        let healing = RoundRecovery { began: Duration::ZERO, took: Duration::ZERO, wrong: None };
        let timeline = Timeline { recoveries: vec![healing.clone(), healing], ..Timeline::default() };
        let result = RunResult { ops: Vec::new(), timeline, findings: CheckerFindings::default() };
        let options = ChaosOptions {
            mode: DeploymentMode::Cluster,
            program: Program::from_binary("ours".as_ref()),
            last_replica_program: Some(Program::redis()),
            seed: 7,
            duration: Duration::from_secs(60),
            rounds: usize::MAX,
            faults: vec![FaultKind::Kill],
            log_folder: None,
        };
        let theirs = with_same_rounds(&options, &result, Program::from_binary("theirs".as_ref()));
        assert_eq!((theirs.seed, theirs.rounds, theirs.faults), (7, 2, vec![FaultKind::Kill]));
        assert_eq!(
            (theirs.program, theirs.last_replica_program),
            (Program::from_binary("theirs".as_ref()), None)
        );
    }
}
