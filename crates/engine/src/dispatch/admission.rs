//! May this command run? One question for every caller: before any slot is looked at, and again under the locks of its
//! slots.
//!
//! The gate is what holds for all commands just now. [`RULES`] say of each of its states which commands it keeps from
//! running, in the order in which Redis asks; [`admit`] turns them into what that means to each [`Caller`]. It is a
//! function of what it is told, so that a test can walk every state, every caller and every command.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyspace::LockedSlots;
use slot_routing::Topology;

use super::transaction::queued;
use super::{Flow, Prepared, is_http};
use crate::clients::ClientFlags;
use crate::command::{Caller, Context, Flags, Registered, Run};
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::session::{Origin, Session};
use crate::settings::Gate;
use crate::transaction::Transaction;

/// The facts about a command that say whether it may run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Its flags, as [`Engine::nature`] has them.
    pub(super) flags: Flags,
    /// It is about keys, or about channels that a cluster serves as such.
    pub(super) keys: bool,
    /// Its keys say where it runs: this is a node of a cluster.
    pub(super) is_routed: bool,
    /// It is not run but queued, behind MULTI.
    pub(super) is_queued: bool,
    /// It belongs to a script that has written already.
    pub(super) has_written: bool,
    /// Its client would have it run at the master.
    pub(super) follows_master: bool,
    /// A cluster that is down takes reads.
    pub(super) reads_when_down: bool,
    /// Its slots are locked.
    pub(super) is_locked: bool,
    /// One of these is held ([`Gate::SLOTS_HELD`]).
    pub(super) is_slot_held: bool,
}

impl Need {
    fn writes(&self) -> bool {
        self.flags.contains(Flags::WRITE) && !self.has_written
    }

    /// A script that does not say of itself what it does may do anything.
    fn may_write(&self) -> bool {
        self.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE)
    }

    /// A message to a channel changes nothing in the channel's slot, and any node of the shard passes it on.
    fn may_change_slots(&self) -> bool {
        self.may_write() && (self.flags.contains(Flags::WRITE) || !self.flags.contains(Flags::PUBSUB))
    }
}

/// The answer to whether a command may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs.
    Run,
    /// It waits until a pause ends.
    Wait,
    /// Its client runs it again, and is told why it does not run.
    Again,
    /// It is refused, because of this state.
    Refuse(Gate),
}

/// A state of the node, and the commands that it keeps from running.
struct Rule {
    state: Gate,
    concerns: fn(&Need) -> bool,
    /// Whether they wait for it to end, instead of being refused.
    waits: bool,
    /// Whether a script is asked about its calls again, though it was let begin.
    for_scripts: bool,
}

const fn refused(state: Gate, concerns: fn(&Need) -> bool) -> Rule {
    Rule { state, concerns, waits: false, for_scripts: false }
}

impl Rule {
    const fn waits(self) -> Self {
        Self { waits: true, ..self }
    }

    const fn for_scripts(self) -> Self {
        Self { for_scripts: true, ..self }
    }
}

/// PING has an answer of its own on a master without its data.
const EVEN_EMPTY: Flags = Flags::STALE.union(Flags::WHILE_LISTENING);

const RULES: &[Rule] = &[
    refused(Gate::ALL_PAUSED, |need| !need.is_queued).waits(),
    refused(Gate::WRITES_PAUSED, |need| !need.is_queued && need.may_write()).waits(),
    refused(Gate::SLOTS_HELD, |need| need.is_slot_held && need.may_write()).waits(),
    refused(Gate::REDIRECTS, |need| need.follows_master),
    refused(Gate::CLUSTER_DOWN, |need| {
        need.keys && (!need.reads_when_down || need.flags.contains(Flags::WRITE))
    })
    .for_scripts(),
    refused(Gate::OUT_OF_MEMORY, |need| need.flags.contains(Flags::DENYOOM) && !need.has_written)
        .for_scripts(),
    refused(Gate::AOF_FAILED, Need::writes).for_scripts(),
    refused(Gate::MISCONF, Need::writes).for_scripts(),
    refused(Gate::NO_REPLICAS, Need::writes).for_scripts(),
    // With cluster mode a key's slot says where its writes go: MOVED.
    refused(Gate::READ_ONLY_REPLICA, |need| need.writes() && !need.is_routed).for_scripts(),
    refused(Gate::MASTER_DOWN, |need| !need.flags.contains(Flags::STALE)).for_scripts(),
    refused(Gate::EMPTY_MASTER, |need| !need.flags.intersects(EVEN_EMPTY)).for_scripts(),
    refused(Gate::BUSY, |need| !need.flags.contains(Flags::ALLOW_BUSY)),
    refused(Gate::ASYNC_LOADING, |need| need.flags.contains(Flags::NO_ASYNC_LOADING)),
    refused(Gate::LOADING, |need| !need.flags.contains(Flags::LOADING)),
    // The slot is still this node's, and its role is not: it gives its slots up, or has yet to take them.
    refused(Gate::REPLICA, |need| need.is_locked && need.is_routed && need.may_change_slots()),
];

