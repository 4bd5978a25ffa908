//! DEBUG: tools for testing the server.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use clock::Millis;
use keyspace::{EntryRef, Key, KeyLookup, PackedValue, Value};
use persistence::Dialect;

mod inside;
mod switches;

use engine::{
    Command, CommandError, Context, DebugCommand, Flags, Group, KeySpec, NodeCommand, truncate_at_nul,
    wrong_subcommand_arguments,
};

use crate::digest::Digest;
use crate::generic::reference_count;
use crate::help::reply_help;
use crate::kinds::as_any_value;
use crate::rows::{METADATA_KEY_AT_2, key};

const ADMIN_FLAGS: Flags =
    Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE).union(Flags::PROTECTED);

pub(crate) const COMMANDS: &[Command] =
    &[Command::new("debug", Group::Server, "1.0.0", -2, "Contains tools for testing the server.")
        .flags(ADMIN_FLAGS)
        .subcommands(DEBUG_SUBCOMMANDS)
        .run(unknown_subcommand)];

const fn debug_command(name: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, "1.0.0", arity, summary).flags(ADMIN_FLAGS)
}

/// Creates a subcommand that the server executes outside of the engine.
const fn shell_debug_command(
    name: &'static str,
    arity: i8,
    command: DebugCommand,
    summary: &'static str,
) -> Command {
    debug_command(name, arity, summary).node(NodeCommand::Debug(command))
}

/// Creates a subcommand that controls a mechanism this server lacks. The subcommand has no effect and succeeds, so that
/// test scripts continue.
const fn no_op_command(name: &'static str, arity: i8) -> Command {
    debug_command(name, arity, "Has no effect, since this server lacks the mechanism.")
        .run(switches::reply_ok_without_effect)
}

