//! Schedules when to process each master, so that hundreds of healthy masters cost nothing between their pings.
//!
//! Each master has a round and, while something is urgent, an alarm:
//!
//! * **Rounds** run at ticks, several masters together. Their requests leave in the same tick, and the process wakes up
//!   ten times per second instead of once per link.
//! * **Alarms** fire at an exact time: when a silence becomes too long, at a deadline of the consensus group, or for
//!   the next step of a failover.
//!
//! Anything that may create work for a master reschedules its round to the next tick ([`Scheduler::schedule_round`]).
//! An unnecessary round is cheap, but a missing one delays a reaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clock::Instant;

#[derive(Debug, Clone, Default)]
pub(crate) struct Scheduler {
    pub(crate) rounds: TimerQueue,
    pub(crate) alarms: TimerQueue,
}

impl Scheduler {
    /// Schedules a round for this master in the next tick.
    pub(crate) fn schedule_round(&mut self, name: &str) {
        self.rounds.set(name, Instant::ORIGIN);
    }

    /// Removes all entries of a master that is no longer monitored.
    pub(crate) fn forget(&mut self, name: &str) {
        self.rounds.clear(name);
        self.alarms.clear(name);
    }
}

/// Names with one time each, sorted by time.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimerQueue {
    by_time: BTreeSet<(Instant, Arc<str>)>,
    by_name: BTreeMap<Arc<str>, Instant>,
}

impl TimerQueue {
    /// Sets the time of `name`, replacing its previous one.
    pub(crate) fn set(&mut self, name: &str, at: Instant) {
        let key = match self.by_name.get_key_value(name) {
            Some((_, &before)) if before == at => return,
            Some((key, &before)) => {
                let key = key.clone();
                self.by_time.remove(&(before, key.clone()));
                key
            }
            None => Arc::from(name),
        };
        self.by_name.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// Sets the time of `name` unless it has an earlier one.
    pub(crate) fn set_sooner(&mut self, name: &str, at: Instant) {
        if self.by_name.get(name).is_none_or(|&before| at < before) {
            self.set(name, at);
        }
    }

    pub(crate) fn clear(&mut self, name: &str) {
        if let Some((key, at)) = self.by_name.remove_entry(name) {
            self.by_time.remove(&(at, key));
        }
    }

    /// The earliest time in the queue; `None` if it is empty.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns all names with a time not after `end`, sorted by time.
    pub(crate) fn take_until(&mut self, end: Instant) -> Vec<Arc<str>> {
        let mut taken = Vec::new();
        while self.first().is_some_and(|at| at <= end) {
            let (_, name) = self.by_time.pop_first().expect("it has a first");
            self.by_name.remove(&name);
            taken.push(name);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_keeps_one_time_per_name() {
        let at = Instant::from_millis;
        let mut queue = TimerQueue::default();
        queue.set("b", at(20));
        queue.set("a", at(30));
        queue.set("b", at(40));
        assert_eq!(queue.first(), Some(at(30)));
        queue.set_sooner("a", at(50));
        queue.set_sooner("b", at(10));
        queue.set("c", at(10));
        assert_eq!(queue.first(), Some(at(10)));
        let names = |taken: Vec<Arc<str>>| taken.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(queue.take_until(at(29))), ["b", "c"]);
        queue.clear("a");
        queue.clear("a");
        assert_eq!(queue.first(), None);
        assert!(queue.take_until(at(1000)).is_empty());
    }
}
