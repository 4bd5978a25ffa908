//! The words of CLUSTER MIGRATESLOTS.

use slot_routing::{NodeId, SLOT_COUNT, Slot, SlotSet};
use thiserror::Error;

/// Slots that are to move, and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The slots, as ranges in the order in which they were named.
    pub ranges: Vec<(Slot, Slot)>,
    /// The node that is to serve them.
    pub target: NodeId,
}

impl Order {
    /// The slots.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        slots_of(&self.ranges)
    }
}

/// All slots of these ranges.
pub(crate) fn slots_of(ranges: &[(Slot, Slot)]) -> SlotSet {
    ranges.iter().flat_map(|(first, last)| (first.number()..=last.number()).filter_map(Slot::new)).collect()
}

/// Why words are no order; the texts are Valkey's, to go after `-ERR `.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OrderError {
    /// Words that stand in no known order.
    #[error("syntax error")]
    Syntax,
    /// SLOTSRANGE without numbers.
    #[error("No slot ranges specified")]
    NoRanges,
    /// A number that names no slot.
    #[error("Invalid or out of range slot")]
    BadSlot,
    /// A range that ends before it begins.
    #[error("Start slot number {0} is greater than end slot number {1}.")]
    Backwards(Slot, Slot),
    /// A range that has a slot of another of the same move.
    #[error("Slot range {0}-{1} overlaps with previous range {2}-{3}.")]
    Overlap(Slot, Slot, Slot, Slot),
    /// Two moves that have a slot in common.
    #[error("Slot ranges in migrations overlap")]
    MovesOverlap,
    /// A word that is no node's name.
    #[error("Invalid node name: {0}")]
    BadNode(String),
    /// The node cannot do it, for this reason.
    #[error("{0}")]
    Refused(String),
}

/// A part of an order, for the node to say whether it can be done: errors are told in the order of the
/// words.
#[derive(Debug, Clone, Copy)]
pub enum OrderPart<'a> {
    /// The slots of a move.
    Slots(&'a SlotSet),
    /// The node that is to serve them.
    Target(NodeId),
}

/// Reads `SLOTSRANGE start end [start end ...] NODE id [SLOTSRANGE ...]`; `check` is asked about each part.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse_orders(
    words: &[String],
    check: &dyn Fn(OrderPart<'_>) -> Result<(), String>,
) -> Result<Vec<Order>, OrderError> {
    let (mut orders, mut all) = (Vec::new(), SlotSet::new());
    let mut rest = words;
    while !rest.is_empty() {
        let (ranges, after) = parse_ranges(rest)?;
        check(OrderPart::Slots(&slots_of(&ranges))).map_err(OrderError::Refused)?;
        let [node, name, after @ ..] = after else { return Err(OrderError::Syntax) };
        if !node.eq_ignore_ascii_case("node") {
            return Err(OrderError::Syntax);
        }
        let target = name.parse().map_err(|_| OrderError::BadNode(name.clone()))?;
        check(OrderPart::Target(target)).map_err(OrderError::Refused)?;
        let order = Order { ranges, target };
        if order.slots().iter().any(|slot| !all.insert(slot)) {
            return Err(OrderError::MovesOverlap);
        }
        orders.push(order);
        rest = after;
    }
    if orders.is_empty() { Err(OrderError::Syntax) } else { Ok(orders) }
}

type Ranges = Vec<(Slot, Slot)>;

/// Reads `SLOTSRANGE start end [start end ...]`; returns also the words behind.
pub(crate) fn parse_ranges(words: &[String]) -> Result<(Ranges, &[String]), OrderError> {
    let [keyword, rest @ ..] = words else { return Err(OrderError::Syntax) };
    let mut rest = rest;
    if !keyword.eq_ignore_ascii_case("slotsrange") {
        return Err(OrderError::Syntax);
    }
    let mut ranges = Ranges::new();
    while let [first, last, after @ ..] = rest
        && number(first).is_some()
    {
        add_range(&mut ranges, first, last)?;
        rest = after;
    }
    if ranges.is_empty() { Err(OrderError::NoRanges) } else { Ok((ranges, rest)) }
}

fn add_range(ranges: &mut Ranges, first: &str, last: &str) -> Result<(), OrderError> {
    let (first, last) = (slot(first)?, slot(last)?);
    if first > last {
        return Err(OrderError::Backwards(first, last));
    }
    if let Some(&(from, to)) = ranges.iter().find(|(from, to)| *from <= last && first <= *to) {
        return Err(OrderError::Overlap(first, last, from, to));
    }
    // Ranges that do not overlap are no more than slots.
    debug_assert!(ranges.len() < SLOT_COUNT);
    ranges.push((first, last));
    Ok(())
}

/// Reads `start end [start end ...]`, all words of which there must be pairs.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse_slots(words: &[String]) -> Result<Vec<(Slot, Slot)>, OrderError> {
    let mut ranges = Ranges::new();
    for pair in words.chunks(2) {
        let [first, last] = pair else { return Err(OrderError::Syntax) };
        add_range(&mut ranges, first, last)?;
    }
    if ranges.is_empty() { Err(OrderError::NoRanges) } else { Ok(ranges) }
}

fn number(word: &str) -> Option<i64> {
    resp::parse_i64(word.as_bytes())
}

fn slot(word: &str) -> Result<Slot, OrderError> {
    number(word).and_then(|number| Slot::new(u16::try_from(number).ok()?)).ok_or(OrderError::BadSlot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Vec<Order>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse_orders(&words, &|_| Ok(())).map_err(|error| error.to_string())
    }

    /// As Valkey 9.1.2 answers.
    #[test]
    fn wrong_words_are_told_as_in_valkey() {
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
            assert_eq!(parsed(&line), Err(expected.to_owned()), "{line}");
        }
    }

    #[test]
    fn the_node_is_asked_in_the_order_of_the_words() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let refused = |line: String| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let busy = Slot::new(5).unwrap();
            let check = |part: OrderPart<'_>| match part {
                OrderPart::Slots(slots) if slots.contains(busy) => Err("busy".to_owned()),
                OrderPart::Target(id) if id.to_string() == b => Err("unknown".to_owned()),
                OrderPart::Slots(_) | OrderPart::Target(_) => Ok(()),
            };
            parse_orders(&words, &check).unwrap_err().to_string()
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
    fn several_moves_are_ordered_at_once() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let orders = parsed(&format!("SLOTSRANGE 0 2 7 7 NODE {a} slotsrange 5 5 node {b}")).unwrap();
        let slots: Vec<Vec<u16>> =
            orders.iter().map(|order| order.slots().iter().map(Slot::number).collect()).collect();
        assert_eq!(slots, [vec![0, 1, 2, 7], vec![5]]);
        assert_eq!(orders[1].target, b.parse().unwrap());
    }
}
