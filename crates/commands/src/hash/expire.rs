//! HEXPIRE, HPERSIST, HTTL and their variants.

use clock::Millis;
use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Key};

use super::fields::HashAccess;
use super::options::{find_fields_option, parse_fields_at, parse_fields_first, parse_time};
use crate::time_arg::{ExpireCondition, TimeBase, TimeUnit};

/// Reply of HEXPIRE and similar commands for a field that does not exist.
const MISSING_FIELD_REPLY: i64 = -2;
const NO_EXPIRY_REPLY: i64 = -1;
const CONDITION_FAILED_REPLY: i64 = 0;
const APPLIED_REPLY: i64 = 1;
const FIELD_DELETED_REPLY: i64 = 2;

/// Handles `HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`.
fn set_field_expiries(
    context: &mut Context<'_>,
    unit: TimeUnit,
    base: TimeBase,
    name: &'static str,
) -> Result<(), CommandError> {
    let word = find_fields_option(context.args, 3);
    let when = ExpireCondition::parse(context, 3..word.unwrap_or(3))?;
    let names = parse_fields_at(context, word, 1)?;
    let at = parse_time(context, 2, unit, base, name)?;
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let found = context.find_hash(&key)?;
    context.reply.array(names.len());
    let mut change = FieldExpiryChanges::new(context, &key, found);
    for name in names.iter() {
        let became = match change.context.find_field_expiry(&key, change.entry, name) {
            Some(expiry) if expiry.is_none_or(|expiry| expiry > now) => {
                if when.is_satisfied(expiry, at) {
                    change.expire(name, at)
                } else {
                    CONDITION_FAILED_REPLY
                }
            }
            _ => MISSING_FIELD_REPLY,
        };
        change.context.reply.integer(became);
    }
    change.apply();
    Ok(())
}

pub(super) fn hexpire(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_field_expiries(context, TimeUnit::Seconds, TimeBase::Now, "hexpire")
}

pub(super) fn hpexpire(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_field_expiries(context, TimeUnit::Millis, TimeBase::Now, "hpexpire")
}

pub(super) fn hexpireat(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_field_expiries(context, TimeUnit::Seconds, TimeBase::Epoch, "hexpireat")
}

pub(super) fn hpexpireat(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_field_expiries(context, TimeUnit::Millis, TimeBase::Epoch, "hpexpireat")
}

/// Handles `HPERSIST key FIELDS numfields field [field ...]`.
pub(super) fn hpersist(context: &mut Context<'_>) -> Result<(), CommandError> {
    let names = parse_fields_first(context)?;
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let found = context.find_hash(&key)?;
    context.reply.array(names.len());
    let mut change = FieldExpiryChanges::new(context, &key, found);
    for name in names.iter() {
        let became = match change.context.find_field_expiry(&key, change.entry, name) {
            Some(None) => NO_EXPIRY_REPLY,
            Some(Some(expiry)) if expiry > now => change.persist(name),
            _ => MISSING_FIELD_REPLY,
        };
        change.context.reply.integer(became);
    }
    change.apply();
    Ok(())
}

/// Changes to the expiries and fields of one hash, collected so that they can be replicated together at the end.
pub(super) struct FieldExpiryChanges<'c, 'a> {
    pub(super) context: &'c mut Context<'a>,
    pub(super) entry: Option<EntryRef>,
    key: Key<'a>,
    new_expiry: Millis,
    expiring_fields: Vec<&'a [u8]>,
    persisted_fields: Vec<&'a [u8]>,
    deleted_fields: Vec<&'a [u8]>,
    /// Fields that had already expired when the command looked them up.
    expired_fields: Vec<&'a [u8]>,
}

impl<'c, 'a> FieldExpiryChanges<'c, 'a> {
    pub(super) fn new(context: &'c mut Context<'a>, key: &Key<'a>, found: Option<EntryRef>) -> Self {
        Self {
            context,
            entry: found,
            key: *key,
            new_expiry: Millis(0),
            expiring_fields: Vec::new(),
            persisted_fields: Vec::new(),
            deleted_fields: Vec::new(),
            expired_fields: Vec::new(),
        }
    }

