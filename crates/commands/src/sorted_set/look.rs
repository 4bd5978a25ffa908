//! ZCARD, ZSCORE, ZCOUNT, ZRANK and similar lookups.

use engine::{CommandError, Context};

use super::bounds::{RangeBounds, RangeBy};
use super::members::SortedSetAccess;

pub(super) fn zcard(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.read_sorted_set(&key)?;
    let len = found.map_or(0, |place| context.sorted_set_at(&key, place).len());
    context.reply.integer(len as i64);
    Ok(())
}

pub(super) fn zscore(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name) = (context.key(1)?, context.arg(2));
    let found = context.read_sorted_set(&key)?;
    match found.and_then(|place| context.sorted_set_at(&key, place).score(name)) {
        Some(score) => context.reply.double(score),
        None => context.reply.null(),
    }
    Ok(())
}

pub(super) fn zmscore(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply_each_score(|reply, score| match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    })
}

/// Handles `ZCOUNT key min max`.
pub(super) fn zcount(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range_count(context, RangeBy::Score)
}

/// Handles `ZLEXCOUNT key min max`.
pub(super) fn zlexcount(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range_count(context, RangeBy::Name)
}

fn reply_range_count(context: &mut Context<'_>, by: RangeBy) -> Result<(), CommandError> {
    let bounds = RangeBounds::parse(context, by, 2, 3)?;
    let key = context.key(1)?;
    let found = context.read_sorted_set(&key)?;
    let count = found.map_or(0, |place| bounds.ranks(&context.sorted_set_at(&key, place), false).len());
    context.reply.integer(count as i64);
    Ok(())
}

/// Handles `ZRANK key member [WITHSCORE]`.
pub(super) fn zrank(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_rank(context, "zrank", false)
}

/// Handles `ZREVRANK key member [WITHSCORE]`.
pub(super) fn zrevrank(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_rank(context, "zrevrank", true)
}

fn reply_rank(context: &mut Context<'_>, name: &str, reversed: bool) -> Result<(), CommandError> {
    let with_score = match context.args.get(3) {
        None => false,
        Some(_) if context.args.len() > 4 => return Err(CommandError::WrongArity(name.to_owned())),
        Some(word) if word.eq_ignore_ascii_case(b"withscore") => true,
        Some(_) => return Err(CommandError::Syntax),
    };
    let (key, name) = (context.key(1)?, context.arg(2));
    let found = context.read_sorted_set(&key)?;
    let ranked = found.and_then(|place| {
        let set = context.sorted_set_at(&key, place);
        let (rank, score) = set.rank(name)?;
        Some((if reversed { set.len() - 1 - rank } else { rank }, score))
    });
    match ranked {
        None if with_score => context.reply.null_array(),
        None => context.reply.null(),
        Some((rank, score)) => {
            if with_score {
                context.reply.array(2);
            }
            context.reply.integer(rank as i64);
            if with_score {
                context.reply.double(score);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn lookups_reply_with_cardinalities_scores_and_ranks() {
        let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        let mut client = Client::new();
        client.check_replies(&[
            ("zadd z 1 a 2 b 2 c 3.5 d", ":4"),
            ("set s v", "+OK"),
            ("zcard z", ":4"),
            ("zcard nosuch", ":0"),
            ("zcard s", wrong),
            ("zscore z d", "$3|3.5"),
            ("zscore z nosuch", "$-1"),
            ("zscore nosuch a", "$-1"),
            ("zmscore z a nosuch d", "*3|$1|1|$-1|$3|3.5"),
            ("zmscore nosuch a b", "*2|$-1|$-1"),
            ("zmscore s a", wrong),
            ("zrank z a", ":0"),
            ("zrank z c", ":2"),
            ("zrevrank z a", ":3"),
            ("zrank z nosuch", "$-1"),
            ("zrank nosuch a", "$-1"),
            ("zrank z c withscore", "*2|:2|$1|2"),
            ("zrevrank z d WITHSCORE", "*2|:0|$3|3.5"),
            ("zrank z nosuch withscore", "*-1"),
            ("zrank z c bla", "-ERR syntax error"),
            ("zrank z c withscore x", "-ERR wrong number of arguments for 'zrank' command"),
            ("zcount z -inf +inf", ":4"),
            ("zcount z (1 2", ":2"),
            ("zcount z 2 (3.5", ":2"),
            ("zcount z 3 2", ":0"),
            ("zcount nosuch 0 1", ":0"),
            ("zcount z x 1", "-ERR min or max is not a float"),
            ("zcount z nan 1", "-ERR min or max is not a float"),
            ("zadd l 0 a 0 b 0 c 0 d", ":4"),
            ("zlexcount l - +", ":4"),
            ("zlexcount l [b [c", ":2"),
            ("zlexcount l (b (c", ":0"),
            ("zlexcount l (a +", ":3"),
            ("zlexcount l + -", ":0"),
            ("zlexcount l a [b", "-ERR min or max not valid string range item"),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[
            ("zscore z d", ",3.5"),
            ("zscore z nosuch", "_"),
            ("zmscore z a x", "*2|,1|_"),
            ("zrank z x withscore", "_"),
            ("zrank z a withscore", "*2|:0|,1"),
        ]);
    }
}
