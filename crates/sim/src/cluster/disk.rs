//! A node's disk, which holds its `nodes.conf`. The file is always rewritten completely and renamed into place.
//!
//! A written file survives the death of the process, but only a synced file is sure to survive a power failure.

use std::collections::VecDeque;

use crate::RandomSource;
use crate::environment::DiskBehavior;

#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    /// The content that a process would read now; `None` if there is no file.
    readable_content: Option<String>,
    /// The oldest content that can remain after a power failure.
    synced_content: Option<String>,
    /// The number and content of the synced write in progress, during which the disk is busy.
    pending_write: Option<(u64, String)>,
    /// Queued writes, each with its number, its content, and whether it must be synced.
    queued_writes: VecDeque<(u64, String, bool)>,
    last_write_number: u64,
}

impl Disk {
    pub(super) fn with_content(nodes_conf: String) -> Self {
        Self {
            readable_content: Some(nodes_conf.clone()),
            synced_content: Some(nodes_conf),
            ..Self::default()
        }
    }

    /// Queues a write of the whole file. With `sync`, the file is also synced.
    pub(super) fn queue_write(&mut self, text: String, must_sync: bool) {
        self.last_write_number += 1;
        self.queued_writes.push_back((self.last_write_number, text, must_sync));
    }

    /// Returns the next queued write unless the disk is busy.
    pub(super) fn next_queued_write(&mut self) -> Option<(u64, String, bool)> {
        if self.pending_write.is_none() { self.queued_writes.pop_front() } else { None }
    }

    pub(super) fn has_queued_writes(&self) -> bool {
        self.pending_write.is_some() || !self.queued_writes.is_empty()
    }

    /// Writes the file. With `sync`, the disk stays busy until [`Disk::sync`] is called.
    pub(super) fn write(&mut self, number: u64, text: String, must_sync: bool) {
        if must_sync { self.pending_write = Some((number, text)) } else { self.readable_content = Some(text) }
    }

    /// Completes the synced write in progress and returns its number.
    pub(super) fn sync(&mut self) -> u64 {
        let (number, text) = self.pending_write.take().expect("a write is on its way");
        self.readable_content = Some(text.clone());
        self.synced_content = Some(text);
        number
    }

    /// Handles the death of the process, which may happen in the middle of a write.
    pub(super) fn on_process_death(&mut self, behavior: DiskBehavior, random: &mut RandomSource) {
        (self.queued_writes, self.last_write_number) = (VecDeque::new(), 0);
        if let Some((_, text)) = self.pending_write.take()
            && random.random_bool(behavior.survival_percent)
        {
            self.readable_content = Some(text);
        }
    }

    /// Cuts the power; unsynced writes may or may not survive.
    pub(super) fn on_power_failure(&mut self, behavior: DiskBehavior, random: &mut RandomSource) {
        self.on_process_death(behavior, random);
        if !random.random_bool(behavior.survival_percent) {
            self.readable_content.clone_from(&self.synced_content);
        }
        self.synced_content.clone_from(&self.readable_content);
    }

    pub(super) fn load(&self) -> Option<&str> {
        self.readable_content.as_deref()
    }
}

/// Implements the injected bug `UnsavedVotes`: returns a `nodes.conf` without the last vote epoch.
pub(super) fn without_last_vote_epoch(text: &str) -> String {
    let kept = text.split("lastVoteEpoch ").next().unwrap_or_default();
    format!("{kept}lastVoteEpoch 0\n")
}
