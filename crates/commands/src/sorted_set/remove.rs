//! Implements ZREM, ZREMRANGEBYRANK, ZREMRANGEBYSCORE and ZREMRANGEBYLEX.

use engine::{CommandError, Context};

use super::bounds::{RangeBounds, RangeBy};
use super::members::SortedSetAccess;

/// Handles `ZREM key member [member ...]`.
pub(super) fn zrem(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let Some(mut place) = context.find_sorted_set(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let mut removed = 0;
    for index in 2..context.args.len() {
        let name = context.arg(index);
        let score;
        (place, score) = context.table(&key).sorted_set_remove(place, &key, name);
        removed += i64::from(score.is_some());
        if context.sorted_set_at(&key, place).is_empty() {
            break;
        }
    }
    if removed > 0 {
        context.report_removed_members(&key, place, "zrem");
        context.count_changes(removed as u64 - 1);
    }
    context.reply.integer(removed);
    Ok(())
}

/// Handles `ZREMRANGEBYRANK key start stop`.
pub(super) fn zremrangebyrank(context: &mut Context<'_>) -> Result<(), CommandError> {
    remove_range(context, RangeBy::Rank, "zremrangebyrank")
}

/// Handles `ZREMRANGEBYSCORE key min max`.
pub(super) fn zremrangebyscore(context: &mut Context<'_>) -> Result<(), CommandError> {
    remove_range(context, RangeBy::Score, "zremrangebyscore")
}

/// Handles `ZREMRANGEBYLEX key min max`.
pub(super) fn zremrangebylex(context: &mut Context<'_>) -> Result<(), CommandError> {
    remove_range(context, RangeBy::Name, "zremrangebylex")
}

fn remove_range(context: &mut Context<'_>, by: RangeBy, event: &str) -> Result<(), CommandError> {
    let bounds = RangeBounds::parse(context, by, 2, 3)?;
    let key = context.key(1)?;
    let mut removed = 0;
    if let Some(place) = context.find_sorted_set(&key)? {
        let ranks = bounds.ranks(&context.sorted_set_at(&key, place), false);
        removed = ranks.len();
        if removed > 0 {
            let place = context.table(&key).sorted_set_remove_ranks(place, &key, ranks, &mut |_| ());
            context.report_removed_members(&key, place, event);
            context.count_changes(removed as u64 - 1);
        }
    }
    context.reply.integer(removed as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn members_are_removed_individually_and_by_range() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("zadd z 1 a 2 b 3 c 4 d 5 e 6 f", ":6"),
            ("zrem z a nosuch a", ":1"),
            ("zrem z nosuch", ":0"),
            ("zrem nosuch a", ":0"),
            ("zremrangebyrank z 0 0", ":1"),
            ("zremrangebyrank z 5 9", ":0"),
            ("zremrangebyscore z (3 4", ":1"),
            ("zremrangebylex z [c [c", ":1"),
            ("zrange z 0 -1", "*2|$1|e|$1|f"),
            ("zremrangebyrank z -1 -1", ":1"),
            ("zremrangebyscore z -inf inf", ":1"),
            ("exists z", ":0"),
            ("zremrangebyrank z x 1", "-ERR value is not an integer or out of range"),
            ("zremrangebyscore z x 1", "-ERR min or max is not a float"),
            ("zremrangebylex z x 1", "-ERR min or max not valid string range item"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 zadd z 1 a 2 b 3 c 4 d 5 e 6 f",
                "0 zrem z a nosuch a",
                "0 zremrangebyrank z 0 0",
                "0 zremrangebyscore z (3 4",
                "0 zremrangebylex z [c [c",
                "0 zremrangebyrank z -1 -1",
                "0 zremrangebyscore z -inf inf",
            ]
        );
    }
}
