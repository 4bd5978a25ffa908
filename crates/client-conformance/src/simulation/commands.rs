//! The command table of the scripted nodes. It contains what COMMAND reports, because libraries learn the positions of
//! keys from it.

use resp::Value;

use super::bulk_reply;

/// The positions of a command's keys, counted from 1 and, if negative, from the end; all 0 for a command without keys.
#[derive(Clone, Copy)]
struct KeyPositions {
    first: i64,
    last: i64,
    step: i64,
}

/// A command's name, arity, write flag and keys.
pub(super) struct CommandSpec {
    pub(super) name: &'static str,
    arity: i64,
    pub(super) is_write: bool,
    key_positions: KeyPositions,
}

const fn command_spec(name: &'static str, arity: i64, writes: bool, keys: KeyPositions) -> CommandSpec {
    CommandSpec { name, arity, is_write: writes, key_positions: keys }
}

const ONE_KEY: KeyPositions = KeyPositions { first: 1, last: 1, step: 1 };
const ALL_KEYS: KeyPositions = KeyPositions { first: 1, last: -1, step: 1 };
const KEYS_BEFORE_TIMEOUT: KeyPositions = KeyPositions { first: 1, last: -2, step: 1 };
const KEYS_WITH_VALUES: KeyPositions = KeyPositions { first: 1, last: -1, step: 2 };
const NO_KEYS: KeyPositions = KeyPositions { first: 0, last: 0, step: 0 };

pub(super) const COMMAND_TABLE: &[CommandSpec] = &[
    command_spec("append", 3, true, ONE_KEY),
    command_spec("asking", 1, false, NO_KEYS),
    command_spec("auth", -2, false, NO_KEYS),
    command_spec("blpop", -3, true, KEYS_BEFORE_TIMEOUT),
    command_spec("brpop", -3, true, KEYS_BEFORE_TIMEOUT),
    command_spec("client", -2, false, NO_KEYS),
    command_spec("cluster", -2, false, NO_KEYS),
    command_spec("command", -1, false, NO_KEYS),
    command_spec("decr", 2, true, ONE_KEY),
    command_spec("del", -2, true, ALL_KEYS),
    command_spec("discard", 1, false, NO_KEYS),
    command_spec("echo", 2, false, NO_KEYS),
    command_spec("eval", -3, false, NO_KEYS),
    command_spec("evalsha", -3, false, NO_KEYS),
    command_spec("exec", 1, false, NO_KEYS),
    command_spec("exists", -2, false, ALL_KEYS),
    command_spec("get", 2, false, ONE_KEY),
    command_spec("hello", -1, false, NO_KEYS),
    command_spec("incr", 2, true, ONE_KEY),
    command_spec("incrby", 3, true, ONE_KEY),
    command_spec("info", -1, false, NO_KEYS),
    command_spec("llen", 2, false, ONE_KEY),
    command_spec("lpop", 2, true, ONE_KEY),
    command_spec("lpush", -3, true, ONE_KEY),
    command_spec("lrange", 4, false, ONE_KEY),
    command_spec("mget", -2, false, ALL_KEYS),
    command_spec("mset", -3, true, KEYS_WITH_VALUES),
    command_spec("multi", 1, false, NO_KEYS),
    command_spec("ping", -1, false, NO_KEYS),
    command_spec("psubscribe", -2, false, NO_KEYS),
    command_spec("publish", 3, false, NO_KEYS),
    command_spec("quit", -1, false, NO_KEYS),
    command_spec("readonly", 1, false, NO_KEYS),
    command_spec("readwrite", 1, false, NO_KEYS),
    command_spec("role", 1, false, NO_KEYS),
    command_spec("rpop", 2, true, ONE_KEY),
    command_spec("rpush", -3, true, ONE_KEY),
    command_spec("script", -2, false, NO_KEYS),
    command_spec("select", 2, false, NO_KEYS),
    command_spec("sentinel", -2, false, NO_KEYS),
    command_spec("set", -3, true, ONE_KEY),
    command_spec("spublish", 3, false, ONE_KEY),
    command_spec("ssubscribe", -2, false, ALL_KEYS),
    command_spec("strlen", 2, false, ONE_KEY),
    command_spec("subscribe", -2, false, NO_KEYS),
    command_spec("sunsubscribe", -1, false, ALL_KEYS),
    command_spec("unsubscribe", -1, false, NO_KEYS),
    command_spec("unwatch", 1, false, NO_KEYS),
    command_spec("watch", -2, false, ALL_KEYS),
];

pub(super) fn find_command(name: &str) -> Option<&'static CommandSpec> {
    COMMAND_TABLE.iter().find(|row| row.name.eq_ignore_ascii_case(name))
}

