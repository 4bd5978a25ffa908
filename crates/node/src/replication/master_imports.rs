//! The master's running and finished slot imports, which a replica lists in CLUSTER GETSLOTMIGRATIONS.

use clock::Millis;
use migration::{
    EstablishMessage, FinishMessage, JobDirection, JobName, MigrationJob, MigrationJobs, SyncSlotsCommand,
};
use parking_lot::Mutex;

/// The slot imports of this replica's master, as announced in the replication stream.
#[derive(Debug, Default)]
pub(crate) struct MasterImports(Mutex<MigrationJobs>);

impl MasterImports {
    /// Records a command of the stream that starts or ends an import. At most `max_finished` finished imports are
    /// retained.
    pub(super) fn record_change(&self, command: SyncSlotsCommand, now: Millis, max_finished: usize) {
        match command {
            // Every snapshot repeats the running imports, so this import may be known already.
            SyncSlotsCommand::Establish(import) if self.0.lock().active_job_mut(&import.name).is_some() => {}
            SyncSlotsCommand::Establish(EstablishMessage { name, ranges, .. }) => self.0.lock().add(
                MigrationJob::new(name, JobDirection::Import, ranges, None, "occurring-on-primary", now),
                max_finished,
            ),
            SyncSlotsCommand::Finish(FinishMessage { name, is_success, error: message }) => {
                self.record_end(&name, if is_success { Ok(()) } else { Err(message) }, now);
            }
            SyncSlotsCommand::QueryResumable
            | SyncSlotsCommand::Resume(_)
            | SyncSlotsCommand::Request(..)
            | SyncSlotsCommand::Message(_)
            | SyncSlotsCommand::AppliedBytes(_) => {}
        }
    }

    pub(crate) fn record_end(&self, name: &JobName, outcome: Result<(), String>, now: Millis) {
        if let Some(job) = self.0.lock().active_job_mut(name) {
            (job.is_active, job.updated_at) = (false, now);
            job.state_name = if outcome.is_ok() { "success" } else { "failed" };
            job.error = outcome.err().unwrap_or_default();
        }
    }

    /// Removes all but the newest `max_finished` finished imports.
    pub(crate) fn truncate_to_newest(&self, max_finished: usize) {
        self.0.lock().trim_ended_jobs(max_finished);
    }

    /// Removes all imports, because the stream of a new master announces its own.
    pub(super) fn clear(&self) {
        self.0.lock().remove_active();
    }

    pub(crate) fn list(&self) -> Vec<MigrationJob> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use slot_routing::{NodeId, Slot};

    use super::*;

    #[test]
    fn replica_lists_the_imports_of_its_master() {
        let slot = |number| Slot::new(number).unwrap();
        let import = |byte| EstablishMessage {
            source: NodeId::from_random([7; 20]),
            name: JobName::from_random([byte; 20]),
            ranges: vec![(slot(0), slot(9))],
            is_resumable: false,
        };
        let list = MasterImports::default();
        let shown = || -> Vec<(&str, String)> {
            list.list().into_iter().map(|job| (job.state_name, job.error)).collect()
        };
        list.record_change(SyncSlotsCommand::Establish(import(1)), Millis(1), 9);
        list.record_change(SyncSlotsCommand::Establish(import(1)), Millis(2), 9);
        assert_eq!(shown(), [("occurring-on-primary", String::new())], "told again at a cut");
        let end = FinishMessage { name: import(1).name, is_success: false, error: "why".to_owned() };
        list.record_change(SyncSlotsCommand::Finish(end), Millis(3), 9);
        list.record_change(SyncSlotsCommand::Establish(import(2)), Millis(4), 9);
        let failed = ("failed", "why".to_owned());
        assert_eq!(shown(), [("occurring-on-primary", String::new()), failed.clone()]);
        list.clear();
        assert_eq!(shown(), [failed]);
    }
}
