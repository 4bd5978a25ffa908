//! HGETDEL, HGETEX and HSETEX: read or set fields and change their expiry in one command.

use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Field, Key};
use resp::Args;

use super::expire::FieldExpiryChanges;
use super::fields::HashAccess;
use super::options::{AcceptedOptions, ExpiryOption, HashFieldOptions, parse_fields_first};

/// Handles `HGETDEL key FIELDS numfields field [field ...]`.
pub(super) fn hgetdel(context: &mut Context<'_>) -> Result<(), CommandError> {
    let names = parse_fields_first(context)?;
    let key = context.key(1)?;
    let found = context.find_hash(&key)?;
    context.reply.array(names.len());
    let mut change = FieldExpiryChanges::new(context, &key, found);
    for name in names.iter() {
        if change.context.reply_field_and_return_expiry(&key, change.entry, name).is_some() {
            change.delete(name);
        }
    }
    change.apply();
    Ok(())
}

/// Handles `HGETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST] FIELDS numfields field [field ...]`.
pub(super) fn hgetex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (options, names) = HashFieldOptions::parse(context, AcceptedOptions::PERSIST, 1)?;
    let key = context.key(1)?;
    let found = context.read_hash(&key)?;
    let wanted = options.expiry(context, "hgetex")?;
    context.reply.array(names.len());
    let mut change = FieldExpiryChanges::new(context, &key, found);
    for name in names.iter() {
        let Some(expiry) = change.context.reply_field_and_return_expiry(&key, change.entry, name) else {
            continue;
        };
        match wanted {
            ExpiryOption::At(at) => {
                change.expire(name, at);
            }
            ExpiryOption::Persist if expiry.is_some() => {
                change.persist(name);
            }
            _ => {}
        }
    }
    change.apply();
    Ok(())
}

/// Handles `HSETEX key [NX | XX] [FNX | FXX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL] FIELDS numfields field value
/// [field value ...]`.
pub(super) fn hsetex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (options, pairs) =
        HashFieldOptions::parse(context, AcceptedOptions::KEEPTTL | AcceptedOptions::CONDITIONS, 2)?;
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let mut found = context.find_hash(&key)?;
    let lives = |context: &mut Context<'_>, name| {
        context
            .find_field_expiry(&key, found, name)
            .is_some_and(|expiry| expiry.is_none_or(|expiry| expiry > now))
    };
    let key_fits = options.key_must_exist.is_none_or(|wanted| found.is_some() == wanted);
    let wanted = if key_fits { options.expiry(context, "hsetex")? } else { ExpiryOption::Unspecified };
    let met = key_fits
        && options
            .fields_must_exist
            .is_none_or(|wanted| pairs.iter().step_by(2).all(|name| lives(context, name) == wanted));
    if !met {
        context.reply.integer(0);
        return Ok(());
    }
    context.reply.integer(1);
    if let ExpiryOption::At(at) = wanted
        && at <= context.now
        && context.deletes_expired()
    {
        apply_past_expiry(context, &key, found, &pairs);
        return Ok(());
    }
    let mut hidden = false;
    for index in (0..pairs.len()).step_by(2) {
        let (name, value) = (&pairs[index], &pairs[index + 1]);
        let expiry = match wanted {
            ExpiryOption::At(at) => Some(at),
            ExpiryOption::Keep => {
                context.find_field_expiry(&key, found, name).flatten().filter(|&expiry| expiry > now)
            }
            ExpiryOption::Unspecified | ExpiryOption::Persist => None,
        };
        let (place, replaced) = context.set_field(&key, found, Field { name, value, expiry });
        found = Some(place);
        hidden |= replaced.is_some_and(|replaced| replaced.was_expired_at(now));
    }
    context.report_changes(&key, pairs.len() / 2);
    context.notify_expired_fields_replaced(&key, hidden);
    context.notify(EventClass::HASH, "hset", &key);
    if matches!(wanted, ExpiryOption::At(_)) {
        context.notify(EventClass::HASH, "hexpire", &key);
    }
    log_hsetex(context, &key, wanted, &pairs);
    Ok(())
}

