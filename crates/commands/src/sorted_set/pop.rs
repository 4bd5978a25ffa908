//! ZPOPMIN, ZPOPMAX, ZMPOP and their blocking variants.
//!
//! The multi-key and blocking forms are replicated as ZPOPMIN or ZPOPMAX of the key from which they popped.

use std::ops::Range;

use engine::{CommandError, CommandOutcome, Context, KeyWait};
use keyspace::{EntryRef, Key, Kind, ScoredMember};
use resp::Protocol;

use super::members::MemberLayout;
use super::members::SortedSetAccess;
use crate::time_arg::parse_timeout;

/// The end of the sorted set from which members are popped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PopEnd {
    Min,
    Max,
}

impl PopEnd {
    fn parse(word: &[u8]) -> Result<Self, CommandError> {
        match () {
            () if word.eq_ignore_ascii_case(b"min") => Ok(Self::Min),
            () if word.eq_ignore_ascii_case(b"max") => Ok(Self::Max),
            () => Err(CommandError::Syntax),
        }
    }

    fn event_name(self) -> &'static str {
        if self == Self::Min { "zpopmin" } else { "zpopmax" }
    }

    fn command_name(self) -> &'static [u8] {
        if self == Self::Min { b"ZPOPMIN" } else { b"ZPOPMAX" }
    }
}

pub(super) fn zpopmin(context: &mut Context<'_>) -> Result<(), CommandError> {
    pop(context, PopEnd::Min)
}

pub(super) fn zpopmax(context: &mut Context<'_>) -> Result<(), CommandError> {
    pop(context, PopEnd::Max)
}

/// Handles `ZPOPMIN key [count]`.
fn pop(context: &mut Context<'_>, end: PopEnd) -> Result<(), CommandError> {
    let count = match context.args.len() {
        2 => None,
        3 => {
            let out_of_range = CommandError::text("ERR value is out of range, must be positive");
            Some(usize::try_from(context.integer_arg(2).unwrap_or(-1)).map_err(|_| out_of_range)?)
        }
        _ => return Err(CommandError::Syntax),
    };
    let key = context.key(1)?;
    let form = MemberLayout::with_pairs(count.is_some() && context.reply.protocol() == Protocol::Resp3);
    match context.find_sorted_set(&key)? {
        Some(place) if count != Some(0) => {
            pop_members(context, &key, place, end, count.unwrap_or(1), form);
        }
        _ => form.write_header(&mut context.reply, 0),
    }
    Ok(())
}

/// Pops up to `count` members and replies with them. Returns the number of popped members.
fn pop_members(
    context: &mut Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
    end: PopEnd,
    count: usize,
    layout: MemberLayout,
) -> usize {
    let len = context.sorted_set_at(key, entry_ref).len();
    let count = count.min(len);
    layout.write_header(&mut context.reply, count);
    let ranks = if end == PopEnd::Min { 0..count } else { len - count..len };
    let (protocol, mut taken) = (context.reply.protocol(), Vec::new());
    let mut tell =
        |member: ScoredMember<'_>| layout.write_member(&mut resp::Writer::new(&mut taken, protocol), &member);
    // Popping yields members in ascending order, but ZPOPMAX replies in descending order.
    let are_told_first = end == PopEnd::Max && count > 1;
    if are_told_first {
        let set = context.table_ref(key).sorted_set(entry_ref).expect("a sorted set was found there");
        set.visit(ranks.clone(), true, &mut |member| {
            tell(member);
            true
        });
    }
    let place = context.table(key).sorted_set_remove_ranks(entry_ref, key, ranks, &mut |member| {
        if !are_told_first {
            tell(member);
        }
    });
    context.reply.raw(&taken);
    context.report_removed_members(key, place, end.event_name());
    context.count_changes(count as u64 - 1);
    count
}

/// The arguments of ZMPOP and BZMPOP.
struct MultiPopArguments {
    keys: Range<usize>,
    end: PopEnd,
    count: usize,
}

impl MultiPopArguments {
    /// Parses `numkeys key [key ...] MIN | MAX [COUNT count]` from argument `from` on.
    fn parse(context: &Context<'_>, from: usize) -> Result<Self, CommandError> {
        let positive = |index, error| {
            let number =
                context.args.get(index).and_then(resp::parse_i64).and_then(|n| usize::try_from(n).ok());
            number.filter(|number| *number > 0).ok_or(CommandError::text(error))
        };
        let numkeys = positive(from, "ERR numkeys should be greater than 0")?;
        let keys = from + 1..(from + 1).saturating_add(numkeys);
        let end = PopEnd::parse(context.args.get(keys.end).ok_or(CommandError::Syntax)?)?;
        let (mut count, mut index) = (None, keys.end + 1);
        while let Some(word) = context.args.get(index) {
            if count.is_some() || !word.eq_ignore_ascii_case(b"count") || index + 1 == context.args.len() {
                return Err(CommandError::Syntax);
            }
            count = Some(positive(index + 1, "ERR count should be greater than 0")?);
            index += 2;
        }
        Ok(Self { keys, end, count: count.unwrap_or(1) })
    }
}

/// Handles `ZMPOP numkeys key [key ...] MIN | MAX [COUNT count]`.
pub(super) fn zmpop(context: &mut Context<'_>) -> Result<(), CommandError> {
    let options = MultiPopArguments::parse(context, 1)?;
    if !pop_from_first_set(context, &options)? {
        context.reply.null_array();
    }
    Ok(())
}

