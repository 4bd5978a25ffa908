//! Simulates SHUTDOWN: a process stops as its state machine decides ([`replication::ShutdownSequence`]) and restarts
//! with its data.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use append_only::SyncTarget;
use driver::Driver;
use engine::PausePurpose;
use migration::ControlCommand;
use replication::ShutdownSequence;
use replication::shutdown::{PausedLog, ShutdownAction, ShutdownEvent, ShutdownOptions};
use slot_routing::{NodeId, ReplOffset, Slot};

use super::store::ProcessState;
use super::{DataChange, DataEvent};
use crate::InjectedBug;
use crate::simulation::Simulation;

/// The value of `shutdown-timeout`, after which a shutdown no longer waits for replicas.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A shutdown in progress.
pub(super) struct SimulatedShutdown {
    sequence: ShutdownSequence,
    step: ShutdownStep,
    /// The offset of the log's end when writes were blocked.
    end_offset: ReplOffset,
}

/// What the shutdown waits for.
enum ShutdownStep {
    /// Waits for the end of the commands that were running when writes were blocked.
    AwaitWritesEnd(BTreeSet<u64>),
    /// Waits until all connected replicas have reached the end of the log.
    AwaitReplicas,
    /// Waits for the chosen replica to take over. `was_requested` is set once the replica has been asked.
    AwaitTakeover { was_requested: bool },
    /// Waits for a moment at which the data can be saved.
    Save,
    /// Waits until the append-only file is synced up to `target`, or fails.
    AwaitSync { target: SyncTarget },
    /// Waits for nothing: the process ends when it is next polled.
    Finished,
}

impl ProcessState {
    /// Returns whether the process is a cluster master that serves slots.
    fn is_voting_master(&self) -> bool {
        let topology = self.engine().topology.as_ref().map(|topology| topology.load_full());
        topology.is_some_and(|topology| {
            let me = topology.myself;
            Slot::all().any(|slot| topology.owner(slot).is_some_and(|owner| owner.id == me))
        })
    }

    /// Returns the node id of a replica whose log has reached `end_offset`, if there is one.
    fn find_successor(&self, end_offset: ReplOffset) -> Option<NodeId> {
        let topology = self.engine().topology.as_ref().map(|topology| topology.load_full())?;
        let in_sync = self.master_driver.master().in_sync_node_ids(end_offset)?;
        let is_there = |id: &NodeId| {
            topology.replicas_of(topology.myself).any(|member| member.id == *id && !member.has_failed)
        };
        in_sync.into_iter().find(is_there)
    }

    /// Returns the number of replicas whose log has reached `end_offset`.
    fn in_sync_count(&self, end_offset: ReplOffset) -> usize {
        self.replicas().filter(|(_, acknowledged)| *acknowledged >= end_offset).count()
    }
}

impl<E: Debug> Simulation<E> {
    /// Sends SHUTDOWN to a process.
    pub(crate) fn begin_shutdown(&mut self, host: usize) {
        let store = &self.data.process_states[host];
        if !self.is_running(host)
            || store.is_loading()
            || store.has_invalid_data()
            || store.shutdown.is_some()
        {
            return;
        }
        let hand_over = self.random.random_bool(50) && self.data.process_states[host].is_voting_master();
        let plan = ShutdownOptions {
            skips_replicas: self.random.random_bool(20),
            hands_over: hand_over,
            ..ShutdownOptions::default()
        };
        let mut actions = Vec::new();
        let machine = ShutdownSequence::new(plan, &mut actions);
        self.trace(|| format!("host {host} is to stop: {plan:?}"));
        let (step, end) = (ShutdownStep::AwaitWritesEnd(BTreeSet::new()), ReplOffset(0));
        self.data.process_states[host].shutdown =
            Some(SimulatedShutdown { sequence: machine, step, end_offset: end });
        self.perform_shutdown_actions(host, actions);
        self.schedule_shutdown_check(host);
    }

    /// Returns a process that has finished its shutdown and must be killed now. Always `None` after healing.
    pub(crate) fn take_finished_shutdown(&mut self) -> Option<usize> {
        let is_over = |host: &usize| {
            let stopping = self.data.process_states[*host].shutdown.as_ref();
            self.is_running(*host)
                && stopping.is_some_and(|stopping| matches!(stopping.step, ShutdownStep::Finished))
        };
        (0..self.data.process_states.len()).find(is_over).filter(|_| !self.is_healed)
    }

    /// If the event that the shutdown waits for has happened, passes it to the shutdown's state machine.
    pub(super) fn advance_shutdown(&mut self, host: usize) {
        if self.is_healed {
            self.data.process_states[host].shutdown = None;
            return self.resume_writes(host, PausePurpose::Shutdown);
        }
        let now = self.clock_of(host);
        let mut actions = Vec::new();
        if let Some(input) = self.next_shutdown_event(host)
            && let Some(stopping) = &mut self.data.process_states[host].shutdown
        {
            stopping.sequence.handle(now, input, &mut actions);
        }
        self.perform_shutdown_actions(host, actions);
        self.schedule_shutdown_check(host);
    }

    fn schedule_shutdown_check(&mut self, host: usize) {
        if self.data.process_states[host].shutdown.is_some() {
            let at = self.process_id(host);
            self.schedule_data_within(3000, DataEvent::CheckShutdown { process_id: at });
        }
    }

