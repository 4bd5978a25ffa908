//! Which master is to be looked at when, so that five hundred at rest cost nothing between their pings.
//!
//! A master has a round, and while something cannot wait for it an alarm:
//!
//! - **Rounds** are taken at ticks, several masters together: what is sent in one tick leaves together,
//!   and the process wakes ten times a second, not once for every link.
//! - **Alarms** ring at their moment: the end of a silence, a deadline of the consensus group, the next
//!   step of a failover.
//!
//! Whatever may give a master something new to do brings its round forward ([`Agenda::soon`]); a look
//! that finds nothing to do costs little, and one that is left out would be noticed late.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clock::Instant;

#[derive(Debug, Clone, Default)]
pub(crate) struct Agenda {
    pub(crate) rounds: Queue,
    pub(crate) alarms: Queue,
}

impl Agenda {
    /// Has this master looked at in the next tick.
    pub(crate) fn soon(&mut self, name: &str) {
        self.rounds.set(name, Instant::ORIGIN);
    }

    /// Drops what is planned for a master that is watched no more.
    pub(crate) fn forget(&mut self, name: &str) {
        self.rounds.clear(name);
        self.alarms.clear(name);
    }
}

/// Names in the order of their times, one time each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    by_time: BTreeSet<(Instant, Arc<str>)>,
    by_name: BTreeMap<Arc<str>, Instant>,
}

impl Queue {
    /// Puts `name` at this time, whatever it was before.
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

    /// The same, unless it is there at an earlier time.
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

    /// The earliest time.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes out everybody whose time is `end` or earlier, in the order of their times.
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
    fn a_name_has_one_time() {
        let at = Instant::from_millis;
        let mut queue = Queue::default();
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
