//! Costs per slot: CPU time, bytes received and bytes sent (CLUSTER SLOT-STATS).
//!
//! Each worker has its own counter table, allocated when it first counts a command, so workers do not share cache lines
//! and disabled statistics need no memory. A reset stores the current sums as a baseline that is subtracted from then
//! on, so each counter has a single writer.
//!
//! A command is charged to the slot of its first key after it ran there; transactions are charged as a whole, and
//! blocked clients when they are served. Requests that are queued count when they arrive. Besides the reply, a command
//! is charged for the log entries sent to each replica and for shard channel messages sent to each subscriber.
//! Redirections are not charged.
//!
//! A script is charged to the slot of its declared keys, or of the first key of its calls; the replies of its calls
//! count in addition, each at the slot of the call. A script that may access several slots and calls a command is not
//! charged itself. These rules for scripts are Valkey's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use resp::Args;
use slot_routing::{SLOT_COUNT, Slot};

use crate::counter::add;

/// Request size of MULTI in bytes, charged together with its EXEC.
pub(crate) const MULTI_REQUEST_BYTES: u64 = 15;

/// The accumulated cost of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotCost {
    /// Execution time in nanoseconds.
    pub nanos: u64,
    /// Bytes received in requests.
    pub bytes_in: u64,
    /// Bytes of replies, shard channel messages, and log entries per replica.
    pub bytes_out: u64,
}

impl SlotCost {
    fn wrapping_add(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.wrapping_add(other.nanos),
            bytes_in: self.bytes_in.wrapping_add(other.bytes_in),
            bytes_out: self.bytes_out.wrapping_add(other.bytes_out),
        }
    }

    fn wrapping_sub(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.wrapping_sub(other.nanos),
            bytes_in: self.bytes_in.wrapping_sub(other.bytes_in),
            bytes_out: self.bytes_out.wrapping_sub(other.bytes_out),
        }
    }
}

#[derive(Debug, Default)]
struct SlotCounters {
    nanos: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// The counters of one worker, indexed by slot; allocated when the worker first counts a command.
#[derive(Debug, Default)]
pub(crate) struct SlotCostCounters(OnceLock<Box<[SlotCounters]>>);

impl SlotCostCounters {
    /// Adds a cost; called only by the owning worker.
    pub(crate) fn add(&self, slot: Slot, cost: SlotCost) {
        let all = self.0.get_or_init(|| (0..SLOT_COUNT).map(|_| SlotCounters::default()).collect());
        let counters = &all[slot.index()];
        add(&counters.nanos, cost.nanos);
        add(&counters.bytes_in, cost.bytes_in);
        add(&counters.bytes_out, cost.bytes_out);
    }

    fn cost_of(&self, slot: Slot) -> SlotCost {
        let counters = self.0.get().map(|all| &all[slot.index()]);
        counters.map_or_else(SlotCost::default, |counters| SlotCost {
            nanos: counters.nanos.load(Ordering::Relaxed),
            bytes_in: counters.bytes_in.load(Ordering::Relaxed),
            bytes_out: counters.bytes_out.load(Ordering::Relaxed),
        })
    }
}

/// Baseline per slot, which is subtracted from the sum of all workers; an empty vector means zero.
#[derive(Debug, Default)]
pub(crate) struct SlotCostBaseline(Mutex<Vec<SlotCost>>);

impl SlotCostBaseline {
    /// Returns the costs of these slots since their last reset.
    pub(crate) fn costs<'w>(
        &self,
        workers: &(impl Iterator<Item = &'w SlotCostCounters> + Clone),
        slots: &[Slot],
    ) -> Vec<SlotCost> {
        let taken_off = self.0.lock();
        let off = |slot: &Slot| taken_off.get(slot.index()).copied().unwrap_or_default();
        slots.iter().map(|slot| sum_of_workers(workers.clone(), *slot).wrapping_sub(off(slot))).collect()
    }

    pub(crate) fn reset<'w>(
        &self,
        workers: &(impl Iterator<Item = &'w SlotCostCounters> + Clone),
        slots: impl Iterator<Item = Slot>,
    ) {
        let mut taken_off = self.0.lock();
        for slot in slots {
            let all = sum_of_workers(workers.clone(), slot);
            if all != SlotCost::default() || !taken_off.is_empty() {
                taken_off.resize(SLOT_COUNT, SlotCost::default());
                taken_off[slot.index()] = all;
            }
        }
    }

    pub(crate) fn retain_ended_worker_costs(&self, counters: &SlotCostCounters) {
        if counters.0.get().is_none() {
            return;
        }
        let mut taken_off = self.0.lock();
        taken_off.resize(SLOT_COUNT, SlotCost::default());
        for (slot, off) in Slot::all().zip(taken_off.iter_mut()) {
            *off = off.wrapping_sub(counters.cost_of(slot));
        }
    }
}

fn sum_of_workers<'w>(workers: impl Iterator<Item = &'w SlotCostCounters>, slot: Slot) -> SlotCost {
    workers.fold(SlotCost::default(), |sum, worker| sum.wrapping_add(worker.cost_of(slot)))
}

/// Returns the size in bytes of a request. The size of an inline request is that of its words separated by one blank
/// each, without quotes, as in Valkey.
pub(crate) fn request_len(args: Args<'_>) -> u64 {
    if !args.is_inline() {
        return wire_len(args);
    }
    let words: usize = args.iter().map(|word| word.len() + 1).sum();
    (words + "\n".len()) as u64
}

/// Returns the size in bytes of a request encoded as a RESP array.
pub(crate) fn wire_len(args: Args<'_>) -> u64 {
    let header = |number: usize| number.checked_ilog10().unwrap_or(0) as usize + 1 + "$\r\n".len();
    let words = args.iter().map(|word| header(word.len()) + word.len() + "\r\n".len());
    (header(args.len()) + words.sum::<usize>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform_cost(number: u64) -> SlotCost {
        SlotCost { nanos: number, bytes_in: number, bytes_out: number }
    }

    #[test]
    fn reset_or_worker_end_does_not_change_other_costs() {
        let (one, two, off) =
            (SlotCostCounters::default(), SlotCostCounters::default(), SlotCostBaseline::default());
        let slots: Vec<Slot> = Slot::all().take(2).collect();
        one.add(slots[0], uniform_cost(1));
        two.add(slots[0], uniform_cost(2));
        two.add(slots[1], uniform_cost(4));
        let both = [&one, &two];
        assert_eq!(off.costs(&both.into_iter(), &slots), [uniform_cost(3), uniform_cost(4)]);
        off.reset(&both.into_iter(), [slots[0]].into_iter());
        assert_eq!(off.costs(&both.into_iter(), &slots), [uniform_cost(0), uniform_cost(4)]);
        two.add(slots[0], uniform_cost(8));
        off.retain_ended_worker_costs(&two);
        assert_eq!(off.costs(&[&one].into_iter(), &slots), [uniform_cost(8), uniform_cost(4)]);
        off.reset(&[&one].into_iter(), slots.iter().copied());
        assert_eq!(off.costs(&[&one].into_iter(), &slots), [uniform_cost(0), uniform_cost(0)]);
    }
}
