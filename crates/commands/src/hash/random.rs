//! Implements HRANDFIELD.

use clock::Millis;
use engine::{CommandError, Context, Random};
use keyspace::{Field, HashRef};
use resp::{Protocol, Writer};

use super::fields::HashAccess;
use crate::sampling::{self, OUT_OF_RANGE_ERROR, SamplePool, SampleReply, max_reply_bytes, parse_count};

/// The fields of a hash that have not expired.
struct LiveFields<'a> {
    hash: HashRef<'a>,
    now: Millis,
    live_len: usize,
}

impl<'a> LiveFields<'a> {
    fn new(hash: HashRef<'a>, now: Millis) -> Self {
        Self { hash, now, live_len: hash.live_len(now) }
    }
}

impl<'a> SamplePool for LiveFields<'a> {
    type Element = Field<'a>;
    type ElementName = &'a [u8];

    fn name(field: &Field<'a>) -> &'a [u8] {
        field.name
    }

    fn len(&self) -> usize {
        self.hash.len()
    }

    fn live_len(&self) -> usize {
        self.live_len
    }

    fn element_at_random(&self, random: u64) -> Option<Field<'a>> {
        self.hash.random_field(random).filter(|field| field.is_live_at(self.now))
    }

    fn for_each(&self, visit: &mut dyn FnMut(Field<'a>)) {
        self.hash.for_each(&mut |field| {
            if field.is_live_at(self.now) {
                visit(field);
            }
        });
    }
}

/// Handles `HRANDFIELD key [count [WITHVALUES]]`.
pub(super) fn hrandfield(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() == 2 {
        return reply_random_field(context);
    }
    let (count, values) = parse_options(context)?;
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let found = context.read_hash(&key)?;
    let (mut random, most) = (Random::new(context.random_u64()), max_reply_bytes(context));
    let (table, reply) = context.table_and_reply(&key);
    let live = found.and_then(|place| table.hash(place)).map(|hash| LiveFields::new(hash, now));
    let out = match values {
        true => SampleReply::new(reply, most, write_pairs_header, write_pair),
        false => SampleReply::new(
            reply,
            most,
            |reply, count| reply.array(count),
            |reply, field: Field<'_>| reply.bulk(field.name),
        ),
    };
    sampling::reply_random_elements(live, count, &mut random, out)
}

/// Parses the count and WITHVALUES. A negative count allows repeats.
fn parse_options(context: &Context<'_>) -> Result<(i64, bool), CommandError> {
    let count = parse_count(context)?;
    let values = match context.args.get(3) {
        None => false,
        Some(word) if context.args.len() == 4 && word.eq_ignore_ascii_case(b"withvalues") => true,
        Some(_) => return Err(CommandError::Syntax),
    };
    if values && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return Err(OUT_OF_RANGE_ERROR);
    }
    Ok((count, values))
}

fn reply_random_field(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let found = context.read_hash(&key)?;
    let mut random = Random::new(context.random_u64());
    let (table, reply) = context.table_and_reply(&key);
    let live = found.and_then(|place| table.hash(place)).map(|hash| LiveFields::new(hash, now));
    match live.and_then(|live| sampling::random_element(&live, &mut random)) {
        Some(field) => reply.bulk(field.name),
        None => reply.null(),
    }
    Ok(())
}

/// Begins a reply of `count` pairs. In RESP3 each pair is a nested array.
fn write_pairs_header(reply: &mut Writer<'_>, count: usize) {
    reply.array(if reply.protocol() == Protocol::Resp2 { count * 2 } else { count });
}

fn write_pair(reply: &mut Writer<'_>, field: Field<'_>) {
    if reply.protocol() == Protocol::Resp3 {
        reply.array(2);
    }
    reply.bulk(field.name);
    reply.bulk(field.value);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering;

    use resp::Value;

    use crate::testing::Client;

    fn client_with_hash(fields: usize) -> Client {
        let mut client = Client::new();
        for field in 0..fields {
            client.call(&["hset", "h", &format!("f{field}"), &format!("v{field}")]);
        }
        client
    }

    fn random_fields(client: &mut Client, count: &str) -> Vec<String> {
        let reply = client.call(&["hrandfield", "h", count]);
        let names = reply.as_array().expect("a list").iter();
        names.map(|name| String::from_utf8(name.as_bytes().expect("a name").to_vec()).unwrap()).collect()
    }

    #[test]
    fn random_selection_returns_requested_count() {
        for fields in [1, 7, 100, 3000] {
            let mut client = client_with_hash(fields);
            for count in [1, 2, 5, 30, 900, 3000, 5000] {
                let chosen = random_fields(&mut client, &count.to_string());
                let different: BTreeSet<&String> = chosen.iter().collect();
                assert_eq!((chosen.len(), different.len()), (count.min(fields), count.min(fields)));
                assert_eq!(random_fields(&mut client, &format!("-{count}")).len(), count);
            }
        }
    }

    /// With a negative count, only the maximum size of a bulk string limits the reply; a larger reply is an error.
    #[test]
    fn reply_size_of_random_fields_with_repeats_is_limited() {
        let mut client = client_with_hash(7);
        client.engine.settings.value_limits.proto_max_bulk_len.store(10_000, Ordering::Relaxed);
        assert_eq!(random_fields(&mut client, "-1000").len(), 1000);
        for count in ["-1500", "-100000"] {
            let reply = client.call(&["hrandfield", "h", count]);
            assert_eq!(reply, Value::Error("ERR value is out of range".to_owned()), "{count}");
        }
    }

    #[test]
    fn random_fields_cover_whole_hash() {
        for fields in [5, 600] {
            let mut client = client_with_hash(fields);
            let mut seen = BTreeSet::new();
            for _ in 0..fields * 12 {
                let Value::Bulk(name) = client.call(&["hrandfield", "h"]) else { panic!("a name") };
                seen.insert(name);
            }
            assert!(seen.len() * 10 > fields * 9, "{} of {fields}", seen.len());
        }
    }

    #[test]
    fn hrandfield_reply_depends_on_count_and_withvalues() {
        let range = "-ERR value is out of range";
        let mut client = Client::new();
        client.check_replies(&[
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
        client.run_to_text("hello 3");
        client.check_replies(&[
            ("hrandfield h 1 withvalues", "*1|*2|$1|a|$1|1"),
            ("hrandfield h 1", "*1|$1|a"),
            ("hrandfield nosuch", "_"),
        ]);
    }
}
