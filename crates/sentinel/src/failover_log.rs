//! Records the last hundred failovers step by step.
//!
//! SENTINEL FAILOVERS shows which sentinels suspected the master and why, when they agreed, why each replica was
//! eligible or not, and the time of each step in milliseconds since the first suspicion.

use std::collections::VecDeque;

use clock::Instant;
use failover_history::{Failover, FailoverOutcome, FailoverStep, MAX_REMEMBERED_FAILOVERS};

/// Maximum number of steps per failover. Only a failover that fails again and again reaches it.
const MAX_STEPS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
struct FailoverRecord {
    master: String,
    address: String,
    began: Instant,
    steps: Vec<FailoverStep>,
    outcome: FailoverOutcome,
}

impl FailoverRecord {
    fn is_open_of(&self, master: &str) -> bool {
        self.master == master && self.outcome == FailoverOutcome::Open
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FailoverRecorder {
    flights: VecDeque<FailoverRecord>,
}

impl FailoverRecorder {
    /// Adds a step to the current failover of `master`, or starts a new record. `address` is that of the failed master.
    pub(crate) fn step(&mut self, now: Instant, master: &str, address: &str, text: String) {
        let open = self.flights.iter().rposition(|flight| flight.is_open_of(master));
        let place = open.unwrap_or_else(|| {
            if self.flights.len() == MAX_REMEMBERED_FAILOVERS {
                self.flights.pop_front();
            }
            let (master, address) = (master.to_owned(), address.to_owned());
            let outcome = FailoverOutcome::Open;
            self.flights.push_back(FailoverRecord {
                master,
                address,
                began: now,
                steps: Vec::new(),
                outcome,
            });
            self.flights.len() - 1
        });
        let flight = &mut self.flights[place];
        if flight.steps.len() < MAX_STEPS {
            flight.steps.push(FailoverStep { ms: millis(now, flight.began), text });
        }
    }

    /// Ends the current failover record of `master` with a final step.
    pub(crate) fn end(&mut self, now: Instant, master: &str, outcome: FailoverOutcome, text: &str) {
        if self.flights.iter().any(|flight| flight.is_open_of(master)) {
            self.step(now, master, "", text.to_owned());
            for flight in self.flights.iter_mut().filter(|flight| flight.is_open_of(master)) {
                flight.outcome = outcome;
            }
        }
    }

    /// The failovers of `master`, or of all masters, oldest first.
    pub(crate) fn failovers(&self, now: Instant, master: Option<&str>) -> Vec<Failover> {
        let wanted = self.flights.iter().filter(|flight| master.is_none_or(|name| name == flight.master));
        wanted
            .map(|flight| Failover {
                node: flight.master.clone(),
                address: flight.address.clone(),
                began_ms_ago: millis(now, flight.began),
                outcome: flight.outcome,
                steps: flight.steps.clone(),
            })
            .collect()
    }
}

fn millis(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failover_has_its_own_record() {
        let mut recorder = FailoverRecorder::default();
        let at = Instant::from_millis;
        recorder.end(at(1), "m", FailoverOutcome::CameBack, "nothing open");
        recorder.step(at(10), "m", "h:1", "suspected".into());
        recorder.step(at(10), "n", "h:2", "suspected".into());
        recorder.step(at(40), "m", "h:1", "promoted".into());
        recorder.end(at(50), "m", FailoverOutcome::Replaced, "switched");
        recorder.step(at(90), "m", "h:3", "suspected".into());
        let told = recorder.failovers(at(110), Some("m"));
        let steps: Vec<_> = told.iter().map(|failover| failover.steps.len()).collect();
        assert_eq!(steps, [3, 1]);
        assert_eq!(told[0].steps[1], FailoverStep { ms: 30, text: "promoted".into() });
        assert_eq!((told[0].began_ms_ago, told[0].outcome), (100, FailoverOutcome::Replaced));
        assert_eq!((told[1].address.as_str(), told[1].outcome), ("h:3", FailoverOutcome::Open));
        for number in 0..200 {
            recorder.step(at(100), &number.to_string(), "", "suspected".into());
        }
        assert_eq!(recorder.failovers(at(110), None).len(), MAX_REMEMBERED_FAILOVERS);
    }
}
