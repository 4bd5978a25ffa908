//! The command table and the context in which command handlers run.
//!
//! A table row has a handler, a handler takes a [`Context`], and a context gives access to all commands
//! ([`CommandSet`]), so these types are in one module. The server state does not depend on them and knows commands only
//! by number; dispatch is built on top of them.
//!
//! The table is data: routing, COMMAND, access control, statistics and tests all read it, and there is no second list
//! of commands. Arity, flags and key positions are those of Redis and Valkey; the summaries are our own.

mod caller;
mod commands;
mod context;
mod estimate;
mod registry;
mod shell;

use std::ops::RangeInclusive;

pub use acl::Categories;
use bitflags::bitflags;
use resp::Args;
use smallvec::SmallVec;

use crate::error::CommandError;
use crate::keys::{KeyFlags, KeySpec, ParseKeys};
use crate::outcome::CommandOutcome;
use crate::scripting::ScriptCall;
use crate::shell_commands::{NodeCommand, ShellCommand};
pub(crate) use caller::Caller;
pub use commands::CommandSet;
pub use context::Context;
pub use context::names::MAX_KEYS_LOCKED_TOGETHER;
pub use context::pinned::PinnedValues;
pub(crate) use estimate::EstimateFn;
pub use estimate::EstimateInput;
pub use registry::{RegisteredCommand, Registry, RenameError};
pub use shell::Shell;

bitflags! {
    /// Command flags, as in COMMAND INFO.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// The command may modify data.
        const WRITE = 1;
        /// The command reads data.
        const READONLY = 1 << 1;
        /// The command is refused while memory use exceeds `maxmemory`.
        const DENYOOM = 1 << 2;
        /// The command is administrative.
        const ADMIN = 1 << 3;
        /// The command concerns pub/sub.
        const PUBSUB = 1 << 4;
        /// The command is not allowed in scripts.
        const NOSCRIPT = 1 << 5;
        /// The command may block the client.
        const BLOCKING = 1 << 6;
        /// The command is allowed while the data set is being loaded.
        const LOADING = 1 << 7;
        /// The command is allowed on a replica that has lost its master and must not serve stale data.
        const STALE = 1 << 8;
        /// The command is not shown by MONITOR.
        const SKIP_MONITOR = 1 << 9;
        /// The command is excluded from the slow log and the command log.
        const SKIP_COMMANDLOG = 1 << 10;
        /// The command implies ASKING.
        const ASKING = 1 << 11;
        /// The command takes constant or logarithmic time.
        const FAST = 1 << 12;
        /// The command is allowed before authentication.
        const NO_AUTH = 1 << 13;
        /// The command may be replicated even though it changes no key.
        const MAY_REPLICATE = 1 << 14;
        /// The command may be called without keys.
        const NO_MANDATORY_KEYS = 1 << 15;
        /// The command must be enabled in the configuration.
        const PROTECTED = 1 << 16;
        /// The command is not allowed during asynchronous loading.
        const NO_ASYNC_LOADING = 1 << 17;
        /// The command is not allowed in a transaction.
        const NO_MULTI = 1 << 18;
        /// The command is allowed while a script blocks the server.
        const ALLOW_BUSY = 1 << 19;
        /// The command accesses keys that its arguments do not name.
        const TOUCHES_ARBITRARY_KEYS = 1 << 20;
        /// The command accesses all databases.
        const ALL_DBS = 1 << 21;
        /// The command runs immediately after MULTI instead of being queued.
        const NOT_QUEUED = 1 << 22;
        /// The command takes time linear in its arguments at most, like [`Flags::FAST`], but is not flagged so in
        /// Redis.
        const LINEAR_IN_ARGS = 1 << 23;
        /// The command is also available in a sentinel.
        const SENTINEL = 1 << 24;
        /// The command is allowed to RESP2 clients with subscriptions.
        const WHILE_SUBSCRIBED = 1 << 25;
        /// Masters send the command to replicas although it changes no data.
        const MASTER_TO_REPLICA = 1 << 26;
    }
}

