//! Reading a string, alone or with a change to its key.

use keyspace::{Key, Place, Value};

use super::options::{Expiry, Options, Words};
use crate::context::Context;
use crate::error::CommandError;
use crate::notifications::Class;

/// Replies with the string under `key` or null, and says where it lies.
#[inline(always)]
pub(super) fn reply_string(context: &mut Context<'_>, key: &Key<'_>) -> Result<Option<Place>, CommandError> {
    let found = context.read(key);
    let (table, reply) = context.view_and_reply(key);
    match found.map(|place| table.value(place)) {
        None => reply.null(),
        Some(Value::String(string)) => reply.bulk(string.bytes),
        Some(_) => return Err(CommandError::WrongType),
    }
    Ok(found)
}

pub(super) fn get(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1);
    reply_string(context, &key)?;
    Ok(())
}

pub(super) fn getdel(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1);
    if let Some(place) = reply_string(context, &key)? {
        context.delete(&key, place);
        context.notify(Class::GENERIC, "del", &key);
        context.effect(&[b"DEL", key.bytes()]);
    }
    Ok(())
}

pub(super) fn getex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let options = Options::parse(context.args, 2, Words::GETEX)?;
    let key = context.key(1);
    let Some(place) = context.read(&key) else {
        context.reply.null();
        return Ok(());
    };
    context.string(&key, place)?;
    let at = options.expiry.at(context, "getex")?;
    let (table, reply) = context.view_and_reply(&key);
    if let Value::String(string) = table.value(place) {
        reply.bulk(string.bytes);
    }
    match at {
        Some(at) => context.expire_at(&key, place, at),
        None if options.expiry == Expiry::Persist => {
            context.persist(&key, place);
        }
        None => {}
    }
    Ok(())
}

pub(super) fn strlen(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1);
    let len = match context.read(&key) {
        Some(place) => context.string(&key, place)?.bytes.len(),
        None => 0,
    };
    context.reply.integer(len as i64);
    Ok(())
}

pub(super) fn delifeq(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, expected) = (context.key(1), context.arg(2));
    let mut deleted = false;
    if let Some(place) = context.find(&key)
        && context.string(&key, place)?.bytes == expected
    {
        context.delete(&key, place);
        context.notify(Class::GENERIC, "del", &key);
        context.effect(&[b"DEL", key.bytes()]);
        deleted = true;
    }
    context.reply.integer(i64::from(deleted));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clock::Millis;

    use crate::testing::Client;

    #[test]
    fn strings_are_read() {
        Client::new().table(&[
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
    fn getex_changes_the_expiry_and_says_so_to_the_log() {
        let mut client = Client::logged();
        client.table(&[
            ("getex k ex 10", "$-1"),
            ("getex k ex abc", "$-1"),
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
            client.log(),
            ["0 set k v", "0 PEXPIREAT k 1700000010000", "0 PERSIST k", "0 DEL k"],
            "what is not deterministic is rewritten"
        );
    }

    #[test]
    fn delifeq_deletes_only_what_is_equal() {
        let mut client = Client::logged();
        client.table(&[
            ("delifeq k v", ":0"),
            ("set k v", "+OK"),
            ("delifeq k w", ":0"),
            ("delifeq k v", ":1"),
            ("get k", "$-1"),
        ]);
        assert_eq!(client.log(), ["0 set k v", "0 DEL k"]);
    }

    #[test]
    fn what_is_past_its_time_is_not_there() {
        let mut client = Client::new();
        client.table(&[("set k v px 5", "+OK")]);
        client.now = Millis(client.now.0 + 4);
        client.table(&[("get k", "$1|v")]);
        client.now = Millis(client.now.0 + 1);
        client.table(&[("get k", "$-1"), ("strlen k", ":0")]);
    }
}
