//! Implements ZADD and ZINCRBY.

use bitflags::bitflags;
use engine::{CommandError, Context, EventClass};
use smallvec::SmallVec;

use super::members::SortedSetAccess;

bitflags! {
    /// The options of ZADD.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct ZaddOptions: u8 {
        /// Only add new members, and leave existing members unchanged.
        const NX = 1;
        /// Only update existing members, and add none.
        const XX = 1 << 1;
        /// Update an existing member only if the new score is greater.
        const GT = 1 << 2;
        /// Update an existing member only if the new score is less.
        const LT = 1 << 3;
        /// Reply with the number of changed members, including new ones.
        const CH = 1 << 4;
        /// Add the given number to the member's score, as ZINCRBY does.
        const INCR = 1 << 5;
    }
}

impl ZaddOptions {
    pub(crate) fn parse_option_word(word: &[u8]) -> Option<Self> {
        let words: [(&[u8], Self); 6] = [
            (b"nx", Self::NX),
            (b"xx", Self::XX),
            (b"gt", Self::GT),
            (b"lt", Self::LT),
            (b"ch", Self::CH),
            (b"incr", Self::INCR),
        ];
        words.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, option)| *option)
    }

    /// Parses options from argument 2 on. Returns the index of the first argument that is not an option.
    fn parse(context: &Context<'_>) -> Result<(Self, usize), CommandError> {
        let (mut options, mut index) = (Self::empty(), 2);
        while let Some(option) = context.args.get(index).and_then(Self::parse_option_word) {
            options |= option;
            index += 1;
        }
        let words = context.args.len() - index;
        if words == 0 || !words.is_multiple_of(2) {
            return Err(CommandError::Syntax);
        }
        if options.contains(Self::NX | Self::XX) {
            return Err(CommandError::text("ERR XX and NX options at the same time are not compatible"));
        }
        if [Self::GT | Self::NX, Self::LT | Self::NX, Self::GT | Self::LT]
            .into_iter()
            .any(|both| options.contains(both))
        {
            return Err(CommandError::text(
                "ERR GT, LT, and/or NX options at the same time are not compatible",
            ));
        }
        if options.contains(Self::INCR) && words > 2 {
            return Err(CommandError::text("ERR INCR option supports a single increment-element pair"));
        }
        Ok((options, index))
    }
}

/// What ZADD does with one member.
enum ScoreUpdate {
    /// The options exclude the member.
    Skipped,
    /// The member already has this score.
    Unchanged(f64),
    Added(f64),
    Updated(f64),
    NotANumber,
}

impl ZaddOptions {
    /// Decides on the new score of a member. `current` is its present score, or `None` for a new member.
    fn decide_update(self, current: Option<f64>, score: f64) -> ScoreUpdate {
        let Some(before) = current else {
            return if self.contains(Self::XX) { ScoreUpdate::Skipped } else { ScoreUpdate::Added(score) };
        };
        if self.contains(Self::NX) {
            return ScoreUpdate::Skipped;
        }
        let score = if self.contains(Self::INCR) { before + score } else { score };
        if score.is_nan() {
            return ScoreUpdate::NotANumber;
        }
        let refused =
            self.contains(Self::LT) && score >= before || self.contains(Self::GT) && score <= before;
        match () {
            () if refused => ScoreUpdate::Skipped,
            () if score == before => ScoreUpdate::Unchanged(score),
            () => ScoreUpdate::Updated(score),
        }
    }
}

/// Handles `ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]`.
pub(super) fn zadd(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (options, first) = ZaddOptions::parse(context)?;
    add_members(context, options, first)
}

/// Handles `ZINCRBY key increment member`.
pub(super) fn zincrby(context: &mut Context<'_>) -> Result<(), CommandError> {
    // As in Redis, ZINCRBY also parses ZADD's option words. The command then fails, because the remaining arguments are
    // not a complete pair.
    let (options, first) = ZaddOptions::parse(context)?;
    add_members(context, options | ZaddOptions::INCR, first)
}

/// Adds the score-member pairs from argument `first` on.
fn add_members(
    context: &mut Context<'_>,
    options: ZaddOptions,
    first_index: usize,
) -> Result<(), CommandError> {
    let pairs = (first_index..context.args.len()).step_by(2);
    let scores: SmallVec<[f64; 8]> = pairs
        .clone()
        .map(|index| context.double_arg(index).ok_or(CommandError::NotFloat))
        .collect::<Result<_, _>>()?;
    add_scored_members(context, options, pairs.map(|index| index + 1).zip(scores))
}

