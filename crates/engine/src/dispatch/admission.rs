//! May this command run at all, before any slot is looked at? In the order in which Redis asks.

use std::sync::atomic::Ordering;

use slot_routing::Topology;

use clock::Millis;
use keyspace::LockedSlots;

use super::{Admitted, Flow, Prepared};
use crate::command::{Flags, Run};
use crate::engine::Engine;
use crate::error::CommandError;
use crate::lookup::Registered;
use crate::session::{Origin, Session};
use crate::settings::Gate;

impl Engine {
    pub(super) fn admit(
        &self,
        session: &Session,
        request: &Prepared<'_>,
        now: Millis,
    ) -> Result<Admitted, CommandError> {
        let entry = self.find_callable(session, request)?;
        let command = entry.command;
        if !session.authenticated && !command.flags.contains(Flags::NO_AUTH) {
            return Err(CommandError::NoAuth);
        }
        self.check_access(session, entry, request.args, now)?;
        // EXEC is what its queue is.
        let (flags, keys) = match (command.run, &session.transaction) {
            (Run::Exec, Some(transaction)) => {
                (transaction.flags_of_exec(command.flags), transaction.has_keys())
            }
            _ => (command.flags, !command.keys.is_empty()),
        };
        let mut gate = self.settings.gate();
        if gate.intersects(Gate::PAUSED) {
            self.pauses.settle(&self.settings, now);
            gate = self.settings.gate();
        }
        if !gate.is_empty() && session.origin == Origin::Client {
            let queues = session.transaction.is_some() && !matches!(command.run, Run::Exec);
            if paused(gate, flags) && !queues {
                return Ok(Admitted { entry, flow: Flow::Paused });
            }
            // A queue takes memory, whatever is in it.
            if gate.contains(Gate::OUT_OF_MEMORY) && queues && !flags.contains(Flags::AT_ONCE) {
                return Err(CommandError::OutOfMemory);
            }
            self.check_gate(session, gate, flags, keys)
                .map_err(|error| self.name_hole(error, entry, request))?;
        }
        if session.only_listens() && !command.flags.contains(Flags::WHILE_LISTENING) {
            let name = &entry.full_name;
            return Err(CommandError::Text(
                format!(
                    "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
                     are allowed in this context"
                )
                .into(),
            ));
        }
        let flow = match command.run {
            Run::Node(node) => Flow::Node(node),
            Run::Here(_) | Run::MayBlock(_) | Run::Script(_) | Run::Exec | Run::Container => Flow::Done,
        };
        Ok(Admitted { entry, flow })
    }

