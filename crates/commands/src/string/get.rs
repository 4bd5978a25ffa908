//! Implements GET, GETDEL, GETEX, STRLEN, DELEX and DIGEST.

use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Key, Value};

use super::options::{AcceptedOptions, Comparison, ExpiryOption, SetOptions, digest};

/// Replies with the string under `key`, or with null if the key does not exist. Returns the location of the entry.
#[inline(always)]
pub(super) fn find_and_reply_string(
    context: &mut Context<'_>,
    key: &Key<'_>,
) -> Result<Option<EntryRef>, CommandError> {
    let found = context.find_for_read(key);
    let (table, reply) = context.table_and_reply(key);
    match found.map(|place| table.value(place)) {
        None => reply.null(),
        Some(Value::String(string)) => reply.bulk(string.bytes),
        Some(_) => return Err(CommandError::WrongType),
    }
    Ok(found)
}

pub(super) fn get(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    find_and_reply_string(context, &key)?;
    Ok(())
}

pub(super) fn getdel(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    if let Some(place) = find_and_reply_string(context, &key)? {
        context.delete(&key, place);
        context.notify(EventClass::GENERIC, "del", &key);
        context.log_effect(&[b"DEL", key.bytes()]);
    }
    Ok(())
}

pub(super) fn getex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let options = SetOptions::parse(context.args, 2, AcceptedOptions::GETEX)?;
    let key = context.key(1)?;
    let at = options.expiry.resolve(context, "getex")?;
    let Some(place) = context.find_for_read(&key) else {
        context.reply.null();
        return Ok(());
    };
    context.string_value(&key, place)?;
    let (table, reply) = context.table_and_reply(&key);
    if let Value::String(string) = table.value(place) {
        reply.bulk(string.bytes);
    }
    match at {
        Some(at) => context.expire_at(&key, place, at),
        None if options.expiry == ExpiryOption::Persist => {
            context.persist(&key, place);
        }
        None => {}
    }
    Ok(())
}

pub(super) fn strlen(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let len = match context.find_for_read(&key) {
        Some(place) => context.string_value(&key, place)?.bytes.len(),
        None => 0,
    };
    context.reply.integer(len as i64);
    Ok(())
}

pub(super) fn delifeq(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, expected) = (context.key(1)?, context.arg(2));
    let found = context.find(&key);
    let wanted = match found {
        Some(place) => context.string_value(&key, place)?.bytes == expected,
        None => false,
    };
    delete_if_found(context, &key, found.filter(|_| wanted));
    Ok(())
}

/// Handles `DELEX key [(IFEQ | IFNE) value | (IFDEQ | IFDNE) digest]`.
pub(super) fn delex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let words = context.args.len();
    if words != 2 && words != 4 {
        return Err(CommandError::WrongArity("delex".to_owned()));
    }
    let key = context.key(1)?;
    let found = context.find(&key);
    let wanted = match found {
        Some(place) if words > 2 => {
            let Value::String(string) = context.table_ref(&key).value(place) else {
                return Err(CommandError::text(
                    "ERR Key should be of string type if conditions are specified",
                ));
            };
            let word = context.arg(2);
            if !Comparison::is_comparison_option(word) {
                return Err(CommandError::text("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"));
            }
            Comparison::parse(word, context.arg(3)).is_satisfied(Some(string.bytes))?
        }
        _ => true,
    };
    delete_if_found(context, &key, found.filter(|_| wanted));
    Ok(())
}

/// Deletes the key if `found` is set, and replies with the number of deleted keys.
fn delete_if_found(context: &mut Context<'_>, key: &Key<'_>, found: Option<EntryRef>) {
    if let Some(place) = found {
        context.delete(key, place);
        context.notify(EventClass::GENERIC, "del", key);
        context.log_effect(&[b"DEL", key.bytes()]);
    }
    context.reply.integer(i64::from(found.is_some()));
}

