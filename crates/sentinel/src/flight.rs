//! The flight recorder: the last hundred failovers, step by step.
//!
//! SENTINEL FAILOVERS shows them: the sentinels that suspected the master and why, when that was agreed, the replicas
//! to choose from and why each was or was not fit, and when each step was done, in
//! milliseconds after the first suspicion.

use std::collections::VecDeque;

use clock::Instant;

const KEPT: usize = 100;
/// Steps of one failover that are kept; more would be a failover that keeps failing.
const MAX_STEPS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flight {
    pub(crate) master: String,
    pub(crate) began: Instant,
    pub(crate) steps: Vec<(u64, String)>,
    pub(crate) ended: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) flights: VecDeque<Flight>,
}

impl Recorder {
    /// Notes a step of `master`'s current failover; the first one begins it.
    pub(crate) fn step(&mut self, now: Instant, master: &str, text: String) {
        let open = self.flights.iter().rposition(|flight| flight.master == master && !flight.ended);
        let place = open.unwrap_or_else(|| {
            if self.flights.len() == KEPT {
                self.flights.pop_front();
            }
            let flight = Flight { master: master.to_owned(), began: now, steps: Vec::new(), ended: false };
            self.flights.push_back(flight);
            self.flights.len() - 1
        });
        let flight = &mut self.flights[place];
        if flight.steps.len() < MAX_STEPS {
            flight.steps.push((now.since(flight.began).as_millis() as u64, text));
        }
    }

    /// Ends `master`'s current failover, if there is one.
    pub(crate) fn end(&mut self, now: Instant, master: &str, text: &str) {
        let open = self.flights.iter().any(|flight| flight.master == master && !flight.ended);
        if open {
            self.step(now, master, text.to_owned());
            for flight in self.flights.iter_mut().filter(|flight| flight.master == master) {
                flight.ended = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failover_of_a_master_is_its_own_flight() {
        let mut recorder = Recorder::default();
        let at = Instant::from_millis;
        recorder.end(at(1), "m", "nothing open");
        recorder.step(at(10), "m", "suspected".into());
        recorder.step(at(10), "n", "suspected".into());
        recorder.step(at(40), "m", "promoted".into());
        recorder.end(at(50), "m", "switched");
        recorder.step(at(90), "m", "suspected".into());
        let steps: Vec<_> = recorder.flights.iter().map(|flight| flight.steps.len()).collect();
        assert_eq!(steps, [3, 1, 1]);
        assert_eq!(recorder.flights[0].steps[1], (30, "promoted".into()));
        for number in 0..200 {
            recorder.step(at(100), &number.to_string(), "suspected".into());
        }
        assert_eq!(recorder.flights.len(), KEPT);
    }
}
