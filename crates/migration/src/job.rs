//! The list of slot migrations that CLUSTER GETSLOTMIGRATIONS shows.

use std::collections::VecDeque;

use clock::Millis;
use slot_routing::{NodeId, RedisId, Slot, SlotSet};

use crate::progress::MigrationProgress;
use crate::slot_move::slots_in_ranges;

/// The name of a migration. The source and the target use the same name.
pub type JobName = RedisId;

/// Direction of a migration, as seen by this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobDirection {
    /// The slots move away from this node.
    Export,
    /// The slots move to this node.
    Import,
}

/// A slot migration as shown to operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationJob {
    /// The name by which both nodes and the operator refer to the migration.
    pub name: JobName,
    /// Whether the slots move away from this node or to it.
    pub direction: JobDirection,
    /// The migrating slots as ranges; both ends are inclusive.
    pub ranges: Vec<(Slot, Slot)>,
    /// The ids of the source and the target; `None` on a replica, because replicas do not learn both.
    pub source_and_target: Option<(NodeId, NodeId)>,
    /// Wall-clock time at which this node created the entry.
    pub created_at: Millis,
    /// Wall-clock time of the last change of `state`.
    pub updated_at: Millis,
    /// Wall-clock time at which this node last received something from the other node.
    pub last_heard_at: Millis,
    /// The name of the current state in Valkey.
    pub state_name: &'static str,
    /// Why the migration failed; empty otherwise.
    pub error: String,
    /// How much data has been transferred.
    pub progress: MigrationProgress,
    /// When the source paused writes; `None` before that.
    pub paused_at: Option<Millis>,
    /// Whether the migration is still running.
    pub is_active: bool,
}

impl MigrationJob {
    /// Creates the entry of a migration that starts at `now`.
    #[must_use]
    pub fn new(
        name: JobName,
        direction: JobDirection,
        ranges: Vec<(Slot, Slot)>,
        source_and_target: Option<(NodeId, NodeId)>,
        state: &'static str,
        now: Millis,
    ) -> Self {
        Self {
            name,
            direction,
            ranges,
            source_and_target,
            created_at: now,
            updated_at: now,
            last_heard_at: now,
            state_name: state,
            error: String::new(),
            progress: MigrationProgress::default(),
            paused_at: None,
            is_active: true,
        }
    }

    /// The migrating slots as a set.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        slots_in_ranges(&self.ranges)
    }

    /// The slot ranges as text, for instance `0-10 20-22`.
    #[must_use]
    pub fn ranges_text(&self) -> String {
        let ranges: Vec<String> = self.ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        ranges.join(" ")
    }
}

/// Running and ended migrations, the newest first.
#[derive(Debug, Default)]
pub struct MigrationJobs(VecDeque<MigrationJob>);

impl MigrationJobs {
    /// Adds a migration and discards all but the newest `max_ended` ended ones.
    pub fn add(&mut self, job: MigrationJob, max_ended: usize) {
        self.0.push_front(job);
        self.trim_ended_jobs(max_ended);
    }

    /// Discards all but the newest `max_ended` ended migrations.
    pub fn trim_ended_jobs(&mut self, max_ended: usize) {
        let mut ended = 0;
        self.0.retain(|job| {
            ended += usize::from(!job.is_active);
            job.is_active || ended <= max_ended
        });
    }

    /// All listed migrations, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &MigrationJob> {
        self.0.iter()
    }

    /// The migrations that have not ended.
    pub fn active_jobs(&self) -> impl Iterator<Item = &MigrationJob> {
        self.0.iter().filter(|job| job.is_active)
    }

    /// Finds the running migration with this name.
    pub fn active_job_mut(&mut self, name: &JobName) -> Option<&mut MigrationJob> {
        self.0.iter_mut().find(|job| job.is_active && job.name == *name)
    }

    /// Finds the newest migration with this name, running or ended.
    #[must_use]
    pub fn get(&self, name: &JobName) -> Option<&MigrationJob> {
        self.0.iter().find(|job| job.name == *name)
    }

    /// Removes the running migrations, because another node continues them.
    pub fn remove_active(&mut self) {
        self.0.retain(|job| !job.is_active);
    }

    /// Finds the first of these slots that is being migrated, with the direction of its migration.
    #[must_use]
    pub fn find_busy_slot(&self, slots: &SlotSet) -> Option<(Slot, JobDirection)> {
        self.active_jobs().find_map(|job| {
            job.slots().iter().find(|slot| slots.contains(*slot)).map(|slot| (slot, job.direction))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example_job(byte: u8, slots: (u16, u16), is_active: bool) -> MigrationJob {
        let slot = |number| Slot::new(number).unwrap();
        let (name, direction) = (JobName::from_random([byte; 20]), JobDirection::Export);
        let ranges = vec![(slot(slots.0), slot(slots.1))];
        MigrationJob { is_active, ..MigrationJob::new(name, direction, ranges, None, "success", Millis(0)) }
    }

    #[test]
    fn running_jobs_are_never_trimmed() {
        let mut jobs = MigrationJobs::default();
        jobs.add(example_job(1, (0, 9), true), 2);
        (2..9).for_each(|byte| jobs.add(example_job(byte, (10, 19), false), 2));
        let names: Vec<JobName> = jobs.iter().map(|job| job.name).collect();
        assert_eq!(names, [8, 7, 1].map(|byte| JobName::from_random([byte; 20])));
        let busy = |number| jobs.find_busy_slot(&[Slot::new(number).unwrap()].into_iter().collect());
        assert_eq!(busy(9), Some((Slot::new(9).unwrap(), JobDirection::Export)));
        assert_eq!(busy(10), None, "that has ended");
        assert_eq!(jobs.iter().next().unwrap().ranges_text(), "10-19");
        jobs.trim_ended_jobs(1);
        let names: Vec<JobName> = jobs.iter().map(|job| job.name).collect();
        assert_eq!(names, [8, 1].map(|byte| JobName::from_random([byte; 20])));
    }
}
