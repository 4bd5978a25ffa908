//! DEBUG: tools for those who test the server.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use keyspace::{Found, Packed, Value};
use persistence::Dialect;

use super::digest::Digest;
use crate::command::{Command, Flags, Group, NodeCommand};
use crate::commands::generic::references;
use crate::commands::help::reply_help;
use crate::commands::rows::{LOOKS_SECOND, key};
use crate::context::Context;
use crate::error::{CommandError, until_nul};
use crate::keys::KeySpec;

const ADMIN: Flags =
    Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE).union(Flags::PROTECTED);

pub(crate) const COMMANDS: &[Command] =
    &[Command::new("debug", Group::Server, "1.0.0", -2, "Tools for those who test the server.")
        .flags(ADMIN)
        .subcommands(DEBUG)];

const fn tool(name: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, "1.0.0", arity, summary).flags(ADMIN)
}

const DEBUG: &[Command] = &[
    tool("digest", 2, "Returns a digest of all data.").run(digest).all_slots(),
    tool("digest-value", -2, "Returns digests of keys' values.")
        .keys(&[KeySpec::range(2, -1, 1, key::LOOK)])
        .run(digest_value),
    tool("change-repl-id", 2, "Gives the replication history another name.")
        .node(NodeCommand::DebugChangeReplId),
    tool("error", 3, "Replies with an error.").run(error),
    tool("help", 2, "Lists the subcommands.").run(help),
    tool("listpack", 3, "Tells how many elements a listpack has, and how many bytes DUMP makes of it.")
        .keys(LOOKS_SECOND)
        .run(listpack),
    tool("log", 3, "Writes a line into the log.").node(NodeCommand::DebugLog),
    tool("panic", 2, "Ends the server as a bug in it would.").run(panic),
    tool("protocol", 3, "Replies with a value of a type.").run(super::protocol::protocol),
    tool("object", 3, "Returns facts about a key's value.").keys(LOOKS_SECOND).run(object),
    tool("populate", -3, "Makes many keys.").run(populate).each_slot(),
    tool("quicklist", -3, "Tells how many elements and bytes each node of a list has.")
        .keys(LOOKS_SECOND)
        .run(quicklist),
    tool("quicklist-packed-threshold", 3, "Refuses a size of list nodes that could not be.")
        .run(quicklist_packed_threshold),
    tool("set-active-expire", 3, "Switches active expiry on or off.").run(set_active_expire),
    tool("reload", -2, "Saves the data to disk and loads it from there.").node(NodeCommand::DebugReload),
    tool("sleep", 3, "Makes this connection wait for so many seconds.").node(NodeCommand::DebugSleep),
    tool("stringmatch-len", 4, "Says whether a text of so many letters a matches a pattern.")
        .run(stringmatch),
];

fn digest(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mut digest = Digest::default();
    for db in 0..context.engine.keyspace.databases() {
        let mut any = false;
        let engine = context.engine;
        context.each_slot(|_, data| {
            let table = data.table(db);
            let mut keys = Vec::new();
            table.scan(0, usize::MAX, &mut |item| keys.push((item.key.to_vec(), item.expiry.is_some())));
            if !any && !keys.is_empty() {
                any = true;
                digest.mix_database(db);
            }
            for (bytes, expires) in keys {
                let key = engine.keyspace.key(&bytes);
                if let Found::Live(place) | Found::Expired(place) = table.find(&key, clock::Millis(i64::MIN))
                {
                    digest.xor_key(&bytes, &table.value(place), expires);
                }
            }
        });
    }
    context.reply.simple(&digest.to_string());
    Ok(())
}

fn digest_value(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply.array(context.args.len() - 2);
    for index in 2..context.args.len() {
        let key = context.key(index);
        let mut digest = Digest::default();
        if let Some(place) = context.peek(&key) {
            let table = context.table(&key);
            digest.mix_value(&table.value(place), table.expiry(place).is_some());
        }
        context.reply.simple(&digest.to_string());
    }
    Ok(())
}

fn panic(context: &mut Context<'_>) -> Result<(), CommandError> {
    panic!("DEBUG PANIC was called at Unix time {}", context.now.secs())
}

fn error(context: &mut Context<'_>) -> Result<(), CommandError> {
    Err(CommandError::Text(String::from_utf8_lossy(context.arg(2)).into_owned().into()))
}

/// Bytes around the value in what DUMP gives: the type before it, version and checksum behind it.
const AROUND_DUMP: usize = 1 + 2 + 8;

fn object(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2);
    let place = context.peek(&key).ok_or(CommandError::NoSuchKey)?;
    let (table, reply) = context.view_and_reply(&key);
    let value = table.value(place);
    let length = persistence::dump(&value, Dialect::Redis, true).len() - AROUND_DUMP;
    reply.simple(&format!(
        "Value at:slot-{} refcount:{} encoding:{} serializedlength:{length}",
        key.slot(),
        references(&value),
        value.encoding()
    ));
    Ok(())
}

