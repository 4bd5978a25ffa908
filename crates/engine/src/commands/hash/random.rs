//! HRANDFIELD.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use clock::Millis;
use keyspace::{Field, HashRef};
use resp::{Protocol, Writer};

use crate::context::Context;
use crate::error::CommandError;
use crate::random::Random;

/// While this many times as many fields are there as are asked for, they are found by trying.
const TRY_BELOW: usize = 3;
/// So often a field may be tried in vain for each one asked for.
const TRIES: usize = 20;

/// HRANDFIELD key [count [WITHVALUES]]
pub(super) fn hrandfield(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() == 2 {
        return one(context);
    }
    let (count, values) = options(context)?;
    let (key, now) = (context.key(1), context.fields_now());
    let found = context.read_hash(&key)?;
    let mut random = Random::new(context.random());
    let (table, reply) = context.view_and_reply(&key);
    let mut out = Out { reply, values };
    let Some(hash) = found.and_then(|place| table.hash(place)).filter(|_| count != 0) else {
        out.begin(0);
        return Ok(());
    };
    let live = hash.len_at(now);
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 {
        repeated(&hash, now, live, wanted, &mut random, &mut out);
    } else {
        distinct(&hash, now, live, wanted.min(live), &mut random, &mut out);
    }
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
    let out_of_range = CommandError::text("ERR value is out of range");
    if values && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return Err(out_of_range);
    }
    // The reply to a negative count has no other bound.
    let most = context.engine.settings.proto_max_bulk_len.load(Ordering::Relaxed);
    if count < 0 && count.unsigned_abs() > most.unsigned_abs() {
        return Err(out_of_range);
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
) {
    let all_live = live == hash.len();
    let wanted = if live == 0 { 0 } else { wanted };
    out.begin(wanted);
    for _ in 0..wanted {
        match any(hash, now, random) {
            Some(field) => out.push(&field),
            None => {
                debug_assert!(!all_live);
                let rank = random.next() as usize % live;
                at_ranks(hash, now, &BTreeSet::from([rank]), out);
            }
        }
    }
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
    if wanted.saturating_mul(TRY_BELOW) < live && live == hash.len() {
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
        return;
    }
    // Which ranks: of those still to be passed, each with the chance to be among those still wanted.
    let mut ranks = BTreeSet::new();
    for rank in 0..live {
        let (left, missing) = ((live - rank) as u64, (wanted - ranks.len()) as u64);
        if random.next() % left < missing {
            ranks.insert(rank);
        }
    }
    at_ranks(hash, now, &ranks, out);
}

/// The live fields with these numbers, counted from 0 in the hash's order.
fn at_ranks(hash: &HashRef<'_>, now: Millis, ranks: &BTreeSet<usize>, out: &mut Out<'_, '_>) {
    let mut rank = 0;
    hash.for_each(&mut |field| {
        if field.lives_at(now) {
            if ranks.contains(&rank) {
                out.push(&field);
            }
            rank += 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        ]);
        client.wire("hello 3");
        client.table(&[
            ("hrandfield h 1 withvalues", "*1|*2|$1|a|$1|1"),
            ("hrandfield h 1", "*1|$1|a"),
            ("hrandfield nosuch", "_"),
        ]);
    }
}
