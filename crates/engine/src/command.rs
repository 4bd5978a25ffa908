//! Commands: their rows of the table, and the state that their handlers work with.
//!
//! A row has a handler, a handler takes a [`Context`], and a context can be asked for all commands that there are
//! ([`Commands`]): so these lie together. The state of the server lies below, and knows commands by their numbers
//! alone; whatever runs them lies above.
//!
//! The table is data: routing, COMMAND, access control, statistics and tests all read it, and there is
//! no second list of commands anywhere. Facts (arity, flags, key places) are those of the Redis and
//! Valkey command surface; summaries are ours.

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
use crate::scripting::ScriptCall;
use crate::shell_commands::{NodeCommand, ShellCommand};
use crate::waiting::Outcome;
pub(crate) use caller::Caller;
pub use commands::Commands;
pub use context::Context;
pub use context::names::FEW_KEYS;
pub use context::pinned::PinnedValues;
pub(crate) use estimate::Estimate;
pub use estimate::Estimated;
pub use registry::{Registered, Registry, RenameError};
pub use shell::Shell;

bitflags! {
    /// The properties of a command and the states in which it may run, as COMMAND INFO names them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// May change data.
        const WRITE = 1;
        /// Reads data.
        const READONLY = 1 << 1;
        /// Refused when memory is over its limit.
        const DENYOOM = 1 << 2;
        /// For operators.
        const ADMIN = 1 << 3;
        /// About channels.
        const PUBSUB = 1 << 4;
        /// Not within scripts.
        const NOSCRIPT = 1 << 5;
        /// May wait.
        const BLOCKING = 1 << 6;
        /// Runs while data is being loaded.
        const LOADING = 1 << 7;
        /// Runs on a replica that has lost its master and must not serve old data.
        const STALE = 1 << 8;
        /// Not shown by MONITOR.
        const SKIP_MONITOR = 1 << 9;
        /// Not kept among the slow and the large.
        const SKIP_COMMANDLOG = 1 << 10;
        /// Stands for ASKING before it.
        const ASKING = 1 << 11;
        /// Takes constant or logarithmic time.
        const FAST = 1 << 12;
        /// Runs before authentication.
        const NO_AUTH = 1 << 13;
        /// May be logged though it changes no key.
        const MAY_REPLICATE = 1 << 14;
        /// May come without keys.
        const NO_MANDATORY_KEYS = 1 << 15;
        /// Needs a permission of its own in the configuration.
        const PROTECTED = 1 << 16;
        /// Not while a snapshot is loaded beside the data.
        const NO_ASYNC_LOADING = 1 << 17;
        /// Not within a transaction.
        const NO_MULTI = 1 << 18;
        /// Runs while a script keeps the server busy.
        const ALLOW_BUSY = 1 << 19;
        /// Touches keys that it does not name.
        const TOUCHES_ARBITRARY_KEYS = 1 << 20;
        /// Touches every database.
        const ALL_DBS = 1 << 21;
        /// Is not queued after MULTI but runs at once.
        const AT_ONCE = 1 << 22;
        /// Takes no longer than its arguments are long, as [`Flags::FAST`] does, though it is not called so.
        const BRIEF = 1 << 23;
        /// A sentinel has it, too.
        const SENTINEL = 1 << 24;
        /// A subscriber may say it in version 2 of the protocol.
        const WHILE_LISTENING = 1 << 25;
        /// A master says it to its replicas, though it changes no data.
        const LINK = 1 << 26;
    }
}

/// The chapter of the documentation that a command belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Keys, whatever they hold.
    Generic,
    /// Strings.
    String,
    /// Hashes.
    Hash,
    /// Lists.
    List,
    /// Sets.
    Set,
    /// Sorted sets.
    SortedSet,
    /// Streams.
    Stream,
    /// Strings as rows of bits.
    Bitmap,
    /// Sketches that count what is different.
    Hyperloglog,
    /// Places on the earth.
    Geo,
    /// Scripts and functions.
    Scripting,
    /// The connection itself.
    Connection,
    /// The server.
    Server,
    /// The cluster.
    Cluster,
    /// Masters and replicas.
    Replication,
    /// MULTI and what belongs to it.
    Transactions,
    /// Channels.
    Pubsub,
    /// Sentinels.
    Sentinel,
}

