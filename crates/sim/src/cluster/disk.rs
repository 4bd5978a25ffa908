//! A node's disk: its `nodes.conf`, written whole and renamed into place.
//!
//! A written file survives the process; only a synced one surely survives the machine.

use std::collections::VecDeque;

use crate::Chance;

#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    /// The text that a process would read now.
    written: Option<String>,
    /// The text that is there after a power cut at the latest.
    synced: Option<String>,
    /// On its way, with a process that waits for it.
    pending: Option<(u64, String)>,
    /// Texts that a process wants to be written, each with whether it is to be synced.
    orders: VecDeque<(u64, String, bool)>,
    ordered: u64,
}

impl Disk {
    pub(super) fn holding(nodes_conf: String) -> Self {
        Self { written: Some(nodes_conf.clone()), synced: Some(nodes_conf), ..Self::default() }
    }

    /// A process wants this to be written.
    pub(super) fn order(&mut self, text: String, sync: bool) {
        self.ordered += 1;
        self.orders.push_back((self.ordered, text, sync));
    }

    /// The next text that is to be written, unless the disk is busy.
    pub(super) fn next_order(&mut self) -> Option<(u64, String, bool)> {
        if self.pending.is_none() { self.orders.pop_front() } else { None }
    }

    /// Whether something is still to be written.
    pub(super) fn has_orders(&self) -> bool {
        self.pending.is_some() || !self.orders.is_empty()
    }

    /// Writes; with `sync`, the disk is busy until [`Disk::sync`].
    pub(super) fn write(&mut self, number: u64, text: String, sync: bool) {
        if sync { self.pending = Some((number, text)) } else { self.written = Some(text) }
    }

    /// The write that was on its way is there; returns its number.
    pub(super) fn sync(&mut self) -> u64 {
        let (number, text) = self.pending.take().expect("a write is on its way");
        self.written = Some(text.clone());
        self.synced = Some(text);
        number
    }

    /// The process dies, perhaps in the middle of a write.
    pub(super) fn process_died(&mut self, chance: &mut Chance) {
        (self.orders, self.ordered) = (VecDeque::new(), 0);
        if let Some((_, text)) = self.pending.take()
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
