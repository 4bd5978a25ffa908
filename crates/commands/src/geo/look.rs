//! Implements GEOPOS, GEOHASH and GEODIST.

use engine::{CommandError, Context};

use super::area::distance;
use super::cell::Point;
use super::query::{parse_unit, reply_distance, reply_point};
use crate::sorted_set::members::SortedSetAccess;

/// Handles `GEOPOS key [member ...]`.
pub(super) fn geopos(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply_each_score(|reply, score| match score {
        Some(score) => reply_point(reply, Point::from_score(score)),
        None => reply.null_array(),
    })
}

/// Handles `GEOHASH key [member ...]`.
pub(super) fn geohash(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply_each_score(|reply, score| match score {
        Some(score) => reply.bulk(&Point::from_score(score).geohash()),
        None => reply.null(),
    })
}

/// Handles `GEODIST key member1 member2 [M | KM | FT | MI]`.
pub(super) fn geodist(context: &mut Context<'_>) -> Result<(), CommandError> {
    let meters = match context.args.len() {
        4 => 1.0,
        5 => parse_unit(context.arg(4))?,
        _ => return Err(CommandError::Syntax),
    };
    let key = context.key(1)?;
    let Some(place) = context.read_sorted_set(&key)? else {
        context.reply.null();
        return Ok(());
    };
    let set = context.sorted_set_at(&key, place);
    let scores = (set.score(context.arg(2)), set.score(context.arg(3)));
    match scores {
        (Some(one), Some(other)) => {
            let distance = distance(Point::from_score(one), Point::from_score(other));
            reply_distance(&mut context.reply, distance / meters);
        }
        _ => context.reply.null(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn geo_positions_are_added_and_read() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("geoadd s 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", ":2"),
            ("geoadd s nx 1 1 Palermo", ":0"),
            ("geoadd s xx ch 15.087269 37.5 Catania", ":1"),
            ("geoadd s ch 15.087269 37.502669 Catania", ":1"),
            ("zscore s Palermo", "$16|3479099956230698"),
            ("geodist s Palermo Catania", "$11|166274.1516"),
            ("geodist s Palermo Catania km", "$8|166.2742"),
            ("geodist s Palermo Catania MI", "$8|103.3182"),
            ("geodist s Palermo nosuch", "$-1"),
            ("geodist nosuch a b", "$-1"),
            ("geodist s Palermo Catania x", "-ERR unsupported unit provided. please use M, KM, FT, MI"),
            ("geodist s a b m m", "-ERR syntax error"),
            ("geohash s Palermo nosuch Catania", "*3|$11|sqc8b49rny0|$-1|$11|sqdtr74hyu0"),
            ("geopos s Palermo nosuch", "*2|*2|$20|13.36138933897018433|$20|38.11555639549629859|*-1"),
            ("geopos nosuch a", "*1|*-1"),
            ("geoadd s 200 1 x", "-ERR invalid longitude,latitude pair 200.000000,1.000000"),
            ("geoadd s x 1 x", "-ERR value is not a valid float"),
            ("geoadd s nx xx 1 1 x", "-ERR syntax error"),
            ("geoadd s 1 1 x 1", "-ERR syntax error"),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[("geopos s Palermo", "*1|*2|,13.36138933897018433|,38.11555639549629859")]);
    }
}
