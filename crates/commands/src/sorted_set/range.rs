//! ZRANGE and its variants, ZRANGESTORE.

use std::ops::Range;

use engine::{CommandError, Context, EstimateInput};
use keyspace::{RankRange, ScoredMember, SortedSetRef, Value};
use resp::{Args, Writer};

use super::bounds::{RangeBounds, RangeBy};
use super::members::MemberLayout;
use super::members::SortedSetAccess;

/// The options that a command's name implies. `None` means that the arguments contain the option.
#[derive(Clone, Copy)]
pub(super) struct RangeCommandSyntax {
    /// Argument index of the key, which the bounds follow.
    key_index: usize,
    range_by: Option<RangeBy>,
    is_reversed: Option<bool>,
    is_zrangestore: bool,
}

pub(super) const ANY_RANGE: RangeCommandSyntax =
    RangeCommandSyntax { key_index: 1, range_by: None, is_reversed: None, is_zrangestore: false };
pub(super) const REVERSE_RANKS: RangeCommandSyntax =
    RangeCommandSyntax { range_by: Some(RangeBy::Rank), is_reversed: Some(true), ..ANY_RANGE };
pub(super) const BY_SCORE: RangeCommandSyntax =
    RangeCommandSyntax { range_by: Some(RangeBy::Score), is_reversed: Some(false), ..ANY_RANGE };
pub(super) const REVERSE_SCORES: RangeCommandSyntax =
    RangeCommandSyntax { is_reversed: Some(true), ..BY_SCORE };
pub(super) const BY_LEX: RangeCommandSyntax =
    RangeCommandSyntax { range_by: Some(RangeBy::Name), is_reversed: Some(false), ..ANY_RANGE };
pub(super) const REVERSE_LEX: RangeCommandSyntax = RangeCommandSyntax { is_reversed: Some(true), ..BY_LEX };
pub(super) const ZRANGESTORE: RangeCommandSyntax =
    RangeCommandSyntax { key_index: 2, is_zrangestore: true, ..ANY_RANGE };
/// The syntax of ZREMRANGEBYRANK.
pub(super) const BY_RANKS: RangeCommandSyntax =
    RangeCommandSyntax { range_by: Some(RangeBy::Rank), is_reversed: Some(false), ..ANY_RANGE };

/// A parsed range query.
struct RangeQuery<'a> {
    bounds: RangeBounds<'a>,
    is_reversed: bool,
    with_scores: bool,
    /// Offset and maximum count of LIMIT; a negative count means all.
    offset_and_count: (i64, i64),
}

impl<'a> RangeQuery<'a> {
    /// Parses the arguments of the query. `parse_double` parses scores.
    fn parse(
        args: Args<'a>,
        syntax: RangeCommandSyntax,
        parse_double: impl Fn(&[u8]) -> Option<f64>,
    ) -> Result<Self, CommandError> {
        let integer = |index: usize| resp::parse_i64(&args[index]).ok_or(CommandError::NotInteger);
        let RangeCommandSyntax {
            key_index: key,
            range_by: mut by,
            is_reversed: mut reversed,
            is_zrangestore: stores,
        } = syntax;
        let (mut scores, mut limit, mut index) = (false, (0, -1), key + 3);
        while let Some(word) = args.get(index) {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            match () {
                () if !stores && is("withscores") => scores = true,
                () if is("limit") && index + 2 < args.len() => {
                    limit = (integer(index + 1)?, integer(index + 2)?);
                    index += 2;
                }
                () if reversed.is_none() && is("rev") => reversed = Some(true),
                () if by.is_none() && is("bylex") => by = Some(RangeBy::Name),
                () if by.is_none() && is("byscore") => by = Some(RangeBy::Score),
                () => return Err(CommandError::Syntax),
            }
            index += 1;
        }
        let (by, reversed) = (by.unwrap_or(RangeBy::Rank), reversed.unwrap_or(false));
        if limit.1 != -1 && by == RangeBy::Rank {
            return Err(CommandError::text(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if scores && by == RangeBy::Name {
            return Err(CommandError::text(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let swapped = reversed && by != RangeBy::Rank;
        let (min, max) = if swapped { (key + 2, key + 1) } else { (key + 1, key + 2) };
        let bounds = RangeBounds::parse_values(
            by,
            args.get(min).unwrap_or_default(),
            args.get(max).unwrap_or_default(),
            parse_double,
        )?;
        Ok(Self { bounds, is_reversed: reversed, with_scores: scores, offset_and_count: limit })
    }

    /// The ranks of the selected members.
    fn ranks(&self, set: &SortedSetRef<'_>) -> Range<usize> {
        let ranks = self.bounds.ranks(set, self.is_reversed);
        // LIMIT has no effect on ranges by rank.
        let (passed, wanted) =
            if matches!(self.bounds, RangeBounds::Ranks(..)) { (0, -1) } else { self.offset_and_count };
        let passed = usize::try_from(passed).unwrap_or(usize::MAX).min(ranks.len());
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(ranks.len() - passed);
        if self.is_reversed {
            ranks.end - passed - wanted..ranks.end - passed
        } else {
            ranks.start + passed..ranks.start + passed + wanted
        }
    }
}

/// Handles `ZRANGE key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`.
pub(super) fn zrange(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, ANY_RANGE)
}

/// Handles `ZREVRANGE key start stop [WITHSCORES]`.
pub(super) fn zrevrange(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, REVERSE_RANKS)
}

/// Handles `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`.
pub(super) fn zrangebyscore(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, BY_SCORE)
}

/// Handles `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`.
pub(super) fn zrevrangebyscore(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, REVERSE_SCORES)
}

/// Handles `ZRANGEBYLEX key min max [LIMIT offset count]`.
pub(super) fn zrangebylex(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, BY_LEX)
}

/// Handles `ZREVRANGEBYLEX key max min [LIMIT offset count]`.
pub(super) fn zrevrangebylex(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, REVERSE_LEX)
}

