//! Parses the arguments of CLUSTER MIGRATESLOTS.

use slot_routing::{NodeId, SLOT_COUNT, Slot, SlotSet};
use thiserror::Error;

/// The slots to move and their new owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotMove {
    /// The slots as ranges in the order given; both ends are inclusive.
    pub ranges: Vec<(Slot, Slot)>,
    /// The node that the slots move to.
    pub target: NodeId,
}

impl SlotMove {
    /// Returns the slots of all ranges as a set.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        slots_in_ranges(&self.ranges)
    }
}

/// Returns the set of all slots in these ranges.
pub(crate) fn slots_in_ranges(ranges: &[(Slot, Slot)]) -> SlotSet {
    ranges.iter().flat_map(|(first, last)| (first.number()..=last.number()).filter_map(Slot::new)).collect()
}

/// Why arguments are invalid. The texts follow `-ERR ` and are those of Valkey.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SlotMoveError {
    /// An argument is missing or misplaced.
    #[error("syntax error")]
    Syntax,
    /// SLOTSRANGE is not followed by slot numbers.
    #[error("No slot ranges specified")]
    NoRanges,
    /// An argument is not a valid slot number.
    #[error("Invalid or out of range slot")]
    InvalidSlot,
    /// The end of the range is before its start.
    #[error("Start slot number {0} is greater than end slot number {1}.")]
    ReversedRange(Slot, Slot),
    /// A range overlaps an earlier range of the same move.
    #[error("Slot range {0}-{1} overlaps with previous range {2}-{3}.")]
    Overlap(Slot, Slot, Slot, Slot),
    /// Two moves of the same command share a slot.
    #[error("Slot ranges in migrations overlap")]
    MovesOverlap,
    /// An argument is not a valid node id.
    #[error("Invalid node name: {0}")]
    InvalidNodeId(String),
    /// The node rejects the move, with this text.
    #[error("{0}")]
    Refused(String),
}

/// One element of a move that the node must validate. Elements are passed in the order of the arguments, so that errors
/// are reported in the same order as in Valkey.
#[derive(Debug, Clone, Copy)]
pub enum SlotMoveElement<'a> {
    /// All slots of one move.
    Slots(&'a SlotSet),
    /// The target node of one move.
    Target(NodeId),
}

