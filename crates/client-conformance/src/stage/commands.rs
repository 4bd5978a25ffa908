//! The commands that scripted nodes know, as COMMAND lists them: libraries read where the keys are from it.

use resp::Value;

use super::bulk;

/// A command's name, arity, whether it writes, and its first and last key and the step between.
pub(super) struct Row {
    pub(super) name: &'static str,
    arity: i64,
    pub(super) writes: bool,
    keys: (i64, i64, i64),
}

const fn row(name: &'static str, arity: i64, writes: bool, keys: (i64, i64, i64)) -> Row {
    Row { name, arity, writes, keys }
}

const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const NONE: (i64, i64, i64) = (0, 0, 0);

pub(super) const TABLE: &[Row] = &[
    row("append", 3, true, ONE),
    row("asking", 1, false, NONE),
    row("auth", -2, false, NONE),
    row("blpop", -3, true, (1, -2, 1)),
    row("brpop", -3, true, (1, -2, 1)),
    row("client", -2, false, NONE),
    row("cluster", -2, false, NONE),
    row("command", -1, false, NONE),
    row("decr", 2, true, ONE),
    row("del", -2, true, ALL),
    row("discard", 1, false, NONE),
    row("echo", 2, false, NONE),
    row("eval", -3, false, NONE),
    row("evalsha", -3, false, NONE),
    row("exec", 1, false, NONE),
    row("exists", -2, false, ALL),
    row("get", 2, false, ONE),
    row("hello", -1, false, NONE),
    row("incr", 2, true, ONE),
    row("incrby", 3, true, ONE),
    row("info", -1, false, NONE),
    row("llen", 2, false, ONE),
    row("lpop", 2, true, ONE),
    row("lpush", -3, true, ONE),
    row("lrange", 4, false, ONE),
    row("mget", -2, false, ALL),
    row("mset", -3, true, (1, -1, 2)),
    row("multi", 1, false, NONE),
    row("ping", -1, false, NONE),
    row("psubscribe", -2, false, NONE),
    row("publish", 3, false, NONE),
    row("quit", -1, false, NONE),
    row("readonly", 1, false, NONE),
    row("readwrite", 1, false, NONE),
    row("role", 1, false, NONE),
    row("rpop", 2, true, ONE),
    row("rpush", -3, true, ONE),
    row("script", -2, false, NONE),
    row("select", 2, false, NONE),
    row("sentinel", -2, false, NONE),
    row("set", -3, true, ONE),
    row("spublish", 3, false, ONE),
    row("ssubscribe", -2, false, ALL),
    row("strlen", 2, false, ONE),
    row("subscribe", -2, false, NONE),
    row("sunsubscribe", -1, false, ALL),
    row("unsubscribe", -1, false, NONE),
    row("unwatch", 1, false, NONE),
    row("watch", -2, false, ALL),
];

pub(super) fn find(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name.eq_ignore_ascii_case(name))
}

impl Row {
    /// The keys among these arguments, the first of which is the command's name.
    pub(super) fn keys<'a>(&self, args: &'a [String]) -> Vec<&'a String> {
        let (first, last, step) = self.keys;
        if self.runs_scripts() {
            let count = args.get(2).and_then(|count| count.parse().ok()).unwrap_or(0);
            return args.iter().skip(3).take(count).collect();
        }
        if first == 0 {
            return Vec::new();
        }
        let end = if last < 0 { args.len() as i64 + last } else { last };
        (first..=end).step_by(step as usize).filter_map(|place| args.get(place as usize)).collect()
    }

    /// Whether it runs a script, whose keys are counted by an argument.
    pub(super) fn runs_scripts(&self) -> bool {
        matches!(self.name, "eval" | "evalsha")
    }

    /// Whether it may wait for another client.
    pub(super) fn waits(&self) -> bool {
        matches!(self.name, "blpop" | "brpop")
    }

    /// Whether it may have so many arguments, its name among them.
    pub(super) fn takes(&self, count: usize) -> bool {
        let count = count as i64;
        if self.arity < 0 { count >= -self.arity } else { count == self.arity }
    }

    /// Its row in COMMAND.
    pub(super) fn told(&self) -> Value {
        let (first, last, step) = self.keys;
        let mut flags = vec![Value::Simple(if self.writes { "write" } else { "readonly" }.to_owned())];
        match self.name {
            _ if self.waits() => flags.push(Value::Simple("blocking".to_owned())),
            _ if self.runs_scripts() => {
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
            bulk(self.name),
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

/// COMMAND and its subcommands.
pub(super) fn command(args: &[String]) -> Value {
    match args.get(1).map(|word| word.to_ascii_uppercase()).as_deref() {
        None => Value::Array(TABLE.iter().map(Row::told).collect()),
        Some("COUNT") => Value::Integer(TABLE.len() as i64),
        Some("DOCS") => Value::Map(Vec::new()),
        Some("INFO") => {
            Value::Array(args[2..].iter().map(|name| find(name).map_or(Value::Null, Row::told)).collect())
        }
        Some(other) => Value::Error(format!("ERR unknown subcommand '{other}'.")),
    }
}

/// The first key of a command.
pub(crate) fn first_key(args: &[String]) -> Option<&String> {
    find(args.first()?)?.keys(args).into_iter().next()
}

/// Whether a command may wait for another client.
#[must_use]
pub fn waits(args: &[String]) -> bool {
    args.first().and_then(|name| find(name)).is_some_and(Row::waits)
}

/// The text of a script that calls this one command, with the keys and the arguments that it is to be given.
#[must_use]
pub fn script_calling(args: &[String]) -> (String, Vec<String>, Vec<String>) {
    let keys: Vec<String> =
        find(&args[0]).map_or_else(Vec::new, |row| row.keys(args).into_iter().cloned().collect());
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

/// Whether a command changes data.
#[must_use]
pub fn is_write(args: &[String]) -> bool {
    args.first().and_then(|name| find(name)).is_some_and(|row| row.writes)
}
