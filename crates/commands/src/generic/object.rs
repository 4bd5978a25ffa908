//! OBJECT: encoding, reference count and access statistics of a value, in Redis's terms.

use engine::{CommandError, Context};
use keyspace::Value;

use crate::help::reply_help;

/// Redis shares integers below this limit between keys and reports their reference count as `i32::MAX`.
const SHARED_INTEGERS: std::ops::Range<i64> = 0..10_000;

/// The count for OBJECT REFCOUNT. A value has a single owner on this server, so the count only mimics Redis's shared
/// integers.
pub(crate) fn reference_count(value: &Value<'_>) -> i64 {
    let shared = |number| SHARED_INTEGERS.contains(&number);
    match value {
        Value::String(string) if string.integer().is_some_and(shared) => i64::from(i32::MAX),
        _ => 1,
    }
}

pub(super) fn object_encoding(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let found = context.peek(&key);
    let (table, reply) = context.table_and_reply(&key);
    match found {
        Some(place) => reply.bulk(table.value(place).encoding().as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

pub(super) fn object_refcount(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let found = context.peek(&key);
    let (table, reply) = context.table_and_reply(&key);
    match found {
        Some(place) => reply.integer(reference_count(&table.value(place))),
        None => reply.null(),
    }
    Ok(())
}

pub(super) fn object_freq(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let (found, now, engine) = (context.peek(&key), context.now, context.engine);
    let (table, reply) = context.table_and_reply(&key);
    match (found, engine.settings.eviction.lfu()) {
        (None, _) => reply.null(),
        (Some(place), Some(settings)) => {
            let usage = engine.memory.interpret_usage(key.slot(), table.usage(place));
            reply.integer(i64::from(usage.frequency(now, settings)));
        }
        (Some(_), None) => {
            return Err(CommandError::text(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
                 when switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    }
    Ok(())
}

pub(super) fn object_idletime(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let (found, now, engine) = (context.peek(&key), context.now, context.engine);
    let (table, reply) = context.table_and_reply(&key);
    match (found, engine.settings.eviction.lfu()) {
        (None, _) => reply.null(),
        (Some(place), None) => {
            let usage = engine.memory.interpret_usage(key.slot(), table.usage(place));
            reply.integer(usage.idle_seconds(now) as i64);
        }
        (Some(_), Some(_)) => {
            return Err(CommandError::text(
                "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    }
    Ok(())
}

pub(super) fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "OBJECT",
        &[
            "ENCODING <key>",
            "    Returns how the value of <key> is kept in memory.",
            "FREQ <key>",
            "    Returns how often <key> has been used, on a logarithmic scale.",
            "IDLETIME <key>",
            "    Returns for how many seconds <key> has not been used.",
            "REFCOUNT <key>",
            "    Returns how many references the value of <key> has.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use keyspace::Usage;

    use crate::testing::Client;

    #[test]
    fn object_encoding_uses_redis_names() {
        let long = "x".repeat(45);
        let mut client = Client::new();
        client.check_replies(&[
            (&format!("mset int 12345 embstr abc raw {long} small 7"), "+OK"),
            ("append appended 1", ":1"),
            ("append appended 2", ":2"),
            ("object encoding int", "$3|int"),
            ("object encoding embstr", "$6|embstr"),
            ("object encoding raw", "$3|raw"),
            ("object encoding appended", "$3|raw"),
            ("object encoding nosuch", "$-1"),
            ("object refcount int", ":1"),
            ("object refcount small", ":2147483647"),
            ("object refcount nosuch", "$-1"),
            ("object freq nosuch", "$-1"),
            ("object nosuch a", "-ERR unknown subcommand 'nosuch'. Try OBJECT HELP."),
            ("object encoding", "-ERR wrong number of arguments for 'object|encoding' command"),
        ]);
        assert!(
            client.run_to_text("object freq int").starts_with("-ERR An LFU maxmemory policy is not selected")
        );
        assert!(client.run_to_text("object help").starts_with("*11\r\n+OBJECT <subcommand> "));
    }

    /// Regression test: after a change of `maxmemory-policy`, the two usage bytes of a key were still read in the
    /// format of the old policy. FREQ was 0 or 111 depending on the time of day, and a key used a moment ago appeared
    /// idle for hours and was evicted first.
    #[test]
    fn policy_change_resets_usage_data() {
        use config::EvictionPolicy::{AllKeysLfu, AllKeysLru, AllKeysRandom};
        let mut client = Client::new();
        for hour in 0..24 {
            client.now.0 += 3_600_000;
            client.engine.set_initial_usage(client.now);
            client.check_replies(&[("flushall", "+OK"), ("mset a 1 {b}b 2", "+OK")]);
            for (policy, object) in [(AllKeysLfu, "freq"), (AllKeysLru, "idletime"), (AllKeysLfu, "freq")] {
                client.engine.settings.eviction.store(policy, 5, 10, true);
                client.engine.reset_usage_after_kind_change(client.now);
                let fresh = if object == "freq" { ":5" } else { ":0" };
                client.check_replies(&[
                    (&format!("object {object} a"), fresh),
                    (&format!("object {object} {{b}}b"), fresh),
                    ("set {b}b 3", "+OK"),
                    (&format!("getset new{policy} 3"), "$-1"),
                    (&format!("object {object} new{policy}"), fresh),
                    (&format!("del new{policy}"), ":1"),
                ]);
            }
            let policies = [AllKeysRandom, AllKeysLru];
            client.now.0 += 7_000;
            client.engine.settings.eviction.store(policies[hour % 2], 5, 10, true);
            client.engine.reset_usage_after_kind_change(client.now);
            client.now.0 += 2_000;
            client.check_replies(&[("object idletime a", ":2")]);
            client.engine.settings.eviction.store(AllKeysLru, 5, 10, true);
            client.engine.reset_usage_after_kind_change(client.now);
            client.check_replies(&[("object idletime a", ":2")]);
        }
    }

    #[test]
    fn reads_do_not_update_last_modification_time() {
        let mut client = Client::new();
        client.engine.settings.eviction.store(config::EvictionPolicy::AllKeysLrm, 5, 10, true);
        Usage::with_access_time(client.now).set_for_new_keys();
        client.check_replies(&[("set a 1", "+OK"), ("rpush l a b", ":2")]);
        client.now.0 += 90_000;
        client.check_replies(&[
            ("get a", "$1|1"),
            ("touch a", ":1"),
            ("lrange l 0 0", "*1|$1|a"),
            ("object idletime a", ":90"),
            ("object idletime l", ":90"),
            ("append a 2", ":2"),
            ("object idletime a", ":0"),
            ("lpop l", "$1|a"),
            ("object idletime l", ":0"),
        ]);
    }

    #[test]
    fn object_idletime_and_freq_track_usage() {
        let mut client = Client::new();
        Usage::with_access_time(client.now).set_for_new_keys();
        client.check_replies(&[
            ("set a 1", "+OK"),
            ("object idletime a", ":0"),
            ("object idletime nosuch", "$-1"),
        ]);
        client.now.0 += 90_000;
        client.check_replies(&[
            ("exists a", ":1"),
            ("ttl a", ":-1"),
            ("type a", "+string"),
            ("object encoding a", "$3|int"),
            ("memory usage nosuch", "$-1"),
            ("object idletime a", ":90"),
            ("client no-touch on", "+OK"),
            ("get a", "$1|1"),
            ("object idletime a", ":90"),
            ("touch a", ":1"),
            ("object idletime a", ":0"),
            ("client no-touch off", "+OK"),
        ]);
        Usage::new_lfu(client.now).set_for_new_keys();
        client.engine.settings.eviction.store(config::EvictionPolicy::AllKeysLfu, 5, 10, true);
        assert!(
            client
                .run_to_text("object idletime a")
                .starts_with("-ERR An LFU maxmemory policy is selected, idle")
        );
        client.check_replies(&[("set b 1", "+OK"), ("get b", "$1|1")]);
        client.check_replies(&[("object freq nosuch", "$-1")]);
        for _ in 0..200 {
            client.call(&["get", "b"]);
        }
        let resp::Value::Integer(often) = client.call(&["object", "freq", "b"]) else { panic!("no number") };
        assert!((8..30).contains(&often), "{often}");
        client.now.0 += 5 * 60_000;
        client.check_replies(&[("object freq b", &format!(":{}", often - 5))]);
    }
}