/// Pops from the first sorted set that is not empty. Returns whether there was such a set.
fn pop_from_first_set(context: &mut Context<'_>, options: &MultiPopArguments) -> Result<bool, CommandError> {
    for index in options.keys.clone() {
        let key = context.key(index)?;
        let Some(place) = context.find_sorted_set(&key)? else { continue };
        context.reply.array(2);
        context.reply.bulk(key.bytes());
        let taken =
            pop_members(context, &key, place, options.end, options.count, MemberLayout::with_pairs(true));
        let mut digits = itoa::Buffer::new();
        context.log_effect(&[options.end.command_name(), key.bytes(), digits.format(taken).as_bytes()]);
        return Ok(true);
    }
    Ok(false)
}

/// Handles `BZMPOP timeout numkeys key [key ...] MIN | MAX [COUNT count]`.
pub(super) fn bzmpop(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    let until = parse_timeout(context, 1)?;
    let options = MultiPopArguments::parse(context, 2)?;
    if pop_from_first_set(context, &options)? {
        return Ok(CommandOutcome::Done);
    }
    let nothing = |reply: &mut resp::Writer<'_>| reply.null_array();
    Ok(CommandOutcome::Block(KeyWait::new(options.keys, Kind::SortedSet, until, nothing)))
}

pub(super) fn bzpopmin(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    pop_or_block(context, PopEnd::Min)
}

pub(super) fn bzpopmax(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    pop_or_block(context, PopEnd::Max)
}

/// Handles `BZPOPMIN key [key ...] timeout`.
fn pop_or_block(context: &mut Context<'_>, end: PopEnd) -> Result<CommandOutcome, CommandError> {
    let keys = 1..context.args.len() - 1;
    let until = parse_timeout(context, keys.end)?;
    for index in keys.clone() {
        let key = context.key(index)?;
        let Some(place) = context.find_sorted_set(&key)? else { continue };
        let set = context.sorted_set_at(&key, place);
        let rank = if end == PopEnd::Min { 0 } else { set.len() - 1 };
        let (table, reply) = context.table_and_reply(&key);
        let member =
            table.sorted_set(place).and_then(|set| set.member_at_rank(rank)).expect("no sorted set is empty");
        reply.array(3);
        reply.bulk(key.bytes());
        reply.bulk(member.name);
        reply.double(member.score);
        let place = context.table(&key).sorted_set_remove_ranks(place, &key, rank..rank + 1, &mut |_| ());
        context.report_removed_members(&key, place, end.event_name());
        context.log_effect(&[end.command_name(), key.bytes()]);
        return Ok(CommandOutcome::Done);
    }
    let nothing = |reply: &mut resp::Writer<'_>| reply.null_array();
    Ok(CommandOutcome::Block(KeyWait::new(keys, Kind::SortedSet, until, nothing)))
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn zpop_pops_from_requested_end() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("zadd z 1 a 2 b 3 c 4 d 5 e 6 f 7 g 8 h 9 i 10 j", ":10"),
            ("zpopmin z", "*2|$1|a|$1|1"),
            ("zpopmax z 2", "*4|$1|j|$2|10|$1|i|$1|9"),
            ("zpopmin z 0", "*0"),
            ("zpopmin nosuch", "*0"),
            ("zpopmin z -1", "-ERR value is out of range, must be positive"),
            ("zpopmin z 1 2", "-ERR syntax error"),
            ("zmpop 2 nosuch z min", "*2|$1|z|*1|*2|$1|b|$1|2"),
            ("zmpop 1 z max count 2", "*2|$1|z|*2|*2|$1|h|$1|8|*2|$1|g|$1|7"),
            ("zmpop 1 nosuch max", "*-1"),
            ("bzpopmin nosuch z 0", "*3|$1|z|$1|c|$1|3"),
            ("bzpopmax z 0.1", "*3|$1|z|$1|f|$1|6"),
            ("bzmpop 0 1 z max count 9", "*2|$1|z|*2|*2|$1|e|$1|5|*2|$1|d|$1|4"),
            ("exists z", ":0"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 zadd z 1 a 2 b 3 c 4 d 5 e 6 f 7 g 8 h 9 i 10 j",
                "0 zpopmin z",
                "0 zpopmax z 2",
                "0 ZPOPMIN z 1",
                "0 ZPOPMAX z 2",
                "0 ZPOPMIN z",
                "0 ZPOPMAX z",
                "0 ZPOPMAX z 2",
            ]
        );
        client.run_to_text("hello 3");
        client.check_replies(&[
            ("zadd z 1 a 2 b 3 c", ":3"),
            ("zpopmin z", "*2|$1|a|,1"),
            ("zpopmin z 1", "*1|*2|$1|b|,2"),
            ("zpopmin z 0", "*0"),
            ("zmpop 1 nosuch min", "_"),
        ]);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let keys = "-ERR numkeys should be greater than 0";
        let count = "-ERR count should be greater than 0";
        Client::new().check_replies(&[
            ("zmpop 0 z min", keys),
            ("zmpop x z min", keys),
            ("zmpop 2 z min", "-ERR syntax error"),
            ("zmpop 1 z middle", "-ERR syntax error"),
            ("zmpop 1 z min count", "-ERR syntax error"),
            ("zmpop 1 z min count 0", count),
            ("zmpop 1 z min count 1 count 1", "-ERR syntax error"),
            ("bzmpop x 1 z min", "-ERR timeout is not a float or out of range"),
            ("bzpopmin z -1", "-ERR timeout is negative"),
            ("set s v", "+OK"),
            ("bzpopmin s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }

    #[test]
    fn blocking_commands_do_not_block_in_transactions() {
        Client::new().check_replies(&[
            ("multi", "+OK"),
            ("bzpopmin a 0", "+QUEUED"),
            ("bzmpop 0 1 a min", "+QUEUED"),
            ("exec", "*2|*-1|*-1"),
        ]);
    }
}