    /// Sets the expiry of an existing field to `at`, which is the same for all fields of this change. A time in the
    /// past deletes the field, except on a replica, which deletes fields only when its master does.
    pub(super) fn expire(&mut self, name: &'a [u8], at: Millis) -> i64 {
        if at <= self.context.now && self.context.deletes_expired() {
            self.delete_expired(name);
            return FIELD_DELETED_REPLY;
        }
        self.set_expiry(name, Some(at));
        self.new_expiry = at;
        self.expiring_fields.push(name);
        APPLIED_REPLY
    }

    /// Removes the expiry of a field.
    pub(super) fn persist(&mut self, name: &'a [u8]) -> i64 {
        self.set_expiry(name, None);
        self.persisted_fields.push(name);
        APPLIED_REPLY
    }

    /// Deletes an existing field.
    pub(super) fn delete(&mut self, name: &'a [u8]) {
        self.remove_field(name);
        self.deleted_fields.push(name);
    }

    /// Deletes a field that had already expired when the command looked it up.
    pub(super) fn delete_expired(&mut self, name: &'a [u8]) {
        self.remove_field(name);
        self.expired_fields.push(name);
    }

    fn remove_field(&mut self, name: &[u8]) {
        let place = self.entry.expect("the field is there");
        self.entry = Some(self.context.table(&self.key).hash_remove(place, &self.key, name).0);
    }

    fn set_expiry(&mut self, name: &[u8], expiry: Option<Millis>) {
        let place = self.entry.expect("the field is there");
        self.entry = Some(self.context.table(&self.key).hash_set_expiry(place, &self.key, name, expiry).0);
    }

    /// Deletes the hash if it is empty, notifies subscribers and replicates the changes.
    pub(super) fn apply(self) {
        let Self {
            context,
            entry: place,
            key,
            new_expiry: at,
            expiring_fields: timed,
            persisted_fields: untimed,
            deleted_fields: mut deleted,
            expired_fields: expired,
        } = self;
        if timed.is_empty() && untimed.is_empty() && deleted.is_empty() && expired.is_empty() {
            return;
        }
        let changes = timed.len() + untimed.len() + deleted.len() + expired.len();
        context.report_changes(&key, changes);
        context.count_expired_fields(expired.len());
        let events =
            [(&timed, "hexpire"), (&untimed, "hpersist"), (&deleted, "hdel"), (&expired, "hexpired")];
        for (names, event) in events {
            if !names.is_empty() {
                context.notify(EventClass::HASH, event, &key);
            }
        }
        if let Some(place) = place {
            context.delete_if_empty(&key, place);
        }
        let mut digits = itoa::Buffer::new();
        log_field_command(context, &[b"HPEXPIREAT", key.bytes(), digits.format(at.0).as_bytes()], &timed);
        log_field_command(context, &[b"HPERSIST", key.bytes()], &untimed);
        deleted.extend(expired);
        if !deleted.is_empty() {
            let mut effect = vec![&b"HDEL"[..], key.bytes()];
            effect.extend(deleted);
            context.log_effect(&effect);
        }
    }
}

/// Replicates `command` with these fields. Without fields, nothing is replicated.
fn log_field_command(context: &mut Context<'_>, command: &[&[u8]], names: &[&[u8]]) {
    if !names.is_empty() {
        let mut digits = itoa::Buffer::new();
        let mut effect = command.to_vec();
        effect.extend([&b"FIELDS"[..], digits.format(names.len()).as_bytes()]);
        effect.extend(names);
        context.log_effect(&effect);
    }
}