/// Handles HSETEX with a time in the past. Existing fields with these names are deleted and nothing is stored, so that
/// the hash keeps its encoding.
fn apply_past_expiry(context: &mut Context<'_>, key: &Key<'_>, found: Option<EntryRef>, pairs: &Args<'_>) {
    context.count_expired_fields(pairs.len() / 2);
    let mut place = found;
    let mut removed = vec![&b"HDEL"[..], key.bytes()];
    for name in pairs.iter().step_by(2) {
        if let Some(there) = place.filter(|_| context.find_field_expiry(key, place, name).is_some()) {
            place = Some(context.table(key).hash_remove(there, key, name).0);
            removed.push(name);
        }
    }
    if removed.len() > 2 {
        context.report_changes(key, removed.len() - 2);
    }
    if found.is_none() {
        context.publish_new_key(context.session.db(), key);
    }
    for event in ["hset", "hexpire", "hexpired"] {
        context.notify(EventClass::HASH, event, key);
    }
    match place {
        Some(place) => context.delete_if_empty(key, place),
        None => context.notify(EventClass::GENERIC, "del", key),
    }
    if removed.len() > 2 {
        context.log_effect(&removed);
    }
}

/// Replicates the effect of HSETEX without its conditions. With KEEPTTL, the kept expiry is replicated explicitly,
/// because the replica may no longer have the field.
fn log_hsetex(context: &mut Context<'_>, key: &Key<'_>, expiry: ExpiryOption, pairs: &Args<'_>) {
    let mut digits = itoa::Buffer::new();
    let mut effect: Vec<&[u8]> = Vec::with_capacity(pairs.len() + 6);
    if let ExpiryOption::At(at) = expiry {
        let mut count = itoa::Buffer::new();
        effect.extend([&b"HSETEX"[..], key.bytes(), b"PXAT", digits.format(at.0).as_bytes(), b"FIELDS"]);
        effect.push(count.format(pairs.len() / 2).as_bytes());
        effect.extend(pairs.iter());
        context.log_effect(&effect);
        return;
    }
    effect.extend([&b"HSET"[..], key.bytes()]);
    effect.extend(pairs.iter());
    context.log_effect(&effect);
    if expiry == ExpiryOption::Keep {
        let found = context.find(key);
        for name in pairs.iter().step_by(2) {
            let Some(at) = context.find_field_expiry(key, found, name).flatten() else { continue };
            let at = digits.format(at.0).as_bytes();
            context.log_effect(&[b"HPEXPIREAT", key.bytes(), at, b"FIELDS", b"1", name]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::testing::Client;

    #[test]
    fn hgetdel_returns_and_deletes_fields() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("hset h a 1 b 2 c 3", ":3"),
            ("hgetdel h fields 3 a x a", "*3|$1|1|$-1|$-1"),
            ("hgetdel nosuch fields 1 a", "*1|$-1"),
            ("hgetdel h fields 2 b c", "*2|$1|2|$1|3"),
            ("exists h", ":0"),
            ("set s 1", "+OK"),
            ("hgetdel s fields 1 a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            (
                "hgetdel h fields 2 a",
                "-ERR numfields should be greater than 0 and match the provided number of fields",
            ),
        ]);
        assert_eq!(client.logged_commands()[1..3], ["0 HDEL h a", "0 HDEL h b c"]);
    }

    #[test]
    fn hgetex_sets_expiry() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("hset h a 1 b 2", ":2"),
            ("hgetex h px 100 fields 2 a x", "*2|$1|1|$-1"),
            ("hpttl h fields 2 a b", "*2|:100|:-1"),
            ("hgetex h fields 1 a", "*1|$1|1"),
            ("hgetex h persist fields 2 a b", "*2|$1|1|$1|2"),
            ("hpttl h fields 1 a", "*1|:-1"),
            ("hgetex h exat 1 fields 1 b", "*1|$1|2"),
            ("hexists h b", ":0"),
            ("hgetex h ex 1 px 1 fields 1 a", "-ERR syntax error"),
            ("hgetex h keepttl fields 1 a", "-ERR syntax error"),
            ("hgetex h ex -1 fields 1 a", "-ERR invalid expire time in 'hgetex' command"),
            ("hgetex h ex x fields 1 a", "-ERR value is not an integer or out of range"),
        ]);
        assert_eq!(
            client.logged_commands()[1..],
            ["0 HPEXPIREAT h 1700000000100 FIELDS 1 a", "0 HPERSIST h FIELDS 1 a", "0 HDEL h b"]
        );
    }

    /// Regression test: fields set with a time in the past were stored briefly. Long names or many fields converted the
    /// hash to a table for good, and fields that had expired before were counted twice.
    #[test]
    fn fields_set_with_past_expiry_are_never_stored() {
        let (mut client, long) = (Client::with_recording_log(), "x".repeat(100));
        let counted = |client: &Client| client.worker.stats.expired_fields.load(Ordering::Relaxed);
        client.check_replies(&[
            ("hset h a 1 b 2", ":2"),
            (&format!("hsetex h pxat 1 fields 1 {long} 1"), ":1"),
            ("object encoding h", "$8|listpack"),
            ("hpexpire h 10 fields 1 a", "*1|:1"),
        ]);
        client.now.0 += 10;
        let before = counted(&client);
        client
            .check_replies(&[("hsetex h pxat 1 fields 3 a 1 c 1 c 2", ":1"), ("hgetall h", "*2|$1|b|$1|2")]);
        assert_eq!(counted(&client) - before, 3);
        client.check_replies(&[("hsetex nosuch pxat 1 fields 1 a 1", ":1"), ("exists nosuch", ":0")]);
        assert_eq!(client.logged_commands()[2..], ["0 HDEL h a"]);
        client.check_events(&[
            ("hsetex nosuch pxat 1 fields 1 a 1", "hset nosuch, hexpire nosuch, hexpired nosuch, del nosuch"),
            ("hsetex h pxat 1 fields 1 c 1", "hset h, hexpire h, hexpired h"),
            ("hsetex h pxat 1 fields 1 b 1", "hset h, hexpire h, hexpired h, del h"),
        ]);
    }

    #[test]
    fn hsetex_applies_conditions_and_expiry() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("hsetex h xx fields 1 a 1", ":0"),
            ("hsetex h fxx fields 1 a 1", ":0"),
            ("exists h", ":0"),
            ("hsetex h nx fnx px 100 fields 2 a 1 b 2", ":1"),
            ("hsetex h nx fields 1 a 1", ":0"),
            ("hsetex h fnx fields 2 a 1 c 1", ":0"),
            ("hsetex h fxx fields 2 a 1 c 1", ":0"),
            ("hsetex h xx fxx keepttl fields 2 a 3 b 4", ":1"),
            ("hpttl h fields 2 a b", "*2|:100|:100"),
            ("hsetex h fields 1 a 5", ":1"),
            ("hpttl h fields 2 a b", "*2|:-1|:100"),
            ("hsetex h ex 0 fields 1 a 6", ":1"),
            ("hgetall h", "*2|$1|b|$1|4"),
            ("hsetex h fnx fxx fields 1 a 6", "-ERR syntax error"),
            ("hsetex h ex 1 keepttl fields 1 a 6", "-ERR syntax error"),
            ("hsetex h ex -1 fields 1 a 6", "-ERR invalid expire time in 'hsetex' command"),
            (
                "hsetex h fields 2 a 6 b",
                "-ERR numfields should be greater than 0 and match the provided number of fields",
            ),
        ]);
        let log = client.logged_commands();
        assert_eq!(log[0], "0 HSETEX h PXAT 1700000000100 FIELDS 2 a 1 b 2");
        assert_eq!(log[1], "0 MULTI");
        assert_eq!(log[2], "0 HSET h a 3 b 4");
        assert_eq!(log[3], "0 HPEXPIREAT h 1700000000100 FIELDS 1 a");
        assert_eq!(log[6..], ["0 HSET h a 5", "0 HDEL h a"]);
    }
}
