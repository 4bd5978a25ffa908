//! SORT and SORT_RO: the elements of a value in another order, or other keys' values by their names.
//!
//! What is named by a pattern is known only while the command runs: in a cluster a pattern must name keys of one slot,
//! elsewhere the command holds the script turn and locks slots as it comes to them ([`Context::reach`]).
mod elements;
mod options;
mod pattern;

use std::cmp::Ordering;

use elements::{Bytes, Stored};
use options::{By, Options};

use super::rows::{GROW, READ, key};
use crate::command::{Categories, Command, Group};
use crate::context::Context;
use crate::error::CommandError;
use crate::keys::{Begin, Find, KeySpec};
use crate::notifications::Class;

const NOT_A_NUMBER: CommandError =
    CommandError::text("ERR One or more scores can't be converted into double");

/// Keys that BY and GET name are not known beforehand.
const NAMED_LATER: KeySpec =
    KeySpec { begin: Begin::Unknown, find: Find::Range { last: 0, step: 1, limit: 0 }, flags: key::READ };
const STORED: KeySpec = KeySpec {
    begin: Begin::Option { word: "store", from: 2, others: &[("by", 1), ("get", 1), ("limit", 2)] },
    find: Find::Range { last: 0, step: 1, limit: 0 },
    flags: key::STORE,
};

const CATEGORIES: Categories =
    Categories::DANGEROUS.union(Categories::LIST).union(Categories::SET).union(Categories::SORTEDSET);

pub(super) const COMMANDS: &[Command] = &[
    Command::new("sort", Group::Generic, "1.0.0", -2, "Sorts the elements of a list, a set or a sorted set.")
        .flags(GROW)
        .category(CATEGORIES)
        .keys(&[KeySpec::one(1, key::READ), NAMED_LATER, STORED])
        .run(sort)
        .patterns(),
    Command::new(
        "sort_ro",
        Group::Generic,
        "7.0.0",
        -2,
        "Sorts the elements of a list, a set or a sorted set, and stores nothing.",
    )
    .flags(READ)
    .category(CATEGORIES)
    .keys(&[KeySpec::one(1, key::READ), NAMED_LATER])
    .run(sort_ro)
    .patterns(),
];

fn sort(context: &mut Context<'_>) -> Result<(), CommandError> {
    run(context, true)
}

fn sort_ro(context: &mut Context<'_>) -> Result<(), CommandError> {
    run(context, false)
}

/// SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC | DESC] [ALPHA] [STORE destination]
fn run(context: &mut Context<'_>, stores: bool) -> Result<(), CommandError> {
    let mut options = Options::parse(context, stores)?;
    let all = load(context, &mut options)?;
    let sorted = if matches!(options.by, By::Nothing) { all } else { sorted(context, &options, all)? };
    match options.store {
        None => reply(context, &options, &sorted),
        Some(index) => store(context, &options, &sorted, index),
    }
}

fn reply(context: &mut Context<'_>, options: &Options<'_>, sorted: &[Bytes]) -> Result<(), CommandError> {
    let width = options.get.len().max(1);
    context.reply.array(sorted.len() * width);
    for element in sorted {
        if options.get.is_empty() {
            context.reply.bulk(element);
        }
        for pattern in &options.get {
            match pattern::value(context, pattern, element)? {
                Some(value) => context.reply.bulk(&value),
                None => context.reply.null(),
            }
        }
        if context.reply.is_full() {
            break;
        }
    }
    Ok(())
}

/// Puts a list of it under the key that argument `index` names, or deletes that if there is nothing. A value that is
/// not there is an empty element.
fn store(
    context: &mut Context<'_>,
    options: &Options<'_>,
    sorted: &[Bytes],
    index: usize,
) -> Result<(), CommandError> {
    let (mut made, width) = (Stored::new(), options.get.len().max(1));
    for element in sorted {
        if options.get.is_empty() {
            made.push(element);
        }
        for pattern in &options.get {
            made.push(&pattern::value(context, pattern, element)?.unwrap_or_default());
        }
    }
    let (key, len) = (context.key(index), sorted.len() * width);
    let found = context.find(&key);
    if len > 0 {
        let list = made.named_by(&context.engine.settings.limits());
        context.put(&key, found, list.packed(), None);
        context.notify(Class::LIST, "sortstore", &key);
        // Each element counts, as for other servers.
        context.changed(len as u64 - 1);
    } else if let Some(place) = found {
        context.delete(&key, place);
        context.notify(Class::GENERIC, "del", &key);
    }
    context.reply.integer(len as i64);
    Ok(())
}

