//! A node's disk, which holds its `nodes.conf`. The file is always rewritten completely and renamed into place.
//!
//! A written file survives the death of the process, but only a synced file is sure to survive a power failure.

use std::collections::VecDeque;

use crate::RandomSource;
use crate::environment::DiskBehavior;

#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    /// The content that a process would read now; `None` if there is no file.
    readable: Option<String>,
    /// The oldest content that can remain after a power failure.
    synced: Option<String>,
    /// The number and content of the synced write in progress, during which the disk is busy.
    pending: Option<(u64, String)>,
    /// Queued writes, each with its number, its content, and whether it must be synced.
    queued_writes: VecDeque<(u64, String, bool)>,
    last_queued: u64,
}

impl Disk {
    pub(super) fn with_content(nodes_conf: String) -> Self {
        Self { readable: Some(nodes_conf.clone()), synced: Some(nodes_conf), ..Self::default() }
    }

    /// Queues a write of the whole file. With `sync`, the file is also synced.
    pub(super) fn queue_write(&mut self, text: String, sync: bool) {
        self.last_queued += 1;
        self.queued_writes.push_back((self.last_queued, text, sync));
    }

    /// Returns the next queued write unless the disk is busy.
    pub(super) fn next_queued_write(&mut self) -> Option<(u64, String, bool)> {
        if self.pending.is_none() { self.queued_writes.pop_front() } else { None }
    }

    pub(super) fn has_queued_writes(&self) -> bool {
        self.pending.is_some() || !self.queued_writes.is_empty()
    }

    /// Writes the file. With `sync`, the disk stays busy until [`Disk::sync`] is called.
    pub(super) fn write(&mut self, number: u64, text: String, sync: bool) {
        if sync { self.pending = Some((number, text)) } else { self.readable = Some(text) }
    }

    /// Completes the synced write in progress and returns its number.
    pub(super) fn sync(&mut self) -> u64 {
        let (number, text) = self.pending.take().expect("a write is on its way");
        self.readable = Some(text.clone());
        self.synced = Some(text);
        number
    }

    /// Handles the death of the process, which may happen in the middle of a write.
    pub(super) fn process_died(&mut self, behavior: DiskBehavior, random: &mut RandomSource) {
        (self.queued_writes, self.last_queued) = (VecDeque::new(), 0);
        if let Some((_, text)) = self.pending.take()
            && random.percent(behavior.survival_percent)
        {
            self.readable = Some(text);
        }
    }

    /// Cuts the power; unsynced writes may or may not survive.
    pub(super) fn power_failed(&mut self, behavior: DiskBehavior, random: &mut RandomSource) {
        self.process_died(behavior, random);
        if !random.percent(behavior.survival_percent) {
            self.readable.clone_from(&self.synced);
        }
        self.synced.clone_from(&self.readable);
    }

    pub(super) fn load(&self) -> Option<&str> {
        self.readable.as_deref()
    }
}

/// Implements the injected bug `UnsavedVotes`: returns a `nodes.conf` without the last vote epoch.
pub(super) fn without_votes(text: &str) -> String {
    let kept = text.split("lastVoteEpoch ").next().unwrap_or_default();
    format!("{kept}lastVoteEpoch 0\n")
}
