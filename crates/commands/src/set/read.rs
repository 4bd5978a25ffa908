//! Implements SISMEMBER, SMISMEMBER, SCARD and SMEMBERS.

use engine::{CommandError, Context};
use keyspace::{PartElements, SetRef};

pub(super) fn sismember(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, member) = (context.key(1)?, context.arg(2));
    let found = context.read_typed::<SetRef<'_>>(&key)?;
    let there =
        found.and_then(|place| context.table_ref(&key).set(place)).is_some_and(|set| set.contains(member));
    context.reply.integer(i64::from(there));
    Ok(())
}

pub(super) fn smismember(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, members) = (context.key(1)?, context.args.skip(2));
    let found = context.read_typed::<SetRef<'_>>(&key)?;
    let (table, reply) = context.table_and_reply(&key);
    let set = found.and_then(|place| table.set(place));
    reply.array(members.len());
    for member in members.iter() {
        reply.integer(i64::from(set.is_some_and(|set| set.contains(member))));
    }
    Ok(())
}

pub(super) fn scard(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.read_typed::<SetRef<'_>>(&key)?;
    let len = found.and_then(|place| context.table_ref(&key).set(place)).map_or(0, |set| set.len());
    context.reply.integer(len as i64);
    Ok(())
}

pub(super) fn smembers(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.read_typed::<SetRef<'_>>(&key)?;
    let Some((place, set)) = found.and_then(|place| Some((place, context.table_ref(&key).set(place)?)))
    else {
        context.reply.set(0);
        return Ok(());
    };
    let len = set.len();
    if let Some(pinned) = context.pin_values(&[(key, place)]) {
        context.reply.set(len);
        pinned.visit_elements(|_, elements| {
            if let PartElements::Set(members) = elements {
                members.for_each(&mut |member| context.reply.bulk(member.name));
            }
            !context.reply.is_over_limit()
        });
        return Ok(());
    }
    let (table, reply) = context.table_and_reply(&key);
    let Some(set) = table.set(place) else { return Ok(()) };
    reply.set(len);
    set.for_each(&mut |member| reply.bulk(&member));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    #[test]
    fn set_read_commands_reply_with_members() {
        let mut client = Client::new();
        client.check_replies(&[
            ("sadd s b a", ":2"),
            ("sadd i 10 -3 7", ":3"),
            ("sismember s a", ":1"),
            ("sismember s c", ":0"),
            ("sismember nosuch a", ":0"),
            ("sismember i 7", ":1"),
            ("sismember i 07", ":0"),
            ("smismember s a c b a", "*4|:1|:0|:1|:1"),
            ("smismember nosuch a b", "*2|:0|:0"),
            ("smembers s", "*2|$1|b|$1|a"),
            ("smembers i", "*3|$2|-3|$1|7|$2|10"),
            ("smembers nosuch", "*0"),
            ("scard s", ":2"),
            ("scard nosuch", ":0"),
            ("type s", "+set"),
            ("scan 0 type set match i count 100000", "*2|$1|0|*1|$1|i"),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[
            ("smembers s", "~2|$1|b|$1|a"),
            ("smembers nosuch", "~0"),
            ("smismember s a c", "*2|:1|:0"),
            ("sinter s s", "~2|$1|b|$1|a"),
            ("sdiff nosuch s", "~0"),
            ("sunion nosuch", "~0"),
            ("spop nosuch 1", "~0"),
            ("spop nosuch", "_"),
            ("srandmember s 0", "*0"),
            ("srandmember nosuch", "_"),
        ]);
    }

    #[test]
    fn set_commands_refuse_other_types() {
        let mut client = Client::new();
        client.check_replies(&[("set s 1", "+OK"), ("sadd t a", ":1")]);
        for line in [
            "sadd s a",
            "srem s a",
            "smove s t a",
            "smove t s a",
            "sismember s a",
            "smismember s a",
            "scard s",
            "smembers s",
            "spop s",
            "spop s 0",
            "srandmember s",
            "srandmember s 1",
            "sscan s 0",
            "sinter t s",
            "sinter nosuch s",
            "sintercard 2 nosuch s",
            "sinterstore d t s",
            "sunion t s",
            "sunionstore d t s",
            "sdiff t s",
            "sdiffstore d nosuch s",
            "get t",
            "hget t a",
            "append t x",
        ] {
            client.check_replies(&[(line, WRONG_TYPE)]);
        }
        client.check_replies(&[
            ("sunionstore s t", ":1"),
            ("type s", "+set"),
            ("set t 1", "+OK"),
            ("get t", "$1|1"),
        ]);
    }

    #[test]
    fn generic_commands_work_on_sets() {
        let mut client = Client::new();
        for (key, count) in [("small", 3), ("large", 3000)] {
            for number in 0..count {
                client.call(&["sadd", key, &format!("member {number}"), &number.to_string()]);
            }
            let digest = client.call(&["debug", "digest-value", key]);
            client.check_replies(&[
                (&format!("copy {key} copy"), ":1"),
                ("rename copy other", "+OK"),
                (&format!("sdiff {key} other"), "*0"),
            ]);
            assert_eq!(client.call(&["debug", "digest-value", "other"]), digest);
            let resp::Value::Bulk(payload) = client.call(&["dump", key]) else { panic!("a payload") };
            client.call_bytes(&[b"restore", b"restored", b"0", &payload]);
            assert_eq!(client.call(&["debug", "digest-value", "restored"]), digest);
            assert_eq!(client.call(&["scard", "restored"]), resp::Value::Integer(2 * count));
            client.check_replies(&[("del other restored", ":2")]);
        }
    }
}
