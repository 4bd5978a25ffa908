//! DUMP and RESTORE: values in serialized form.

use clock::Millis;
use engine::{CommandError, CommandOrigin, Context, EventClass, LazyFreeReason};
use keyspace::Usage;
use persistence::{Dialect, RestoreError, RestoredValue, ValueBuffer};
use std::sync::atomic::Ordering;

pub(super) fn dump(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find_for_read(&key);
    let (table, reply) = context.table_and_reply(&key);
    match found {
        Some(place) => reply.bulk(&persistence::dump(&table.value(place), Dialect::Redoubt, true)),
        None => reply.null(),
    }
    Ok(())
}

#[derive(Default)]
struct RestoreOptions {
    replaces_existing: bool,
    is_absolute: bool,
    idle_seconds: Option<i64>,
    frequency: Option<i64>,
}

impl RestoreOptions {
    fn parse(context: &Context<'_>) -> Result<Self, CommandError> {
        let mut options = Self::default();
        let mut index = 4;
        while let Some(word) = context.args.get(index) {
            let more = index + 1 < context.args.len();
            if word.eq_ignore_ascii_case(b"replace") {
                options.replaces_existing = true;
            } else if word.eq_ignore_ascii_case(b"absttl") {
                options.is_absolute = true;
            } else if word.eq_ignore_ascii_case(b"idletime") && more && options.frequency.is_none() {
                index += 1;
                let idle = context.integer_arg(index)?;
                if idle < 0 {
                    return Err(CommandError::text("ERR Invalid IDLETIME value, must be >= 0"));
                }
                options.idle_seconds = Some(idle);
            } else if word.eq_ignore_ascii_case(b"freq") && more && options.idle_seconds.is_none() {
                index += 1;
                let frequency = context.integer_arg(index)?;
                if !(0..=255).contains(&frequency) {
                    return Err(CommandError::text("ERR Invalid FREQ value, must be >= 0 and <= 255"));
                }
                options.frequency = Some(frequency);
            } else {
                return Err(CommandError::Syntax);
            }
            index += 1;
        }
        Ok(options)
    }
}

/// Handles `RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`.
pub(super) fn restore(context: &mut Context<'_>) -> Result<(), CommandError> {
    let options = RestoreOptions::parse(context)?;
    let (key, payload) = (context.key(1)?, context.arg(3));
    let found = context.find(&key);
    if found.is_some() && !options.replaces_existing {
        return Err(CommandError::text("BUSYKEY Target key name already exists."));
    }
    let ttl = context.integer_arg(2)?;
    if ttl < 0 {
        return Err(CommandError::text("ERR Invalid TTL value, must be >= 0"));
    }
    let longest = context.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed) as u64;
    let mut buffer = ValueBuffer::new();
    let limits = context.engine.settings.value_limits.encoding_limits();
    let unchecked = context.engine.settings.debug.skip_checksums.load(Ordering::Relaxed);
    let sealed = if unchecked { persistence::with_corrected_checksum(payload) } else { None };
    let checks = match context.session.origin() {
        CommandOrigin::Client => context.engine.settings.input_checks.for_payloads(),
        CommandOrigin::Master | CommandOrigin::SlotMigrationSource => {
            context.engine.settings.input_checks.for_files()
        }
    };
    let payload_or_sealed = sealed.as_deref().unwrap_or(payload);
    let value = persistence::restore(payload_or_sealed, longest, limits, checks, &mut buffer)
        .map_err(|error| restore_error(context, error))?;
    let expiry = match (ttl, options.is_absolute) {
        (0, _) => None,
        (at, true) => Some(Millis(at)),
        (ttl, false) => Some(Millis(context.now.0.saturating_add(ttl))),
    };
    if expiry.is_some_and(|at| at <= context.now) && context.deletes_expired() {
        if let Some(place) = found {
            context.delete(&key, place);
            context.notify(EventClass::GENERIC, "del", &key);
            context.log_effect(&[
                context.engine.settings.lazy_free.deletion_command(LazyFreeReason::SERVER_DEL),
                key.bytes(),
            ]);
        }
        context.reply.ok();
        return Ok(());
    }
    match value {
        RestoredValue::Whole(value) => context.put(&key, found, value, expiry),
        RestoredValue::Multipart(hash) => context.put_value(&key, found, hash, expiry),
    }
    context.publish_new_key(context.session.db(), &key);
    context.notify(EventClass::GENERIC, "restore", &key);
    let (now, lfu) = (context.now, context.engine.settings.eviction.lfu().is_some());
    let usage = match (lfu, options.idle_seconds, options.frequency) {
        (false, Some(idle), _) => Some(Usage::with_idle_time(now, idle.unsigned_abs())),
        (true, _, Some(counter)) => Some(Usage::with_frequency(now, counter as u8)),
        _ => None,
    };
    if let Some((usage, place)) = usage.zip(context.peek(&key)) {
        context.table(&key).set_usage(place, usage);
    }
    log_restore(context, payload, expiry, &options);
    context.reply.ok();
    Ok(())
}

