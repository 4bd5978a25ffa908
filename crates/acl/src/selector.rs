//! Selectors: a set of rules for commands, keys and channels.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::catalogue::{CommandCatalogue, CommandId};
use crate::category::Categories;
use crate::rule_error::RuleError;

/// The parts of a request that access control checks.
#[derive(Debug, Clone, Default)]
pub struct AclRequest<'a> {
    /// The command to run, or `None` if every user may run it (AUTH, HELLO, QUIT).
    pub command: Option<CommandId>,
    /// The argument after the command name, for rules that permit only one first argument.
    pub first_argument: Option<&'a [u8]>,
    /// The keys that the command accesses, with the kind of access.
    pub keys: SmallVec<[AccessedKey<'a>; 4]>,
    /// The channels that the command publishes or subscribes to.
    pub channels: SmallVec<[AccessedChannel<'a>; 4]>,
    /// The databases that the request accesses.
    pub databases: AccessedDatabases,
}

/// The databases that a request accesses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AccessedDatabases {
    /// The request does not access any database.
    #[default]
    Nothing,
    /// The request accesses only these databases.
    Some(SmallVec<[u32; 2]>),
    /// The request accesses every database, like FLUSHALL.
    All,
}

/// A key of a request.
#[derive(Debug, Clone, Copy)]
pub struct AccessedKey<'a> {
    /// The full key as sent by the client.
    pub name: &'a [u8],
    /// Whether the command reads the key, writes it, or both.
    pub access: KeyAccess,
}

/// The kind of access to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyAccess {
    /// The command returns or uses the value.
    pub reads: bool,
    /// The command changes or deletes the value.
    pub writes: bool,
}

/// A channel of a request.
#[derive(Debug, Clone, Copy)]
pub struct AccessedChannel<'a> {
    /// The channel name, or the pattern of PSUBSCRIBE.
    pub name: &'a [u8],
    /// Whether `name` is a pattern (PSUBSCRIBE).
    pub is_pattern: bool,
}

/// Why a request is denied. Variants are ordered: later ones got closer to being allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// The database that is not permitted, or `None` if the request needs all databases.
    Database(Option<u32>),
    /// The command itself is not permitted.
    Command,
    /// The key with this index in [`AclRequest::keys`].
    Key(usize),
    /// The channel with this index in [`AclRequest::channels`].
    Channel(usize),
}

/// The permitted keys or channels.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PermittedPatterns<P> {
    All,
    Some(Vec<P>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyPattern {
    pattern: Vec<u8>,
    access: KeyAccess,
}

impl KeyPattern {
    /// Formats the pattern as a rule.
    fn format_rule(&self) -> Vec<u8> {
        let prefix: &[u8] = match (self.access.reads, self.access.writes) {
            (true, true) => b"~",
            (true, false) => b"%R~",
            (false, _) => b"%W~",
        };
        [prefix, &self.pattern].concat()
    }
}

/// The commands that a rule covers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RuleTarget {
    Category(Categories),
    Command(CommandId),
    /// The command with only this first argument, as in `+select|0`.
    FirstArgument(CommandId, Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CommandRule {
    is_allowed: bool,
    target: RuleTarget,
    target_text: String,
}

/// A set of rules that together decide which requests are permitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AclSelector {
    /// Whether commands without a matching rule are allowed: `+@all` or `-@all`.
    allows_by_default: bool,
    rules: Vec<CommandRule>,
    /// The effective permission per command index; empty until there are rules.
    allowed_commands: Vec<bool>,
    first_arguments: BTreeMap<CommandId, BTreeSet<Vec<u8>>>,
    keys: PermittedPatterns<KeyPattern>,
    channels: PermittedPatterns<Vec<u8>>,
    /// The permitted databases; `None` means all.
    databases: Option<BTreeSet<u32>>,
}

/// The catalogue and the setting that are needed to parse rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleContext<'a> {
    pub(crate) catalogue: &'a CommandCatalogue,
    /// Whether all channels are permitted unless a rule names some (`acl-pubsub-default`).
    pub(crate) all_channels_by_default: bool,
}

