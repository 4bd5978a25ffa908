//! Simulates an operator who starts failovers, migrates slots, and forgets and introduces nodes. After the faults have
//! ended, the operator repairs what the cluster cannot heal by itself.

use std::collections::BTreeSet;
use std::time::Duration;

use clock::Instant;
use gossip::{
    ClusterInput, FailoverMode, Gossip, OperatorCommand, OperatorError, OperatorReply, ReplicationSource,
    SET_SLOT_TIMEOUT, SlotChange,
};
use slot_routing::{NodeId, ReplOffset, Slot};

use super::formation::{BUS_PORT, CLIENT_PORT};
use super::{ClusterEvent, ClusterWorld};

/// Time limit of a slot migration. Several slots may be migrated at once, but no node exports and imports at the same
/// time: an import raises the epoch of its node, which would then win back exported slots that it still claims. (Redis
/// behaves alike; redis-cli starts no migration while others are open.)
const MAX_MIGRATION_TIME: Duration = Duration::from_secs(2);

/// Time limit of an atomic slot migration.
const MAX_ATOMIC_MIGRATION_TIME: Duration = Duration::from_secs(12);

/// Data received from the master within this time is recent enough that the replica stays eligible until an election
/// ends.
const MAX_DATA_AGE: Duration = Duration::from_secs(8);