/// Handles HTTL, HPTTL, HEXPIRETIME and HPEXPIRETIME. `convert` computes the reply from a field's expiry and the
/// current time.
fn reply_expiries(context: &mut Context<'_>, convert: fn(Millis, Millis) -> i64) -> Result<(), CommandError> {
    let names = parse_fields_first(context).map_err(|error| match error {
        CommandError::NotInteger => error,
        // As in Valkey, only commands that read expiries report a malformed FIELDS option as a syntax error.
        _ => CommandError::Syntax,
    })?;
    let (key, now, gone) = (context.key(1)?, context.now, context.expiry_cutoff());
    let found = context.read_hash(&key)?;
    context.reply.array(names.len());
    for name in names.iter() {
        let shown = match context.find_field_expiry(&key, found, name) {
            Some(None) => NO_EXPIRY_REPLY,
            // An import source sees expired fields; their remaining time is shown as 0.
            Some(Some(expiry)) if expiry > gone => convert(expiry, now).max(0),
            _ => MISSING_FIELD_REPLY,
        };
        context.reply.integer(shown);
    }
    Ok(())
}

/// Replies to HTTL in seconds, rounded to the nearest second as by TTL.
pub(super) fn httl(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_expiries(context, |expiry, now| (expiry.0 - now.0 + 500) / 1000)
}

pub(super) fn hpttl(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_expiries(context, |expiry, now| expiry.0 - now.0)
}

pub(super) fn hexpiretime(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_expiries(context, |expiry, _| (expiry.0 + 500) / 1000)
}

