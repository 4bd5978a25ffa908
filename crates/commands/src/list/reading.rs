//! Implements LLEN, LINDEX, LRANGE and LPOS.

use std::ops::Range;

use engine::{CommandError, Context, PinnedValues};
use keyspace::{ListItem, ListRef, PartElements};
use resp::Writer;

use super::elements::ListAccess;
use super::elements::reply_item;
use super::options::{resolve_index, resolve_range};

pub(super) fn llen(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let len = context.read_list(&key)?.map_or(0, |place| context.list_at(&key, place).len());
    context.reply.integer(len as i64);
    Ok(())
}

pub(super) fn lindex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let Some(place) = context.read_list(&key)? else {
        context.reply.null();
        return Ok(());
    };
    let wanted = context.integer_arg(2)?;
    let (table, reply) = context.table_and_reply(&key);
    let list = table.list(place).expect("a list was found there");
    match resolve_index(wanted, list.len()).and_then(|index| list.get(index)) {
        Some(item) => reply_item(reply, item),
        None => reply.null(),
    }
    Ok(())
}

pub(super) fn lrange(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let (start, stop) = (context.integer_arg(2)?, context.integer_arg(3)?);
    let found = context.read_list(&key)?;
    let Some(place) = found else {
        context.reply.array(0);
        return Ok(());
    };
    let elements = resolve_range(start, stop, context.list_at(&key, place).len());
    context.reply.array(elements.len());
    if let Some(pinned) = context.pin_values(&[(key, place)]) {
        reply_pinned_elements(&mut context.reply, pinned, elements);
        return Ok(());
    }
    let (table, reply) = context.table_and_reply(&key);
    let mut left = elements.len();
    if let Some(list) = table.list(place).filter(|_| left > 0) {
        list.visit_from(elements.start, &mut |item| {
            reply_item(reply, item);
            left -= 1;
            left > 0
        });
    }
    Ok(())
}

fn reply_pinned_elements(reply: &mut Writer<'_>, pinned: PinnedValues, elements: Range<usize>) {
    let (mut before, mut left) = (elements.start, elements.len());
    pinned.visit_elements(|_, part| {
        if let PartElements::List(list) = part {
            list.for_each_run(&mut |run| {
                if before >= run.len {
                    before -= run.len;
                    return;
                }
                let wanted = run.items().skip(before).take(left);
                let there = (run.len - before).min(left);
                wanted.for_each(|item| reply_item(reply, item));
                (before, left) = (0, left - there);
            });
        }
        left > 0 && !reply.is_over_limit()
    });
}

/// The arguments of LPOS.
struct PositionQuery<'a> {
    element: ListItem<'a>,
    /// Number of matches to skip before the first result (RANK).
    matches_to_skip: u64,
    is_from_tail: bool,
    /// Maximum number of results. Without COUNT this is `None`, and the reply is a single index instead of an array.
    count: Option<usize>,
    /// Maximum number of comparisons.
    max_comparisons: usize,
}

impl<'a> PositionQuery<'a> {
    fn parse(context: &Context<'a>) -> Result<Self, CommandError> {
        let mut search = Self {
            element: context.arg(2).into(),
            matches_to_skip: 0,
            is_from_tail: false,
            count: None,
            max_comparisons: usize::MAX,
        };
        let natural = |index: usize, text: &'static str| {
            let number = resp::parse_i64(context.arg(index)).and_then(|number| usize::try_from(number).ok());
            number.ok_or(CommandError::text(text))
        };
        // For COUNT and MAXLEN, 0 means unlimited.
        let or_all = |number: usize| if number == 0 { usize::MAX } else { number };
        let mut at = 3;
        while at < context.args.len() {
            let (word, value) = (context.arg(at), at + 1);
            let has_value = value < context.args.len();
            match () {
                () if has_value && word.eq_ignore_ascii_case(b"rank") => {
                    let rank = parse_rank(context, value)?;
                    (search.is_from_tail, search.matches_to_skip) = (rank < 0, rank.unsigned_abs() - 1);
                }
                () if has_value && word.eq_ignore_ascii_case(b"count") => {
                    search.count = Some(or_all(natural(value, "ERR COUNT can't be negative")?));
                }
                () if has_value && word.eq_ignore_ascii_case(b"maxlen") => {
                    search.max_comparisons = or_all(natural(value, "ERR MAXLEN can't be negative")?);
                }
                () => return Err(CommandError::Syntax),
            }
            at += 2;
        }
        Ok(search)
    }

    /// Returns the indexes of the matches.
    fn find_positions(&self, list: ListRef<'_>) -> Vec<usize> {
        let (mut found, mut looked, mut skipped) = (Vec::new(), 0, 0);
        let (last, most, count) =
            (list.len() - 1, self.max_comparisons.min(list.len()), self.count.unwrap_or(1));
        let mut visit = |item: ListItem<'_>| {
            if item == self.element {
                if skipped == self.matches_to_skip {
                    found.push(if self.is_from_tail { last - looked } else { looked });
                } else {
                    skipped += 1;
                }
            }
            looked += 1;
            looked < most && found.len() < count
        };
        if self.is_from_tail {
            list.visit_backward_from(last, &mut visit);
        } else {
            list.visit_from(0, &mut visit);
        }
        found
    }
}