/// Command groups, by which the documentation is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Commands for keys of any type.
    Generic,
    /// String commands.
    String,
    /// Hash commands.
    Hash,
    /// List commands.
    List,
    /// Set commands.
    Set,
    /// Sorted set commands.
    SortedSet,
    /// Stream commands.
    Stream,
    /// Commands for bit operations on strings.
    Bitmap,
    /// Commands for HyperLogLog cardinality sketches.
    Hyperloglog,
    /// Commands for geospatial indexes.
    Geo,
    /// Commands for scripts and functions.
    Scripting,
    /// Commands that manage the client's connection.
    Connection,
    /// Commands that manage the server.
    Server,
    /// Commands that manage the cluster.
    Cluster,
    /// Replication commands.
    Replication,
    /// Transaction commands: MULTI, EXEC, WATCH and others.
    Transactions,
    /// Pub/sub commands.
    Pubsub,
    /// Commands of a sentinel.
    Sentinel,
}

impl Group {
    /// Returns the group's name as COMMAND DOCS shows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::String => "string",
            Self::Hash => "hash",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "sorted-set",
            Self::Stream => "stream",
            Self::Bitmap => "bitmap",
            Self::Hyperloglog => "hyperloglog",
            Self::Geo => "geo",
            Self::Scripting => "scripting",
            Self::Connection => "connection",
            Self::Server | Self::Replication => "server",
            Self::Cluster => "cluster",
            Self::Transactions => "transactions",
            Self::Pubsub => "pubsub",
            Self::Sentinel => "sentinel",
        }
    }
}

/// A handler reads arguments from the context and writes one reply, or fails without changes.
pub(crate) type Handler = fn(&mut Context<'_>) -> Result<(), CommandError>;

/// A handler that may also block the client.
pub(crate) type BlockingHandler = fn(&mut Context<'_>) -> Result<CommandOutcome, CommandError>;

/// A handler that finds the script or function that the command runs.
pub(crate) type ScriptHandler = fn(&mut Context<'_>) -> Result<ScriptCall, CommandError>;

/// The component that runs a command.
#[derive(Debug, Clone, Copy)]
pub enum CommandRunner {
    /// The engine runs the command while the slots of its declared keys are locked.
    Engine(Handler),
    /// The engine runs the command, which may block ([`Flags::BLOCKING`]) or move to another worker.
    MayBlock(BlockingHandler),
    /// The engine runs the command as a script that calls other commands.
    Script(ScriptHandler),
    /// The server process runs the command immediately, because the command needs files or process state.
    Shell(ShellCommand),
    /// The client's connection runs the command, because it may wait for something other than keys, such as another
    /// node.
    Node(NodeCommand),
    /// The engine runs the client's queued commands.
    Exec,
    /// The command itself cannot run; only its subcommands can.
    Container,
}

/// Which slots a command locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockScope {
    /// The slots of the command's keys, locked before it runs.
    Keys,
    /// Any slots, one at a time, each locked only while it is visited. The command's key arguments are only used for
    /// routing.
    EachSlot,
    /// All slots, locked before the command runs.
    AllSlots,
    /// The slots of the command's keys, and of further keys that match patterns while it runs.
    Patterns,
    /// The slot of the first argument, which is not a key. The lock orders the command's log entry relative to other
    /// commands of that slot. Only used without cluster mode, where such commands are logged.
    FirstArgument,
    /// The slot whose number is the second argument, whichever node serves it; in a transaction or script, all slots.
    NamedSlot,
}

/// What a command means in the log, apart from the changes that it makes to its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRole {
    /// Selects the database of the following commands.
    SelectDb,
    /// Starts a transaction.
    BeginTransaction,
    /// Completes a transaction.
    EndTransaction,
    /// Changes keys of all slots without naming them.
    ChangesUnnamedKeys,
    /// Shows a replica that its master is alive.
    KeepAlive,
    /// Has no further meaning.
    Other,
}

/// Which arguments are channel names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelArguments {
    /// No argument is a channel.
    None,
    /// The first argument is a channel.
    First,
    /// All arguments are channels.
    All,
    /// All arguments are patterns of channels.
    Patterns,
}

/// Which databases a command accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseAccess {
    /// The selected database, if the command has keys.
    Current,
    /// Only the databases at these argument positions.
    OnlyAt(&'static [usize]),
    /// The database in the first argument, which the client selects.
    SelectedByArgument,
    /// The selected database and the one at this argument position.
    CurrentAndAt(usize),
}

