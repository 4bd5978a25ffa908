//! Simulates the worker threads that execute client requests.

use std::fmt::Debug;

use engine::{CommandOrigin, RemainingKeys, Session};
use slot_routing::{Slot, Topology};

use super::data_store::{marker_key, slot_of};
use super::requests::{ClientRequest, NextAttempt};
use super::store::UnfinishedWrite;
use super::{DataEvent, KeyGroup, LOCK_RETRY_INTERVAL};
use crate::simulation::Simulation;
use crate::trace::to_nanos;
use crate::{InjectedBug, clients};

impl<E: Debug> Simulation<E> {
    /// Starts client writes to some of these keys, each at a random server and at a random time within `micros`
    /// microseconds.
    pub(crate) fn start_client_writes(&mut self, key_groups: impl Iterator<Item = KeyGroup>, micros: u64) {
        for key in key_groups {
            if !self.random.random_bool(30) {
                continue;
            }
            for _ in 0..=self.random.random_below(2) {
                let batch = clients::pipeline_with_tag(
                    marker_key(key),
                    &mut self.random,
                    &mut self.data.issued_value_count,
                );
                let request = Box::new(ClientRequest::new(key, clients::split_into_transactions(batch)));
                if let Some(host) = self.random_server() {
                    let at = self.process_id(host);
                    self.schedule_data_within(micros, DataEvent::RequestArrives { process_id: at, request });
                }
            }
        }
    }

    fn random_server(&mut self) -> Option<usize> {
        let serves =
            |host: &usize| self.processes[*host].is_up && !self.data.process_states[*host].is_loading();
        let servers: Vec<usize> = (0..self.data.process_states.len()).filter(serves).collect();
        (!servers.is_empty()).then(|| self.random.pick_random(&servers))
    }

    /// Locks the slot and executes the commands if they are allowed. The slot stays locked until the effects are in the
    /// log.
    pub(super) fn begin_write(&mut self, host: usize, mut request: Box<ClientRequest>) {
        let (at, key, wall) = (self.process_id(host), request.key_group, self.wall_clock_of(host));
        let clock = self.clock_of(host);
        let store = &mut self.data.process_states[host];
        if store.is_locked(key) {
            return self.schedule_data(
                self.now + LOCK_RETRY_INTERVAL,
                DataEvent::RequestArrives { process_id: at, request },
            );
        }
        // As in the node, the lease is checked at the beginning of each event loop iteration.
        store.engine().check_lease(to_nanos(clock));
        let number = self.data.write_count + 1;
        let mut last = vec![["SET", marker_key(key), &number.to_string()].map(str::to_owned).to_vec()];
        if store.allows_local_writes() {
            request.transactions.clear();
            last = local_write_commands(marker_key(key));
        }
        let mut session = Session::new(0, CommandOrigin::Client, true);
        let mut effects = [Vec::new(), Vec::new()];
        let mut stopped = None;
        while stopped.is_none() && !request.transactions.is_empty() {
            let more;
            (stopped, more) = store.serve(&mut session, wall, &request.transactions[0], request.is_asking);
            effects[0].extend(more);
            if stopped.is_none() {
                request.transactions.remove(0);
            }
        }
        if stopped.is_none() {
            (stopped, effects[1]) = store.serve(&mut session, wall, &last, request.is_asking);
        }
        let write = (stopped.is_none() && !store.allows_local_writes()).then_some(number);
        self.data.write_count += u64::from(write.is_some());
        let rest = stopped.map(|next| (request, next));
        self.data.started_request_count += 1;
        let command = self.data.started_request_count;
        let store = &mut self.data.process_states[host];
        let begun_in = store.history_number;
        store.unfinished_writes.insert(
            command,
            UnfinishedWrite {
                key_group: key,
                effects,
                write_number: write,
                history_number_at_start: begun_in,
                rest_of_request: rest,
            },
        );
        self.schedule_data_within(
            self.data.settings.max_command_micros,
            DataEvent::CommandsEnd { process_id: at, command },
        );
    }

    /// Appends the effects to the log, unlocks the slot and acknowledges the commands. Then the client continues with
    /// the rest of its request.
    pub(super) fn end_write(&mut self, host: usize, command: u64) {
        let (unlogged, careless) = (
            self.has_injected_bug(InjectedBug::UnloggedEffects),
            self.has_injected_bug(InjectedBug::ReplicaLogsClientWrites),
        );
        let store = &mut self.data.process_states[host];
        let Some(UnfinishedWrite {
            key_group: key,
            effects,
            write_number: write,
            history_number_at_start: begun_in,
            rest_of_request: rest,
        }) = store.unfinished_writes.remove(&command)
        else {
            return;
        };
        if careless
            && store.allows_local_writes()
            && let Some(stream) = store.replica_driver.stream()
        {
            let mut effect = Vec::new();
            resp::encode_request(&mut effect, [&b"DEL"[..], marker_key(key).as_bytes()]);
            store.log.append_stream(stream, &effect);
            self.wake_replica_connections(host);
        }
        let [others, last] = effects;
        let logged = if unlogged { last } else { [others, last].concat() };
        self.log_effects(host, &logged);
        if let Some(write) = write {
            assert!(
                self.data.process_states[host].data_store.last_write_number(key) >= Some(write),
                "a client's write is done"
            );
            // With `ReplyAfterDemotion`, the client gets a reply; a correct server closes the connection instead.
            let is_careless = self.has_injected_bug(InjectedBug::ReplyAfterDemotion);
            if is_careless || self.data.process_states[host].is_logged_since(begun_in) {
                self.reply_to_write(host, key, write);
            }
        }
        if let Some((request, next)) = rest {
            self.retry_elsewhere(host, request, next);
        }
    }

