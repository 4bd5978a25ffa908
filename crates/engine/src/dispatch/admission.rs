//! Admission control: whether a command may run now. It is checked for every caller before any slot is accessed, and
//! again while the command's slots are locked.
//!
//! The flags of the node state apply to all commands. [`ADMISSION_RULES`] lists which commands each flag stops, in the
//! order of Redis's checks; [`admit`] maps this to the effect on each [`Caller`]. It is a pure function, so a test can
//! enumerate all flags, callers and kinds of commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyspace::LockedSlots;
use slot_routing::Topology;

use super::transaction::queued_commands;
use super::{PrefetchedRequest, is_http_word};
use crate::command::{Caller, CommandRunner, Context, Flags, RegisteredCommand};
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::outcome::CommandOutcome;
use crate::session::{CommandOrigin, ListenerState, Session};
use crate::settings::NodeFlags;
use crate::transaction::Transaction;

/// The properties of a command that decide admission.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdmissionInput {
    /// The flags returned by [`Engine::effective_flags`], which for a script are those that the script declares.
    pub(super) flags: Flags,
    /// Whether the command accesses keys, or channels that have a slot.
    pub(super) has_keys: bool,
    /// Whether the command's keys decide which cluster node runs it.
    pub(super) is_routed: bool,
    /// Whether the command is queued in a transaction instead of running.
    pub(super) is_queued: bool,
    /// Whether the command belongs to a script that has already written.
    pub(super) has_written: bool,
    /// Whether the client requested redirection to the master (CLIENT CAPA REDIRECT).
    pub(super) wants_redirect: bool,
    /// Whether the command may read while the cluster is down (`cluster-allow-reads-when-down`).
    pub(super) may_read_when_down: bool,
    /// Whether one of the command's locked slots is marked as this node's own. On a replica such a slot has not been
    /// updated yet after the role change.
    pub(super) is_slot_writable: bool,
    /// Whether writes to one of the command's slots are paused ([`NodeFlags::SLOT_WRITES_PAUSED`]).
    pub(super) has_paused_slot: bool,
}

impl AdmissionInput {
    fn is_write(&self) -> bool {
        self.flags.contains(Flags::WRITE) && !self.has_written
    }

