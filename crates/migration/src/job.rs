//! The list of jobs, as CLUSTER GETSLOTMIGRATIONS shows it.

use std::collections::VecDeque;

use clock::Millis;
use slot_routing::{Name, NodeId, Slot, SlotSet};

use crate::order::slots_of;
use crate::progress::Progress;

/// A job's name: the same on both sides.
pub type JobName = Name;

/// The part of a node in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Slots leave it.
    Export,
    /// Slots come to it.
    Import,
}

/// A job as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its name.
    pub name: JobName,
    /// Whether slots leave or come.
    pub operation: Operation,
    /// The slots.
    pub ranges: Vec<(Slot, Slot)>,
    /// Where they go to and come from; a replica is not told.
    pub ends: Option<(NodeId, NodeId)>,
    /// When it began, was in another state last, and the other side was heard last.
    pub created: Millis,
    /// When its state changed last.
    pub updated: Millis,
    /// When the other side was heard last.
    pub heard: Millis,
    /// The state, by Valkey's name for it.
    pub state: &'static str,
    /// Why it failed.
    pub message: String,
    /// How far it is.
    pub progress: Progress,
    /// When the source began to hold writes.
    pub paused: Option<Millis>,
    /// It is under way.
    pub is_active: bool,
}

impl Job {
    /// A job that begins at `now`.
    #[must_use]
    pub fn new(
        (name, operation): (JobName, Operation),
        ranges: Vec<(Slot, Slot)>,
        ends: Option<(NodeId, NodeId)>,
        state: &'static str,
        now: Millis,
    ) -> Self {
        Self {
            name,
            operation,
            ranges,
            ends,
            created: now,
            updated: now,
            heard: now,
            state,
            message: String::new(),
            progress: Progress::default(),
            paused: None,
            is_active: true,
        }
    }

    /// The slots.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        slots_of(&self.ranges)
    }

    /// `0-10 20-22`
    #[must_use]
    pub fn ranges_text(&self) -> String {
        let ranges: Vec<String> = self.ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        ranges.join(" ")
    }
}

/// The jobs that are under way and the last that ended, the newest first.
#[derive(Debug, Default)]
pub struct Jobs(VecDeque<Job>);

impl Jobs {
    /// Adds a job; keeps `most` of those that have ended.
    pub fn add(&mut self, job: Job, most: usize) {
        self.0.push_front(job);
        self.trim(most);
    }

    /// Forgets all but the newest `most` of those that have ended.
    pub fn trim(&mut self, most: usize) {
        let mut ended = 0;
        self.0.retain(|job| {
            ended += usize::from(!job.is_active);
            job.is_active || ended <= most
        });
    }

    /// The newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Job> {
        self.0.iter()
    }

    /// Those that are under way.
    pub fn active(&self) -> impl Iterator<Item = &Job> {
        self.0.iter().filter(|job| job.is_active)
    }

    /// The one that is under way by this name.
    pub fn active_mut(&mut self, name: &JobName) -> Option<&mut Job> {
        self.0.iter_mut().find(|job| job.is_active && job.name == *name)
    }

    /// The newest by this name.
    #[must_use]
    pub fn get(&self, name: &JobName) -> Option<&Job> {
        self.0.iter().find(|job| job.name == *name)
    }

    /// Those that are under way are another's.
    pub fn forget_active(&mut self) {
        self.0.retain(|job| !job.is_active);
    }

    /// The slot of an active job among these, if there is one, and what becomes of it.
    #[must_use]
    pub fn busy_slot(&self, slots: &SlotSet) -> Option<(Slot, Operation)> {
        self.active().find_map(|job| {
            job.slots().iter().find(|slot| slots.contains(*slot)).map(|slot| (slot, job.operation))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(byte: u8, slots: (u16, u16), is_active: bool) -> Job {
        let slot = |number| Slot::new(number).unwrap();
        let kind = (JobName::from_random([byte; 20]), Operation::Export);
        let ranges = vec![(slot(slots.0), slot(slots.1))];
        Job { is_active, ..Job::new(kind, ranges, None, "success", Millis(0)) }
    }

    #[test]
    fn jobs_under_way_stay_however_many_have_ended() {
        let mut jobs = Jobs::default();
        jobs.add(job(1, (0, 9), true), 2);
        (2..9).for_each(|byte| jobs.add(job(byte, (10, 19), false), 2));
        let names: Vec<JobName> = jobs.iter().map(|job| job.name).collect();
        assert_eq!(names, [8, 7, 1].map(|byte| JobName::from_random([byte; 20])));
        let busy = |number| jobs.busy_slot(&[Slot::new(number).unwrap()].into_iter().collect());
        assert_eq!(busy(9), Some((Slot::new(9).unwrap(), Operation::Export)));
        assert_eq!(busy(10), None, "that has ended");
        assert_eq!(jobs.iter().next().unwrap().ranges_text(), "10-19");
        jobs.trim(1);
        let names: Vec<JobName> = jobs.iter().map(|job| job.name).collect();
        assert_eq!(names, [8, 1].map(|byte| JobName::from_random([byte; 20])));
    }
}
