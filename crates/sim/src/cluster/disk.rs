//! A node's disk: its `nodes.conf`, written whole and renamed into place.
//!
//! A written file survives the process; only a synced one surely survives the machine.

use crate::Chance;

#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    /// The text that a process would read now.
    written: Option<String>,
    /// The text that is there after a power cut at the latest.
    synced: Option<String>,
    /// On its way, with a process that waits for it.
    pending: Option<String>,
}

impl Disk {
    pub(super) fn holding(nodes_conf: String) -> Self {
        Self { written: Some(nodes_conf.clone()), synced: Some(nodes_conf), pending: None }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// Writes; with `sync`, the disk is busy until [`Disk::sync`].
    pub(super) fn write(&mut self, text: String, sync: bool) {
        if sync { self.pending = Some(text) } else { self.written = Some(text) }
    }

    pub(super) fn sync(&mut self) {
        if let Some(text) = self.pending.take() {
            self.written = Some(text.clone());
            self.synced = Some(text);
        }
    }

    /// The process dies, perhaps in the middle of a write.
    pub(super) fn process_died(&mut self, chance: &mut Chance) {
        if let Some(text) = self.pending.take()
            && chance.percent(50)
        {
            self.written = Some(text);
        }
    }

    /// The machine loses power; what was not synced may be there or not.
    pub(super) fn power_failed(&mut self, chance: &mut Chance) {
        self.process_died(chance);
        if chance.percent(50) {
            self.written.clone_from(&self.synced);
        }
        self.synced.clone_from(&self.written);
    }

    pub(super) fn load(&self) -> Option<&str> {
        self.written.as_deref()
    }
}

/// The planted fault: a `nodes.conf` that does not say for which epoch its node has voted.
pub(super) fn without_votes(text: &str) -> String {
    let kept = text.split("lastVoteEpoch ").next().unwrap_or_default();
    format!("{kept}lastVoteEpoch 0\n")
}