    fn next_shutdown_event(&mut self, host: usize) -> Option<ShutdownEvent> {
        let (now, careless) = (self.clock_of(host), self.has_injected_bug(InjectedBug::SkippedDrain));
        let store = &mut self.data.process_states[host];
        let SimulatedShutdown { sequence: machine, step, end_offset: end } = store.shutdown.as_ref()?;
        let is_late = machine.next_deadline().is_some_and(|due| due <= now);
        match step {
            ShutdownStep::AwaitWritesEnd(under_way) if !careless && !store.have_commands_ended(under_way) => {
                None
            }
            ShutdownStep::AwaitWritesEnd(_) => {
                let end = store.offset();
                let replicas = if store.upstream().is_none() { store.replicas().count() } else { 0 };
                let held = PausedLog {
                    log_end: end,
                    replica_count: replicas,
                    in_sync_count: store.in_sync_count(end),
                    replica_timeout: SHUTDOWN_TIMEOUT,
                };
                store.shutdown.as_mut()?.end_offset = end;
                Some(ShutdownEvent::WritesPaused(held))
            }
            ShutdownStep::AwaitReplicas | ShutdownStep::AwaitTakeover { .. } if is_late => {
                Some(ShutdownEvent::Deadline)
            }
            ShutdownStep::AwaitReplicas => Some(ShutdownEvent::InSync(store.in_sync_count(*end))),
            ShutdownStep::AwaitTakeover { was_requested: told } => {
                (!told || !store.is_voting_master()).then_some(ShutdownEvent::HandedOver)
            }
            ShutdownStep::Save => self.save_at_shutdown(host),
            ShutdownStep::AwaitSync { target } => {
                let saved = store.data_file.as_ref()?.is_saved(*target)?;
                Some(ShutdownEvent::Saved(saved))
            }
            ShutdownStep::Finished => None,
        }
    }

    fn perform_shutdown_actions(&mut self, host: usize, actions: Vec<ShutdownAction>) {
        for action in actions {
            self.trace(|| format!("the stop of host {host}: {action:?}"));
            let step = match action {
                ShutdownAction::PauseWrites => {
                    self.pause_writes(host, PausePurpose::Shutdown, None);
                    ShutdownStep::AwaitWritesEnd(self.data.process_states[host].running_commands())
                }
                ShutdownAction::AwaitReplicas { .. } => {
                    self.request_acknowledgements(host);
                    ShutdownStep::AwaitReplicas
                }
                ShutdownAction::LogInSync { .. } => {
                    self.check_in_sync(host);
                    continue;
                }
                ShutdownAction::HandOver => {
                    ShutdownStep::AwaitTakeover { was_requested: self.request_takeover(host) }
                }
                ShutdownAction::Save => ShutdownStep::Save,
                ShutdownAction::Exit => ShutdownStep::Finished,
                ShutdownAction::Cancel(_) => {
                    self.data.process_states[host].shutdown = None;
                    return self.resume_writes(host, PausePurpose::Shutdown);
                }
            };
            if let Some(stopping) = &mut self.data.process_states[host].shutdown {
                stopping.step = step;
            }
        }
    }

    /// Checks that replicas counted as in sync really have all writes. A replica whose host has died is exempt if the
    /// master may not have noticed that yet.
    fn check_in_sync(&mut self, host: usize) {
        let store = &self.data.process_states[host];
        let Some(end) = store.shutdown.as_ref().map(|stopping| stopping.end_offset) else { return };
        let in_sync: Vec<usize> =
            store.replicas().filter(|(_, upto)| *upto >= end).map(|(replica, _)| replica).collect();
        let lives_on = |replica: &usize| self.is_replica_alive(host, *replica);
        for replica in in_sync.into_iter().filter(lives_on).collect::<Vec<_>>() {
            self.check_handover(host, replica);
        }
    }

    /// Asks a replica that has the whole log to take over. Returns whether there is such a replica.
    fn request_takeover(&mut self, host: usize) -> bool {
        let store = &mut self.data.process_states[host];
        let end = store.shutdown.as_ref().map_or(ReplOffset(0), |stopping| stopping.end_offset);
        let Some(successor) = store.find_successor(end) else { return false };
        store.log.append_control(&ControlCommand::TakeOver(successor).to_resp());
        self.wake_replica_connections(host);
        true
    }

    /// Saves a snapshot, or syncs the append-only file.
    fn save_at_shutdown(&mut self, host: usize) -> Option<ShutdownEvent> {
        let store = &mut self.data.process_states[host];
        let end = store.offset();
        if store.data_file.is_some() {
            let target = self.request_sync(host)?;
            let stopping = self.data.process_states[host].shutdown.as_mut()?;
            (stopping.step, stopping.end_offset) = (ShutdownStep::AwaitSync { target }, end);
            return None;
        }
        // The stream segment that is being applied must be finished first.
        if !store.can_snapshot() {
            return None;
        }
        store.save_rdb();
        let saved = store.is_saved_at(end);
        if saved {
            self.check_invariants(host, DataChange::FileSynced { offset: end });
        }
        Some(ShutdownEvent::Saved(saved))
    }
}
