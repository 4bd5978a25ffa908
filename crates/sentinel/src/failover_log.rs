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
    began_at: Instant,
    steps: Vec<FailoverStep>,
    outcome: FailoverOutcome,
}

impl FailoverRecord {
    fn is_open_for(&self, master: &str) -> bool {
        self.master == master && self.outcome == FailoverOutcome::Open
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FailoverRecorder {
    records: VecDeque<FailoverRecord>,
}

impl FailoverRecorder {
    /// Adds a step to the current failover of `master`, or starts a new record. `address` is that of the failed master.
    pub(crate) fn add_step(&mut self, now: Instant, master: &str, address: &str, text: String) {
        let open = self.records.iter().rposition(|record| record.is_open_for(master));
        let place = open.unwrap_or_else(|| {
            if self.records.len() == MAX_REMEMBERED_FAILOVERS {
                self.records.pop_front();
            }
            let (master, address) = (master.to_owned(), address.to_owned());
            let outcome = FailoverOutcome::Open;
            self.records.push_back(FailoverRecord {
                master,
                address,
                began_at: now,
                steps: Vec::new(),
                outcome,
            });
            self.records.len() - 1
        });
        let record = &mut self.records[place];
        if record.steps.len() < MAX_STEPS {
            record.steps.push(FailoverStep { ms: millis(now, record.began_at), text });
        }
    }

    /// Ends the current failover record of `master` with a final step.
    pub(crate) fn end_failover(&mut self, now: Instant, master: &str, outcome: FailoverOutcome, text: &str) {
        if self.records.iter().any(|record| record.is_open_for(master)) {
            self.add_step(now, master, "", text.to_owned());
            for record in self.records.iter_mut().filter(|record| record.is_open_for(master)) {
                record.outcome = outcome;
            }
        }
    }

    /// The failovers of `master`, or of all masters, oldest first.
    pub(crate) fn failovers(&self, now: Instant, master: Option<&str>) -> Vec<Failover> {
        let wanted = self.records.iter().filter(|record| master.is_none_or(|name| name == record.master));
        wanted
            .map(|record| Failover {
                node: record.master.clone(),
                address: record.address.clone(),
                began_ms_ago: millis(now, record.began_at),
                outcome: record.outcome,
                steps: record.steps.clone(),
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
        recorder.end_failover(at(1), "m", FailoverOutcome::CameBack, "nothing open");
        recorder.add_step(at(10), "m", "h:1", "suspected".into());
        recorder.add_step(at(10), "n", "h:2", "suspected".into());
        recorder.add_step(at(40), "m", "h:1", "promoted".into());
        recorder.end_failover(at(50), "m", FailoverOutcome::Replaced, "switched");
        recorder.add_step(at(90), "m", "h:3", "suspected".into());
        let told = recorder.failovers(at(110), Some("m"));
        let steps: Vec<_> = told.iter().map(|failover| failover.steps.len()).collect();
        assert_eq!(steps, [3, 1]);
        assert_eq!(told[0].steps[1], FailoverStep { ms: 30, text: "promoted".into() });
        assert_eq!((told[0].began_ms_ago, told[0].outcome), (100, FailoverOutcome::Replaced));
        assert_eq!((told[1].address.as_str(), told[1].outcome), ("h:3", FailoverOutcome::Open));
        for number in 0..200 {
            recorder.add_step(at(100), &number.to_string(), "", "suspected".into());
        }
        assert_eq!(recorder.failovers(at(110), None).len(), MAX_REMEMBERED_FAILOVERS);
    }
}