/// Handles `DIGEST key`.
pub(super) fn reply_digest(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    match context.find_for_read(&key) {
        None => context.reply.null(),
        Some(place) => {
            let digits = format!("{:016x}", digest(context.string_value(&key, place)?.bytes));
            context.reply.bulk(digits.as_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clock::Millis;

    use crate::testing::Client;

    #[test]
    fn get_getdel_and_strlen_read_strings() {
        Client::new().check_replies(&[
            ("get k", "$-1"),
            ("strlen k", ":0"),
            ("set k hello", "+OK"),
            ("get k", "$5|hello"),
            ("strlen k", ":5"),
            ("getdel k", "$5|hello"),
            ("getdel k", "$-1"),
            ("get k", "$-1"),
            ("strlen", "-ERR wrong number of arguments for 'strlen' command"),
        ]);
    }

    #[test]
    fn getex_changes_and_replicates_expiry() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("getex k ex 10", "$-1"),
            ("getex k ex abc", "-ERR value is not an integer or out of range"),
            ("getex k ex 0", "-ERR invalid expire time in 'getex' command"),
            ("set k v", "+OK"),
            ("getex k", "$1|v"),
            ("getex k ex abc", "-ERR value is not an integer or out of range"),
            ("getex k ex 0", "-ERR invalid expire time in 'getex' command"),
            ("getex k px 9223372036854775807", "-ERR invalid expire time in 'getex' command"),
            ("getex k keepttl", "-ERR syntax error"),
            ("getex k nx", "-ERR syntax error"),
            ("getex k ex 10 persist", "-ERR syntax error"),
            ("getex k ex", "-ERR syntax error"),
            ("getex k ex 10", "$1|v"),
            ("getex k persist", "$1|v"),
            ("getex k persist", "$1|v"),
            ("getex k pxat 1", "$1|v"),
            ("get k", "$-1"),
        ]);
        assert_eq!(
            client.logged_commands(),
            ["0 set k v", "0 PEXPIREAT k 1700000010000", "0 PERSIST k", "0 UNLINK k"],
            "what is not deterministic is rewritten"
        );
    }

    #[test]
    fn delifeq_deletes_only_equal_values() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("delifeq k v", ":0"),
            ("set k v", "+OK"),
            ("delifeq k w", ":0"),
            ("delifeq k v", ":1"),
            ("get k", "$-1"),
        ]);
        assert_eq!(client.logged_commands(), ["0 set k v", "0 DEL k"]);
    }

    #[test]
    fn strings_compare_by_digest() {
        let digits = "-ERR must be exactly 16 hexadecimal characters";
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("digest k", "$-1"),
            ("set k \"\"", "+OK"),
            ("digest k", "$16|2d06800538d394c2"),
            ("set k v8lf0c11xh8ymlqztfd3eeq16kfn4sspw7fqmnuuq3k3t75em5wdizgcdw7uc26nnf961u2jkfzkjytls2kwlj7626sd", "+OK"),
            ("digest k", "$16|00006c38adf31777"),
            ("set k v ifdeq 00006C38ADF31778", "$-1"),
            ("set k v ifdeq 6c38adf31777", digits),
            ("set k v ifdeq 00006C38ADF31777", "+OK"),
            ("set n v ifdeq 00006C38ADF31777", "$-1"),
            ("set n v ifdne 00006C38ADF31777", "+OK"),
            ("set n w ifne v", "$-1"),
            ("set n w ifne x get", "$1|v"),
            ("set new w ifne x", "+OK"),
            ("set n w ifeq w ifne x", "-ERR syntax error"),
            ("set n w nx ifne x", "-ERR syntax error"),
            ("hset h a 1", ":1"),
            ("digest h", wrong_type),
            ("set h w ifne x", wrong_type),
            ("set h w ifdne 00006c38adf31777", wrong_type),
        ]);
        let log = client.logged_commands();
        assert_eq!(log[2..], ["0 SET k v", "0 SET n v", "0 SET n w", "0 SET new w", "0 hset h a 1"]);
    }

    #[test]
    fn delex_deletes_conditionally() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("delex k", ":0"),
            ("delex k ifne x", ":0"),
            ("mset k v l v", "+OK"),
            ("hset h a 1", ":1"),
            ("delex k ifeq w", ":0"),
            ("delex k ifne v", ":0"),
            ("delex k ifdeq 0000000000000000", ":0"),
            ("delex k ifdeq 0", "-ERR must be exactly 16 hexadecimal characters"),
            ("delex k ifdne 0000000000000000", ":1"),
            ("delex l ifeq", "-ERR wrong number of arguments for 'delex' command"),
            ("delex l nosuch v", "-ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"),
            ("delex l ifeq v", ":1"),
            ("delex h ifeq v", "-ERR Key should be of string type if conditions are specified"),
            ("delex h", ":1"),
        ]);
        assert_eq!(client.logged_commands()[2..], ["0 DEL k", "0 DEL l", "0 DEL h"]);
    }

    #[test]
    fn expired_string_is_missing() {
        let mut client = Client::new();
        client.check_replies(&[("set k v px 5", "+OK")]);
        client.now = Millis(client.now.0 + 4);
        client.check_replies(&[("get k", "$1|v")]);
        client.now = Millis(client.now.0 + 1);
        client.check_replies(&[("get k", "$-1"), ("strlen k", ":0")]);
    }
}
