//! HRANDFIELD.
//!
//! Whatever the count, nothing is kept but a few chosen names and the reply itself, which ends where the client's
//! limit or, if the same field may come twice, that of a bulk string ends.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use clock::Millis;
use keyspace::{Field, HashRef};
use resp::{Protocol, Writer};

use crate::context::Context;
use crate::error::CommandError;
use crate::random::Random;

/// While this many times as many fields are there as are asked for, and they are not more than that, they are found
/// by trying; else a walk over all fields is as cheap.
const TRY_BELOW: usize = 3;
const TRY_AT_MOST: usize = 10_000;
/// So often a field may be tried in vain for each one asked for.
const TRIES: usize = 20;
/// No field takes fewer bytes of a reply.
const LEAST_FIELD: usize = b"$0\r\n\r\n".len();

const OUT_OF_RANGE: CommandError = CommandError::text("ERR value is out of range");

/// HRANDFIELD key [count [WITHVALUES]]
pub(super) fn hrandfield(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() == 2 {
        return one(context);
    }
    let (count, values) = options(context)?;
    let (key, now) = (context.key(1), context.fields_now());
    let found = context.read_hash(&key)?;
    let mut random = Random::new(context.random());
    let most = context.engine.settings.proto_max_bulk_len.load(Ordering::Relaxed);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let (table, reply) = context.view_and_reply(&key);
    let mut out = Out { reply, values, most };
    let Some(hash) = found.and_then(|place| table.hash(place)).filter(|_| count != 0) else {
        out.begin(0);
        return Ok(());
    };
    let live = hash.len_at(now);
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 {
        return repeated(&hash, now, live, wanted, &mut random, &mut out);
    }
    distinct(&hash, now, live, wanted.min(live), &mut random, &mut out);
    Ok(())
}

/// How many are wanted (fewer than 0: the same one may come twice), and whether with their values.
fn options(context: &Context<'_>) -> Result<(i64, bool), CommandError> {
    let count = context.integer(2)?;
    if count == i64::MIN {
        return Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let values = match context.args.get(3) {
        None => false,
        Some(word) if context.args.len() == 4 && word.eq_ignore_ascii_case(b"withvalues") => true,
        Some(_) => return Err(CommandError::Syntax),
    };
    if values && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return Err(OUT_OF_RANGE);
    }
    Ok((count, values))
}

fn one(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, now) = (context.key(1), context.fields_now());
    let found = context.read_hash(&key)?;
    let mut random = Random::new(context.random());
    let (table, reply) = context.view_and_reply(&key);
    let field = found.and_then(|place| table.hash(place)).and_then(|hash| any(&hash, now, &mut random));
    match field {
        Some(field) => reply.bulk(field.name),
        None => reply.null(),
    }
    Ok(())
}

/// Fields on their way into a reply.
struct Out<'r, 'a> {
    reply: &'r mut Writer<'a>,
    values: bool,
    /// Bytes that the reply may have.
    most: usize,
}

impl Out<'_, '_> {
    /// Begins the reply: `count` fields will follow.
    fn begin(&mut self, count: usize) {
        let pairs = self.values && self.reply.protocol() == Protocol::Resp2;
        self.reply.array(if pairs { count * 2 } else { count });
    }

    fn push(&mut self, field: &Field<'_>) {
        if self.values && self.reply.protocol() == Protocol::Resp3 {
            self.reply.array(2);
        }
        self.reply.bulk(field.name);
        if self.values {
            self.reply.bulk(field.value);
        }
    }
}

/// A field chosen by chance, unless nearly all of them have expired.
fn any<'a>(hash: &HashRef<'a>, now: Millis, random: &mut Random) -> Option<Field<'a>> {
    (0..TRIES).find_map(|_| hash.random(random.next()).filter(|field| field.lives_at(now)))
}

/// `wanted` fields, each chosen anew.
fn repeated(
    hash: &HashRef<'_>,
    now: Millis,
    live: usize,
    wanted: usize,
    random: &mut Random,
    out: &mut Out<'_, '_>,
) -> Result<(), CommandError> {
    if live > 0 && wanted.saturating_mul(LEAST_FIELD) > out.most {
        return Err(OUT_OF_RANGE);
    }
    let wanted = if live == 0 { 0 } else { wanted };
    let start = out.reply.len();
    out.begin(wanted);
    for _ in 0..wanted {
        match any(hash, now, random) {
            Some(field) => out.push(&field),
            // Nearly all have expired: one of the others, by its rank.
            None => sample(hash, now, live, 1, random, out),
        }
        if out.reply.is_full() {
            break;
        }
        if out.reply.len() - start > out.most {
            return Err(OUT_OF_RANGE);
        }
    }
    Ok(())
}