/// Adds members, each given as the argument index of its name and its score.
pub(crate) fn add_scored_members(
    context: &mut Context<'_>,
    options: ZaddOptions,
    members: impl Iterator<Item = (usize, f64)>,
) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let mut place = context.find_sorted_set(&key)?;
    let (mut added, mut moved, mut result) = (0, 0, None);
    for (index, given) in members {
        if place.is_none() && options.contains(ZaddOptions::XX) {
            break;
        }
        let mut changed = ScoreUpdate::Skipped;
        let name = context.arg(index);
        place = Some(context.update_member(&key, place, name, |before| {
            changed = options.decide_update(before, given);
            match changed {
                ScoreUpdate::Added(score) | ScoreUpdate::Updated(score) => Some(score),
                ScoreUpdate::Skipped | ScoreUpdate::Unchanged(_) | ScoreUpdate::NotANumber => None,
            }
        }));
        match changed {
            ScoreUpdate::Skipped => {}
            ScoreUpdate::Unchanged(score) => result = Some(score),
            ScoreUpdate::Added(score) => {
                added += 1;
                result = Some(score);
            }
            ScoreUpdate::Updated(score) => {
                moved += 1;
                result = Some(score);
            }
            ScoreUpdate::NotANumber => {
                return Err(CommandError::text("ERR resulting score is not a number (NaN)"));
            }
        }
    }
    if added + moved > 0 {
        context.report_modified(&key);
        context.count_changes((added + moved - 1) as u64);
        let event = if options.contains(ZaddOptions::INCR) { "zincr" } else { "zadd" };
        context.notify(EventClass::SORTED_SET, event, &key);
    }
    match result {
        Some(score) if options.contains(ZaddOptions::INCR) => context.reply.double(score),
        None if options.contains(ZaddOptions::INCR) => context.reply.null(),
        _ => context.reply.integer(if options.contains(ZaddOptions::CH) { added + moved } else { added }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn zadd_options_control_updates() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("zadd z 1 a 2 b", ":2"),
            ("zadd z 3 a 4 c", ":1"),
            ("zadd z ch 5 a 4 c 6 d", ":2"),
            ("zadd z nx 9 a 7 e", ":1"),
            ("zadd z xx 9 f", ":0"),
            ("zadd z xx ch 10 a", ":1"),
            ("zadd nosuch xx 1 a", ":0"),
            ("exists nosuch", ":0"),
            ("zadd z gt ch 9 a 11 b", ":1"),
            ("zadd z lt ch 12 a 1 b", ":1"),
            ("zadd z incr 2.5 a", "$4|12.5"),
            ("zadd z incr gt -1 a", "$-1"),
            ("zadd z nx incr 1 a", "$-1"),
            ("zadd z xx incr 1 nosuch", "$-1"),
            ("zadd z incr 0 a", "$4|12.5"),
            ("zincrby z 1 new", "$1|1"),
            ("zincrby z 0.5 new", "$3|1.5"),
            (
                "zrange z 0 -1 withscores",
                "*12|$1|b|$1|1|$3|new|$3|1.5|$1|c|$1|4|$1|d|$1|6|$1|e|$1|7|$1|a|$4|12.5",
            ),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 zadd z 1 a 2 b",
                "0 zadd z 3 a 4 c",
                "0 zadd z ch 5 a 4 c 6 d",
                "0 zadd z nx 9 a 7 e",
                "0 zadd z xx ch 10 a",
                "0 zadd z gt ch 9 a 11 b",
                "0 zadd z lt ch 12 a 1 b",
                "0 zadd z incr 2.5 a",
                "0 zincrby z 1 new",
                "0 zincrby z 0.5 new",
            ]
        );
    }

    #[test]
    fn invalid_options_and_scores_are_refused() {
        let float = "-ERR value is not a valid float";
        let gt = "-ERR GT, LT, and/or NX options at the same time are not compatible";
        Client::new().check_replies(&[
            ("zadd z", "-ERR wrong number of arguments for 'zadd' command"),
            ("zadd z nx 1", "-ERR syntax error"),
            ("zadd z 1 a 2", "-ERR syntax error"),
            ("zadd z nx xx", "-ERR syntax error"),
            ("zadd z nx xx 1 a", "-ERR XX and NX options at the same time are not compatible"),
            ("zadd z gt lt 1 a", gt),
            ("zadd z gt nx 1 a", gt),
            ("zadd z lt nx 1 a", gt),
            ("zadd z incr 1 a 2 b", "-ERR INCR option supports a single increment-element pair"),
            ("zadd z x a", float),
            ("zadd z nan a", float),
            ("zadd z 1 a x b", float),
            ("exists z", ":0"),
            ("zincrby z x a", float),
            ("zincrby z nx a", "-ERR syntax error"),
            ("zincrby z gt lt", "-ERR syntax error"),
            ("zadd z inf a -inf b", ":2"),
            ("zincrby z -inf a", "-ERR resulting score is not a number (NaN)"),
            ("zscore z a", "$3|inf"),
            ("set s v", "+OK"),
            ("zadd s 1 a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("zadd z 0x10 hex", float),
            ("zadd z -0 zero", ":1"),
            ("zscore z zero", "$1|0"),
        ]);
    }

    #[test]
    fn sorted_set_supports_any_size() {
        let mut client = Client::new();
        for size in [1usize, 100, 5000] {
            let mut words = vec!["zadd".to_owned(), "z".to_owned()];
            words.extend((0..size).flat_map(|n| [(n * 7919 % 5000).to_string(), format!("member:{n}")]));
            client.call(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(client.call(&["zcard", "z"]), resp::Value::Integer(size as i64));
            client.check_replies(&[("zscore z member:0", "$1|0"), ("zrank z member:0", ":0")]);
            words = vec!["zrem".to_owned(), "z".to_owned()];
            words.extend((0..size).map(|n| format!("member:{n}")));
            let removed = client.call(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(removed, resp::Value::Integer(size as i64));
            client.check_replies(&[("exists z", ":0")]);
        }
    }

    #[test]
    fn encoding_follows_configured_thresholds() {
        let mut client = Client::new();
        for member in 0..129 {
            client.call(&["zadd", "z", "1", &format!("m{member}")]);
            let expected = if member < 128 { "$8|listpack" } else { "$8|skiplist" };
            client.check_replies(&[("object encoding z", expected)]);
        }
        client.call(&["zadd", "long", "1", &"x".repeat(65)]);
        client.check_replies(&[("object encoding long", "$8|skiplist"), ("type long", "+zset")]);
    }
}