/// Redis writes such a name into a buffer of this length, and cuts off what is longer.
const MAX_POPULATED_NAME: usize = 127;

/// DEBUG POPULATE count [prefix] [size]. As in Redis, these keys are not logged, and a key that is there
/// stays as it is.
fn populate(context: &mut Context<'_>) -> Result<(), CommandError> {
    let out_of_range = CommandError::text("ERR value is out of range, must be positive");
    let positive = |index| {
        let number = resp::parse_i64(context.arg(index)).filter(|number| *number >= 0);
        number.ok_or(out_of_range.clone())
    };
    let count = positive(2)?;
    let prefix = until_nul(context.args.get(3).unwrap_or(b"key")).to_vec();
    let size = if context.args.len() > 4 { Some(positive(4)? as usize) } else { None };
    let most = context.engine.settings.proto_max_bulk_len.load(Ordering::Relaxed);
    if context.args.len() > 5 || size.is_some_and(|size| size as u64 > most as u64) {
        return Err(CommandError::Syntax);
    }
    let (db, engine) = (context.session.db, context.engine);
    for number in 0..count {
        let mut name = prefix.clone();
        name.extend_from_slice(format!(":{number}").as_bytes());
        name.truncate(MAX_POPULATED_NAME);
        let mut value = format!("value:{number}").into_bytes();
        if let Some(size) = size {
            value.resize(size, 0);
        }
        let key = engine.keyspace.key(&name);
        context.with_slot(key.slot(), |data| {
            let table = data.table(db);
            if table.find(&key, clock::Millis(i64::MIN)) == Found::Missing {
                table.insert(&key, Packed::string(&value), None);
            }
        });
    }
    context.reply.ok();
    Ok(())
}

fn set_active_expire(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = context.arg(2) == b"1";
    context.engine.settings.active_expire.store(on, Ordering::Relaxed);
    context.reply.ok();
    Ok(())
}

fn stringmatch(context: &mut Context<'_>) -> Result<(), CommandError> {
    let len = usize::try_from(context.integer(2)?).map_err(|_| CommandError::OutOfRange)?;
    let most = context.engine.settings.proto_max_bulk_len.load(Ordering::Relaxed);
    if len as u64 > most as u64 {
        return Err(CommandError::OutOfRange);
    }
    let matches = glob::matches(context.arg(3), &vec![b'a'; len]);
    context.reply.integer(i64::from(matches));
    Ok(())
}

fn listpack(context: &mut Context<'_>) -> Result<(), CommandError> {
    const OTHER: CommandError = CommandError::text("ERR Not a listpack encoded object.");
    let key = context.key(2);
    let place = context.peek(&key).ok_or(CommandError::NoSuchKey)?;
    let (table, reply) = context.view_and_reply(&key);
    let value = table.value(place);
    if value.encoding() != "listpack" {
        return Err(OTHER);
    }
    let bytes = persistence::dump(&value, Dialect::Redis, false).len() - AROUND_DUMP;
    let len = match value {
        Value::List(list) => list.len(),
        Value::Set(set) => set.len(),
        Value::SortedSet(set) => set.len(),
        Value::Hash(hash) => hash.len(),
        Value::String(_) | Value::Stream(_) => return Err(OTHER),
    };
    reply.simple(&format!("elements:{len} serializedlength:{bytes}"));
    Ok(())
}

fn quicklist(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2);
    let place = context.peek(&key).ok_or(CommandError::NoSuchKey)?;
    let (table, reply) = context.view_and_reply(&key);
    let list = match table.value(place) {
        Value::List(list) if list.encoding() == "quicklist" => list,
        _ => return Err(CommandError::text("ERR Not a quicklist encoded object.")),
    };
    let mut text = format!("nodes:{} elements:{}", list.runs(), list.len());
    list.for_each_run(&mut |run| {
        let _ = write!(text, " {}/{}", run.len, run.entries.len());
    });
    reply.simple(&text);
    Ok(())
}

/// DEBUG QUICKLIST-PACKED-THRESHOLD size: from which size on an element of a list has a node to itself.
/// Lists whose nodes it could concern are not there; a size that could not be is still an error.
fn quicklist_packed_threshold(context: &mut Context<'_>) -> Result<(), CommandError> {
    // What Redis leaves below four gigabytes for a node's own fields.
    const MOST: u64 = (4 << 30) - (1 << 20);
    match memory_size(context.arg(2)) {
        Some(size) if size <= MOST => {
            context.reply.ok();
            Ok(())
        }
        _ => {
            Err(CommandError::text("ERR argument must be a memory value bigger than 1 and smaller than 4gb"))
        }
    }
}