impl AclSelector {
    /// A selector that permits no commands and no keys.
    pub(crate) fn new(all_channels_by_default: bool) -> Self {
        Self {
            allows_by_default: false,
            rules: Vec::new(),
            allowed_commands: Vec::new(),
            first_arguments: BTreeMap::new(),
            keys: PermittedPatterns::Some(Vec::new()),
            channels: if all_channels_by_default {
                PermittedPatterns::All
            } else {
                PermittedPatterns::Some(Vec::new())
            },
            databases: None,
        }
    }

    /// Whether the selector permits every command, key, channel and database.
    pub(crate) fn permits_everything(&self) -> bool {
        self.allows_by_default
            && self.rules.is_empty()
            && self.keys == PermittedPatterns::All
            && self.channels == PermittedPatterns::All
            && self.databases.is_none()
    }

    /// Whether the selector permits reading every key.
    pub(crate) fn permits_reading_all_keys(&self) -> bool {
        let PermittedPatterns::Some(patterns) = &self.keys else { return true };
        patterns.iter().any(|known| known.access.reads && known.pattern == b"*")
    }

    /// Applies one rule. Returns `None` if the rule is not about commands, keys, channels or databases.
    pub(crate) fn apply_rule(
        &mut self,
        context: RuleContext<'_>,
        rule: &[u8],
    ) -> Option<Result<(), RuleError>> {
        let word = rule.to_ascii_lowercase();
        match word.as_slice() {
            b"allcommands" | b"+@all" => self.set_allows_by_default(true),
            b"nocommands" | b"-@all" => self.set_allows_by_default(false),
            b"allkeys" | b"~*" => self.keys = PermittedPatterns::All,
            b"resetkeys" => self.keys = PermittedPatterns::Some(Vec::new()),
            b"allchannels" | b"&*" => self.channels = PermittedPatterns::All,
            b"resetchannels" => self.channels = PermittedPatterns::Some(Vec::new()),
            b"alldbs" => self.databases = None,
            b"resetdbs" => self.databases = Some(BTreeSet::new()),
            [b'd', b'b', b'=', numbers @ ..] => return Some(self.set_databases(numbers)),
            _ => {
                return match rule.split_first()? {
                    (b'~' | b'%', _) => Some(self.add_key_pattern(rule)),
                    (b'&', pattern) => Some(self.add_channel_pattern(pattern)),
                    (b'+' | b'-', target) => Some(self.add_rule(context.catalogue, rule[0] == b'+', target)),
                    _ => None,
                };
            }
        }
        Some(Ok(()))
    }

    /// Parses comma-separated database numbers.
    fn set_databases(&mut self, numbers: &[u8]) -> Result<(), RuleError> {
        let mut databases = BTreeSet::new();
        for number in numbers.split(|byte| *byte == b',') {
            let number = resp::parse_i64(number).ok_or(RuleError::Syntax)?;
            let number = i32::try_from(number).ok().and_then(|number| u32::try_from(number).ok());
            databases.insert(number.ok_or(RuleError::DatabaseOutOfRange)?);
        }
        self.databases = Some(databases);
        Ok(())
    }

    fn set_allows_by_default(&mut self, allows_by_default: bool) {
        self.allows_by_default = allows_by_default;
        self.rules.clear();
        self.first_arguments.clear();
        self.allowed_commands.clear();
    }

    fn add_key_pattern(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let (access, pattern) = parse_key_pattern(rule).ok_or(RuleError::Syntax)?;
        if pattern == b"*" && access.reads && access.writes {
            self.keys = PermittedPatterns::All;
            return Ok(());
        }
        let PermittedPatterns::Some(patterns) = &mut self.keys else {
            return Err(RuleError::KeyPatternAfterAllKeys);
        };
        match patterns.iter_mut().find(|known| known.pattern == pattern) {
            Some(known) => {
                known.access = KeyAccess {
                    reads: known.access.reads || access.reads,
                    writes: known.access.writes || access.writes,
                };
            }
            None => patterns.push(KeyPattern { pattern: pattern.to_vec(), access }),
        }
        Ok(())
    }

    fn add_channel_pattern(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if contains_blank(pattern) {
            return Err(RuleError::Syntax);
        }
        let PermittedPatterns::Some(patterns) = &mut self.channels else {
            return Err(RuleError::ChannelPatternAfterAllChannels);
        };
        if !patterns.iter().any(|known| known == pattern) {
            patterns.push(pattern.to_vec());
        }
        Ok(())
    }