/// Estimated run time: NANOS nanoseconds for each member in the range.
pub(super) fn estimated_cost<const NANOS: u64>(
    request: &EstimateInput<'_>,
    syntax: RangeCommandSyntax,
) -> u64 {
    let of_value = |value: Value<'_>| {
        let Value::SortedSet(set) = value else { return 0 };
        let query = RangeQuery::parse(request.args, syntax, resp::parse_double);
        query.map_or(0, |query| query.ranks(&set).len() as u64 * NANOS)
    };
    request.with_value(syntax.key_index, of_value).unwrap_or(0)
}

fn reply_range(context: &mut Context<'_>, syntax: RangeCommandSyntax) -> Result<(), CommandError> {
    let query = RangeQuery::parse(context.args, syntax, |text| context.parse_double(text))?;
    let key = context.key(syntax.key_index)?;
    let found = context.read_sorted_set(&key)?;
    let form = MemberLayout::for_range_reply(&context.reply, query.with_scores);
    let Some(place) = found else {
        form.write_header(&mut context.reply, 0);
        return Ok(());
    };
    let ranks = query.ranks(&context.sorted_set_at(&key, place));
    form.write_header(&mut context.reply, ranks.len());
    let pinned =
        context.pin_members(&key, place, RankRange { ranks: ranks.clone(), reversed: query.is_reversed });
    let push = |reply: &mut Writer<'_>, member: ScoredMember<'_>| {
        form.write_member(reply, &member);
        !reply.is_over_limit()
    };
    if let Some(pinned) = pinned {
        pinned.visit(&mut |member| push(&mut context.reply, member));
        return Ok(());
    }
    let (table, reply) = context.table_and_reply(&key);
    if let Some(set) = table.sorted_set(place) {
        set.visit(ranks, query.is_reversed, &mut |member| push(reply, member));
    }
    Ok(())
}