/// A row of the command table: a command or subcommand.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// The name in lower case; for a subcommand only its own word.
    pub name: &'static str,
    /// The first Redis version with this command.
    pub since: &'static str,
    /// One-line description for COMMAND DOCS.
    pub summary: &'static str,
    /// The command's group in the documentation.
    pub group: Group,
    /// Number of words including the name; a negative arity means at least `-arity` words.
    pub arity: i8,
    /// The command's flags.
    pub flags: Flags,
    /// ACL categories not implied by flags; see [`Command::categories`].
    pub explicit_categories: Categories,
    /// Key specifications, as in COMMAND INFO.
    pub keys: &'static [KeySpec],
    /// Parser for keys whose positions depend on options, which key specs cannot express.
    parse_keys: Option<ParseKeys>,
    /// Offset from the only key to the word that usually names an element of its value (such as a field): a hint for
    /// prefetching.
    pub element_offset: Option<u8>,
    /// Channels that the user needs permission for.
    pub channels: ChannelArguments,
    /// Databases that the user needs permission for.
    pub databases: DatabaseAccess,
    /// Command tips for clients and proxies.
    pub tips: &'static [&'static str],
    /// The component that runs the command.
    pub runner: CommandRunner,
    /// The slots that the command locks.
    pub lock_scope: LockScope,
    /// What the command means in the log.
    pub log_role: LogRole,
    /// The subcommands, if the command is a container.
    pub subcommands: &'static [Command],
    /// Determines from the arguments how a key with [`KeyFlags::VARIABLE_FLAGS`] is used.
    key_use: Option<KeyUseFn>,
    /// Estimates the duration of a request, for commands that may be slow.
    pub(crate) estimate: Option<EstimateFn>,
    /// Decides whether a long request releases its slot locks early.
    pub(crate) releases_locks: Option<fn(Args<'_>) -> bool>,
}