/// Whether a command may run while `gate` holds, for `caller`.
pub(super) fn admit(gate: Gate, caller: Caller, need: &Need) -> Verdict {
    let in_force = |rule: &&Rule| gate.contains(rule.state) && (rule.concerns)(need);
    let of = |for_scripts: bool| RULES.iter().filter(|rule| rule.for_scripts || !for_scripts).find(in_force);
    match caller {
        Caller::Exec | Caller::Master => Verdict::Run,
        Caller::Client => match of(false) {
            None => Verdict::Run,
            Some(rule) if rule.waits => Verdict::Wait,
            Some(rule) => Verdict::Refuse(rule.state),
        },
        Caller::Source => match of(false) {
            Some(rule) if rule.waits => Verdict::Wait,
            _ if gate.contains(Gate::REPLICA) => Verdict::Refuse(Gate::REPLICA),
            _ => Verdict::Run,
        },
        Caller::Script => of(true).map_or(Verdict::Run, |rule| Verdict::Refuse(rule.state)),
        Caller::Waiter => of(false).map_or(Verdict::Run, |_| Verdict::Again),
    }
}

impl Engine {
    /// Whether a request may run at all, before any slot is looked at. In the order in which Redis asks.
    pub(super) fn admit(
        &self,
        context: &Context<'_>,
        request: &Prepared<'_>,
    ) -> Result<(&'static Registered, Flow), CommandError> {
        let session = &*context.session;
        let is_open = |entry: &Registered| entry.command.flags.contains(Flags::NO_AUTH);
        if !session.authenticated && !request.found.is_some_and(is_open) {
            return Err(CommandError::NoAuth);
        }
        let entry = self.find_callable(context, request)?;
        self.check_access(session, entry, request.args, context.now)?;
        let mut gate = self.settings.gate();
        if gate.intersects(Gate::PAUSED) {
            self.pauses.end_overdue(&self.settings, context.now);
            gate = self.settings.gate();
        }
        let flow = match gate.is_empty() {
            true => Flow::Done,
            false => {
                let need = self.need(context, entry, request);
                self.pass(gate, session, &need).map_err(|error| self.name_hole(error, entry, request))?
            }
        };
        self.check_listener(session, entry)?;
        Ok((entry, flow))
    }

    /// Whether a client that has become a listener may run this.
    fn check_listener(&self, session: &Session, entry: &Registered) -> Result<(), CommandError> {
        if session.only_listens() && !entry.command.flags.contains(Flags::WHILE_LISTENING) {
            let name = &entry.full_name;
            return Err(CommandError::Text(
                format!(
                    "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
                     are allowed in this context"
                )
                .into(),
            ));
        }
        let touches = Flags::WRITE | Flags::MAY_REPLICATE | Flags::READONLY;
        let monitors = session.client.flags().contains(ClientFlags::MONITOR);
        if monitors && entry.command.flags.intersects(touches) {
            return Err(CommandError::text("ERR Replica can't interact with the keyspace"));
        }
        Ok(())
    }