/// Handles `ZRANGESTORE destination source min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]`.
pub(super) fn zrangestore(context: &mut Context<'_>) -> Result<(), CommandError> {
    let query = RangeQuery::parse(context.args, ZRANGESTORE, |text| context.parse_double(text))?;
    let (target, source) = (context.key(1)?, context.key(2)?);
    let mut members = Vec::new();
    if let Some(place) = context.read_sorted_set(&source)? {
        let set = context.sorted_set_at(&source, place);
        set.visit(query.ranks(&set), false, &mut |member| {
            members.push((member.name.to_vec(), member.score));
            true
        });
    }
    let members = members.iter().map(|(name, score)| ScoredMember { name, score: *score });
    context.store_members(&target, members, "zrangestore");
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn zrange_selects_by_rank_score_and_name() {
        let mut client = Client::new();
        client.check_replies(&[
            ("zadd z 1 a 2 b 2 c 3.5 d", ":4"),
            ("zrange z 0 -1", "*4|$1|a|$1|b|$1|c|$1|d"),
            ("zrange z -2 5 withscores", "*4|$1|c|$1|2|$1|d|$3|3.5"),
            ("zrange z 2 1", "*0"),
            ("zrange z 4 9", "*0"),
            ("zrange z 0 0 rev", "*1|$1|d"),
            ("zrevrange z 1 2", "*2|$1|c|$1|b"),
            ("zrange nosuch 0 -1", "*0"),
            ("zrange z (1 +inf byscore", "*3|$1|b|$1|c|$1|d"),
            ("zrange z +inf (1 byscore rev limit 1 1", "*1|$1|c"),
            ("zrangebyscore z 2 2 withscores", "*4|$1|b|$1|2|$1|c|$1|2"),
            ("zrangebyscore z -inf inf limit 1 2", "*2|$1|b|$1|c"),
            ("zrangebyscore z -inf inf limit 1 -1", "*3|$1|b|$1|c|$1|d"),
            ("zrangebyscore z -inf inf limit -1 2", "*0"),
            ("zrangebyscore z -inf inf limit 9 2", "*0"),
            ("zrevrangebyscore z inf 2 limit 0 2", "*2|$1|d|$1|c"),
            ("zadd l 0 a 0 b 0 c 0 d", ":4"),
            ("zrangebylex l [b (d", "*2|$1|b|$1|c"),
            ("zrevrangebylex l (d [b limit 0 1", "*1|$1|c"),
            ("zrange l - + bylex limit 1 2", "*2|$1|b|$1|c"),
            ("zrange l + - bylex rev", "*4|$1|d|$1|c|$1|b|$1|a"),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[
            ("zrange z 0 1 withscores", "*2|*2|$1|a|,1|*2|$1|b|,2"),
            ("zrangebyscore z 3 4 withscores", "*1|*2|$1|d|,3.5"),
            ("zrange nosuch 0 1 withscores", "*0"),
        ]);
    }

    #[test]
    fn invalid_ranges_are_refused() {
        let integer = "-ERR value is not an integer or out of range";
        Client::new().check_replies(&[
            ("zrange z 0 x", integer),
            ("zrange z 0 1 bla", "-ERR syntax error"),
            ("zrange z 0 1 limit 0", "-ERR syntax error"),
            ("zrange z 0 1 byscore limit x 1", integer),
            (
                "zrange z 0 1 limit 0 1",
                "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ),
            ("zrange z 0 1 limit 0 -1", "*0"),
            ("zadd few 1 a 2 b", ":2"),
            ("zrange few 0 1 limit 1 -1", "*2|$1|a|$1|b"),
            (
                "zrange z - + bylex withscores",
                "-ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ),
            ("zrange z x 1 byscore", "-ERR min or max is not a float"),
            ("zrange z x [a bylex", "-ERR min or max not valid string range item"),
            ("zrangebyscore z 0 1 rev", "-ERR syntax error"),
            ("zrange z 0 1 rev rev", "-ERR syntax error"),
            ("zrevrange z 0 1 byscore", "-ERR syntax error"),
            ("zrangestore d z 0 1 withscores", "-ERR syntax error"),
        ]);
    }

    #[test]
    fn zrangestore_stores_range() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("zadd z 1 a 2 b 3 c", ":3"),
            ("set d v", "+OK"),
            ("zrangestore d z (1 +inf byscore", ":2"),
            ("zrange d 0 -1 withscores", "*4|$1|b|$1|2|$1|c|$1|3"),
            ("zrangestore d z 0 0 rev", ":1"),
            ("zrange d 0 -1", "*1|$1|c"),
            ("zrangestore d z 5 6", ":0"),
            ("exists d", ":0"),
            ("zrangestore d nosuch 0 -1", ":0"),
            ("zrangestore z z 0 0", ":1"),
            ("zcard z", ":1"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 zadd z 1 a 2 b 3 c",
                "0 set d v",
                "0 zrangestore d z (1 +inf byscore",
                "0 zrangestore d z 0 0 rev",
                "0 zrangestore d z 5 6",
                "0 zrangestore z z 0 0",
            ]
        );
    }
}