fn parse_rank(context: &Context<'_>, index: usize) -> Result<i64, CommandError> {
    match context.integer_arg(index)? {
        0 => Err(CommandError::text(
            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
             negative to start from the end of the list",
        )),
        i64::MIN => Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        )),
        rank => Ok(rank),
    }
}

/// Handles `LPOS key element [RANK rank] [COUNT count] [MAXLEN len]`.
pub(super) fn lpos(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let search = PositionQuery::parse(context)?;
    let found = context.read_list(&key)?;
    let found = found.map_or(Vec::new(), |place| search.find_positions(context.list_at(&key, place)));
    let reply = &mut context.reply;
    match (search.count, found.first()) {
        (None, None) => reply.null(),
        (None, Some(index)) => reply.integer(*index as i64),
        (Some(_), _) => {
            reply.array(found.len());
            found.iter().for_each(|index| reply.integer(*index as i64));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn lindex_and_lrange_return_elements() {
        let mut client = Client::new();
        client.check_replies(&[
            ("rpush l a 2 c", ":3"),
            ("llen l", ":3"),
            ("llen nosuch", ":0"),
            ("lindex l 0", "$1|a"),
            ("lindex l -2", "$1|2"),
            ("lindex l 3", "$-1"),
            ("lindex l -4", "$-1"),
            ("lindex l -9223372036854775808", "$-1"),
            ("lindex l x", "-ERR value is not an integer or out of range"),
            ("lindex nosuch x", "$-1"),
            ("lrange l 0 -1", "*3|$1|a|$1|2|$1|c"),
            ("lrange l 1 1", "*1|$1|2"),
            ("lrange l -100 100", "*3|$1|a|$1|2|$1|c"),
            ("lrange l -9223372036854775808 9223372036854775807", "*3|$1|a|$1|2|$1|c"),
            ("lrange l 2 1", "*0"),
            ("lrange l 3 9", "*0"),
            ("lrange l 0 -4", "*0"),
            ("lrange nosuch 0 1", "*0"),
            ("lrange nosuch 0 x", "-ERR value is not an integer or out of range"),
            ("set s 1", "+OK"),
            ("llen s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("lindex s x", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("lrange s 0 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }

    #[test]
    fn lpos_finds_elements() {
        let mut client = Client::new();
        client.check_replies(&[
            ("rpush l a b c 1 2 3 c c 07", ":9"),
            ("lpos l c", ":2"),
            ("lpos l c rank 2", ":6"),
            ("lpos l c rank -1", ":7"),
            ("lpos l c rank 4", "$-1"),
            ("lpos l 2", ":4"),
            ("lpos l 7", "$-1"),
            ("lpos l 07", ":8"),
            ("lpos l c count 0", "*3|:2|:6|:7"),
            ("lpos l c count 2 rank -1", "*2|:7|:6"),
            ("lpos l c count 0 rank 2", "*2|:6|:7"),
            ("lpos l c count 0 maxlen 7", "*2|:2|:6"),
            ("lpos l c count 0 rank -1 maxlen 2", "*1|:7"),
            ("lpos l c maxlen 2", "$-1"),
            ("lpos l c maxlen 0", ":2"),
            ("lpos nosuch c", "$-1"),
            ("lpos nosuch c count 1", "*0"),
            ("lpos l c count", "-ERR syntax error"),
            ("lpos l c some 1", "-ERR syntax error"),
            ("lpos l c count -1", "-ERR COUNT can't be negative"),
            ("lpos l c maxlen x", "-ERR MAXLEN can't be negative"),
            ("lpos l c rank x", "-ERR value is not an integer or out of range"),
        ]);
        assert!(client.run_to_text("lpos l c rank 0").starts_with("-ERR RANK can't be zero"));
        assert!(
            client
                .run_to_text("lpos l c rank -9223372036854775808")
                .starts_with("-ERR value is out of range")
        );
    }
}
