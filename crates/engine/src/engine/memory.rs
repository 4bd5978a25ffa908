//! Memory accounting, and the state of eviction and expiry.

use super::Worker;
use super::expiry::ExpiryCursor;
use super::local_expiry::LocalExpiries;
use super::usage::UsageKind;
use crate::budget::Budget;
use crate::lazy_free::LazyFreeQueue;

/// The memory limit, and what frees memory.
#[derive(Debug, Default)]
pub struct MemoryManagement {
    /// The memory limit, and the accounting of memory use against it.
    pub budget: Budget,
    /// Large values that a background thread frees.
    pub lazy_free: LazyFreeQueue,
    pub(super) usage_kind: UsageKind,
    pub(super) expiry_cursor: ExpiryCursor,
    pub(super) local_expiry: LocalExpiries,
}

impl MemoryManagement {
    /// Updates the memory account with the calling thread's allocations, for threads that run no commands but free much
    /// memory allocated by others.
    pub fn report_allocations(&self, worker: &mut Worker) {
        if self.budget.is_limited() {
            self.budget.report_allocations(&mut worker.reported_allocations);
        }
    }
}