impl Group {
    /// The name that COMMAND DOCS uses.
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

/// A handler: reads its arguments from the context, writes one reply, or fails with nothing changed.
pub(crate) type Handler = fn(&mut Context<'_>) -> Result<(), CommandError>;

/// The same for a command that may wait: says whether it does.
pub(crate) type BlockingHandler = fn(&mut Context<'_>) -> Result<Outcome, CommandError>;

/// Finds what a command is to run of scripts and functions.
pub(crate) type ScriptHandler = fn(&mut Context<'_>) -> Result<ScriptCall, CommandError>;

/// The part of the program that carries a command out.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// The engine, at once, under the locks of the slots that the key specs name.
    Here(Handler),
    /// The same, and it may wait for its keys. Of [`Flags::BLOCKING`].
    MayBlock(BlockingHandler),
    /// The engine, and it runs others: a script.
    Script(ScriptHandler),
    /// The shell, at once: it needs a file or something that the engine does not know.
    Shell(ShellCommand),
    /// The client's connection: it waits for more than keys.
    Node(NodeCommand),
    /// The engine: the commands that this client has queued.
    Exec,
    /// Only its subcommands can be run.
    Container,
}

/// Which slots a command works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those of its keys, locked before it runs.
    Keys,
    /// Any, one after another, each locked only while the command is at it. Its keys, if it has some, only say where it
    /// is routed.
    EachSlot,
    /// All, locked before it runs.
    AllSlots,
    /// Those of its keys, and of keys that it names by patterns while it runs.
    Patterns,
    /// That of its first argument, though that is no key: so that what it logs has its place in the log's
    /// order. Only where the log has it, which is without cluster mode.
    FirstArgument,
    /// The one whose number is its second argument, whoever serves it; in a transaction or a script, all.
    NamedSlot,
}

/// Which of a command's words name channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// None.
    None,
    /// The first behind its name.
    First,
    /// All behind its name.
    All,
    /// The same, and they are patterns.
    Patterns,
}

/// Which databases a command works in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Databases {
    /// The one that the client has selected, if it is about keys.
    OfSession,
    /// Those that these words name, and no other.
    Only(&'static [usize]),
    /// The one that the first argument names, which the client selects.
    Selected,
    /// The client's, and the one that this word names.
    Also(usize),
}

/// One command, or one subcommand of a container.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Lower case. A subcommand has only its own word.
    pub name: &'static str,
    /// The version of Redis that first had it.
    pub since: &'static str,
    /// One line on its effect, for COMMAND DOCS.
    pub summary: &'static str,
    /// Its chapter of the documentation.
    pub group: Group,
    /// Number of words, the name included; at least `-arity` where negative.
    pub arity: i8,
    /// Its properties and the states in which it may run.
    pub flags: Flags,
    /// Those that flags do not imply; see [`Command::categories`].
    pub own_categories: Categories,
    /// Where its keys stand, as COMMAND INFO describes it.
    pub keys: &'static [KeySpec],
    /// Finds the keys where the key specs cannot: they depend on option words.
    parse_keys: Option<ParseKeys>,
    /// How far behind its only key stands the word that mostly names a part of that key's value (a field), if one does:
    /// a hint for what to touch ahead.
    pub part: Option<u8>,
    /// The channels that a user must be allowed to hear or to speak on.
    pub channels: Channels,
    /// The databases that a user must be allowed to work in.
    pub databases: Databases,
    /// Hints for clients and proxies.
    pub tips: &'static [&'static str],
    /// The part of the program that carries it out.
    pub run: Run,
    /// Which slots it needs.
    pub reach: Reach,
    /// Its subcommands, if it is a container.
    pub subcommands: &'static [Command],
    /// The use that a request makes of a key of [`KeyFlags::VARIABLE_FLAGS`].
    key_use: Option<KeyUse>,
    /// About how long a request takes, of a command that may take long.
    pub(crate) estimate: Option<Estimate>,
    /// Whether a request lets others have its slots soon, when it runs long.
    pub(crate) gives_way: Option<fn(Args<'_>) -> bool>,
}

