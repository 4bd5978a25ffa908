//! Implements ZRANDMEMBER.
//!
//! Memory is bounded whatever the count: only some ranks and the reply itself are kept. The reply ends at the client's
//! output buffer limit or, if repeats are allowed, at the maximum size of a bulk string.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use engine::{CommandError, Context, Random};
use keyspace::SortedSetRef;
use resp::Writer;

use super::members::MemberLayout;
use super::members::SortedSetAccess;

/// Selection by random probes is used if the set has more than this multiple of the wanted number of members. Otherwise
/// a scan of all members is as cheap.
const MIN_PROBE_RATIO: usize = 3;
/// Minimum size in bytes of a member in a reply.
const MIN_MEMBER_BYTES: usize = b"$0\r\n\r\n".len();

const OUT_OF_RANGE_ERROR: CommandError = CommandError::text("ERR value is out of range");

/// Handles `ZRANDMEMBER key [count [WITHSCORES]]`.
pub(super) fn zrandmember(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() == 2 {
        return reply_random_member(context);
    }
    let (count, scores) = parse_options(context)?;
    let key = context.key(1)?;
    let found = context.read_sorted_set(&key)?;
    let mut random = Random::new(context.random_u64());
    let most = context.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let (table, reply) = context.table_and_reply(&key);
    let form = MemberLayout::for_range_reply(reply, scores);
    let Some(set) = found.and_then(|place| table.sorted_set(place)).filter(|_| count != 0) else {
        form.write_header(reply, 0);
        return Ok(());
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 {
        return reply_members_with_repeats(&set, wanted, &mut random, form, reply, most);
    }
    reply_distinct_members(&set, wanted.min(set.len()), &mut random, form, reply);
    Ok(())
}

/// Parses the count and WITHSCORES. A negative count allows repeats.
fn parse_options(context: &Context<'_>) -> Result<(i64, bool), CommandError> {
    let count = context.integer_arg(2)?;
    if count == i64::MIN {
        return Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let scores = match context.args.get(3) {
        None => false,
        Some(word) if context.args.len() == 4 && word.eq_ignore_ascii_case(b"withscores") => true,
        Some(_) => return Err(CommandError::Syntax),
    };
    if scores && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return Err(OUT_OF_RANGE_ERROR);
    }
    Ok((count, scores))
}

fn random_rank(set: &SortedSetRef<'_>, random: &mut Random) -> usize {
    (random.next_u64() % set.len() as u64) as usize
}

fn reply_random_member(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.read_sorted_set(&key)?;
    let mut random = Random::new(context.random_u64());
    let (table, reply) = context.table_and_reply(&key);
    let set = found.and_then(|place| table.sorted_set(place));
    match set.and_then(|set| set.member_at_rank(random_rank(&set, &mut random))) {
        Some(member) => reply.bulk(member.name),
        None => reply.null(),
    }
    Ok(())
}

/// Replies with `count` independently selected members, which may repeat.
fn reply_members_with_repeats(
    set: &SortedSetRef<'_>,
    count: usize,
    random: &mut Random,
    layout: MemberLayout,
    reply: &mut Writer<'_>,
    max_bytes: usize,
) -> Result<(), CommandError> {
    if count.saturating_mul(MIN_MEMBER_BYTES) > max_bytes {
        return Err(OUT_OF_RANGE_ERROR);
    }
    let start = reply.len();
    layout.write_header(reply, count);
    for _ in 0..count {
        if let Some(member) = set.member_at_rank(random_rank(set, random)) {
            layout.write_member(reply, &member);
        }
        if reply.is_over_limit() {
            break;
        }
        if reply.len() - start > max_bytes {
            return Err(OUT_OF_RANGE_ERROR);
        }
    }
    Ok(())
}

/// Replies with `count` distinct members.
fn reply_distinct_members(
    set: &SortedSetRef<'_>,
    count: usize,
    random: &mut Random,
    layout: MemberLayout,
    reply: &mut Writer<'_>,
) {
    layout.write_header(reply, count);
    if count.saturating_mul(MIN_PROBE_RATIO) < set.len() {
        let mut chosen = BTreeSet::new();
        while chosen.len() < count {
            let rank = random_rank(set, random);
            if chosen.insert(rank)
                && let Some(member) = set.member_at_rank(rank)
            {
                layout.write_member(reply, &member);
            }
        }
        return;
    }
    // Selection sampling: choose each member with probability (still wanted) / (still to come).
    let (mut left, mut missing) = (set.len() as u64, count as u64);
    set.visit(0..set.len(), false, &mut |member| {
        if random.next_u64() % left < missing {
            layout.write_member(reply, &member);
            missing -= 1;
        }
        left -= 1;
        missing > 0 && !reply.is_over_limit()
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::testing::Client;

    fn random_members(client: &mut Client, count: &str) -> Vec<String> {
        let reply = client.call(&["zrandmember", "z", count]);
        let names = reply.as_array().expect("a list").iter();
        names.map(|name| String::from_utf8(name.as_bytes().expect("a name").to_vec()).unwrap()).collect()
    }

    #[test]
    fn random_selection_returns_requested_count() {
        for members in [1, 7, 100, 3000] {
            let mut client = Client::new();
            for member in 0..members {
                client.call(&["zadd", "z", &member.to_string(), &format!("m{member}")]);
            }
            for count in [1, 2, 5, 30, 900, 3000, 5000] {
                let chosen = random_members(&mut client, &count.to_string());
                let different: BTreeSet<&String> = chosen.iter().collect();
                assert_eq!((chosen.len(), different.len()), (count.min(members), count.min(members)));
                assert_eq!(random_members(&mut client, &format!("-{count}")).len(), count);
            }
        }
    }

    #[test]
    fn zrandmember_reply_depends_on_count_and_withscores() {
        let range = "-ERR value is out of range";
        let mut client = Client::new();
        client.check_replies(&[
            ("zadd z 1 a", ":1"),
            ("zrandmember z", "$1|a"),
            ("zrandmember z 2 withscores", "*2|$1|a|$1|1"),
            ("zrandmember z -2 WITHSCORES", "*4|$1|a|$1|1|$1|a|$1|1"),
            ("zrandmember z 0", "*0"),
            ("zrandmember nosuch", "$-1"),
            ("zrandmember nosuch 3", "*0"),
            ("zrandmember z x", "-ERR value is not an integer or out of range"),
            ("zrandmember z 1 nosuch", "-ERR syntax error"),
            ("zrandmember z 1 withscores 2", "-ERR syntax error"),
            ("zrandmember z 9223372036854775807 withscores", range),
            ("zrandmember z -9223372036854775807", range),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[("zrandmember z 1 withscores", "*1|*2|$1|a|,1"), ("zrandmember nosuch", "_")]);
    }
}