/// Reads `10`, `1k` (1000), `1kb` (1024), ..., in any case; without digits it is zero, as in Redis.
fn memory_size(word: &[u8]) -> Option<u64> {
    let digits = word.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(word.len());
    let unit: u64 = match word[digits..].to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let number = std::str::from_utf8(&word[..digits]).ok()?;
    if number.is_empty() { Some(0) } else { number.parse::<u64>().ok()?.checked_mul(unit) }
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mut lines = Vec::new();
    for tool in DEBUG.iter().filter(|tool| tool.name != "help") {
        let mut line = tool.name.to_ascii_uppercase();
        let arguments = match tool.name {
            "digest-value" => " <key> [<key> ...]",
            "error" => " <string>",
            "listpack" => " <key>",
            "log" => " <message>",
            "protocol" => " <type>",
            "object" => " <key>",
            "populate" => " <count> [<prefix>] [<size>]",
            "quicklist" => " <key>",
            "quicklist-packed-threshold" => " <size>",
            "set-active-expire" => " <0|1>",
            "sleep" => " <seconds>",
            "stringmatch-len" => " <len> <pattern>",
            _ => "",
        };
        let _ = line.write_str(arguments);
        lines.push(line);
        lines.push(format!("    {}", tool.summary));
    }
    reply_help(context, "DEBUG", &lines.iter().map(String::as_str).collect::<Vec<_>>());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn digests_are_those_of_a_real_redis() {
        // Taken from Redis 7.0.15.
        Client::new().table(&[
            ("debug digest", "+0000000000000000000000000000000000000000"),
            ("set s1 abc", "+OK"),
            ("debug digest", "+cea86c50d4d57c7151acf9e239ca3f454112355b"),
            (
                "debug digest-value s1 nosuch",
                "*2|+21ffcd2d36aebffca02995acb412bcb827d4c1db|+0000000000000000000000000000000000000000",
            ),
        ]);
    }

    #[test]
    fn tools() {
        let mut client = Client::new();
        client.table(&[
            ("debug populate 3", "+OK"),
            ("dbsize", ":3"),
            ("get key:2", "$7|value:2"),
            ("debug populate 2 x 3", "+OK"),
            ("get x:1", "$3|val"),
            ("debug populate -1", "-ERR value is out of range, must be positive"),
            ("debug populate x", "-ERR value is out of range, must be positive"),
            ("debug set-active-expire 0", "+OK"),
            ("debug error \"MY error\"", "-MY error"),
            ("debug stringmatch-len 100 a*a", ":1"),
            // Taken from Redis 7.0.15.
            ("rpush l a b c", ":3"),
            ("debug listpack l", "+elements:3 serializedlength:19"),
            ("debug quicklist l", "-ERR Not a quicklist encoded object."),
            ("debug listpack key:2", "-ERR Not a listpack encoded object."),
            ("debug listpack nosuch", "-ERR no such key"),
            ("debug quicklist-packed-threshold 100b", "+OK"),
            ("debug quicklist-packed-threshold 0", "+OK"),
            ("debug quicklist-packed-threshold k", "+OK"),
            ("debug quicklist-packed-threshold 4G", "+OK"),
            ("debug quicklist-packed-threshold 4293918720", "+OK"),
            (
                "debug quicklist-packed-threshold 4293918721",
                "-ERR argument must be a memory value bigger than 1 and smaller than 4gb",
            ),
            (
                "debug quicklist-packed-threshold 1.5",
                "-ERR argument must be a memory value bigger than 1 and smaller than 4gb",
            ),
            (
                "debug jmap",
                "-ERR unknown subcommand or wrong number of arguments for 'jmap'. Try DEBUG HELP.",
            ),
            ("debug object nosuch", "-ERR no such key"),
            ("debug", "-ERR wrong number of arguments for 'debug' command"),
            (
                "debug nosuch",
                "-ERR unknown subcommand or wrong number of arguments for 'nosuch'. Try DEBUG HELP.",
            ),
            (
                "debug object",
                "-ERR unknown subcommand or wrong number of arguments for 'object'. Try DEBUG HELP.",
            ),
        ]);
        let object = client.wire("debug object key:2");
        assert!(object.contains(" encoding:embstr serializedlength:8\r\n"), "{object}");
        assert!(!client.engine.settings.active_expire.load(std::sync::atomic::Ordering::Relaxed));
        assert!(client.wire("debug help").contains("+POPULATE <count> [<prefix>] [<size>]\r\n"));
    }

    #[test]
    fn time_and_a_drawing() {
        let mut client = Client::new();
        client.now.0 += 123;
        client.table(&[
            ("time", "*2|$10|1700000000|$6|123000"),
            ("lolwut version x", "-ERR value is not an integer or out of range"),
        ]);
        assert!(client.wire("lolwut").contains("Redoubt ver. "));
        // The test's monotonic clock stands still at 0.
        client.engine.set_wall_clock(0, 1_700_000_000_000_042);
        client.table(&[("time", "*2|$10|1700000000|$2|42")]);
    }
}