/// Parses `SLOTSRANGE start end [start end ...] NODE id [SLOTSRANGE ...]` and passes the slots and the target of each
/// move to `check`.
///
/// # Errors
/// The first syntax error, or the first error that `check` returns.
pub fn parse_slot_moves(
    arguments: &[String],
    check: &dyn Fn(SlotMoveElement<'_>) -> Result<(), String>,
) -> Result<Vec<SlotMove>, SlotMoveError> {
    let (mut moves, mut all) = (Vec::new(), SlotSet::new());
    let mut rest = arguments;
    while !rest.is_empty() {
        let (ranges, after) = parse_ranges(rest)?;
        check(SlotMoveElement::Slots(&slots_in_ranges(&ranges))).map_err(SlotMoveError::Refused)?;
        let [node, name, after @ ..] = after else { return Err(SlotMoveError::Syntax) };
        if !node.eq_ignore_ascii_case("node") {
            return Err(SlotMoveError::Syntax);
        }
        let target = name.parse().map_err(|_| SlotMoveError::InvalidNodeId(name.clone()))?;
        check(SlotMoveElement::Target(target)).map_err(SlotMoveError::Refused)?;
        let order = SlotMove { ranges, target };
        if order.slots().iter().any(|slot| !all.insert(slot)) {
            return Err(SlotMoveError::MovesOverlap);
        }
        moves.push(order);
        rest = after;
    }
    if moves.is_empty() { Err(SlotMoveError::Syntax) } else { Ok(moves) }
}

type SlotRanges = Vec<(Slot, Slot)>;

/// Parses `SLOTSRANGE start end [start end ...]` and returns the ranges and the remaining arguments.
pub(crate) fn parse_ranges(arguments: &[String]) -> Result<(SlotRanges, &[String]), SlotMoveError> {
    let [keyword, rest @ ..] = arguments else { return Err(SlotMoveError::Syntax) };
    let mut rest = rest;
    if !keyword.eq_ignore_ascii_case("slotsrange") {
        return Err(SlotMoveError::Syntax);
    }
    let mut ranges = SlotRanges::new();
    while let [first, last, after @ ..] = rest
        && parse_number(first).is_some()
    {
        add_range(&mut ranges, first, last)?;
        rest = after;
    }
    if ranges.is_empty() { Err(SlotMoveError::NoRanges) } else { Ok((ranges, rest)) }
}

fn add_range(ranges: &mut SlotRanges, first: &str, last: &str) -> Result<(), SlotMoveError> {
    let (first, last) = (parse_slot(first)?, parse_slot(last)?);
    if first > last {
        return Err(SlotMoveError::ReversedRange(first, last));
    }
    if let Some(&(from, to)) = ranges.iter().find(|(from, to)| *from <= last && first <= *to) {
        return Err(SlotMoveError::Overlap(first, last, from, to));
    }
    // The ranges are disjoint, so there cannot be more of them than slots.
    debug_assert!(ranges.len() < SLOT_COUNT);
    ranges.push((first, last));
    Ok(())
}

/// Parses `start end [start end ...]`; all arguments must be slot numbers.
///
/// # Errors
/// The first error found.
pub fn parse_slot_ranges(arguments: &[String]) -> Result<Vec<(Slot, Slot)>, SlotMoveError> {
    let mut ranges = SlotRanges::new();
    for pair in arguments.chunks(2) {
        let [first, last] = pair else { return Err(SlotMoveError::Syntax) };
        add_range(&mut ranges, first, last)?;
    }
    if ranges.is_empty() { Err(SlotMoveError::NoRanges) } else { Ok(ranges) }
}

fn parse_number(word: &str) -> Option<i64> {
    resp::parse_i64(word.as_bytes())
}

fn parse_slot(word: &str) -> Result<Slot, SlotMoveError> {
    parse_number(word)
        .and_then(|number| Slot::new(u16::try_from(number).ok()?))
        .ok_or(SlotMoveError::InvalidSlot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Vec<SlotMove>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse_slot_moves(&words, &|_| Ok(())).map_err(|error| error.to_string())
    }

    /// The error texts are those of Valkey 9.1.2.
    #[test]
    fn slot_move_errors_match_valkey() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let table = [
            ("a b c".to_owned(), "syntax error"),
            ("slotsrange 1 2".to_owned(), "syntax error"),
            ("slotsrange 1 2 node".to_owned(), "syntax error"),
            (format!("slotsrange 1 2 node {a} foo"), "syntax error"),
            (format!("slotsrange node {a}"), "No slot ranges specified"),
            (format!("slotsrange x 3 node {a}"), "No slot ranges specified"),
            (format!("slotsrange 1 20000 node {a}"), "Invalid or out of range slot"),
            (format!("slotsrange 2 1 node {a}"), "Start slot number 2 is greater than end slot number 1."),
            (format!("slotsrange 1 2 2 3 node {a}"), "Slot range 2-3 overlaps with previous range 1-2."),
            ("slotsrange 1 2 node xx".to_owned(), "Invalid node name: xx"),
            (format!("slotsrange 1 2 node {a} slotsrange 2 4 node {b}"), "Slot ranges in migrations overlap"),
        ];
        for (line, expected) in table {
            assert_eq!(parse_line(&line), Err(expected.to_owned()), "{line}");
        }
    }

    #[test]
    fn slots_and_targets_are_checked_in_argument_order() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let refused = |line: String| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let busy = Slot::new(5).unwrap();
            let check = |part: SlotMoveElement<'_>| match part {
                SlotMoveElement::Slots(slots) if slots.contains(busy) => Err("busy".to_owned()),
                SlotMoveElement::Target(id) if id.to_string() == b => Err("unknown".to_owned()),
                SlotMoveElement::Slots(_) | SlotMoveElement::Target(_) => Ok(()),
            };
            parse_slot_moves(&words, &check).unwrap_err().to_string()
        };
        assert_eq!(refused("slotsrange 4 6".to_owned()), "busy");
        assert_eq!(
            refused("slotsrange 6 4 node x".to_owned()),
            "Start slot number 6 is greater than end slot number 4."
        );
        assert_eq!(refused(format!("slotsrange 5 5 node {b}")), "busy");
        assert_eq!(refused(format!("slotsrange 1 1 node {b} slotsrange 5 5")), "unknown");
        assert_eq!(refused(format!("slotsrange 1 1 node {a} slotsrange 5 5 node x")), "busy");
    }

    #[test]
    fn several_moves_in_one_command_are_parsed() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let moves = parse_line(&format!("SLOTSRANGE 0 2 7 7 NODE {a} slotsrange 5 5 node {b}")).unwrap();
        let slots: Vec<Vec<u16>> =
            moves.iter().map(|order| order.slots().iter().map(Slot::number).collect()).collect();
        assert_eq!(slots, [vec![0, 1, 2, 7], vec![5]]);
        assert_eq!(moves[1].target, b.parse().unwrap());
    }
}