    /// The command that is meant, if there is one, it may have so many words, and the configuration lets this client
    /// run it.
    fn find_callable(
        &self,
        session: &Session,
        request: &Prepared<'_>,
    ) -> Result<&'static Registered, CommandError> {
        let entry = match request.found {
            Some(entry) => entry,
            None => self.registry.resolve(request.args).map_err(|error| match error {
                // In Redis DEBUG is one command and looks for its subcommand when it runs.
                CommandError::UnknownSubcommand { container: "debug", .. } => {
                    self.check_permission(session, "debug").err().unwrap_or(error)
                }
                error => error,
            })?,
        };
        // DEBUG is one command in Redis: it has words enough once it has a subcommand.
        let fits = entry.command.accepts(request.args.len());
        let runs = fits || entry.full_name.starts_with("debug|");
        if entry.command.flags.contains(Flags::PROTECTED) && runs {
            self.check_permission(session, &entry.full_name)?;
        }
        if !fits || matches!(entry.command.run, Run::Container) {
            return Err(CommandError::WrongArity(entry.full_name.clone()));
        }
        Ok(entry)
    }

    /// Whether the configuration lets this client run a protected command.
    fn check_permission(&self, session: &Session, name: &str) -> Result<(), CommandError> {
        let settings = &self.settings;
        let (permission, command, option) = if name.starts_with("module") {
            (&settings.module_command, "MODULE", "enable-module-command")
        } else {
            (&settings.debug_command, "DEBUG", "enable-debug-command")
        };
        // Also a master's stream: nothing that a command does to keys is said by such a command.
        if permission.allows(session.client.link.local) {
            return Ok(());
        }
        Err(CommandError::NotAllowed { command, option })
    }

    /// Whether the command is about a shard's channels, and these are served by a cluster that is down.
    fn serves_channels_when_down(&self, flags: Flags) -> bool {
        flags.contains(Flags::PUBSUB)
            && self.settings.cluster_allow_pubsubshard_when_down.load(Ordering::Relaxed)
    }

    /// That nobody serves the slot says more than that the cluster is down for it.
    fn name_hole(&self, error: CommandError, entry: &Registered, request: &Prepared<'_>) -> CommandError {
        let down = matches!(error, CommandError::ClusterDown | CommandError::ClusterDownReadsOnly);
        let hole = |topology: &Topology| {
            self.slots_of(entry, request.args).iter().any(|slot| topology.owner(*slot).is_none())
        };
        match &self.topology {
            Some(topology) if down && hole(&topology.load()) => CommandError::SlotNotServed,
            _ => error,
        }
    }

    /// Asks once more, now that the command holds its slots, whether what holds lets it run: `Paused` or an error if
    /// not. Whoever changes what holds waits until each slot has been free, and relies on that.
    #[cold]
    pub(super) fn pass_held(
        &self,
        session: &Session,
        gate: Gate,
        flags: Flags,
        keys: bool,
    ) -> Result<Flow, CommandError> {
        if paused(gate, flags) {
            return Ok(Flow::Paused);
        }
        self.check_gate(session, gate, flags, keys)?;
        // The slot is still this node's, and its role is not: it gives its slots up, or has yet to take them.
        if gate.contains(Gate::REPLICA) && flags.contains(Flags::WRITE) && keys && self.topology.is_some() {
            return Err(CommandError::ReadOnlyReplica);
        }
        Ok(Flow::Done)
    }

    /// Whether what a client changes under `gate` is logged. What the gate was when the command passed it decides for
    /// the whole command: until its slots are free, nobody relies on another one.
    pub(super) fn logs_under(&self, gate: Gate) -> bool {
        !gate.contains(Gate::REPLICA) && self.log.wanted()
    }

    /// Turns the states that hold into the error that Redis gives for this kind of command.
    fn check_gate(
        &self,
        session: &Session,
        gate: Gate,
        flags: Flags,
        keys: bool,
    ) -> Result<(), CommandError> {
        let writes = flags.contains(Flags::WRITE);
        let moves = writes || flags.contains(Flags::READONLY) && !session.readonly;
        if gate.contains(Gate::REDIRECTS) && session.knows_redirect && moves {
            return Err(CommandError::ToMaster(self.settings.redirect_to.load().to_string()));
        }
        let keys = keys && !self.serves_channels_when_down(flags);
        if gate.contains(Gate::CLUSTER_DOWN) && keys {
            if !self.settings.cluster_allow_reads_when_down.load(Ordering::Relaxed) {
                return Err(CommandError::ClusterDown);
            }
            if writes {
                return Err(CommandError::ClusterDownReadsOnly);
            }
        }
        if gate.contains(Gate::OUT_OF_MEMORY) && flags.contains(Flags::DENYOOM) {
            return Err(CommandError::OutOfMemory);
        }
        if gate.contains(Gate::AOF_FAILED) && writes {
            return Err(CommandError::AofFailed(self.settings.aof_error.load().to_string()));
        }
        if gate.contains(Gate::MISCONF) && writes {
            return Err(CommandError::MisConf);
        }
        if gate.contains(Gate::NO_REPLICAS) && writes {
            return Err(CommandError::NoReplicas);
        }
        // With cluster mode a key's slot says where its writes go: MOVED.
        if gate.contains(Gate::READ_ONLY_REPLICA) && writes && (self.topology.is_none() || !keys) {
            return Err(CommandError::ReadOnlyReplica);
        }
        if gate.contains(Gate::MASTER_DOWN) && !flags.contains(Flags::STALE) {
            return Err(CommandError::MasterDown);
        }
        // PING has an answer of its own.
        let anyway = Flags::STALE.union(Flags::WHILE_LISTENING);
        if gate.contains(Gate::EMPTY_MASTER) && !flags.intersects(anyway) {
            return Err(CommandError::EmptyMaster);
        }
        if gate.contains(Gate::BUSY) && !flags.contains(Flags::ALLOW_BUSY) {
            return Err(CommandError::Busy);
        }
        if gate.contains(Gate::ASYNC_LOADING) && flags.contains(Flags::NO_ASYNC_LOADING) {
            return Err(CommandError::Loading);
        }
        if gate.contains(Gate::LOADING) && !flags.contains(Flags::LOADING) {
            return Err(CommandError::Loading);
        }
        Ok(())
    }
}

impl Engine {
    /// Whether a client's command waits because one of its slots, which it has locked, is held.
    #[inline]
    pub(super) fn is_slot_held(&self, gate: Gate, flags: Flags, slots: &mut LockedSlots<'_>) -> bool {
        gate.contains(Gate::SLOTS_HELD)
            && flags.contains(Flags::WRITE)
            && slots.iter_mut().any(|slot| slot.is_held())
    }
}

/// Whether such a command waits while `gate` holds.
pub(super) fn paused(gate: Gate, flags: Flags) -> bool {
    gate.contains(Gate::ALL_PAUSED)
        || (gate.contains(Gate::WRITES_PAUSED) && flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE))
}