    /// Appends the effects of local changes to the log of a master.
    pub(crate) fn log_effects(&mut self, host: usize, effects: &[u8]) {
        if !effects.is_empty() {
            self.data.process_states[host].log.append(0, effects);
            self.wake_replica_connections(host);
        }
    }

    /// Redirects a client whose request was not served, or lets it retry at some server.
    fn retry_elsewhere(&mut self, host: usize, mut request: Box<ClientRequest>, next_attempt: NextAttempt) {
        if !request.count_attempt() {
            return;
        }
        request.is_asking = matches!(next_attempt, NextAttempt::Redirect { asking: true, .. });
        let to = match next_attempt {
            NextAttempt::Redirect { address, .. } => {
                self.data.addresses.iter().position(|known| *known == address)
            }
            NextAttempt::Retry => Some(host),
            NextAttempt::RetryAnywhere => None,
        };
        // There may be no running process at the address to which the client was redirected.
        let to = to.filter(|to| self.processes[*to].is_up);
        request.is_asking &= to.is_some();
        if let Some(to) = to.or_else(|| self.random_server()) {
            let at = self.process_id(to);
            let time = self.random.random_millis(0, if to == host { 20 } else { 2 });
            self.schedule_data(self.now + time, DataEvent::RequestArrives { process_id: at, request });
        }
    }

    /// Starts to empty slots that now belong to other nodes.
    pub(crate) fn start_emptying_slots(&mut self, host: usize, key_groups: &[KeyGroup]) {
        let slots = key_groups.iter().map(|key| slot_of(*key)).collect();
        self.data.process_states[host].slots_to_empty.insert_all(&slots);
        self.continue_emptying_slots(host);
    }

    /// Deletes more keys of the slots that are being emptied.
    pub(super) fn continue_emptying_slots(&mut self, host: usize) {
        let at = self.process_id(host);
        for slot in self.data.slots.clone().iter() {
            if self.data.process_states[host].slots_to_empty.contains(slot) {
                self.schedule_data_within(
                    3000,
                    DataEvent::EmptySlot { process_id: at, key_group: slot.number() },
                );
            }
        }
    }

    /// Empties slots that this node gains again before it had finished deleting their old keys. Must be called before
    /// the process publishes `topology`.
    pub(crate) fn empty_returning_slots(&mut self, host: usize, topology: &Topology) {
        let store = &mut self.data.process_states[host];
        let Some(before) = store.engine().topology.as_ref().map(|before| before.load_full()) else { return };
        let back = store.slots_to_empty.update(&before, topology);
        for slot in back {
            self.empty_slot_at_once(host, slot);
            self.data.process_states[host].slots_to_empty.remove(slot);
        }
    }

    /// Deletes the keys of a slot, unless the node serves the slot again or is a replica.
    pub(super) fn empty_slot(&mut self, host: usize, key_group: KeyGroup) {
        let (now, at, slot) = (self.now, self.process_id(host), slot_of(key_group));
        if !self.data.process_states[host].slots_to_empty.contains(slot) {
            return;
        }
        if self.data.process_states[host].is_locked(key_group)
            || self.empty_slot_at_once(host, slot) == RemainingKeys::Paused
        {
            return self.schedule_data(
                now + LOCK_RETRY_INTERVAL * 10,
                DataEvent::EmptySlot { process_id: at, key_group },
            );
        }
        self.data.process_states[host].slots_to_empty.remove(slot);
    }

    /// Deletes all keys of a slot that belongs to another node.
    pub(super) fn empty_slot_at_once(&mut self, host: usize, slot: Slot) -> RemainingKeys {
        loop {
            let (left, effects) = self.data.process_states[host].data_store.delete_moved_keys(slot.number());
            self.log_effects(host, &effects);
            if left != RemainingKeys::MaybeMore {
                return left;
            }
            self.drop_unacknowledged_write(host, slot.number());
        }
    }

    /// Deletes expired keys unless the data must not change.
    pub(super) fn delete_expired_keys(&mut self, host: usize) {
        let wall = self.wall_clock_of(host);
        let store = &mut self.data.process_states[host];
        // The node's expiry skips locked slots, but the simulated expiry waits until no slot is locked.
        if store.can_snapshot() {
            let effects = store.data_store.delete_expired_keys(wall);
            self.log_effects(host, &effects);
        }
    }
}

/// Returns a client's write for a writable replica. The write is not replicated, and the next snapshot overwrites it.
fn local_write_commands(name: &str) -> Vec<clients::CommandWords> {
    let own = format!("{name}own");
    let words = |line: &[&str]| line.iter().map(|word| (*word).to_owned()).collect();
    vec![words(&["SET", &own, "1"]), words(&["DEL", &own])]
}