    /// The facts about a request.
    fn need(&self, context: &Context<'_>, entry: &Registered, request: &Prepared<'_>) -> Need {
        let (session, worker) = (&*context.session, &*context.worker);
        let queue = session.transaction.as_deref();
        let (flags, keys) = match (entry.command.run, queue) {
            (Run::Exec, Some(queue)) => self.nature_of_exec(context, entry.command.flags, queue),
            _ => self.nature(worker, entry, request.args),
        };
        let is_queued = queue.is_some() && !matches!(entry.command.run, Run::Exec);
        Need { is_queued, ..self.need_of(session, flags, keys) }
    }

    /// The facts about a command of this nature.
    pub(super) fn need_of(&self, session: &Session, flags: Flags, keys: bool) -> Need {
        let settings = &self.settings;
        // A shard's channels may be served by a cluster that is down.
        let exempt = flags.contains(Flags::PUBSUB)
            && settings.cluster_allow_pubsubshard_when_down.load(Ordering::Relaxed);
        let moves = flags.contains(Flags::WRITE) || flags.contains(Flags::READONLY) && !session.readonly;
        Need {
            flags,
            keys: keys && !exempt,
            is_routed: keys && self.topology.is_some(),
            is_queued: false,
            has_written: false,
            follows_master: session.knows_redirect && moves,
            reads_when_down: settings.cluster_allow_reads_when_down.load(Ordering::Relaxed),
            is_locked: false,
            is_slot_held: false,
        }
    }

    /// A command's flags, and whether it is about keys. A script has those that it says of itself, if it does.
    pub(super) fn nature(&self, worker: &Worker, entry: &Registered, args: resp::Args<'_>) -> (Flags, bool) {
        let flags = match entry.command.run {
            Run::Script(_) => self.flags_of_script(worker, entry, args),
            Run::Here(_) | Run::MayBlock(_) | Run::Shell(_) | Run::Node(_) | Run::Exec | Run::Container => {
                entry.command.flags
            }
        };
        (flags, !entry.command.keys.is_empty())
    }

    /// The same of EXEC: it is what one command of the queue is (it writes, it needs memory), and what all of them are
    /// (they may run while the data is loaded or old).
    pub(super) fn nature_of_exec(
        &self,
        context: &Context<'_>,
        own: Flags,
        queue: &Transaction,
    ) -> (Flags, bool) {
        let of_all = Flags::LOADING | Flags::STALE;
        let requests = queued(context.commands, queue);
        let all = requests.map(|(entry, request)| self.nature(context.worker, entry, request.args()));
        all.fold((own, false), |(flags, keys), (more, has_keys)| {
            (((flags | more) - of_all) | (flags & more & of_all), keys || has_keys)
        })
    }

    /// Asks about a client's command: it runs (`Done`), waits, or is refused.
    fn pass(&self, gate: Gate, session: &Session, need: &Need) -> Result<Flow, CommandError> {
        match admit(gate, Caller::of(session), need) {
            Verdict::Run => Ok(Flow::Done),
            Verdict::Wait | Verdict::Again => Ok(Flow::Paused),
            Verdict::Refuse(state) => Err(self.refusal(state, need.flags)),
        }
    }

    /// Asks once more, now that the command holds its slots, whether what holds lets it run: `Paused` or an error if
    /// not. A thread that changes the gate waits until each slot has been free, and relies on that.
    #[cold]
    pub(super) fn pass_locked(
        &self,
        session: &Session,
        gate: Gate,
        (flags, keys): (Flags, bool),
        slots: &mut LockedSlots<'_>,
    ) -> Result<Flow, CommandError> {
        let need = self.need_of(session, flags, keys);
        let is_slot_held = gate.contains(Gate::SLOTS_HELD) && slots.iter_mut().any(|slot| slot.is_held());
        // A command that its connection carries out (MIGRATE) locks nothing here.
        let is_locked = slots.iter_mut().next().is_some();
        self.pass(gate, session, &Need { is_locked, is_slot_held, ..need })
    }