const DEBUG_SUBCOMMANDS: &[Command] = &[
    shell_debug_command("aof-flush-sleep", 3, DebugCommand::AofFlushSleep, "Delays each write to the AOF."),
    debug_command("assert", 2, "Crashes the server with a failed assertion.").run(debug_assert_failure),
    shell_debug_command("change-repl-id", 2, DebugCommand::ChangeReplId, "Changes the replication id."),
    shell_debug_command(
        "client-eviction",
        2,
        DebugCommand::ClientEviction,
        "Returns the memory use of clients by size.",
    ),
    debug_command("client-enforce-reply-list", 3, "Shows all pending output of clients as reply list.")
        .run(switches::client_enforce_reply_list),
    shell_debug_command(
        "close-cluster-link-on-packet-drop",
        3,
        DebugCommand::CloseLinkOnDrop,
        "Closes links on which a packet is dropped.",
    ),
    shell_debug_command(
        "clusterlink",
        5,
        DebugCommand::ClusterLink,
        "Closes the cluster bus links to a node, from it, or both.",
    ),
    shell_debug_command(
        "config-rewrite-force-all",
        2,
        DebugCommand::ConfigRewriteForceAll,
        "Rewrites the configuration file as CONFIG REWRITE does, with a line for every parameter.",
    ),
    shell_debug_command(
        "crash-and-recover",
        -2,
        DebugCommand::CrashAndRecover,
        "Restarts the server without saving.",
    ),
    // Valkey's HELP documents one spelling, and Valkey's command accepts the other; this server accepts both.
    no_op_command("delay-rdb-client-free-second", 3),
    no_op_command("delay-rdb-client-free-seconds", 3),
    no_op_command("dict-resizing", 3),
    debug_command("digest", 2, "Returns a digest of all data.").run(digest).locks_all_slots(),
    debug_command("digest-value", -2, "Returns digests of keys' values.")
        .keys(&[KeySpec::key_range(2, -1, 1, key::METADATA)])
        .run(digest_value),
    no_op_command("disable-cluster-random-ping", 3),
    shell_debug_command(
        "disable-cluster-reconnection",
        3,
        DebugCommand::DisableReconnection,
        "Prevents new links to other nodes.",
    ),
    shell_debug_command(
        "drop-cluster-packet-filter",
        3,
        DebugCommand::DropPackets,
        "Drops incoming cluster bus packets of this type; -1: none, -2: all.",
    ),
    debug_command("error", 3, "Replies with an error.").run(reply_error_text),
    no_op_command("force-free-primary-async", 3),
    shell_debug_command(
        "force-tls-write-error",
        3,
        DebugCommand::FailTlsWrites,
        "Makes every write to TLS connections fail.",
    ),
    no_op_command("hashtable-can-abort-shrink", 3),
    debug_command("help", 2, "Lists the subcommands.").run(help),
    debug_command("htstats", -3, "Returns the distribution of a database's keys over the slots.")
        .run(inside::htstats)
        .visits_each_slot(),
    debug_command("htstats-key", -3, "Returns the number of elements in a key's hash table.")
        .keys(METADATA_KEY_AT_2)
        .run(inside::htstats_key),
    debug_command("leak", 3, "Leaks a copy of the text.").run(switches::debug_leak),
    debug_command("listpack", 3, "Returns the number of elements of a listpack and its serialized size.")
        .keys(METADATA_KEY_AT_2)
        .run(listpack),
    shell_debug_command(
        "loadaof",
        2,
        DebugCommand::LoadAof,
        "Flushes the AOF and reloads the dataset from it.",
    ),
    shell_debug_command("log", 3, DebugCommand::Log, "Writes a line into the log."),
    shell_debug_command(
        "mallctl",
        -3,
        DebugCommand::Mallctl,
        "Reads or sets a numeric setting of the allocator.",
    ),
    shell_debug_command(
        "mallctl-str",
        -3,
        DebugCommand::MallctlStr,
        "Reads a text setting of the allocator.",
    ),
    debug_command("oom", 2, "Crashes the server with an out-of-memory error.").run(debug_oom),
    debug_command("panic", 2, "Crashes the server with a panic.").run(debug_panic),
    debug_command(
        "pause-after-fork",
        3,
        "Stops the process (SIGSTOP) whenever a replication snapshot starts.",
    )
    .run(switches::pause_after_fork),
    shell_debug_command("pause-cron", 3, DebugCommand::PauseCron, "Disables or enables background tasks."),
    debug_command("protect-client", 3, "Has no effect, since clients are never freed while in use.")
        .run(switches::protect_client),
    debug_command("protocol", 3, "Replies with a sample value of a RESP type.")
        .run(super::protocol::protocol),
    debug_command("object", -3, "Returns internals of a value.").keys(METADATA_KEY_AT_2).run(debug_object),
    debug_command("populate", -3, "Creates many keys.").run(populate).visits_each_slot(),
    debug_command("quicklist", -3, "Returns the number of elements and bytes of each list node.")
        .keys(METADATA_KEY_AT_2)
        .run(quicklist),
    debug_command("quicklist-packed-threshold", 3, "Validates a size of list nodes without effect.")
        .run(quicklist_packed_threshold),
    shell_debug_command("reload", -2, DebugCommand::Reload, "Saves the dataset and reloads it."),
    no_op_command("repl-pause", 3),
    debug_command("replicate", -3, "Sends a command to replicas and the AOF without executing it.")
        .run(switches::replicate),
    debug_command("replybuffer", 4, "Has no effect, since clients have no reply buffers of their own.")
        .run(switches::reply_buffer),
    shell_debug_command(
        "restart",
        -2,
        DebugCommand::Restart,
        "Saves the configuration and the dataset and restarts the server.",
    ),
    debug_command("sdslen", 3, "Returns the length and memory use of a key and its string.")
        .keys(METADATA_KEY_AT_2)
        .run(inside::sdslen),
    shell_debug_command("segfault", 2, DebugCommand::Segfault, "Crashes the server with SIGSEGV."),
    debug_command("set-active-expire", 3, "Enables or disables active expiry.").run(set_active_expire),
    debug_command("set-disable-deny-scripts", 3, "Allows scripts to call noscript commands.")
        .run(switches::set_disable_deny_scripts),
    debug_command("set-skip-checksum-validation", 3, "Makes RESTORE and RDB loading ignore wrong checksums.")
        .run(switches::set_skip_checksum_validation),
    debug_command("slotmigration", 4, "Has no effect, since slot migrations cannot be paused at a stage.")
        .run(switches::slot_migration),
    shell_debug_command("sleep", 3, DebugCommand::Sleep, "Blocks the server for a number of seconds."),
    debug_command("stringmatch-test", 2, "Fuzzes the glob matcher.").run(switches::stringmatch_test),
    debug_command("structsize", 2, "Returns the sizes of some structures.").run(inside::structsize),
];