    /// Parses the target of a `+` or `-` rule, which is a category, a command, or a command with its first argument,
    /// and adds the rule.
    fn add_rule(
        &mut self,
        catalogue: &CommandCatalogue,
        is_allowed: bool,
        target: &[u8],
    ) -> Result<(), RuleError> {
        let target = match target.strip_prefix(b"@") {
            Some(name) => RuleTarget::Category(Categories::find_by_name(name).ok_or(RuleError::UnknownName)?),
            None => parse_command(catalogue, is_allowed, target)?,
        };
        if self.allowed_commands.is_empty() {
            self.allowed_commands = vec![self.allows_by_default; catalogue.len()];
        }
        let text = match &target {
            RuleTarget::Category(category) => {
                let named = Categories::NAMES.iter().find(|(known, _)| known == category);
                format!("@{}", named.map_or("", |(_, name)| *name))
            }
            RuleTarget::Command(id) => catalogue.name(*id).to_owned(),
            RuleTarget::FirstArgument(id, word) => {
                format!("{}|{}", catalogue.name(*id), String::from_utf8_lossy(word))
            }
        };
        // Remove the earlier rules that the new rule overrides.
        self.rules.retain(|old| match (&old.target, &target) {
            (RuleTarget::Command(old), RuleTarget::Command(new)) => {
                old != new && !catalogue.subcommands(*new).contains(old)
            }
            (RuleTarget::FirstArgument(old, _), RuleTarget::Command(new)) => old != new,
            (old, new) => old != new,
        });
        self.apply_command_rule(catalogue, is_allowed, &target);
        self.rules.push(CommandRule { is_allowed, target, target_text: text });
        Ok(())
    }

    fn apply_command_rule(&mut self, catalogue: &CommandCatalogue, is_allowed: bool, target: &RuleTarget) {
        let commands: Vec<CommandId> = match target {
            RuleTarget::Category(category) => catalogue.in_category(*category).collect(),
            RuleTarget::Command(id) => {
                std::iter::once(*id).chain(catalogue.subcommands(*id).iter().copied()).collect()
            }
            RuleTarget::FirstArgument(id, word) => {
                self.first_arguments.entry(*id).or_default().insert(word.clone());
                return;
            }
        };
        for id in commands {
            self.allowed_commands[id.0] = is_allowed;
            self.first_arguments.remove(&id);
        }
    }

    /// Checks the command, databases, keys and channels of a request against the rules.
    pub(crate) fn check(&self, request: &AclRequest<'_>) -> Result<(), Denial> {
        self.check_databases(&request.databases)?;
        if let Some(id) = request.command
            && !self.allowed_commands.get(id.0).copied().unwrap_or(self.allows_by_default)
        {
            let words = self.first_arguments.get(&id);
            let first = request.first_argument.unwrap_or_default().to_ascii_lowercase();
            if !words.is_some_and(|words| words.contains(&first)) {
                return Err(Denial::Command);
            }
        }
        if let Some(place) = request.keys.iter().position(|key| !self.permits_key(key)) {
            return Err(Denial::Key(place));
        }
        if let Some(place) = request.channels.iter().position(|channel| !self.permits_channel(*channel)) {
            return Err(Denial::Channel(place));
        }
        Ok(())
    }

    fn check_databases(&self, accessed: &AccessedDatabases) -> Result<(), Denial> {
        let Some(open) = &self.databases else { return Ok(()) };
        match accessed {
            AccessedDatabases::Nothing => Ok(()),
            AccessedDatabases::Some(databases) => {
                match databases.iter().find(|database| !open.contains(database)) {
                    Some(database) => Err(Denial::Database(Some(*database))),
                    None => Ok(()),
                }
            }
            AccessedDatabases::All => Err(Denial::Database(None)),
        }
    }

    fn permits_key(&self, key: &AccessedKey<'_>) -> bool {
        let PermittedPatterns::Some(patterns) = &self.keys else { return true };
        let enough =
            |access: KeyAccess| (access.reads || !key.access.reads) && (access.writes || !key.access.writes);
        patterns.iter().any(|known| enough(known.access) && glob::matches(&known.pattern, key.name))
    }

