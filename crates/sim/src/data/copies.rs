//! Simulates clients that wait for copies of their writes: WAIT and WAITAOF.

use std::collections::BTreeMap;
use std::fmt::Debug;

use clock::Instant;
use replication::wait::{AppendOnlyOffError, CopyCount, LogProgress, RequiredCopies, Waiters};
use slot_routing::ReplOffset;

use super::DataChange;
use super::store::ProcessState;
use crate::simulation::Simulation;
use crate::{InjectedBug, InvariantName};

/// A client in WAIT or WAITAOF.
struct CopyWaiter {
    offset: ReplOffset,
    required: RequiredCopies,
    deadline: Option<Instant>,
}

/// The clients waiting at a process, by number.
#[derive(Default)]
pub(super) struct CopyWaiters {
    waiters: Waiters<u64>,
    waiters_by_id: BTreeMap<u64, CopyWaiter>,
    last_id: u64,
}

impl ProcessState {
    /// Returns the offsets up to which replicas and disks have stored the process's log.
    fn log_progress(&self) -> LogProgress {
        let master = self.master_driver.master();
        LogProgress {
            local_file: self.disk_progress(),
            acknowledged_offsets: master.acknowledged_offsets(),
            synced_offsets: master.synced_offsets(),
        }
    }
}

impl<E: Debug> Simulation<E> {
    /// Handles a finished write, after which the client sometimes sends WAIT or WAITAOF.
    pub(super) fn maybe_wait_for_copies(&mut self, host: usize, offset: ReplOffset) {
        if !self.random.random_bool(10) {
            return;
        }
        let wanted = self.random.pick_random(&[
            RequiredCopies::Acknowledged { replica_count: 1 },
            RequiredCopies::Acknowledged { replica_count: 2 },
            RequiredCopies::Synced { requires_local_file: true, replica_count: 0 },
            RequiredCopies::Synced { requires_local_file: true, replica_count: 1 },
            RequiredCopies::Synced { requires_local_file: false, replica_count: 1 },
        ]);
        let until =
            self.random.random_bool(50).then(|| self.clock_of(host) + self.random.random_millis(1, 2000));
        let store = &mut self.data.process_states[host];
        if store.upstream().is_some() {
            return;
        }
        let copies = store.log_progress().count_copies(offset, wanted);
        if copies.map_or(true, |copies| copies.satisfies(wanted)) {
            return self.reply_to_copy_waiter(host, offset, wanted, copies);
        }
        let waiting = &mut store.copy_waiters;
        waiting.last_id += 1;
        waiting
            .waiters_by_id
            .insert(waiting.last_id, CopyWaiter { offset, required: wanted, deadline: until });
        waiting.waiters.add(waiting.last_id, offset, wanted);
        self.request_acknowledgements(host);
    }

    /// Replies to clients that now have the required number of copies.
    pub(super) fn release_copy_waiters(&mut self, host: usize) {
        if self.has_injected_bug(InjectedBug::MissedWakeups) {
            return;
        }
        let store = &mut self.data.process_states[host];
        let reach = store.log_progress();
        for (client, copies) in store.copy_waiters.waiters.release(&reach) {
            let asked = self.data.process_states[host].copy_waiters.waiters_by_id.remove(&client);
            let CopyWaiter { offset, required: wanted, .. } = asked.expect("who waits has asked");
            self.reply_to_copy_waiter(host, offset, wanted, copies);
        }
    }

    /// Replies to clients whose timeout has passed, and checks that no other client should have had its reply already.
    pub(super) fn end_overdue_copy_waits(&mut self, host: usize) {
        let now = self.clock_of(host);
        let store = &mut self.data.process_states[host];
        let is_over = |_: &u64, asked: &mut CopyWaiter| asked.deadline.is_some_and(|until| until <= now);
        let over: Vec<(u64, CopyWaiter)> = store.copy_waiters.waiters_by_id.extract_if(.., is_over).collect();
        for (client, CopyWaiter { offset, required: wanted, .. }) in over {
            let store = &mut self.data.process_states[host];
            store.copy_waiters.waiters.remove(client, offset);
            let copies = store.log_progress().count_copies(offset, wanted);
            self.reply_to_copy_waiter(host, offset, wanted, copies);
        }
        let store = &self.data.process_states[host];
        let reach = store.log_progress();
        let suffice = |asked: &&CopyWaiter| {
            let copies = reach.count_copies(asked.offset, asked.required);
            copies.map_or(true, |copies| copies.satisfies(asked.required))
        };
        if let Some(CopyWaiter { offset, required: wanted, .. }) =
            store.copy_waiters.waiters_by_id.values().find(suffice)
        {
            let why =
                format!("a client of host {host} waits for {wanted:?} of {offset}, and there are {reach:?}");
            self.record_violation(InvariantName::Waits, &why);
        }
    }

    fn reply_to_copy_waiter(
        &mut self,
        host: usize,
        offset: ReplOffset,
        required: RequiredCopies,
        copies: Result<CopyCount, AppendOnlyOffError>,
    ) {
        self.trace(|| format!("at host {host}: {required:?} of {offset}: {copies:?}"));
        if let Ok(copies) = copies {
            self.check_invariants(host, DataChange::CopiesCounted { offset, required, copies });
        }
    }
}