/// `wanted` different fields, of `live` that there are.
fn distinct(
    hash: &HashRef<'_>,
    now: Millis,
    live: usize,
    wanted: usize,
    random: &mut Random,
    out: &mut Out<'_, '_>,
) {
    out.begin(wanted);
    let few = wanted <= TRY_AT_MOST && wanted.saturating_mul(TRY_BELOW) < live;
    if !few || live != hash.len() {
        return sample(hash, now, live, wanted, random, out);
    }
    let mut chosen: BTreeSet<&[u8]> = BTreeSet::new();
    for _ in 0..wanted.saturating_mul(TRIES) {
        let Some(field) = hash.random(random.next()) else { break };
        if chosen.len() < wanted && chosen.insert(field.name) {
            out.push(&field);
        }
    }
    if chosen.len() < wanted {
        // Chance was against it: what is missing is taken in order.
        let mut missing = wanted - chosen.len();
        hash.for_each(&mut |field| {
            if missing > 0 && !chosen.contains(field.name) {
                out.push(&field);
                missing -= 1;
            }
        });
    }
}

/// `wanted` of the `live` fields, on one walk: each has the chance to be among those still wanted, of those that
/// are still to come.
fn sample(
    hash: &HashRef<'_>,
    now: Millis,
    live: usize,
    wanted: usize,
    random: &mut Random,
    out: &mut Out<'_, '_>,
) {
    let (mut left, mut missing) = (live as u64, wanted as u64);
    hash.for_each(&mut |field| {
        if missing > 0 && field.lives_at(now) {
            if random.next() % left < missing {
                out.push(&field);
                missing -= 1;
            }
            left -= 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering;

    use resp::Value;

    use crate::testing::Client;

    fn filled(fields: usize) -> Client {
        let mut client = Client::new();
        for field in 0..fields {
            client.call(&["hset", "h", &format!("f{field}"), &format!("v{field}")]);
        }
        client
    }

    fn names(client: &mut Client, count: &str) -> Vec<String> {
        let reply = client.call(&["hrandfield", "h", count]);
        let names = reply.as_array().expect("a list").iter();
        names.map(|name| String::from_utf8(name.as_bytes().expect("a name").to_vec()).unwrap()).collect()
    }

    #[test]
    fn as_many_as_were_asked_for() {
        for fields in [1, 7, 100, 3000] {
            let mut client = filled(fields);
            for count in [1, 2, 5, 30, 900, 3000, 5000] {
                let chosen = names(&mut client, &count.to_string());
                let different: BTreeSet<&String> = chosen.iter().collect();
                assert_eq!((chosen.len(), different.len()), (count.min(fields), count.min(fields)));
                assert_eq!(names(&mut client, &format!("-{count}")).len(), count);
            }
        }
    }

    /// The same field may come as often as a bulk string has bytes for, and then the client is told.
    #[test]
    fn a_reply_without_a_limit_ends_somewhere() {
        let mut client = filled(7);
        client.engine.settings.proto_max_bulk_len.store(10_000, Ordering::Relaxed);
        assert_eq!(names(&mut client, "-1000").len(), 1000);
        for count in ["-1500", "-100000"] {
            let reply = client.call(&["hrandfield", "h", count]);
            assert_eq!(reply, Value::Error("ERR value is out of range".to_owned()), "{count}");
        }
    }

    #[test]
    fn each_field_gets_its_turn() {
        for fields in [5, 600] {
            let mut client = filled(fields);
            let mut seen = BTreeSet::new();
            for _ in 0..fields * 12 {
                let Value::Bulk(name) = client.call(&["hrandfield", "h"]) else { panic!("a name") };
                seen.insert(name);
            }
            assert!(seen.len() * 10 > fields * 9, "{} of {fields}", seen.len());
        }
    }

    #[test]
    fn shapes_and_errors() {
        let range = "-ERR value is out of range";
        let mut client = Client::new();
        client.table(&[
            ("hset h a 1", ":1"),
            ("hrandfield h", "$1|a"),
            ("hrandfield h 2 withvalues", "*2|$1|a|$1|1"),
            ("hrandfield h -2 WITHVALUES", "*4|$1|a|$1|1|$1|a|$1|1"),
            ("hrandfield h 0", "*0"),
            ("hrandfield nosuch", "$-1"),
            ("hrandfield nosuch 3", "*0"),
            ("hrandfield h x", "-ERR value is not an integer or out of range"),
            ("hrandfield h 1 nosuch", "-ERR syntax error"),
            ("hrandfield h 1 withvalues 2", "-ERR syntax error"),
            ("hrandfield h 9223372036854775807", "*1|$1|a"),
            ("hrandfield h 9223372036854775807 withvalues", range),
            ("hrandfield h -9223372036854775807 withvalues", range),
            ("hrandfield h -9223372036854775807", range),
            ("hrandfield nosuch -9223372036854775807", "*0"),
            ("hrandfield h -4611686018427387903 withvalues", range),
            (
                "hrandfield h -9223372036854775808",
                "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
            ),
            ("hrandfield h 9223372036854775808", "-ERR value is not an integer or out of range"),
        ]);
        client.wire("hello 3");
        client.table(&[
            ("hrandfield h 1 withvalues", "*1|*2|$1|a|$1|1"),
            ("hrandfield h 1", "*1|$1|a"),
            ("hrandfield nosuch", "_"),
        ]);
    }
}