/// Returns how a request uses its key.
pub(crate) type KeyUseFn = fn(Args<'_>) -> KeyFlags;

impl Command {
    /// Creates a row without keys, flags or handler, to be filled in by the builder methods.
    #[must_use]
    pub const fn new(
        name: &'static str,
        group: Group,
        since: &'static str,
        arity: i8,
        summary: &'static str,
    ) -> Self {
        Self {
            name,
            since,
            summary,
            group,
            arity,
            flags: Flags::empty(),
            explicit_categories: Categories::empty(),
            keys: &[],
            parse_keys: None,
            element_offset: None,
            channels: ChannelArguments::None,
            databases: DatabaseAccess::Current,
            tips: &[],
            runner: CommandRunner::Container,
            lock_scope: LockScope::Keys,
            log_role: LogRole::Other,
            subcommands: &[],
            key_use: None,
            estimate: None,
            releases_locks: None,
        }
    }

    /// Adds flags.
    #[must_use]
    pub const fn flags(mut self, flags: Flags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }

    /// Adds ACL categories.
    #[must_use]
    pub const fn category(mut self, categories: Categories) -> Self {
        self.explicit_categories = self.explicit_categories.union(categories);
        self
    }

    /// Sets the key specifications.
    #[must_use]
    pub const fn keys(mut self, keys: &'static [KeySpec]) -> Self {
        self.keys = keys;
        self
    }

    /// Sets a key parser, which replaces the key specs.
    #[must_use]
    pub const fn parse_keys(mut self, parse: ParseKeys) -> Self {
        self.parse_keys = Some(parse);
        self
    }

    /// Declares that the word after the key names an element of its value.
    #[must_use]
    pub const fn names_element(self) -> Self {
        self.names_element_at(1)
    }

    /// Declares that the word at this offset from the key names an element of its value.
    #[must_use]
    pub const fn names_element_at(mut self, offset: u8) -> Self {
        self.element_offset = Some(offset);
        self
    }

    /// Sets which arguments are channels.
    #[must_use]
    pub const fn channels(mut self, channels: ChannelArguments) -> Self {
        self.channels = channels;
        self
    }

    /// Sets which databases the command accesses.
    #[must_use]
    pub const fn databases(mut self, databases: DatabaseAccess) -> Self {
        self.databases = databases;
        self
    }

    /// Makes the command available in a sentinel.
    #[must_use]
    pub const fn sentinel(mut self) -> Self {
        self.flags = self.flags.union(Flags::SENTINEL);
        self
    }

    /// Sets the command tips.
    #[must_use]
    pub const fn tips(mut self, tips: &'static [&'static str]) -> Self {
        self.tips = tips;
        self
    }

    /// Sets the handler, run by the engine.
    #[must_use]
    pub const fn run(mut self, handler: Handler) -> Self {
        self.runner = CommandRunner::Engine(handler);
        self
    }

    /// Declares that the command visits any slots, one at a time.
    #[must_use]
    pub const fn visits_each_slot(mut self) -> Self {
        self.lock_scope = LockScope::EachSlot;
        self
    }

    /// Declares that the log entry is ordered by the slot of the first argument.
    #[must_use]
    pub const fn locks_first_argument(mut self) -> Self {
        self.lock_scope = LockScope::FirstArgument;
        self
    }

    /// Declares that the command locks the slot whose number is the second argument.
    #[must_use]
    pub const fn locks_named_slot(mut self) -> Self {
        self.lock_scope = LockScope::NamedSlot;
        self
    }

    /// Declares that the command locks all slots.
    #[must_use]
    pub const fn locks_all_slots(mut self) -> Self {
        self.lock_scope = LockScope::AllSlots;
        self
    }

    /// Sets what the command means in the log.
    #[must_use]
    pub const fn log_role(mut self, role: LogRole) -> Self {
        self.log_role = role;
        self
    }

    /// Declares that the command accesses keys that match patterns in its arguments.
    #[must_use]
    pub const fn with_key_patterns(mut self) -> Self {
        self.lock_scope = LockScope::Patterns;
        self
    }

    /// Returns whether the request has patterns that select keys only during execution.
    pub(crate) fn has_key_patterns(&self, args: Args<'_>) -> bool {
        self.lock_scope == LockScope::Patterns && args.iter().skip(2).any(|word| word.contains(&b'*'))
    }

    /// Declares that the command runs the client's queued commands.
    #[must_use]
    pub const fn exec(mut self) -> Self {
        (self.runner, self.log_role) = (CommandRunner::Exec, LogRole::EndTransaction);
        self
    }

    /// Declares that the server process runs the command immediately, in place of the engine.
    #[must_use]
    pub const fn shell(mut self, command: ShellCommand) -> Self {
        self.runner = CommandRunner::Shell(command);
        self
    }

    /// Declares that the client's connection runs the command in place of the engine, because the command may wait.
    #[must_use]
    pub const fn node(mut self, command: NodeCommand) -> Self {
        self.runner = CommandRunner::Node(command);
        self
    }

    /// Sets a handler that may decide that its command must run on another worker.
    #[must_use]
    pub const fn may_offload(mut self, handler: BlockingHandler) -> Self {
        self.runner = CommandRunner::MayBlock(handler);
        self
    }

    /// Sets a handler that may block the client.
    #[must_use]
    pub const fn may_block(mut self, handler: BlockingHandler) -> Self {
        self.flags = self.flags.union(Flags::BLOCKING);
        self.runner = CommandRunner::MayBlock(handler);
        self
    }

    /// Sets a handler that finds a script to run.
    #[must_use]
    pub const fn script(mut self, handler: ScriptHandler) -> Self {
        self.runner = CommandRunner::Script(handler);
        self
    }

    /// Adds subcommands.
    #[must_use]
    pub const fn subcommands(mut self, subcommands: &'static [Command]) -> Self {
        self.subcommands = subcommands;
        self
    }

    /// Sets a function that determines the key's use from the arguments.
    #[must_use]
    pub const fn key_use(mut self, key_use: KeyUseFn) -> Self {
        self.key_use = Some(key_use);
        self
    }

    /// Sets the estimate; requests estimated as long run on a background worker.
    #[must_use]
    pub const fn with_estimate(mut self, estimate: EstimateFn) -> Self {
        self.estimate = Some(estimate);
        self
    }

    /// Like [`Command::with_estimate`], for commands that release their slot locks and then read
    /// [pinned](Context::pin_values) values, so that other commands do not wait for the slots.
    #[must_use]
    pub const fn with_estimate_and_pinned_reads(self, estimate: EstimateFn) -> Self {
        self.with_estimate(estimate).releases_locks(|_| true)
    }

    /// Sets which long requests release their slot locks early.
    #[must_use]
    pub const fn releases_locks(mut self, predicate: fn(Args<'_>) -> bool) -> Self {
        self.releases_locks = Some(predicate);
        self
    }

    /// Returns how a request uses the keys that this key spec finds.
    fn key_flags(&self, spec: &KeySpec, args: Args<'_>) -> KeyFlags {
        match self.key_use {
            Some(key_use) if spec.flags.contains(KeyFlags::VARIABLE_FLAGS) => key_use(args),
            _ => spec.flags.difference(KeyFlags::VARIABLE_FLAGS),
        }
    }

    /// Visits the position and use of each key in `args`.
    pub fn visit_keys(&self, args: Args<'_>, visit: &mut impl FnMut(usize, KeyFlags)) {
        if let Some(parse) = self.parse_keys {
            return parse(args).iter().for_each(|(index, flags)| visit(index, flags));
        }
        for spec in self.keys {
            let flags = self.key_flags(spec, args);
            spec.visit_keys(args, &mut |index| visit(index, flags));
        }
    }

    /// Returns whether argument `index` is a declared key ([`Command::visit_keys`]).
    pub(crate) fn declares_key(&self, args: Args<'_>, index: usize) -> bool {
        let mut found = false;
        self.visit_keys(args, &mut |place, _| found |= place == index);
        found
    }

    /// Returns whether key positions depend on options.
    #[must_use]
    pub fn has_key_parser(&self) -> bool {
        self.parse_keys.is_some()
    }

    /// Returns the databases that a request names. Invalid numbers are skipped, since the command will refuse them.
    pub(crate) fn named_databases(&self, args: Args<'_>, database_count: u16) -> SmallVec<[u16; 2]> {
        let number = |place: &usize| args.get(*place).and_then(resp::parse_i64);
        let named: SmallVec<[Option<i64>; 2]> = match self.databases {
            DatabaseAccess::Current => {
                let parsed = self.parse_keys.map(|parse| parse(args)).unwrap_or_default();
                parsed.named_databases().iter().copied().map(Some).collect()
            }
            DatabaseAccess::OnlyAt(places) => places.iter().map(number).collect(),
            DatabaseAccess::SelectedByArgument => std::iter::once(number(&1)).collect(),
            DatabaseAccess::CurrentAndAt(place) => std::iter::once(number(&place)).collect(),
        };
        let valid = |number: &Option<i64>| u16::try_from((*number)?).ok().filter(|db| *db < database_count);
        let valid: Option<_> = named.iter().map(valid).collect();
        valid.unwrap_or_default()
    }

    /// Returns the database that a request selects for the commands after it.
    pub(crate) fn selected_database(&self, args: Args<'_>, database_count: u16) -> Option<u16> {
        let selected = self.databases == DatabaseAccess::SelectedByArgument;
        selected.then(|| self.named_databases(args, database_count).first().copied()).flatten()
    }

    /// Returns whether a request that runs in `db` moves or copies a key to another database. MOVE always counts, and
    /// so does COPY to a database whose number is malformed.
    pub(crate) fn crosses_databases(&self, args: Args<'_>, db: u16) -> bool {
        let crosses = |parse: ParseKeys| parse(args).names_other_database(db);
        matches!(self.databases, DatabaseAccess::CurrentAndAt(_)) || self.parse_keys.is_some_and(crosses)
    }

    /// Returns whether a request with this number of words fits the arity.
    #[must_use]
    pub fn accepts_word_count(&self, word_count: usize) -> bool {
        self.allowed_word_counts().contains(&word_count)
    }

    /// Returns the allowed number of words, including the name.
    pub(crate) fn allowed_word_counts(&self) -> RangeInclusive<usize> {
        let arity = usize::from(self.arity.unsigned_abs());
        arity..=if self.arity < 0 { usize::MAX } else { arity }
    }

    /// Returns all ACL categories: the command's own and those implied by flags.
    #[must_use]
    pub fn categories(&self) -> Categories {
        let mut categories = self.explicit_categories;
        let implied = [
            (Flags::WRITE, Categories::WRITE),
            (Flags::READONLY, Categories::READ),
            (Flags::ADMIN, Categories::ADMIN.union(Categories::DANGEROUS)),
            (Flags::PUBSUB, Categories::PUBSUB),
            (Flags::FAST, Categories::FAST),
            (Flags::BLOCKING, Categories::BLOCKING),
        ];
        for (flag, category) in implied {
            if self.flags.contains(flag) {
                categories |= category;
            }
        }
        if self.group == Group::Scripting {
            // A read-only script is not in the @read category: each command that it calls is checked on its own.
            categories.remove(Categories::READ);
        }
        if !self.flags.contains(Flags::FAST) {
            categories |= Categories::SLOW;
        }
        categories
    }
}