fn digest(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mut digest = Digest::default();
    let engine = context.engine;
    let mut used = vec![false; usize::from(engine.keyspace.database_count())];
    context.each_slot(|_, data| {
        data.tables().for_each(|(db, table)| used[usize::from(db)] |= !table.is_empty());
    });
    for (db, _) in (0..).zip(used).filter(|(_, used)| *used) {
        digest.add_database_number(db);
        context.each_slot(|_, data| {
            let Some(table) = data.existing_table(db) else { return };
            let mut keys = Vec::new();
            table.scan(0, usize::MAX, &mut |item| keys.push((item.key.to_vec(), item.expiry.is_some())));
            for (bytes, expires) in keys {
                let key = engine.keyspace.key(&bytes);
                if let KeyLookup::Live(place) | KeyLookup::Expired(place) =
                    table.find(&key, clock::Millis(i64::MIN))
                {
                    let mut of_key = Digest::default();
                    of_key.add_ordered(&bytes);
                    add_value(&mut of_key, &table.value(place), expires);
                    digest.add_unordered_digest(of_key);
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
        let key = context.key(index)?;
        let mut digest = Digest::default();
        if let Some(place) = context.peek(&key) {
            let table = context.table(&key);
            add_value(&mut digest, &table.value(place), table.expiry(place).is_some());
        }
        context.reply.simple(&digest.to_string());
    }
    Ok(())
}

/// Adds a value to the digest: its type, its content, and whether the key expires.
fn add_value(digest: &mut Digest, value: &Value<'_>, expires: bool) {
    let value = as_any_value(value);
    digest.add_ordered(&value.type_number().to_be_bytes());
    value.digest(digest);
    if expires {
        digest.add_unordered(b"!!expire!!");
    }
}

fn debug_panic(context: &mut Context<'_>) -> Result<(), CommandError> {
    panic!("DEBUG PANIC was called at Unix time {}", context.now.secs())
}

fn debug_assert_failure(context: &mut Context<'_>) -> Result<(), CommandError> {
    panic!("=== ASSERTION FAILED === DEBUG ASSERT was called at Unix time {}", context.now.secs())
}

fn debug_oom(_context: &mut Context<'_>) -> Result<(), CommandError> {
    let most = isize::MAX as usize;
    std::alloc::handle_alloc_error(
        std::alloc::Layout::from_size_align(most, 1).expect("a layout that may be"),
    )
}

fn reply_error_text(context: &mut Context<'_>) -> Result<(), CommandError> {
    let text = String::from_utf8_lossy(context.arg(2));
    // The error is written as a plain reply, so that the command does not count as failed.
    context.reply.error(&text);
    Ok(())
}

/// The error for an unknown subcommand.
fn unknown_subcommand(context: &mut Context<'_>) -> Result<(), CommandError> {
    Err(wrong_subcommand_arguments("DEBUG", context.arg(1)))
}

/// Size of the header (type) and footer (version, checksum) that DUMP adds to a value.
const DUMP_OVERHEAD: usize = 1 + 2 + 8;
/// Mask of Redis's LRU clock, which has 24 bits of seconds.
const LRU_CLOCK_MASK: i64 = (1 << 24) - 1;

/// Finds `key` even if it has expired and is still stored, as on a replica.
fn find_including_expired(context: &Context<'_>, key: &Key<'_>) -> Result<EntryRef, CommandError> {
    match context.table_ref(key).find(key, Millis(i64::MIN)) {
        KeyLookup::Live(place) | KeyLookup::Expired(place) => Ok(place),
        KeyLookup::Missing => Err(CommandError::NoSuchKey),
    }
}

/// Handles `DEBUG OBJECT key [FAST]`. With FAST, expensive fields are omitted.
fn debug_object(context: &mut Context<'_>) -> Result<(), CommandError> {
    let fast = context.args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"fast"));
    let key = context.key(2)?;
    let place = find_including_expired(context, &key)?;
    let (now, engine) = (context.now, context.engine);
    let (table, reply) = context.table_and_reply(&key);
    let value = table.value(place);
    let mut text = format!(
        "Value at:slot-{} refcount:{} encoding:{}",
        key.slot(),
        reference_count(&value),
        value.encoding()
    );
    if !fast {
        let length = persistence::dump(&value, Dialect::Redis, true).len() - DUMP_OVERHEAD;
        let _ = write!(text, " serializedlength:{length}");
    }
    if engine.settings.eviction.lfu().is_none() {
        let idle = engine.memory.interpret_usage(key.slot(), table.usage(place)).idle_seconds(now);
        let clock = (now.secs() - idle as i64) & LRU_CLOCK_MASK;
        let _ = write!(text, " lru:{clock} lru_seconds_idle:{idle}");
    }
    reply.simple(&text);
    Ok(())
}

/// Length limit of the key names that DEBUG POPULATE creates; Redis truncates them at its buffer size.
const MAX_POPULATED_NAME_LEN: usize = 127;

/// Handles `DEBUG POPULATE count [prefix] [size]`. As in Redis, the keys are not replicated and existing keys stay
/// unchanged.
fn populate(context: &mut Context<'_>) -> Result<(), CommandError> {
    let out_of_range = CommandError::text("ERR value is out of range, must be positive");
    let positive = |index| {
        let number = resp::parse_i64(context.arg(index)).filter(|number| *number >= 0);
        number.ok_or(out_of_range.clone())
    };
    let count = positive(2)?;
    let prefix = truncate_at_nul(context.args.get(3).unwrap_or(b"key")).to_vec();
    let size = if context.args.len() > 4 { Some(positive(4)? as usize) } else { None };
    let most = context.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed);
    if context.args.len() > 5 || size.is_some_and(|size| size as u64 > most as u64) {
        return Err(CommandError::Syntax);
    }
    let (db, engine) = (context.session.db(), context.engine);
    for number in 0..count {
        let mut name = prefix.clone();
        name.extend_from_slice(format!(":{number}").as_bytes());
        name.truncate(MAX_POPULATED_NAME_LEN);
        let mut value = format!("value:{number}").into_bytes();
        if let Some(size) = size {
            value.resize(size, 0);
        }
        let key = engine.keyspace.key(&name);
        context.with_slot(key.slot(), |data| {
            let table = data.table(db);
            if table.find(&key, clock::Millis(i64::MIN)) == KeyLookup::Missing {
                table.insert(&key, PackedValue::string(&value), None);
            }
        });
    }
    context.reply.ok();
    Ok(())
}

fn set_active_expire(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = context.arg(2) == b"1";
    context.engine.settings.debug.active_expire.store(on, Ordering::Relaxed);
    context.reply.ok();
    Ok(())
}

fn listpack(context: &mut Context<'_>) -> Result<(), CommandError> {
    const NOT_A_LISTPACK: CommandError = CommandError::text("ERR Not a listpack encoded object.");
    let key = context.key(2)?;
    let place = context.peek(&key).ok_or(CommandError::NoSuchKey)?;
    let (table, reply) = context.table_and_reply(&key);
    let value = table.value(place);
    if value.encoding() != "listpack" {
        return Err(NOT_A_LISTPACK);
    }
    let bytes = persistence::dump(&value, Dialect::Redis, false).len() - DUMP_OVERHEAD;
    let len = as_any_value(&value).element_count().ok_or(NOT_A_LISTPACK)?;
    reply.simple(&format!("elements:{len} serializedlength:{bytes}"));
    Ok(())
}

fn quicklist(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let place = context.peek(&key).ok_or(CommandError::NoSuchKey)?;
    let (table, reply) = context.table_and_reply(&key);
    let list = table.list(place).filter(|list| list.encoding() == "quicklist");
    let list = list.ok_or(CommandError::text("ERR Not a quicklist encoded object."))?;
    let mut text = format!("nodes:{} elements:{}", list.run_count(), list.len());
    list.for_each_run(&mut |run| {
        let _ = write!(text, " {}/{}", run.len, run.entries.len());
    });
    reply.simple(&text);
    Ok(())
}

/// Handles `DEBUG QUICKLIST-PACKED-THRESHOLD size`. The size has no effect, because lists have no quicklist nodes on
/// this server, but an invalid size is an error.
fn quicklist_packed_threshold(context: &mut Context<'_>) -> Result<(), CommandError> {
    // The limit of Redis: 4 GiB minus a reserve for the node's header.
    const MAX_PACKED_THRESHOLD: u64 = (4 << 30) - (1 << 20);
    match parse_memory_size(context.arg(2)) {
        Some(size) if size <= MAX_PACKED_THRESHOLD => {
            context.reply.ok();
            Ok(())
        }
        _ => {
            Err(CommandError::text("ERR argument must be a memory value bigger than 1 and smaller than 4gb"))
        }
    }
}

/// Parses `10`, `1k` (1000), `1kb` (1024) and so on, case-insensitively. As in Redis, text without digits is zero.
fn parse_memory_size(word: &[u8]) -> Option<u64> {
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
    for tool in DEBUG_SUBCOMMANDS.iter().filter(|tool| tool.name != "help") {
        let mut line = tool.name.to_ascii_uppercase();
        let arguments = match tool.name {
            "aof-flush-sleep" => " <microsec>",
            "clusterlink" => " KILL <to|from|all> <node-id>",
            "crash-and-recover" | "restart" => " [<milliseconds>]",
            "digest-value" => " <key> [<key> ...]",
            "drop-cluster-packet-filter" => " <packet-type>",
            "error" | "leak" | "replicate" => " <string>",
            "htstats" => " <dbid>",
            "htstats-key" | "listpack" | "sdslen" => " <key>",
            "log" => " <message>",
            "mallctl" | "mallctl-str" => " <key> [<val>]",
            "protocol" => " <type>",
            "object" => " <key> [fast]",
            "populate" => " <count> [<prefix>] [<size>]",
            "quicklist" => " <key>",
            "quicklist-packed-threshold" => " <size>",
            "pause-cron"
            | "set-active-expire"
            | "set-disable-deny-scripts"
            | "set-skip-checksum-validation" => " <0|1>",
            "reload" => " [MERGE] [NOFLUSH] [NOSAVE]",
            "replybuffer" => " PEAK-RESET-TIME|RESIZING <value>",
            "protect-client" => " <id>",
            "slotmigration" => " PREVENT-PAUSE|PREVENT-FAILOVER <0|1>",
            "force-tls-write-error" => " <0|1>",
            "sleep" => " <seconds>",
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
    use engine::NodeFlags;

    use crate::testing::Client;

    #[test]
    fn only_debug_sees_expired_keys_on_replica() {
        let mut client = Client::new();
        client.check_replies(&[("set k v px 100", "+OK")]);
        client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
        client.now.0 += 200;
        client.check_replies(&[("get k", "$-1"), ("object encoding k", "$-1")]);
        assert!(client.run_to_text("debug object k").contains("encoding:embstr"));
        assert!(client.run_to_text("debug sdslen k").contains("val_sds_len:1"));
        assert!(client.run_to_text("debug object nosuch").starts_with("-ERR no such key"));
    }

    #[test]
    fn digests_match_redis() {
        // The expected replies were taken from Redis 7.0.15.
        Client::new().check_replies(&[
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
    fn digest_uses_shortest_score_text() {
        let mut client = Client::new();
        client.check_replies(&[
            ("zadd z 0.1 m", ":1"),
            ("debug digest-value z", "*1|+7e1bae26d61f35a2675e4748edc8fe0bff072cee"),
            ("zadd z 1e300 m", ":0"),
            ("debug digest-value z", "*1|+d5a03a0b01f6552aef60764c5ddb6ce623ff5718"),
            ("zadd z 0.5 m", ":0"),
            ("debug digest-value z", "*1|+442257e1e6da3ab9083d37f76c5ce0102052aee5"),
            // The expected replies were taken from Valkey 9.1.
            ("zadd large 1e17 a", ":1"),
            ("debug digest-value large", "*1|+865dfe692ba47395ddd673188be31a88f4f3a760"),
            ("zadd longer 3480469786558251008 Rome", ":1"),
            ("debug digest-value longer", "*1|+137411a648db3289a549fc0215ee158e955c2c9a"),
        ]);
    }

    #[test]
    fn debug_subcommands_reply_in_expected_format() {
        let mut client = Client::new();
        client.check_replies(&[
            ("debug populate 3", "+OK"),
            ("dbsize", ":3"),
            ("get key:2", "$7|value:2"),
            ("debug populate 2 x 3", "+OK"),
            ("get x:1", "$3|val"),
            ("debug populate -1", "-ERR value is out of range, must be positive"),
            ("debug populate x", "-ERR value is out of range, must be positive"),
            ("debug set-active-expire 0", "+OK"),
            ("debug error \"MY error\"", "-MY error"),
        ]);
        assert!(!client.engine.settings.debug.active_expire.load(std::sync::atomic::Ordering::Relaxed));
        assert!(client.run_to_text("debug help").contains("+POPULATE <count> [<prefix>] [<size>]\r\n"));
    }

    #[test]
    fn debug_object_describes_values() {
        let mut client = Client::new();
        client.check_replies(&[
            ("debug populate 3", "+OK"),
            // The expected replies were taken from Redis 7.0.15.
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
            (
                "debug structsize",
                "$83|bits:64 robj:16 dictentry:24 sdshdr5:1 sdshdr8:3 sdshdr16:5 sdshdr32:9 sdshdr64:17 ",
            ),
            (
                "debug sdslen key:2",
                "+key_sds_len:5 key_sds_avail:0 obj_alloc:0 val_sds_len:7 val_sds_avail:0 val_alloc:0",
            ),
            ("debug sdslen l", "-ERR Not an sds encoded string."),
            (
                "debug htstats-key key:2",
                "-ERR The value stored at the specified key is not represented using an hash table",
            ),
        ]);
        let object = client.run_to_text("debug object key:2");
        assert!(object.contains(" encoding:embstr serializedlength:8 lru:"), "{object}");
        assert!(!client.run_to_text("debug object key:2 fast").contains("serializedlength"));
    }

    #[test]
    fn debug_subcommands_match_valkey() {
        Client::new().check_replies(&[
            ("debug htstats 16", "-ERR Out of range database"),
            ("debug htstats x", "-ERR value is not an integer or out of range"),
            ("debug dict-resizing 0", "+OK"),
            ("debug replybuffer resizing 1", "+OK"),
            ("debug replybuffer peak-reset-time never", "+OK"),
            (
                "debug replybuffer x y",
                "-ERR unknown subcommand or wrong number of arguments for 'replybuffer'. Try DEBUG HELP.",
            ),
            ("debug stringmatch-test", "+Apparently the server did not crash: test passed"),
            ("debug leak x", "+OK"),
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
    }

    #[test]
    fn noscript_commands_can_be_allowed_in_scripts() {
        let mut client = Client::new();
        let refused = "-ERR This Valkey command is not allowed from script";
        assert!(client.run_to_text("eval \"return redis.call('save')\" 0").starts_with(refused));
        let auth = "eval \"return redis.call('auth', 'x')\" 0";
        assert!(client.run_to_text(auth).starts_with(refused));
        client.check_replies(&[("debug set-disable-deny-scripts 1", "+OK")]);
        assert!(client.run_to_text(auth).starts_with("-ERR AUTH <password> called"));
        for (command, name) in
            [("subscribe", "SUBSCRIBE"), ("psubscribe", "PSUBSCRIBE"), ("ssubscribe", "SSUBSCRIBE")]
        {
            let reply = client.run_to_text(&format!("eval \"return redis.call('{command}', 'x')\" 0"));
            let refused = format!("-ERR {name} isn't allowed for a DENY BLOCKING client");
            assert!(reply.starts_with(&refused), "{reply}");
        }
    }

    #[test]
    fn debug_replicate_replicates_without_executing() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[("debug replicate set k v", "+OK"), ("exists k", ":0")]);
        assert_eq!(client.logged_commands(), ["0 set k v"]);
    }

    #[test]
    fn restore_checksum_validation_can_be_disabled() {
        let mut client = Client::new();
        client.check_replies(&[("set k v", "+OK")]);
        let resp::Value::Bulk(mut payload) = client.call(&["dump", "k"]) else { panic!("no payload") };
        *payload.last_mut().expect("a checksum") ^= 1;
        let restore =
            |client: &mut Client| client.call_bytes(&[b"restore", b"r", b"0", &payload, b"replace"]);
        assert!(matches!(restore(&mut client), resp::Value::Error(_)));
        client.check_replies(&[("debug set-skip-checksum-validation 1", "+OK")]);
        assert_eq!(restore(&mut client), resp::Value::Simple("OK".to_owned()));
        client.check_replies(&[("get r", "$1|v"), ("debug set-skip-checksum-validation 0", "+OK")]);
        assert!(matches!(restore(&mut client), resp::Value::Error(_)));
    }

    #[test]
    fn debug_htstats_shows_slot_distribution() {
        let mut client = Client::new();
        client.check_replies(&[("set {a}1 v", "+OK"), ("set {a}2 v ex 100", "+OK"), ("set b v", "+OK")]);
        let text = client.run_to_text("debug htstats 0");
        for line in [
            "[Dictionary HT]",
            " table size: 16384",
            " number of elements: 3",
            " different slots: 2",
            " max chain length: 2",
            "   2: 1 (",
            "[Expires HT]",
            " number of elements: 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn time_and_lolwut_reply_in_expected_format() {
        let mut client = Client::new();
        client.now.0 += 123;
        client.check_replies(&[
            ("time", "*2|$10|1700000000|$6|123000"),
            ("lolwut version x", "-ERR value is not an integer or out of range"),
        ]);
        assert!(client.run_to_text("lolwut").contains("Redoubt ver. "));
        // The monotonic clock of this test stays at 0.
        client.engine.set_wall_clock(0, 1_700_000_000_000_042);
        client.check_replies(&[("time", "*2|$10|1700000000|$2|42")]);
    }
}