/// The elements; if they are not to be sorted, only those that are asked for.
fn load(context: &mut Context<'_>, options: &mut Options<'_>) -> Result<Vec<Bytes>, CommandError> {
    let key = context.key(1);
    let Some(place) = context.read(&key) else { return Ok(Vec::new()) };
    let value = context.view(&key).value(place);
    let (len, is_ordered) = elements::count(&value).ok_or(CommandError::WrongType)?;
    let must_be_same = options.store.is_some() || context.is_called_by_script();
    if matches!(options.by, By::Nothing) && !is_ordered && must_be_same {
        // What a set's members are stored as, and what a script sees, is the same wherever it is run.
        options.by = By::Itself;
        options.alpha = true;
    }
    if matches!(options.by, By::Nothing) {
        return Ok(elements::load(&value, options.range(len), options.descending));
    }
    let mut all = elements::load(&value, 0..len, false);
    if !is_ordered && options.keeps_ties() {
        all.sort_unstable();
    }
    Ok(all)
}

/// What an element is sorted by.
enum Weight {
    Number(f64),
    /// That of another key. Elements that are texts themselves need none.
    Text(Option<Bytes>),
}

struct Weighed {
    weight: Weight,
    /// Which one it was among those that were loaded.
    number: usize,
    element: Bytes,
}

/// The elements that are asked for, in the order that is.
fn sorted(
    context: &mut Context<'_>,
    options: &Options<'_>,
    all: Vec<Bytes>,
) -> Result<Vec<Bytes>, CommandError> {
    let range = options.range(all.len());
    let mut weighed = Vec::with_capacity(all.len());
    for (number, element) in all.into_iter().enumerate() {
        weighed.push(Weighed { weight: weigh(context, options, &element)?, number, element });
    }
    let order = |a: &Weighed, b: &Weighed| compare(options, a, b);
    if range.end < weighed.len() && !range.is_empty() {
        weighed.select_nth_unstable_by(range.end - 1, order);
        weighed.truncate(range.end);
    }
    weighed.sort_unstable_by(order);
    Ok(weighed.drain(range).map(|weighed| weighed.element).collect())
}

fn weigh(context: &mut Context<'_>, options: &Options<'_>, element: &Bytes) -> Result<Weight, CommandError> {
    let text = match options.by {
        By::Pattern(pattern) => pattern::value(context, pattern, element)?,
        By::Itself | By::Nothing if options.alpha => None,
        By::Itself | By::Nothing => Some(element.clone()),
    };
    Ok(match text {
        text if options.alpha => Weight::Text(text),
        Some(text) => Weight::Number(number(&text).ok_or(NOT_A_NUMBER)?),
        None => Weight::Number(0.0),
    })
}

/// By weight. What weighs the same stays in its order if its weights are other keys' texts, and is in its own order
/// otherwise.
fn compare(options: &Options<'_>, a: &Weighed, b: &Weighed) -> Ordering {
    let by_weight = match (&a.weight, &b.weight) {
        (Weight::Number(a), Weight::Number(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
        (Weight::Text(a), Weight::Text(b)) => a.cmp(b),
        (Weight::Number(_), Weight::Text(_)) | (Weight::Text(_), Weight::Number(_)) => Ordering::Equal,
    };
    let own = || if options.keeps_ties() { Ordering::Equal } else { a.element.cmp(&b.element) };
    let order = by_weight.then_with(own);
    let order = if options.descending { order.reverse() } else { order };
    order.then(a.number.cmp(&b.number))
}

/// A number as C's `strtod` reads it; nothing is 0.
fn number(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    resp::parse_double(text.trim_ascii_start())
}

#[cfg(test)]
mod tests;