/// Logs why the payload is invalid; the client gets only a general error.
fn restore_error(context: &Context<'_>, error: RestoreError) -> CommandError {
    if let RestoreError::BadData(reason) = error {
        let warning = 3;
        (context.engine.scripting.hooks.log_line)(
            warning,
            &format!("A payload of RESTORE was refused: {reason}"),
        );
    }
    CommandError::Text(error.to_string().into())
}

/// Replicates RESTORE with an absolute expiry, since a relative one would shift by the replication delay.
fn log_restore(context: &mut Context<'_>, payload: &[u8], expiry: Option<Millis>, options: &RestoreOptions) {
    let Some(at) = expiry.filter(|_| !options.is_absolute) else { return };
    let (name, key) = (context.arg(0), context.arg(1));
    let mut digits = itoa::Buffer::new();
    let at = digits.format(at.0).as_bytes();
    if options.replaces_existing {
        context.log_effect(&[name, key, at, payload, b"ABSTTL", b"REPLACE"]);
    } else {
        context.log_effect(&[name, key, at, payload, b"ABSTTL"]);
    }
}

#[cfg(test)]
mod tests {
    use resp::Value;

    use crate::testing::Client;

    fn restore(client: &mut Client, key: &str, ttl: &str, payload: &[u8], options: &[&str]) -> Value {
        let mut words = vec![&b"restore"[..], key.as_bytes(), ttl.as_bytes(), payload];
        words.extend(options.iter().map(|word| word.as_bytes()));
        client.call_bytes(&words)
    }

    #[test]
    fn dumped_value_can_be_restored() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[("set k hello", "+OK"), ("dump nosuch", "$-1")]);
        let Value::Bulk(payload) = client.call(&["dump", "k"]) else { panic!("no payload") };
        let ok = Value::Simple("OK".to_owned());
        let error = |text: &str| Value::Error(text.to_owned());
        let busy = error("BUSYKEY Target key name already exists.");
        assert_eq!(restore(&mut client, "k", "0", &payload, &[]), busy);
        assert_eq!(restore(&mut client, "k", "0", &payload, &["replace"]), ok);
        assert_eq!(restore(&mut client, "t", "100", &payload, &[]), ok);
        assert_eq!(restore(&mut client, "a", "1800000000000", &payload, &["absttl"]), ok);
        client.check_replies(&[
            ("get t", "$5|hello"),
            ("pttl t", ":100"),
            ("pexpiretime a", ":1800000000000"),
        ]);
        assert_eq!(restore(&mut client, "i", "0", &payload, &["idletime", "77"]), ok);
        client.check_replies(&[("object idletime i", ":77")]);
        // The expiry has passed, so the key is deleted.
        assert_eq!(restore(&mut client, "k", "1", &payload, &["absttl", "replace"]), ok);
        client.check_replies(&[("exists k", ":0")]);
        let log = client.logged_commands();
        assert!(log[2].starts_with("0 restore t 1700000000100 ") && log[2].ends_with(" ABSTTL"), "{log:?}");
        assert_eq!(log.last().map(String::as_str), Some("0 UNLINK k"));

        let table: &[(&str, &[&str], &str)] = &[
            ("-1", &[], "ERR Invalid TTL value, must be >= 0"),
            ("x", &[], "ERR value is not an integer or out of range"),
            ("0", &["nosuch"], "ERR syntax error"),
            ("0", &["idletime"], "ERR syntax error"),
            ("0", &["idletime", "-1"], "ERR Invalid IDLETIME value, must be >= 0"),
            ("0", &["freq", "256"], "ERR Invalid FREQ value, must be >= 0 and <= 255"),
            ("0", &["freq", "1", "idletime", "1"], "ERR syntax error"),
        ];
        for (ttl, more, text) in table {
            assert_eq!(restore(&mut client, "new", ttl, &payload, more), error(text), "{ttl} {more:?}");
        }
        let broken = error("ERR DUMP payload version or checksum are wrong");
        assert_eq!(restore(&mut client, "new", "0", &payload[..payload.len() - 1], &[]), broken);
    }

    #[test]
    fn commands_send_keyspace_events() {
        let mut client = Client::new();
        client.check_replies(&[("set k v", "+OK")]);
        let Value::Bulk(payload) = client.call(&["dump", "k"]) else { panic!("no payload") };
        let payload: String = payload.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        client.check_events(&[
            (&format!("restore r 0 \"{payload}\""), "restore r"),
            (&format!("restore r 0 \"{payload}\""), ""),
            (&format!("restore r 1 \"{payload}\" absttl replace"), "del r"),
            (&format!("restore r 1 \"{payload}\" absttl"), ""),
        ]);
    }
}
