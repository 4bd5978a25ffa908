//! The same faults, played on another server: whoever loses far more than it does loses too much, with a reason or
//! without.
//!
//! A reason tells that asynchronous replication may lose a write, not that it had to. Both runs draw the same faults from
//! the seed and go through the same rounds, so what one of them loses is measured by what the other does.

use std::time::Duration;

use harness::Program;

use crate::{Options, Verdict};

/// Chance makes one run lose several times as much as the next: a moment of a kill decides. Not ten times.
const ORDER_OF_MAGNITUDE: usize = 10;
/// The other server may take longer for the same rounds.
const TIMES_AS_LONG: u32 = 4;

/// The same run with another server: as many rounds as `verdict` has, however long they take.
#[must_use]
pub fn same_rounds(options: &Options, verdict: &Verdict, other: Program) -> Options {
    Options {
        program: other,
        other: None,
        rounds: verdict.timeline.healings.len(),
        lasting: options.lasting.max(Duration::from_secs(1)) * TIMES_AS_LONG,
        logs: None,
        ..options.clone()
    }
}

/// Whether `lost` acknowledged writes are an order of magnitude more than the other server's. One that lost nothing counts
/// as one that lost a single write.
#[must_use]
pub fn loses_far_more(lost: usize, others: usize) -> bool {
    lost >= ORDER_OF_MAGNITUDE * others.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Findings;
    use crate::timeline::Healing;
    use crate::{Fault, Mode, Timeline};

    #[test]
    fn ten_times_as_much_is_too_much_and_a_few_are_chance() {
        for (lost, others, too_much) in [
            (0, 0, false),
            (9, 0, false),
            (10, 0, true),
            (10, 1, true),
            (19, 2, false),
            (20, 2, true),
            (5, 300, false),
        ] {
            assert_eq!(loses_far_more(lost, others), too_much, "{lost} beside {others}");
        }
    }

    #[test]
    fn the_other_goes_through_the_same_rounds() {
        let healing = Healing { began: Duration::ZERO, took: Duration::ZERO, wrong: None };
        let timeline = Timeline { healings: vec![healing.clone(), healing], ..Timeline::default() };
        let verdict = Verdict { ops: Vec::new(), timeline, findings: Findings::default() };
        let options = Options {
            mode: Mode::Cluster,
            program: Program::named("ours".as_ref()),
            other: Some(Program::redis()),
            seed: 7,
            lasting: Duration::from_secs(60),
            rounds: usize::MAX,
            faults: vec![Fault::Kill],
            logs: None,
        };
        let theirs = same_rounds(&options, &verdict, Program::named("theirs".as_ref()));
        assert_eq!((theirs.seed, theirs.rounds, theirs.faults), (7, 2, vec![Fault::Kill]));
        assert_eq!((theirs.program, theirs.other), (Program::named("theirs".as_ref()), None));
    }
}