/// A command that the operator sends, or a fault that the operator causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperatorStep {
    Failover(usize, FailoverMode),
    /// Make a replica follow another master.
    Replicate {
        host: usize,
        master: NodeId,
    },
    /// Import a slot at the target. As in redis-cli, this comes before the export, so that the slot always has an
    /// owner.
    Import(SlotMigration),
    Export(SlotMigration),
    MoveKeys(SlotMigration),
    AssignAtTarget(SlotMigration),
    AssignAtSource(SlotMigration),
    Kill(usize),
    Freeze(usize),
    FreezeLong(usize),
    Forget {
        host: usize,
        id: NodeId,
    },
    Meet {
        host: usize,
        other_host: usize,
    },
    /// Reset a replica with CLUSTER RESET and drop its data.
    Reset {
        host: usize,
        is_hard: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotMigration {
    pub(super) slot: Slot,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl ClusterWorld {
    /// Chooses and starts the operator's next action.
    pub(super) fn plan_operation(&mut self) {
        let (host, other) = (
            self.simulation.random.random_below(self.hosts.len()),
            self.simulation.random.random_below(self.hosts.len()),
        );
        match self.simulation.random.random_below(15) {
            0..5 => self.plan_failover(),
            5..9 => self.plan_slot_migrations(host),
            12..14 => self.plan_migration_with_faults(host),
            9 if self.is_replica(host) => self.plan_replication(host),
            10 if self.is_replica(other) => {
                self.run_step(OperatorStep::Forget { host, id: self.gossip(other).id() });
                self.simulation.remove_replica(other, None);
            }
            11 => self.run_step(OperatorStep::Meet { host, other_host: other }),
            14 if self.is_replica(host) => {
                let hard = self.simulation.random.random_bool(50);
                self.run_step(OperatorStep::Reset { host, is_hard: hard });
                self.simulation.remove_replica(host, None);
            }
            _ => {}
        }
    }

    fn plan_failover(&mut self) {
        let replicas: Vec<usize> = (0..self.hosts.len()).filter(|&host| self.is_replica(host)).collect();
        if !replicas.is_empty() {
            use FailoverMode::{Force, Graceful, Takeover};
            let mode =
                self.simulation.random.pick_random(&[Graceful, Graceful, Graceful, Force, Force, Takeover]);
            let replica = self.simulation.random.pick_random(&replicas);
            self.run_step(OperatorStep::Failover(replica, mode));
        }
    }

    /// Starts to migrate one slot, or all sample slots of its owner, to `to`.
    fn plan_slot_migrations(&mut self, to: usize) {
        let slot = self.simulation.random.pick_random(&self.sample_slots);
        let Some(from) = (0..self.hosts.len()).find(|&host| self.owns_slot(host, slot)) else { return };
        let now = self.simulation.now;
        self.slot_migrations.retain(|(_, until)| *until > now);
        let whole = self.simulation.random.random_bool(40);
        let range: Vec<Slot> =
            self.sample_slots.iter().copied().filter(|one| whole && self.owns_slot(from, *one)).collect();
        for slot in if range.is_empty() { vec![slot] } else { range } {
            let step = SlotMigration { slot, from, to };
            let hindered = |(other, _): &(SlotMigration, Instant)| {
                other.slot == slot || other.from == to || other.to == from
            };
            if !self.slot_migrations.iter().any(hindered) {
                self.slot_migrations.push((step, now + MAX_MIGRATION_TIME));
                self.run_step(OperatorStep::Import(step));
            }
        }
    }

    /// Starts an atomic migration of some slots of one master to `to`. Sometimes the source or the target is killed or
    /// frozen during the migration.
    pub(super) fn plan_atomic_migration(&mut self, to: usize) {
        let slot = self.simulation.random.pick_random(&self.sample_slots);
        let Some(from) = (0..self.hosts.len()).find(|&host| self.owns_slot(host, slot)) else { return };
        let now = self.simulation.now;
        self.slot_migrations.retain(|(_, until)| *until > now);
        let one_of = |(other, _): &(SlotMigration, Instant)| {
            [from, to].contains(&other.from) || [from, to].contains(&other.to)
        };
        if self.is_replica(to) || self.slot_migrations.iter().any(one_of) {
            return;
        }
        let whole = self.simulation.random.random_bool(60);
        let slots: Vec<Slot> = self
            .sample_slots
            .iter()
            .copied()
            .filter(|one| *one == slot || whole && self.owns_slot(from, *one))
            .collect();
        self.slot_migrations.extend(
            slots
                .iter()
                .map(|slot| (SlotMigration { slot: *slot, from, to }, now + MAX_ATOMIC_MIGRATION_TIME)),
        );
        self.begin_atomic_migration(slots, from, to);
        if self.simulation.plan.injected_bug.is_none() && self.simulation.random.random_bool(60) {
            let end = if self.simulation.random.random_bool(50) { from } else { to };
            let fire = if self.simulation.random.random_bool(40) {
                OperatorStep::Kill(end)
            } else {
                OperatorStep::FreezeLong(end)
            };
            let time = self.simulation.random.random_millis(0, 500);
            self.simulation.schedule_after(time, ClusterEvent::OperatorCommand(fire));
        }
    }

    /// Starts a slot migration and kills, freezes or replaces one of its two masters at a random step. Afterwards the
    /// operator may or may not continue the migration.
    fn plan_migration_with_faults(&mut self, to: usize) {
        if !self.gossip_of(to).is_some_and(|gossip| gossip.is_voter(gossip.id())) {
            return;
        }
        self.plan_slot_migrations(to);
        let Some((SlotMigration { from, to, .. }, _)) = self.slot_migrations.last().copied() else { return };
        let end = if self.simulation.random.random_bool(60) { from } else { to };
        let fire = match self.simulation.random.random_below(3) {
            0 => OperatorStep::Kill(end),
            1 => OperatorStep::Freeze(end),
            _ => {
                let master = self.gossip_of(end).map(|gossip| gossip.id());
                let copies = |host: &usize| {
                    self.gossip_of(*host).is_some_and(|gossip| {
                        gossip.myself().master().is_some() && gossip.myself().master() == master
                    })
                };
                let Some(replica) = (0..self.hosts.len()).find(copies) else { return };
                OperatorStep::Failover(
                    replica,
                    self.simulation.random.pick_random(&[FailoverMode::Graceful, FailoverMode::Force]),
                )
            }
        };
        let time = self.simulation.random.random_millis(0, 900);
        self.simulation.schedule_after(time, ClusterEvent::OperatorCommand(fire));
    }

    fn gossip_of(&self, host: usize) -> Option<&Gossip> {
        self.hosts[host].gossip.as_ref()
    }

    fn plan_replication(&mut self, host: usize) {
        let gossip = self.gossip(host);
        let masters: Vec<NodeId> = super::invariants::voters(gossip).collect();
        if !masters.is_empty() {
            let master = self.simulation.random.pick_random(&masters);
            self.run_step(OperatorStep::Replicate { host, master });
        }
    }

    fn master_of(&self, host: usize) -> Option<NodeId> {
        self.gossip_of(host).and_then(|gossip| gossip.myself().master())
    }

    fn is_replica(&self, host: usize) -> bool {
        self.hosts[host].gossip.as_ref().is_some_and(|gossip| !gossip.myself().is_master())
    }

    fn owns_slot(&self, host: usize, slot: Slot) -> bool {
        self.hosts[host].gossip.as_ref().is_some_and(|gossip| gossip.slot_owner(slot) == Some(gossip.id()))
    }

    pub(super) fn run_step(&mut self, step: OperatorStep) {
        // A migration stops while its nodes cannot communicate, because keys are sent between them. (Without keys it
        // could continue, but then the target would take the slot under a stale epoch and lose it to an old claim.)
        if let OperatorStep::Export(it)
        | OperatorStep::MoveKeys(it)
        | OperatorStep::AssignAtTarget(it)
        | OperatorStep::AssignAtSource(it) = step
            && self.simulation.cannot_communicate(it.from, it.to)
        {
            return;
        }
        let id = |host: usize| self.hosts[host].gossip.as_ref().map(|gossip| gossip.id().to_string());
        let set_slot = |host: usize, slot, change| {
            let keys_in_slot = self.simulation.data.process_states[host].keys_in_slot(slot);
            OperatorCommand::SetSlot { slot, change, keys_in_slot, timeout: SET_SLOT_TIMEOUT }
        };
        let (host, command, next) = match step {
            OperatorStep::Failover(host, mode) => (host, Some(OperatorCommand::Failover(mode)), None),
            OperatorStep::Replicate { host, master } => {
                self.masters_without_replica.extend(self.master_of(host));
                (host, Some(OperatorCommand::Replicate { node: master.to_string(), holds_keys: false }), None)
            }
            OperatorStep::Import(SlotMigration { slot, from, to }) => {
                let change = id(from).map(|from| SlotChange::Importing { source: from });
                let next = Some(OperatorStep::Export(SlotMigration { slot, from, to }));
                (to, change.map(|change| set_slot(to, slot, change)), next)
            }
            OperatorStep::Export(it) => {
                let change = |target| set_slot(it.from, it.slot, SlotChange::Migrating { target });
                (it.from, id(it.to).map(change), Some(OperatorStep::MoveKeys(it)))
            }
            OperatorStep::MoveKeys(it) => return self.migrate_keys(it),
            OperatorStep::AssignAtTarget(it) => {
                let target = self.hosts[it.to].gossip.as_ref().map(|target| target.id());
                self.assigned_slots.extend(target.map(|target| (target, it.slot)));
                let change = id(it.to).map(|to| set_slot(it.to, it.slot, SlotChange::AssignTo(to)));
                (it.to, change, Some(OperatorStep::AssignAtSource(it)))
            }
            OperatorStep::AssignAtSource(it) => {
                let target = self.hosts[it.to].gossip.as_ref().map(|target| target.id());
                self.assigned_slots.extend(target.map(|target| (target, it.slot)));
                let change = id(it.to).map(|to| set_slot(it.from, it.slot, SlotChange::AssignTo(to)));
                (it.from, change, None)
            }
            OperatorStep::Kill(_) | OperatorStep::Freeze(_) | OperatorStep::FreezeLong(_)
                if self.simulation.is_healed =>
            {
                return;
            }
            OperatorStep::Kill(host) => return self.crash(host, 4000),
            OperatorStep::Freeze(host) => return self.freeze(host),
            OperatorStep::FreezeLong(host) => return self.freeze_long(host),
            OperatorStep::Forget { host, id } => {
                (host, Some(OperatorCommand::Forget { node: id.to_string() }), None)
            }
            OperatorStep::Reset { host, is_hard } => {
                self.masters_without_replica.extend(self.master_of(host));
                (host, Some(OperatorCommand::Reset { is_hard, holds_keys: false }), None)
            }
            OperatorStep::Meet { host, other_host: other } => (host, Some(self.meet_command(other)), None),
        };
        let Some(command) = command else { return };
        self.send_command(host, command, next);
    }

    /// Handles the reply to an operator's command. After an error or a missing reply, follow-up steps are not run.
    pub(super) fn on_command_reply(
        &mut self,
        host: usize,
        token: u64,
        result: &Result<OperatorReply, OperatorError>,
    ) {
        self.simulation.trace(|| format!("answer of {host}: {result:?}"));
        self.on_claim_reply(host, token, result);
        if let Some(next) = self.hosts[host].next_steps.remove(&token).filter(|_| result.is_ok()) {
            let time = self.simulation.random.random_millis(5, 400);
            self.simulation.schedule_after(time, ClusterEvent::OperatorCommand(next));
        }
    }

    fn meet_command(&self, other: usize) -> OperatorCommand {
        OperatorCommand::Meet { ip: self.hosts[other].ip, port: CLIENT_PORT, bus_port: BUS_PORT }
    }

    /// Sends a command to a node and records the step that follows its success.
    pub(super) fn send_command(
        &mut self,
        host: usize,
        command: OperatorCommand,
        next_step: Option<OperatorStep>,
    ) {
        if !self.simulation.is_running(host) {
            return;
        }
        self.simulation.trace(|| format!("operator at {host}: {command:?}"));
        self.hosts[host].last_token += 1;
        let token = self.hosts[host].last_token;
        self.hosts[host].next_steps.extend(next_step.map(|next| (token, next)));
        self.handle_input(host, ClusterInput::Command { token, command });
    }

    /// Repairs what the cluster cannot heal by itself: reintroduces forgotten nodes, replaces nodes that returned with
    /// a new id, and cancels interrupted migrations. A migration is only cancelled once all nodes agree on the slot's
    /// owner, which they must do without an operator.
    pub(super) fn repair_cluster(&mut self) {
        let ids: Vec<NodeId> = (0..self.hosts.len()).map(|host| self.gossip(host).id()).collect();
        let left_alone = self.master_awaiting_failover();
        for host in 0..self.hosts.len() {
            let gossip = self.gossip(host);
            let strangers = |gossip: &Gossip| {
                // Other nodes know a node only by its old address if it changed its address while none of them knew it.
                // It must then be introduced again.
                let known = |other: usize| {
                    let node = gossip.node(ids[other]);
                    node.is_some_and(|node| node.address.ip == Some(self.hosts[other].ip))
                };
                (0..ids.len()).filter(|&other| !known(other)).collect::<Vec<_>>()
            };
            let gone = |node: &&gossip::Node| {
                node.handshake.is_none() && !ids.contains(&node.id) && Some(node.id) != left_alone
            };
            let gone: Vec<NodeId> = gossip.nodes().filter(gone).map(|node| node.id).collect();
            let strangers = strangers(gossip);
            let open: Vec<Slot> = self.interrupted_migrations(host);
            let myself = self.gossip(host).myself();
            let idle = myself.is_master() && !self.gossip(host).is_voter(myself.id);
            let orphan =
                myself.master().is_some_and(|master| !ids.contains(&master) && Some(master) != left_alone);
            for other in strangers {
                let meet = self.meet_command(other);
                self.send_command(host, meet, None);
            }
            for id in gone {
                self.send_command(host, OperatorCommand::Forget { node: id.to_string() }, None);
            }
            for slot in open {
                let change = SlotChange::Stable;
                self.send_command(
                    host,
                    OperatorCommand::SetSlot { slot, change, keys_in_slot: 0, timeout: SET_SLOT_TIMEOUT },
                    None,
                );
            }
            if idle {
                self.make_replica(host);
            } else if orphan {
                self.send_command(host, OperatorCommand::Failover(FailoverMode::Takeover), None);
            }
        }
        self.assign_orphaned_slots();
    }

    /// Returns the master that lost its disk while a replica is still expected to take over. A replica that was
    /// eligible when the faults ended must take over without an operator.
    fn master_awaiting_failover(&mut self) -> Option<NodeId> {
        let lost = self.node_with_lost_disk?;
        let must = self
            .is_lost_node_replaced
            .unwrap_or_else(|| (0..self.hosts.len()).any(|host| self.is_eligible_replica(host, lost)));
        self.is_lost_node_replaced = Some(must);
        let is_missed = |host: usize| {
            let gossip = self.gossip(host);
            gossip.is_voter(lost) || gossip.myself().master() == Some(lost)
        };
        (must && (0..self.hosts.len()).any(is_missed)).then_some(lost)
    }

    /// Returns whether this replica of `master` has sufficiently recent data to stand for election.
    fn is_eligible_replica(&self, host: usize, master: NodeId) -> bool {
        let gossip = self.gossip(host);
        let facts = self.replication_state(host);
        let now = self.simulation.now + self.simulation.processes[host].clock_offset;
        let received_headers = match facts.source {
            ReplicationSource::Streaming { last_heard_at: last_heard } => Some(last_heard),
            ReplicationSource::Lost { since } => Some(since),
            ReplicationSource::NeverSynchronized => None,
        };
        gossip.myself().master() == Some(master)
            && gossip.is_voter(master)
            && facts.offset > ReplOffset(0)
            && received_headers.is_some_and(|at| now.since(at) < MAX_DATA_AGE)
    }

    /// Assigns orphaned slots like `redis-cli --cluster fix`. A master is gone for good if it lost its disk after an
    /// operator had moved its replica away. A slot that was assigned to it is lost if its previous owner knew about the
    /// assignment and its replica did not. All other slots must find an owner without an operator.
    fn assign_orphaned_slots(&mut self) {
        let Some(lost) = self.node_with_lost_disk else { return };
        let forgotten = |slot: &Slot| {
            self.masters_without_replica.contains(&lost) || self.assigned_slots.contains(&(lost, *slot))
        };
        let hosts = 0..self.hosts.len();
        let leads = |host: &usize| self.gossip(*host).is_voter(self.gossip(*host).id());
        let Some(master) = hosts.clone().find(leads) else { return };
        let free = |slot: &Slot| self.gossip(master).slot_owner(*slot).is_none();
        let owned = |slot: &Slot| hosts.clone().any(|host| self.owns_slot(host, *slot));
        let orphans: Vec<Slot> =
            Slot::all().filter(|slot| forgotten(slot) && free(slot) && !owned(slot)).collect();
        if !orphans.is_empty() {
            self.send_command(master, OperatorCommand::AddSlots(orphans), None);
            self.send_command(master, OperatorCommand::BumpEpoch, None);
        }
    }

    /// Returns the slots of a master whose migration was interrupted. A migration must not be cancelled while its next
    /// command is in flight, because the target would then take the slot without a new epoch while the source gives it
    /// away. Replicas are skipped, because they copy the migration state of their master.
    fn interrupted_migrations(&self, host: usize) -> Vec<Slot> {
        if self.is_replica(host) {
            return Vec::new();
        }
        let Some(view) = self.hosts[host].topology.as_ref() else { return Vec::new() };
        let marked: BTreeSet<Slot> =
            view.migrating().keys().chain(view.importing().keys()).copied().collect();
        let stopped = |slot: &Slot| {
            !self.slot_migrations.iter().any(|(it, until)| it.slot == *slot && *until > self.simulation.now)
        };
        let settled = |slot: &Slot| self.nodes_agree_on_owner(*slot);
        marked.into_iter().filter(stopped).filter(settled).collect()
    }

    /// Returns whether all nodes agree on a slot's owner.
    fn nodes_agree_on_owner(&self, slot: Slot) -> bool {
        let owner = |host| self.gossip_of(host).and_then(|gossip| gossip.slot_owner(slot));
        let first = owner(0);
        first.is_some() && (1..self.hosts.len()).all(|host| owner(host) == first)
    }

    /// Makes a master without slots replicate a master with slots.
    fn make_replica(&mut self, host: usize) {
        let gossip = self.gossip(host);
        let works = |node: &&gossip::Node| gossip.is_voter(node.id) && !node.has_failed();
        let master = gossip.nodes().find(works).map(|node| node.id);
        if let Some(master) = master {
            self.send_command(
                host,
                OperatorCommand::Replicate { node: master.to_string(), holds_keys: false },
                None,
            );
        }
    }
}
