//! Ranges by rank, score and name.

use std::ops::Range;

use engine::{CommandError, Context, truncate_at_nul};
use keyspace::{OrderBoundary, SortedSetRef};

/// One end of a score range.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScoreBound {
    score: f64,
    is_excluded: bool,
}

/// One end of a lexicographical range.
#[derive(Debug, Clone, Copy)]
pub(super) enum LexBound<'a> {
    /// The end before all names (`-`).
    Lowest,
    Included(&'a [u8]),
    Excluded(&'a [u8]),
    /// The end after all names (`+`).
    Highest,
}

/// The bounds of a range.
#[derive(Debug, Clone, Copy)]
pub(super) enum RangeBounds<'a> {
    /// Inclusive ranks. Negative ranks count from the end.
    Ranks(i64, i64),
    Scores(ScoreBound, ScoreBound),
    LexRange(LexBound<'a>, LexBound<'a>),
}

/// What the bounds of a range refer to: ranks, scores or names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeBy {
    Rank,
    Score,
    Name,
}

impl ScoreBound {
    fn parse(text: &[u8], parse_double: impl Fn(&[u8]) -> Option<f64>) -> Option<Self> {
        let (text, excluded) = text.strip_prefix(b"(").map_or((text, false), |rest| (rest, true));
        // As in Redis, an empty text is zero and a number out of range is infinite.
        let lenient = || std::str::from_utf8(text).ok()?.parse().ok();
        let score = if text.is_empty() { 0.0 } else { parse_double(text).or_else(lenient)? };
        (!score.is_nan()).then_some(Self { score, is_excluded: excluded })
    }

    fn boundary(self, is_start: bool) -> OrderBoundary<'static> {
        if self.is_excluded == is_start {
            OrderBoundary::AfterScore(self.score)
        } else {
            OrderBoundary::BeforeScore(self.score)
        }
    }
}

impl<'a> LexBound<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        match text {
            b"-" => Some(Self::Lowest),
            b"+" => Some(Self::Highest),
            [b'[', name @ ..] => Some(Self::Included(name)),
            [b'(', name @ ..] => Some(Self::Excluded(name)),
            _ => None,
        }
    }

    fn rank(self, set: &SortedSetRef<'_>, is_start: bool) -> usize {
        match (self, is_start) {
            (Self::Lowest, _) => 0,
            (Self::Highest, _) => set.len(),
            (Self::Included(name), true) | (Self::Excluded(name), false) => {
                set.count_before(OrderBoundary::BeforeName(name))
            }
            (Self::Included(name), false) | (Self::Excluded(name), true) => {
                set.count_before(OrderBoundary::AfterName(name))
            }
        }
    }
}

impl<'a> RangeBounds<'a> {
    /// Parses the bounds at the arguments `min` and `max`.
    pub(super) fn parse(
        context: &Context<'a>,
        by: RangeBy,
        min: usize,
        max: usize,
    ) -> Result<Self, CommandError> {
        Self::parse_values(by, context.arg(min), context.arg(max), |text| context.parse_double(text))
    }

    /// Parses bounds from text; `parse_double` parses scores.
    pub(super) fn parse_values(
        by: RangeBy,
        low: &'a [u8],
        high: &'a [u8],
        parse_double: impl Fn(&[u8]) -> Option<f64>,
    ) -> Result<Self, CommandError> {
        let integer = |text| resp::parse_i64(text).ok_or(CommandError::NotInteger);
        match by {
            RangeBy::Rank => Ok(Self::Ranks(integer(low)?, integer(high)?)),
            RangeBy::Score => {
                match (
                    ScoreBound::parse(truncate_at_nul(low), &parse_double),
                    ScoreBound::parse(truncate_at_nul(high), &parse_double),
                ) {
                    (Some(low), Some(high)) => Ok(Self::Scores(low, high)),
                    _ => Err(CommandError::text("ERR min or max is not a float")),
                }
            }
            RangeBy::Name => match (LexBound::parse(low), LexBound::parse(high)) {
                (Some(low), Some(high)) => Ok(Self::LexRange(low, high)),
                _ => Err(CommandError::text("ERR min or max not valid string range item")),
            },
        }
    }

    /// The ranks within the bounds. With `reversed`, rank bounds count from the highest member.
    pub(super) fn ranks(&self, set: &SortedSetRef<'_>, reversed: bool) -> Range<usize> {
        let len = set.len();
        let ranks = match *self {
            Self::Ranks(start, end) => {
                let place = |rank: i64| if rank < 0 { rank.saturating_add(len as i64) } else { rank };
                let start = place(start).clamp(0, len as i64) as usize;
                let end = place(end).saturating_add(1).clamp(0, len as i64) as usize;
                if reversed { len - end..len - start } else { start..end }
            }
            Self::Scores(low, high) => {
                set.count_before(low.boundary(true))..set.count_before(high.boundary(false))
            }
            Self::LexRange(low, high) => low.rank(set, true)..high.rank(set, false),
        };
        if ranks.is_empty() { 0..0 } else { ranks }
    }
}