pub(super) fn hpexpiretime(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_expiries(context, |expiry, _| expiry.0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use engine::{CommandOrigin, NodeFlags};

    use crate::testing::Client;

    #[test]
    fn hexpire_and_hpersist_change_field_expiry() {
        let numfields = "-ERR numfields should be greater than 0 and match the provided number of fields";
        Client::new().check_replies(&[
            ("hset h a 1 b 2 c 3", ":3"),
            ("hexpire h 10 fields 2 a x", "*2|:1|:-2"),
            ("httl h fields 3 a b x", "*3|:10|:-1|:-2"),
            ("hpttl h fields 1 a", "*1|:10000"),
            ("hexpiretime h fields 1 a", "*1|:1700000010"),
            ("hpexpiretime h fields 1 a", "*1|:1700000010000"),
            ("hpexpire h 5000 nx fields 2 a b", "*2|:0|:1"),
            ("hpexpire h 6000 gt fields 3 a b c", "*3|:0|:1|:0"),
            ("hpexpire h 5000 lt fields 3 a b c", "*3|:1|:1|:1"),
            ("hexpireat h 1800000000 xx fields 1 a", "*1|:1"),
            ("hpexpireat h 1800000000001 fields 1 b", "*1|:1"),
            ("hpexpiretime h fields 2 a b", "*2|:1800000000000|:1800000000001"),
            ("hpersist h fields 3 a a x", "*3|:1|:-1|:-2"),
            ("httl nosuch fields 1 a", "*1|:-2"),
            ("hexpire nosuch 10 fields 2 a b", "*2|:-2|:-2"),
            ("hpersist nosuch fields 1 a", "*1|:-2"),
            ("hexpire h 0 fields 2 a b", "*2|:2|:2"),
            ("hexpireat h 1 fields 1 c", "*1|:2"),
            ("exists h", ":0"),
            ("hexpire h -1 fields 1 a", "-ERR invalid expire time in 'hexpire' command"),
            ("hexpire h 9223372036854775807 fields 1 a", "-ERR invalid expire time in 'hexpire' command"),
            ("hset h a 1", ":1"),
            ("hpexpireat h 9223372036854775808 fields 1 a", "-ERR value is not an integer or out of range"),
            ("hexpireat h 9223372036854776 fields 1 a", "-ERR invalid expire time in 'hexpireat' command"),
            ("hpexpireat h 9223372036854775807 fields 1 a", "*1|:1"),
            ("hpexpiretime h fields 1 a", "*1|:9223372036854775807"),
            ("hpexpireat h 70368744177663 fields 1 a", "*1|:1"),
            ("hpexpiretime h fields 1 a", "*1|:70368744177663"),
            ("hexpire h x fields 1 a", "-ERR value is not an integer or out of range"),
            ("hexpire h 10 nosuch fields 1 a", "-ERR Unsupported option nosuch"),
            (
                "hexpire h 10 nx gt fields 1 a",
                "-ERR NX and XX, GT or LT options at the same time are not compatible",
            ),
            ("hexpire h 10 fields 0 a", numfields),
            ("hexpire h 10 fields 2 a", numfields),
            ("hexpire h 10 fields 1 a b", numfields),
            ("hexpire h 10 nx xx a b", numfields),
            ("httl h fields x a", "-ERR value is not an integer or out of range"),
            ("httl h a 1 fields", "-ERR syntax error"),
            ("httl h fields 2 a", "-ERR syntax error"),
            ("hpersist h fields 2 a", numfields),
            ("hpersist h field 1 a", "-ERR syntax error"),
            ("hexpire h 10 fields 1", "-ERR wrong number of arguments for 'hexpire' command"),
        ]);
    }

    #[test]
    fn hset_clears_field_expiry_and_hincrby_keeps_it() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("hset h a 1 b 2 c 3", ":3"),
            ("hpexpire h 100 fields 3 a b c", "*3|:1|:1|:1"),
            ("hset h a 2", ":0"),
            ("hincrby h b 1", ":3"),
            ("hincrbyfloat h c 0.5", "$3|3.5"),
            ("hpttl h fields 3 a b c", "*3|:-1|:100|:100"),
        ]);
        assert_eq!(
            client.logged_commands()[1..],
            [
                "0 HPEXPIREAT h 1700000000100 FIELDS 3 a b c",
                "0 hset h a 2",
                "0 hincrby h b 1",
                "0 MULTI",
                "0 HSET h c 3.5",
                "0 HPEXPIREAT h 1700000000100 FIELDS 1 c",
                "0 EXEC",
            ]
        );
    }

    /// Creates a small and a large hash with an expired field `a` that is still stored, and a field `b` that has not
    /// expired.
    fn create_hashes_with_expired_fields(client: &mut Client, key: &str, fields: usize) {
        for field in 0..fields {
            client.call(&["hset", key, &format!("f{field}"), "v"]);
        }
        client.check_replies(&[
            (&format!("hset {key} a 1 b 2"), ":2"),
            (&format!("hpexpire {key} 10 fields 1 a"), "*1|:1"),
            (&format!("hpexpire {key} 100 fields 1 b"), "*1|:1"),
        ]);
        client.now.0 += 10;
    }

    #[test]
    fn expired_field_counts_as_missing() {
        for fields in [0, 1000] {
            let mut client = Client::new();
            create_hashes_with_expired_fields(&mut client, "h", fields);
            client.check_replies(&[
                ("hget h a", "$-1"),
                ("hmget h a b", "*2|$-1|$1|2"),
                ("hexists h a", ":0"),
                ("hstrlen h a", ":0"),
                ("hlen h", &format!(":{}", fields + 2)),
                ("httl h fields 1 a", "*1|:-2"),
                ("hexpire h 10 fields 1 a", "*1|:-2"),
                ("hpersist h fields 1 a", "*1|:-2"),
                ("hgetdel h fields 1 a", "*1|$-1"),
                ("hscan h 0 match a count 5000", "*2|$1|0|*0"),
                ("hdel h a", ":0"),
            ]);
            let shown = client.call(&["hrandfield", "h", "5000"]);
            assert_eq!(shown.as_array().map(<[_]>::len), Some(fields + 1));
            create_hashes_with_expired_fields(&mut client, "g", fields);
            client.check_replies(&[
                ("hsetnx g a 5", ":1"),
                ("hget g a", "$1|5"),
                ("httl g fields 1 a", "*1|:-1"),
            ]);
            create_hashes_with_expired_fields(&mut client, "i", fields);
            client.check_replies(&[
                ("hincrby i a 5", ":5"),
                ("hset i a 6", ":0"),
                ("httl i fields 1 a", "*1|:-1"),
            ]);
            create_hashes_with_expired_fields(&mut client, "j", fields);
            client.check_replies(&[("hsetex j fxx fields 1 a 5", ":0"), ("hset j a 1", ":1")]);
        }
    }

    #[test]
    fn replication_does_not_depend_on_physical_field_expiry() {
        let mut client = Client::with_recording_log();
        create_hashes_with_expired_fields(&mut client, "h", 0);
        client.check_replies(&[("hsetnx h a 5", ":1")]);
        create_hashes_with_expired_fields(&mut client, "g", 0);
        client.check_replies(&[("hincrby g a 5", ":5")]);
        create_hashes_with_expired_fields(&mut client, "i", 0);
        client.check_replies(&[
            ("hsetex i keepttl fields 2 a 5 b 6", ":1"),
            ("hpttl i fields 2 a b", "*2|:-1|:90"),
        ]);
        let log = client.logged_commands();
        assert!(
            log.contains(&"0 HSET h a 5".to_owned()) && log.contains(&"0 HSET g a 5".to_owned()),
            "{log:?}"
        );
        let end: Vec<&str> = log[log.len() - 4..].iter().map(String::as_str).collect();
        assert_eq!(end, ["0 MULTI", "0 HSET i a 5 b 6", "0 HPEXPIREAT i 1700000000120 FIELDS 1 b", "0 EXEC"]);
    }

    #[test]
    fn last_expired_field_deletes_hash() {
        for fields in [0, 1000] {
            let mut client = Client::with_recording_log();
            create_hashes_with_expired_fields(&mut client, "h", fields);
            let second = Duration::from_secs(1);
            client.engine.run_expiry_cycle(&mut client.worker, client.now, second);
            assert_eq!(client.logged_commands().last().map(String::as_str), Some("0 HDEL h a"));
            client.check_replies(&[(
                "object encoding h",
                if fields > 0 { "$9|hashtable" } else { "$8|listpack" },
            )]);
            client.now.0 += 90;
            client.engine.run_expiry_cycle(&mut client.worker, client.now, second);
            assert_eq!(client.logged_commands().last().map(String::as_str), Some("0 HDEL h b"));
            client.check_replies(&[("exists h", if fields > 0 { ":1" } else { ":0" })]);
            assert_eq!(client.worker.stats.expired_fields.load(Ordering::Relaxed), 2);
        }
    }

    /// Regression test: fields that a command deleted because of a time in the past, or found expired, were missing in
    /// the statistics.
    #[test]
    fn expired_fields_are_counted_in_statistics() {
        let mut client = Client::new();
        for (line, reply, counted) in [
            ("hpexpire h 0 fields 1 a", "*1|:-2", 0),
            ("hpexpire h 0 fields 1 b", "*1|:2", 1),
            ("hset h a 1 c 2", ":2", 1),
            ("hsetnx h a 1", ":1", 1),
            ("hincrby h a 1", ":1", 1),
            ("hincrbyfloat h a 1", "$1|1", 1),
            ("hsetex h fnx fields 1 a 1", ":1", 1),
            ("hsetex h pxat 1 fields 2 b 1 d 2", ":1", 2),
            ("hgetex h pxat 1 fields 2 a b", "*2|$-1|$1|2", 1),
            ("hdel h b", ":1", 0),
        ] {
            client.call(&["flushall"]);
            create_hashes_with_expired_fields(&mut client, "h", 0);
            let before = client.worker.stats.expired_fields.load(Ordering::Relaxed);
            client.check_replies(&[(line, reply)]);
            let after = client.worker.stats.expired_fields.load(Ordering::Relaxed);
            assert_eq!(after - before, counted, "{line}");
        }
    }

    #[test]
    fn replica_hides_expired_fields_and_applies_master_commands() {
        let mut client = Client::with_recording_log();
        create_hashes_with_expired_fields(&mut client, "h", 0);
        client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
        client.engine.run_expiry_cycle(&mut client.worker, client.now, Duration::from_secs(1));
        client.check_replies(&[("hget h a", "$-1"), ("hlen h", ":2")]);
        client.session = engine::Session::new(2, CommandOrigin::Master, true);
        // The field had not expired yet when the master executed the command.
        client.check_replies(&[
            ("hincrby h a 1", ":2"),
            ("hpexpireat h 1 FIELDS 1 b", "*1|:1"),
            ("hlen h", ":2"),
        ]);
        client.check_replies(&[("hdel h a b", ":2"), ("exists h", ":0")]);
    }
}
