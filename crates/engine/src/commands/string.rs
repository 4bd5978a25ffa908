//! Strings.

use clock::Millis;
use keyspace::{NewValue, Value};

use crate::command::{Categories, Command, Flags, Group};
use crate::context::Context;
use crate::error::CommandError;
use crate::keys::{KeyFlags, KeySpec};

const READ: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);

pub(super) const COMMANDS: &[Command] = &[
    Command::new("get", Group::String, "1.0.0", 2, "Returns the string value of a key.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, READ)])
        .run(get),
    Command::new("set", Group::String, "1.0.0", -3, "Sets a key to a string, whatever it held.")
        .flags(Flags::WRITE.union(Flags::DENYOOM))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(
            1,
            KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE).union(KeyFlags::VARIABLE_FLAGS),
        )])
        .run(set),
];

fn get(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1);
    let Some(place) = context.read(&key) else {
        context.reply.null();
        return Ok(());
    };
    let (table, reply) = context.table_and_reply(&key);
    match table.value(place) {
        Value::String(string) => reply.bulk(string.bytes),
        _ => return Err(CommandError::WrongType),
    }
    Ok(())
}

fn set(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() > 3 {
        return Err(CommandError::Syntax);
    }
    let key = context.key(1);
    let value = NewValue::string(context.arg(2));
    store(context, &key, value, None);
    context.changed(1);
    context.reply.ok();
    Ok(())
}

/// Puts a value and its expiry under `key`, whatever it held.
fn store(context: &mut Context<'_>, key: &keyspace::Key<'_>, value: NewValue<'_>, expiry: Option<Millis>) {
    match context.find(key) {
        None => {
            context.table(key).insert(key, value, expiry);
        }
        Some(place) => {
            let (_, dropped) = context.table(key).replace(place, key, value, expiry);
            context.discard(dropped);
        }
    }
}