    /// Why a state of the node refuses a command.
    pub(super) fn refusal(&self, state: Gate, flags: Flags) -> CommandError {
        let settings = &self.settings;
        let reasons = [
            (Gate::REDIRECTS, CommandError::ToMaster(settings.redirect_to.load().to_string())),
            (Gate::OUT_OF_MEMORY, CommandError::OutOfMemory),
            (Gate::MISCONF, CommandError::MisConf),
            (Gate::NO_REPLICAS, CommandError::NoReplicas),
            (Gate::READ_ONLY_REPLICA | Gate::REPLICA, CommandError::ReadOnlyReplica),
            (Gate::MASTER_DOWN, CommandError::MasterDown),
            (Gate::EMPTY_MASTER, CommandError::EmptyMaster),
            (Gate::BUSY, self.busy()),
        ];
        if state == Gate::AOF_FAILED {
            return CommandError::AofFailed(settings.aof_error.load().to_string());
        }
        if state == Gate::CLUSTER_DOWN {
            let reads = settings.cluster_allow_reads_when_down.load(Ordering::Relaxed);
            let writes = flags.contains(Flags::WRITE);
            return if reads && writes {
                CommandError::ClusterDownReadsOnly
            } else {
                CommandError::ClusterDown
            };
        }
        let found = reasons.into_iter().find(|(states, _)| states.contains(state));
        self.in_redis_words(found.map_or(CommandError::Loading, |(_, error)| error))
    }

    /// An error that names the server, which is Redis to clients that compare the whole text.
    fn in_redis_words(&self, error: CommandError) -> CommandError {
        let names_server = matches!(
            error,
            CommandError::Loading | CommandError::MisConf | CommandError::Busy | CommandError::BusyFunction
        );
        if names_server && self.settings.extended_redis_compatibility.load(Ordering::Relaxed) {
            return CommandError::Text(error.to_string().replace("Valkey", "Redis").into());
        }
        error
    }

    /// The error of clients while a script, or a function, has kept the server for too long.
    #[cold]
    pub(super) fn busy(&self) -> CommandError {
        let is_function = |running: &Arc<scripting::Running>| running.is_busy() && running.is_function();
        self.in_redis_words(match self.scripts.running().iter().any(is_function) {
            true => CommandError::BusyFunction,
            false => CommandError::Busy,
        })
    }

    /// The command that is meant, if there is one, it may have so many words, and the configuration lets this client
    /// run it.
    fn find_callable(
        &self,
        context: &Context<'_>,
        request: &Prepared<'_>,
    ) -> Result<&'static Registered, CommandError> {
        let session = &*context.session;
        let found = request.found.ok_or(()).or_else(|()| context.commands.registry().resolve(request.args));
        let entry = found?;
        check_effect(session, entry)?;
        if !entry.command.accepts(request.args.len()) || matches!(entry.command.run, Run::Container) {
            return Err(CommandError::WrongArity(entry.full_name.clone()));
        }
        if entry.command.flags.contains(Flags::PROTECTED) {
            self.check_permission(session, &entry.full_name)?;
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
        if permission.allows(session.client.link.local) {
            return Ok(());
        }
        Err(CommandError::NotAllowed { command, option })
    }

    /// Replaces the error that the cluster is down by the more exact one, if no node serves one of the command's slots.
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

    /// Whether the changes of a client's command under `gate` are logged. The gate under which the command was admitted
    /// decides for the whole command: until its slots are free, no thread relies on another gate.
    pub(super) fn logs_under(&self, gate: Gate) -> bool {
        !gate.contains(Gate::REPLICA) && self.log.wanted()
    }
}

/// Whether a master may say this. Its stream, and a file, bring what was done to the data; what is for operators and
/// does nothing of the kind is for those of this node.
fn check_effect(session: &Session, entry: &Registered) -> Result<(), CommandError> {
    let flags = entry.command.flags;
    let may_change_data = flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE);
    let is_for_operators = flags.contains(Flags::ADMIN) && !may_change_data && !flags.contains(Flags::LINK);
    match session.origin {
        Origin::Master | Origin::Source if is_for_operators => {
            Err(CommandError::NoEffect(entry.full_name.clone()))
        }
        Origin::Master | Origin::Source | Origin::Client => Ok(()),
    }
}

/// A browser made to talk to this port: its next line may be a command of an attacker's choosing.
pub(super) fn is_cross_protocol(request: &Prepared<'_>) -> bool {
    request.found.is_none() && request.args.get(0).is_some_and(is_http)
}

#[cfg(test)]
mod tests;