/// Returns the use that a request makes of a key.
pub(crate) type KeyUse = fn(Args<'_>) -> KeyFlags;

impl Command {
    /// A row without keys, flags or handler; the other methods fill it in.
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
            own_categories: Categories::empty(),
            keys: &[],
            parse_keys: None,
            part: None,
            channels: Channels::None,
            databases: Databases::OfSession,
            tips: &[],
            run: Run::Container,
            reach: Reach::Keys,
            subcommands: &[],
            key_use: None,
            estimate: None,
            gives_way: None,
        }
    }

    /// With these flags, too.
    #[must_use]
    pub const fn flags(mut self, flags: Flags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }

    /// In these categories, too.
    #[must_use]
    pub const fn category(mut self, categories: Categories) -> Self {
        self.own_categories = self.own_categories.union(categories);
        self
    }

    /// With keys that stand there.
    #[must_use]
    pub const fn keys(mut self, keys: &'static [KeySpec]) -> Self {
        self.keys = keys;
        self
    }

    /// With keys that this parser finds, whatever the key specs say.
    #[must_use]
    pub const fn parse_keys(mut self, parse: ParseKeys) -> Self {
        self.parse_keys = Some(parse);
        self
    }

    /// The word behind the key names a part of its value.
    #[must_use]
    pub const fn names_part(self) -> Self {
        self.names_part_at(1)
    }

    /// The word so many behind the key names a part of its value.
    #[must_use]
    pub const fn names_part_at(mut self, behind: u8) -> Self {
        self.part = Some(behind);
        self
    }

    /// With channels that stand there.
    #[must_use]
    pub const fn channels(mut self, channels: Channels) -> Self {
        self.channels = channels;
        self
    }

    /// In these databases.
    #[must_use]
    pub const fn databases(mut self, databases: Databases) -> Self {
        self.databases = databases;
        self
    }

    /// A sentinel has it, too.
    #[must_use]
    pub const fn sentinel(mut self) -> Self {
        self.flags = self.flags.union(Flags::SENTINEL);
        self
    }

    /// With these hints.
    #[must_use]
    pub const fn tips(mut self, tips: &'static [&'static str]) -> Self {
        self.tips = tips;
        self
    }

    /// Run by the engine.
    #[must_use]
    pub const fn run(mut self, handler: Handler) -> Self {
        self.run = Run::Here(handler);
        self
    }

    /// Works on any slot, one after another.
    #[must_use]
    pub const fn each_slot(mut self) -> Self {
        self.reach = Reach::EachSlot;
        self
    }

    /// Is logged in the order of its first argument's slot.
    #[must_use]
    pub const fn first_argument(mut self) -> Self {
        self.reach = Reach::FirstArgument;
        self
    }

    /// Works on the slot whose number is its second argument.
    #[must_use]
    pub const fn named_slot(mut self) -> Self {
        self.reach = Reach::NamedSlot;
        self
    }

    /// Works on all slots at once.
    #[must_use]
    pub const fn all_slots(mut self) -> Self {
        self.reach = Reach::AllSlots;
        self
    }

    /// Works on keys that patterns among its words name.
    #[must_use]
    pub const fn patterns(mut self) -> Self {
        self.reach = Reach::Patterns;
        self
    }

    /// Whether words of a request are patterns that name keys while it runs.
    pub(crate) fn names_keys_later(&self, args: Args<'_>) -> bool {
        self.reach == Reach::Patterns && args.iter().skip(2).any(|word| word.contains(&b'*'))
    }

    /// Runs what was queued.
    #[must_use]
    pub const fn exec(mut self) -> Self {
        self.run = Run::Exec;
        self
    }

    /// Run by the shell, at once.
    #[must_use]
    pub const fn shell(mut self, command: ShellCommand) -> Self {
        self.run = Run::Shell(command);
        self
    }

    /// Run by the client's connection.
    #[must_use]
    pub const fn node(mut self, command: NodeCommand) -> Self {
        self.run = Run::Node(command);
        self
    }

    /// Run by the engine, and may wait.
    #[must_use]
    pub const fn may_block(mut self, handler: BlockingHandler) -> Self {
        self.flags = self.flags.union(Flags::BLOCKING);
        self.run = Run::MayBlock(handler);
        self
    }

    /// Run by the engine, and runs other commands.
    #[must_use]
    pub const fn script(mut self, handler: ScriptHandler) -> Self {
        self.run = Run::Script(handler);
        self
    }

    /// With these subcommands.
    #[must_use]
    pub const fn subcommands(mut self, subcommands: &'static [Command]) -> Self {
        self.subcommands = subcommands;
        self
    }

    /// Does with its key what this function finds in a request.
    #[must_use]
    pub const fn key_use(mut self, key_use: KeyUse) -> Self {
        self.key_use = Some(key_use);
        self
    }

    /// May take as long as this function says of a request: a long one runs on a background worker.
    #[must_use]
    pub const fn long(mut self, estimate: Estimate) -> Self {
        self.estimate = Some(estimate);
        self
    }

    /// The same of one that then reads what it [pinned](Context::pin): who wants its slots need not go behind it.
    #[must_use]
    pub const fn long_beside_others(self, estimate: Estimate) -> Self {
        self.long(estimate).gives_way(|_| true)
    }

    /// Requests of which this function says so do that.
    #[must_use]
    pub const fn gives_way(mut self, does: fn(Args<'_>) -> bool) -> Self {
        self.gives_way = Some(does);
        self
    }

    /// The use that a request makes of the keys that a spec finds in it.
    fn key_flags(&self, spec: &KeySpec, args: Args<'_>) -> KeyFlags {
        match self.key_use {
            Some(key_use) if spec.flags.contains(KeyFlags::VARIABLE_FLAGS) => key_use(args),
            _ => spec.flags.difference(KeyFlags::VARIABLE_FLAGS),
        }
    }

    /// Visits each key in `args`: its place, and the use that the command makes of it.
    pub fn visit_keys(&self, args: Args<'_>, visit: &mut impl FnMut(usize, KeyFlags)) {
        if let Some(parse) = self.parse_keys {
            return parse(args).iter().for_each(|(index, flags)| visit(index, flags));
        }
        for spec in self.keys {
            let flags = self.key_flags(spec, args);
            spec.visit(args, &mut |index| visit(index, flags));
        }
    }

    /// Whether argument `index` is one of the keys of `args`, as [`Command::visit_keys`] finds them.
    pub(crate) fn declares(&self, args: Args<'_>, index: usize) -> bool {
        let mut found = false;
        self.visit_keys(args, &mut |place, _| found |= place == index);
        found
    }

    /// Whether the places of its keys depend on option words.
    #[must_use]
    pub fn has_key_parser(&self) -> bool {
        self.parse_keys.is_some()
    }

    /// The databases that a request names, beside the client's own or in its place. One that is no number, or is not
    /// there, is left out: the command refuses it.
    pub(crate) fn databases_named(&self, args: Args<'_>, databases: u16) -> SmallVec<[u16; 2]> {
        let number = |place: &usize| args.get(*place).and_then(resp::parse_i64);
        let named: SmallVec<[Option<i64>; 2]> = match self.databases {
            Databases::OfSession => {
                let parsed = self.parse_keys.map(|parse| parse(args)).unwrap_or_default();
                parsed.named_databases().iter().copied().map(Some).collect()
            }
            Databases::Only(places) => places.iter().map(number).collect(),
            Databases::Selected => std::iter::once(number(&1)).collect(),
            Databases::Also(place) => std::iter::once(number(&place)).collect(),
        };
        let valid = |number: &Option<i64>| u16::try_from((*number)?).ok().filter(|db| *db < databases);
        let valid: Option<_> = named.iter().map(valid).collect();
        valid.unwrap_or_default()
    }

    /// The database that a request selects for those behind it.
    pub(crate) fn selects(&self, args: Args<'_>, databases: u16) -> Option<u16> {
        let selected = self.databases == Databases::Selected;
        selected.then(|| self.databases_named(args, databases).first().copied()).flatten()
    }

    /// Whether a request puts a key into another database than the client's.
    pub(crate) fn crosses_databases(&self, args: Args<'_>) -> bool {
        let names = |parse: ParseKeys| !parse(args).named_databases().is_empty();
        matches!(self.databases, Databases::Also(_)) || self.parse_keys.is_some_and(names)
    }

    /// Whether a request of that many words fits the arity.
    #[must_use]
    pub fn accepts(&self, words: usize) -> bool {
        self.words().contains(&words)
    }

    /// How many words a request may have, the command's name among them.
    pub(crate) fn words(&self) -> RangeInclusive<usize> {
        let arity = usize::from(self.arity.unsigned_abs());
        arity..=if self.arity < 0 { usize::MAX } else { arity }
    }

    /// All its access control categories: its own and those that its flags imply.
    #[must_use]
    pub fn categories(&self) -> Categories {
        let mut categories = self.own_categories;
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
            // Each call of a script is asked about by itself; that a script only reads is no right to run it.
            categories.remove(Categories::READ);
        }
        if !self.flags.contains(Flags::FAST) {
            categories |= Categories::SLOW;
        }
        categories
    }
}