    /// Returns whether the command may write. A script without declared flags counts as a possible writer.
    fn may_write(&self) -> bool {
        self.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE)
    }

    /// Returns whether the command may change its slots. Publishing changes nothing in the channel's slot, and any node
    /// of the shard forwards messages.
    fn may_change_slots(&self) -> bool {
        self.may_write() && (self.flags.contains(Flags::WRITE) || !self.flags.contains(Flags::PUBSUB))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdmissionVerdict {
    /// The command may run.
    Run,
    /// The command waits until the pause ends.
    Wait,
    /// The command belongs to a blocked client. The client's connection runs the command again and receives the error.
    Rerun,
    /// The command is refused because of this flag.
    Refuse(NodeFlags),
}

/// A node state flag and the commands that it stops.
struct AdmissionRule {
    flag: NodeFlags,
    applies_to: fn(&AdmissionInput) -> bool,
    /// Whether the commands wait for the flag to clear instead of being refused.
    waits: bool,
    /// Whether the rule also applies to commands of a script that was admitted before.
    applies_to_scripts: bool,
}

const fn refusal_rule(flag: NodeFlags, applies_to: fn(&AdmissionInput) -> bool) -> AdmissionRule {
    AdmissionRule { flag, applies_to, waits: false, applies_to_scripts: false }
}

impl AdmissionRule {
    const fn waits(self) -> Self {
        Self { waits: true, ..self }
    }

    const fn for_scripts(self) -> Self {
        Self { applies_to_scripts: true, ..self }
    }
}

/// Flags of commands that a master without data runs in spite of [`NodeFlags::EMPTY_MASTER`]. `WHILE_SUBSCRIBED` covers
/// PING, which gets a different reply on such a master.
const ALLOWED_ON_EMPTY_MASTER: Flags = Flags::STALE.union(Flags::WHILE_SUBSCRIBED);

const ADMISSION_RULES: &[AdmissionRule] = &[
    refusal_rule(NodeFlags::ALL_PAUSED, |need| !need.is_queued).waits(),
    refusal_rule(NodeFlags::WRITES_PAUSED, |need| !need.is_queued && need.may_write()).waits(),
    refusal_rule(NodeFlags::SLOT_WRITES_PAUSED, |need| need.has_paused_slot && need.may_write()).waits(),
    refusal_rule(NodeFlags::REDIRECTS, |need| need.wants_redirect),
    refusal_rule(NodeFlags::CLUSTER_DOWN, |need| {
        need.has_keys && (!need.may_read_when_down || need.flags.contains(Flags::WRITE))
    })
    .for_scripts(),
    refusal_rule(NodeFlags::OUT_OF_MEMORY, |need| need.flags.contains(Flags::DENYOOM) && !need.has_written)
        .for_scripts(),
    refusal_rule(NodeFlags::AOF_FAILED, AdmissionInput::is_write).for_scripts(),
    refusal_rule(NodeFlags::MISCONF, AdmissionInput::is_write).for_scripts(),
    refusal_rule(NodeFlags::NO_REPLICAS, AdmissionInput::is_write).for_scripts(),
    // In cluster mode writes are redirected by the key's slot (MOVED), so this rule does not apply.
    refusal_rule(NodeFlags::READ_ONLY_REPLICA, |need| need.is_write() && !need.is_routed).for_scripts(),
    refusal_rule(NodeFlags::MASTER_DOWN, |need| !need.flags.contains(Flags::STALE)).for_scripts(),
    refusal_rule(NodeFlags::EMPTY_MASTER, |need| !need.flags.intersects(ALLOWED_ON_EMPTY_MASTER))
        .for_scripts(),
    refusal_rule(NodeFlags::BUSY, |need| !need.flags.contains(Flags::ALLOW_BUSY)),
    refusal_rule(NodeFlags::ASYNC_LOADING, |need| need.flags.contains(Flags::NO_ASYNC_LOADING)),
    refusal_rule(NodeFlags::LOADING, |need| !need.flags.contains(Flags::LOADING)),
    // The slot is still marked as this node's own, although the role has changed and the slots are not updated yet.
    refusal_rule(NodeFlags::REPLICA, |need| {
        need.is_slot_writable && need.is_routed && need.may_change_slots()
    }),
];

/// Returns whether a command may run for `caller` while the flags in `node_flags` are set.
pub(super) fn admit(node_flags: NodeFlags, caller: Caller, input: &AdmissionInput) -> AdmissionVerdict {
    let in_force = |rule: &&AdmissionRule| node_flags.contains(rule.flag) && (rule.applies_to)(input);
    let of = |for_scripts: bool| {
        ADMISSION_RULES.iter().filter(|rule| rule.applies_to_scripts || !for_scripts).find(in_force)
    };
    match caller {
        Caller::Exec | Caller::Master => AdmissionVerdict::Run,
        Caller::Client => match of(false) {
            None => AdmissionVerdict::Run,
            Some(rule) if rule.waits => AdmissionVerdict::Wait,
            Some(rule) => AdmissionVerdict::Refuse(rule.flag),
        },
        Caller::SlotMigrationSource => match of(false) {
            Some(rule) if rule.waits => AdmissionVerdict::Wait,
            _ if node_flags.contains(NodeFlags::REPLICA) => AdmissionVerdict::Refuse(NodeFlags::REPLICA),
            _ => AdmissionVerdict::Run,
        },
        Caller::Script => of(true).map_or(AdmissionVerdict::Run, |rule| AdmissionVerdict::Refuse(rule.flag)),
        Caller::Waiter => of(false).map_or(AdmissionVerdict::Run, |_| AdmissionVerdict::Rerun),
    }
}

impl Engine {
    /// Checks whether a request may run at all, before any slot is accessed. The order of the checks is that of Redis.
    pub(super) fn admit(
        &self,
        context: &Context<'_>,
        request: &PrefetchedRequest<'_>,
    ) -> Result<&'static RegisteredCommand, CommandOutcome> {
        let session = &*context.session;
        let is_open = |entry: &RegisteredCommand| entry.command.flags.contains(Flags::NO_AUTH);
        if !session.is_authenticated() && !request.command.is_some_and(is_open) {
            return Err(CommandError::NoAuth.into());
        }
        let entry = self.find_permitted_command(context, request)?;
        self.check_access(session, entry, request.args, context.now)?;
        let mut gate = self.settings.node_flags();
        if gate.intersects(NodeFlags::PAUSED) {
            self.scheduling.pauses.end_expired(&self.settings, context.now);
            gate = self.settings.node_flags();
        }
        let mut paused = false;
        if !gate.is_empty() {
            let need = self.collect_admission_input(context, entry, request);
            match self.check_client_command(gate, session, &need) {
                Err(CommandOutcome::Fail(error)) => {
                    return Err(self.refine_cluster_down_error(error, entry, request).into());
                }
                checked => paused = checked.is_err(),
            }
        }
        self.check_allowed_for_listener(session, entry)?;
        if paused { Err(CommandOutcome::Pause) } else { Ok(entry) }
    }

    /// Checks whether the command is allowed to a client that has subscriptions or runs MONITOR.
    fn check_allowed_for_listener(
        &self,
        session: &Session,
        entry: &RegisteredCommand,
    ) -> Result<(), CommandError> {
        const KEY_ACCESS_FLAGS: Flags = Flags::WRITE.union(Flags::MAY_REPLICATE).union(Flags::READONLY);
        match session.listener_state() {
            ListenerState::SubscriberOnly if !entry.command.flags.contains(Flags::WHILE_SUBSCRIBED) => {
                let name = &entry.full_name;
                Err(CommandError::Text(
                    format!(
                        "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
                         are allowed in this context"
                    )
                    .into(),
                ))
            }
            ListenerState::Monitor if entry.command.flags.intersects(KEY_ACCESS_FLAGS) => {
                Err(CommandError::text("ERR Replica can't interact with the keyspace"))
            }
            ListenerState::Unrestricted | ListenerState::SubscriberOnly | ListenerState::Monitor => Ok(()),
        }
    }

    fn collect_admission_input(
        &self,
        context: &Context<'_>,
        entry: &RegisteredCommand,
        request: &PrefetchedRequest<'_>,
    ) -> AdmissionInput {
        let (session, worker) = (&*context.session, &*context.worker);
        let queue = session.transaction();
        let (flags, keys) = match (entry.command.runner, queue) {
            (CommandRunner::Exec, Some(queue)) => {
                self.effective_flags_of_exec(context, entry.command.flags, queue)
            }
            _ => self.effective_flags(worker, entry, request.args),
        };
        let is_queued = queue.is_some() && !matches!(entry.command.runner, CommandRunner::Exec);
        AdmissionInput { is_queued, ..self.admission_input(session, flags, keys) }
    }

    /// Collects the properties of a command with these flags.
    pub(super) fn admission_input(&self, session: &Session, flags: Flags, has_keys: bool) -> AdmissionInput {
        let settings = &self.settings;
        // `cluster-allow-pubsubshard-when-down` applies to shard channels.
        let exempt = flags.contains(Flags::PUBSUB)
            && settings.routing.cluster_allow_pubsubshard_when_down.load(Ordering::Relaxed);
        let moves = flags.contains(Flags::WRITE) || flags.contains(Flags::READONLY) && !session.is_readonly();
        AdmissionInput {
            flags,
            has_keys: has_keys && !exempt,
            is_routed: has_keys && self.topology.is_some(),
            is_queued: false,
            has_written: false,
            wants_redirect: session.supports_redirect() && moves,
            may_read_when_down: settings.routing.cluster_allow_reads_when_down.load(Ordering::Relaxed),
            is_slot_writable: false,
            has_paused_slot: false,
        }
    }

    /// Returns a command's flags and whether it accesses keys. A script's declared flags replace its command's, and
    /// only its declared keys count.
    pub(super) fn effective_flags(
        &self,
        worker: &Worker,
        entry: &RegisteredCommand,
        args: resp::Args<'_>,
    ) -> (Flags, bool) {
        let flags = match entry.command.runner {
            CommandRunner::Script(_) => {
                let mut has_keys = false;
                entry.command.visit_keys(args, &mut |_, _| has_keys = true);
                return (self.effective_script_flags(worker, entry, args), has_keys);
            }
            CommandRunner::Engine(_)
            | CommandRunner::MayBlock(_)
            | CommandRunner::Shell(_)
            | CommandRunner::Node(_)
            | CommandRunner::Exec
            | CommandRunner::Container => entry.command.flags,
        };
        (flags, !entry.command.keys.is_empty())
    }

    /// Returns the flags and key access of EXEC: the union over the queue of flags such as write and deny-oom, and the
    /// intersection of flags that allow commands while loading or stale.
    pub(super) fn effective_flags_of_exec(
        &self,
        context: &Context<'_>,
        exec_flags: Flags,
        transaction: &Transaction,
    ) -> (Flags, bool) {
        let of_all = Flags::LOADING | Flags::STALE;
        let requests = queued_commands(context.commands, transaction);
        let all =
            requests.map(|(entry, request)| self.effective_flags(context.worker, entry, request.args()));
        all.fold((exec_flags, false), |(flags, keys), (more, has_keys)| {
            (((flags | more) - of_all) | (flags & more & of_all), keys || has_keys)
        })
    }

    /// Checks whether a client's command may run; otherwise it waits until a pause ends, or is refused.
    fn check_client_command(
        &self,
        node_flags: NodeFlags,
        session: &Session,
        input: &AdmissionInput,
    ) -> Result<(), CommandOutcome> {
        match admit(node_flags, Caller::of_session(session), input) {
            AdmissionVerdict::Run => Ok(()),
            AdmissionVerdict::Wait | AdmissionVerdict::Rerun => Err(CommandOutcome::Pause),
            AdmissionVerdict::Refuse(state) => Err(self.refusal_error(state, input.flags).into()),
        }
    }

    /// Repeats the admission check while the command's slots are locked. A thread that changes the flags waits until
    /// each slot was unlocked once, and relies on this check.
    #[cold]
    pub(super) fn recheck_admission(
        &self,
        session: &Session,
        node_flags: NodeFlags,
        flags: Flags,
        has_keys: bool,
        slots: &mut LockedSlots<'_>,
    ) -> Result<(), CommandOutcome> {
        let need = self.admission_input(session, flags, has_keys);
        let is_slot_held = node_flags.contains(NodeFlags::SLOT_WRITES_PAUSED)
            && slots.iter_mut().any(|slot| slot.has_paused_writes());
        // A command that runs on the client's connection (MIGRATE) has no slots locked at this point.
        let is_slot_writable = slots.iter_mut().any(|slot| !slot.ownership().is_owned_by_my_master());
        self.check_client_command(
            node_flags,
            session,
            &AdmissionInput { is_slot_writable, has_paused_slot: is_slot_held, ..need },
        )
    }

    pub(super) fn refusal_error(&self, flag: NodeFlags, flags: Flags) -> CommandError {
        let settings = &self.settings;
        let reasons = [
            (
                NodeFlags::REDIRECTS,
                CommandError::RedirectToMaster(settings.routing.redirect_to.load().to_string()),
            ),
            (NodeFlags::OUT_OF_MEMORY, CommandError::OutOfMemory),
            (NodeFlags::MISCONF, CommandError::MisConf),
            (NodeFlags::NO_REPLICAS, CommandError::NoReplicas),
            (NodeFlags::READ_ONLY_REPLICA | NodeFlags::REPLICA, CommandError::ReadOnlyReplica),
            (NodeFlags::MASTER_DOWN, CommandError::MasterDown),
            (NodeFlags::EMPTY_MASTER, CommandError::EmptyMaster),
            (NodeFlags::BUSY, self.busy_error()),
        ];
        if flag == NodeFlags::AOF_FAILED {
            return CommandError::AofFailed(settings.dataset.aof_error.load().to_string());
        }
        if flag == NodeFlags::CLUSTER_DOWN {
            let reads = settings.routing.cluster_allow_reads_when_down.load(Ordering::Relaxed);
            let writes = flags.contains(Flags::WRITE);
            return if reads && writes {
                CommandError::ClusterDownReadsOnly
            } else {
                CommandError::ClusterDown
            };
        }
        let found = reasons.into_iter().find(|(states, _)| states.contains(flag));
        self.replace_server_name(found.map_or(CommandError::Loading, |(_, error)| error))
    }

    /// Replaces the server's name in the error text by "Redis" if `extended-redis-compatibility` is set, for clients
    /// that compare error texts.
    fn replace_server_name(&self, error: CommandError) -> CommandError {
        let names_server = matches!(
            error,
            CommandError::Loading | CommandError::MisConf | CommandError::Busy | CommandError::BusyFunction
        );
        if names_server && self.settings.extended_redis_compatibility.load(Ordering::Relaxed) {
            return CommandError::Text(error.to_string().replace("Valkey", "Redis").into());
        }
        error
    }

    /// Returns the error for clients while a script or function is blocking the server.
    #[cold]
    pub(super) fn busy_error(&self) -> CommandError {
        let is_function =
            |running: &Arc<scripting::InterpreterState>| running.is_busy() && running.is_function();
        self.replace_server_name(match self.scripting.scripts.interpreter_states().iter().any(is_function) {
            true => CommandError::BusyFunction,
            false => CommandError::Busy,
        })
    }

    /// Finds the command of a request, and checks its arity and whether the configuration permits it to this client.
    fn find_permitted_command(
        &self,
        context: &Context<'_>,
        request: &PrefetchedRequest<'_>,
    ) -> Result<&'static RegisteredCommand, CommandError> {
        let session = &*context.session;
        let found = request.command.ok_or(()).or_else(|()| context.commands.registry().resolve(request.args));
        let entry = found?;
        check_stream_command(session, entry)?;
        if !entry.command.accepts_word_count(request.args.len())
            || matches!(entry.command.runner, CommandRunner::Container)
        {
            return Err(CommandError::WrongArity(entry.full_name.clone()));
        }
        if entry.command.flags.contains(Flags::PROTECTED) {
            self.check_protected_command(session, &entry.full_name)?;
        }
        Ok(entry)
    }

    /// Checks whether the configuration permits a protected command to this client.
    fn check_protected_command(&self, session: &Session, name: &str) -> Result<(), CommandError> {
        let settings = &self.settings;
        let (permission, command, option) = if name.starts_with("module") {
            (&settings.permissions.module_command, "MODULE", "enable-module-command")
        } else {
            (&settings.permissions.debug_command, "DEBUG", "enable-debug-command")
        };
        if permission.allows(session.client().connection.is_local) {
            return Ok(());
        }
        Err(CommandError::NotAllowed { command, option })
    }

    /// Replaces the generic cluster-down error if one of the command's slots has no owner.
    fn refine_cluster_down_error(
        &self,
        error: CommandError,
        entry: &RegisteredCommand,
        request: &PrefetchedRequest<'_>,
    ) -> CommandError {
        let down = matches!(error, CommandError::ClusterDown | CommandError::ClusterDownReadsOnly);
        let hole = |topology: &Topology| {
            self.key_slots(entry, request.args).iter().any(|slot| topology.owner(*slot).is_none())
        };
        match &self.topology {
            Some(topology) if down && hole(&topology.load()) => CommandError::SlotNotServed,
            _ => error,
        }
    }

    /// Returns whether the changes of a client's command are logged, given the node flags at its admission. These flags
    /// decide for the whole command, because no thread relies on changed flags until the command's slots are unlocked.
    pub(super) fn are_changes_logged(&self, node_flags: NodeFlags) -> bool {
        !node_flags.contains(NodeFlags::REPLICA) && self.log.has_readers()
    }
}

/// Checks whether a master's stream or a persistence file may contain this command. Administrative commands that change
/// no data may not be replicated; each node's operator decides about them.
fn check_stream_command(session: &Session, entry: &RegisteredCommand) -> Result<(), CommandError> {
    let flags = entry.command.flags;
    let may_change_data = flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE);
    let is_for_operators =
        flags.contains(Flags::ADMIN) && !may_change_data && !flags.contains(Flags::MASTER_TO_REPLICA);
    match session.origin() {
        CommandOrigin::Master | CommandOrigin::SlotMigrationSource if is_for_operators => {
            Err(CommandError::NoEffect(entry.full_name.clone()))
        }
        CommandOrigin::Master | CommandOrigin::SlotMigrationSource | CommandOrigin::Client => Ok(()),
    }
}

/// Detects a browser tricked into sending HTTP to this port: the following lines may be attacker-controlled commands.
pub(super) fn is_cross_protocol_attack(request: &PrefetchedRequest<'_>) -> bool {
    request.command.is_none() && request.args.get(0).is_some_and(is_http_word)
}

#[cfg(test)]
mod tests;