impl CommandSpec {
    /// Returns the keys of a command. `args` includes the command's name.
    pub(super) fn keys<'a>(&self, args: &'a [String]) -> Vec<&'a String> {
        let KeyPositions { first, last, step } = self.key_positions;
        if self.runs_script() {
            let count = args.get(2).and_then(|count| count.parse().ok()).unwrap_or(0);
            return args.iter().skip(3).take(count).collect();
        }
        if first == 0 {
            return Vec::new();
        }
        let end = if last < 0 { args.len() as i64 + last } else { last };
        (first..=end).step_by(step as usize).filter_map(|place| args.get(place as usize)).collect()
    }

    /// Returns whether the command runs a script. Such a command has an argument `numkeys`, the number of its keys.
    pub(super) fn runs_script(&self) -> bool {
        matches!(self.name, "eval" | "evalsha")
    }

    /// Returns whether the command may block.
    pub(super) fn may_block(&self) -> bool {
        matches!(self.name, "blpop" | "brpop")
    }

    /// Returns whether the command accepts `count` arguments, including its name.
    pub(super) fn accepts_argument_count(&self, count: usize) -> bool {
        let count = count as i64;
        if self.arity < 0 { count >= -self.arity } else { count == self.arity }
    }

    /// Returns the entry of the command in the COMMAND reply.
    pub(super) fn command_info(&self) -> Value {
        let KeyPositions { first, last, step } = self.key_positions;
        let mut flags = vec![Value::Simple(if self.is_write { "write" } else { "readonly" }.to_owned())];
        match self.name {
            _ if self.may_block() => flags.push(Value::Simple("blocking".to_owned())),
            _ if self.runs_script() => {
                flags = ["noscript", "movablekeys"].map(|flag| Value::Simple(flag.to_owned())).into();
            }
            "subscribe" | "psubscribe" | "ssubscribe" | "unsubscribe" | "sunsubscribe" | "publish"
            | "spublish" => {
                flags = vec![Value::Simple("pubsub".to_owned())];
            }
            _ if first == 0 => flags = vec![Value::Simple("fast".to_owned())],
            _ => {}
        }
        Value::Array(vec![
            bulk_reply(self.name),
            Value::Integer(self.arity),
            Value::Set(flags),
            Value::Integer(first),
            Value::Integer(last),
            Value::Integer(step),
            Value::Set(Vec::new()),
            Value::Array(Vec::new()),
            Value::Array(Vec::new()),
            Value::Array(Vec::new()),
        ])
    }
}

/// Executes COMMAND and its subcommands, by which libraries find the keys of commands.
pub(super) fn command_table_reply(args: &[String]) -> Value {
    match args.get(1).map(|word| word.to_ascii_uppercase()).as_deref() {
        None => Value::Array(COMMAND_TABLE.iter().map(CommandSpec::command_info).collect()),
        Some("COUNT") => Value::Integer(COMMAND_TABLE.len() as i64),
        Some("DOCS") => Value::Map(Vec::new()),
        Some("INFO") => Value::Array(
            args[2..]
                .iter()
                .map(|name| find_command(name).map_or(Value::Null, CommandSpec::command_info))
                .collect(),
        ),
        Some(other) => Value::Error(format!("ERR unknown subcommand '{other}'.")),
    }
}

/// Returns the first key of a command.
pub(crate) fn first_key(args: &[String]) -> Option<&String> {
    find_command(args.first()?)?.keys(args).into_iter().next()
}

/// Returns whether a command may block.
#[must_use]
pub fn may_block(args: &[String]) -> bool {
    args.first().and_then(|name| find_command(name)).is_some_and(CommandSpec::may_block)
}

/// Returns a script that calls the command `args`, with the keys and arguments to pass to it.
#[must_use]
pub fn script_that_calls(args: &[String]) -> (String, Vec<String>, Vec<String>) {
    let keys: Vec<String> =
        find_command(&args[0]).map_or_else(Vec::new, |row| row.keys(args).into_iter().cloned().collect());
    let mut calls = format!("return redis.call('{}'", args[0]);
    let mut others = Vec::new();
    for word in &args[1..] {
        match keys.iter().position(|key| key == word) {
            Some(place) => calls += &format!(", KEYS[{}]", place + 1),
            None => {
                others.push(word.clone());
                calls += &format!(", ARGV[{}]", others.len());
            }
        }
    }
    (calls + ")", keys, others)
}

/// Returns whether a command changes data.
#[must_use]
pub fn is_write(args: &[String]) -> bool {
    args.first().and_then(|name| find_command(name)).is_some_and(|row| row.is_write)
}