    /// A pattern is permitted only if a rule contains exactly the same pattern, because a subscription pattern can
    /// match an unlimited number of channels.
    pub(crate) fn permits_channel(&self, channel: AccessedChannel<'_>) -> bool {
        let PermittedPatterns::Some(patterns) = &self.channels else { return true };
        patterns.iter().any(|known| {
            if channel.is_pattern { known == channel.name } else { glob::matches(known, channel.name) }
        })
    }

    /// The command rules, separated by spaces.
    pub(crate) fn format_command_rules(&self) -> String {
        let mut text = if self.allows_by_default { "+@all" } else { "-@all" }.to_owned();
        for rule in &self.rules {
            text.push_str(if rule.is_allowed { " +" } else { " -" });
            text.push_str(&rule.target_text);
        }
        text
    }

    /// The key patterns as rules.
    pub(crate) fn format_key_patterns(&self) -> Vec<u8> {
        match &self.keys {
            PermittedPatterns::All => b"~*".to_vec(),
            PermittedPatterns::Some(patterns) => {
                patterns.iter().map(KeyPattern::format_rule).collect::<Vec<_>>().join(&b' ')
            }
        }
    }

    /// The channel patterns as rules.
    pub(crate) fn format_channel_patterns(&self) -> Vec<u8> {
        match &self.channels {
            PermittedPatterns::All => b"&*".to_vec(),
            PermittedPatterns::Some(patterns) => patterns
                .iter()
                .map(|pattern| [b"&", pattern.as_slice()].concat())
                .collect::<Vec<_>>()
                .join(&b' '),
        }
    }

    /// The databases as a rule.
    pub(crate) fn format_databases(&self) -> String {
        let Some(databases) = &self.databases else { return "alldbs".to_owned() };
        if databases.is_empty() {
            return String::new();
        }
        let numbers: Vec<String> = databases.iter().map(u32::to_string).collect();
        format!("db={}", numbers.join(","))
    }

    /// All rules, in a form that recreates the selector from an empty one.
    pub(crate) fn format_rules(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = vec![self.format_key_patterns()];
        if self.channels != PermittedPatterns::All {
            parts.push(b"resetchannels".to_vec());
        }
        parts.push(self.format_channel_patterns());
        match &self.databases {
            None => {}
            Some(databases) if databases.is_empty() => parts.push(b"resetdbs".to_vec()),
            Some(_) => parts.push(self.format_databases().into_bytes()),
        }
        parts.push(self.format_command_rules().into_bytes());
        parts.retain(|part| !part.is_empty());
        parts.join(&b' ')
    }
}

fn contains_blank(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| byte.is_ascii_whitespace() || matches!(byte, 0 | 11))
}

/// Parses `~pattern`, or `%` with `R`, `W` or both before it.
fn parse_key_pattern(rule: &[u8]) -> Option<(KeyAccess, &[u8])> {
    let (mut access, mut at) = (KeyAccess { reads: true, writes: true }, 1);
    if rule[0] == b'%' {
        access = KeyAccess { reads: false, writes: false };
        // Redis also accepts a rule without a tilde, and takes its pattern as empty.
        while rule.get(at).is_some_and(|byte| *byte != b'~') {
            match rule[at].to_ascii_uppercase() {
                b'R' => access.reads = true,
                b'W' => access.writes = true,
                _ => return None,
            }
            at += 1;
        }
        at += 1;
    }
    let pattern = rule.get(at..).unwrap_or_default();
    ((access.reads || access.writes) && !contains_blank(pattern)).then_some((access, pattern))
}

fn parse_command(
    catalogue: &CommandCatalogue,
    is_allowed: bool,
    name: &[u8],
) -> Result<RuleTarget, RuleError> {
    if let Some(id) = catalogue.find(name) {
        return Ok(RuleTarget::Command(id));
    }
    let bar = name.iter().rposition(|byte| *byte == b'|').ok_or(RuleError::UnknownName)?;
    let (command, word) = (&name[..bar], &name[bar + 1..]);
    let id = catalogue.find(command).ok_or(RuleError::UnknownName)?;
    match () {
        () if !is_allowed => Err(RuleError::UnknownName),
        () if command.contains(&b'|') => Err(RuleError::FirstArgumentOfSubcommand),
        () if word.is_empty() => Err(RuleError::Syntax),
        () if !catalogue.subcommands(id).is_empty() => Err(RuleError::UnknownName),
        () => Ok(RuleTarget::FirstArgument(id, word.to_ascii_lowercase())),
    }
}
