//! SORT and SORT_RO: sorts the elements of a value, optionally by other keys and with values of other keys.
//!
//! The keys of BY and GET patterns are known only during execution. In cluster mode a pattern must map to a single
//! slot. Otherwise the command holds the global lock token and locks slots as it reaches them
//! ([`Context::lock_undeclared_slot`]).
mod elements;
mod options;
mod pattern;

use std::cmp::Ordering;

use elements::StoredListBuilder;
use engine::{
    BeginSearch, Categories, Command, CommandError, CommandOrigin, Context, EventClass, FindKeys, Group,
    KeySpec, PinnedValues, truncate_at_nul,
};
use options::{SortBy, SortOptions, StoreOption, parse_sort_keys};
use resp::Args;

use super::estimates;
use super::rows::{READ, WRITE_DENYOOM, key};
use crate::kinds::{ElementBytes, as_any_value};

const NOT_A_NUMBER: CommandError =
    CommandError::text("ERR One or more scores can't be converted into double");

/// Key spec for the keys that BY and GET patterns name, which are unknown before execution.
const PATTERN_KEYS: KeySpec = KeySpec {
    search_start: BeginSearch::Unknown,
    find_keys: FindKeys::Range { last_key_position: 0, step: 1, limit: 0 },
    flags: key::READ,
};
const DESTINATION_KEY: KeySpec = KeySpec { flags: key::OVERWRITE, ..PATTERN_KEYS };

const CATEGORIES: Categories =
    Categories::DANGEROUS.union(Categories::LIST).union(Categories::SET).union(Categories::SORTEDSET);

pub(super) const COMMANDS: &[Command] = &[
    Command::new("sort", Group::Generic, "1.0.0", -2, "Sorts the elements of a list, a set or a sorted set.")
        .flags(WRITE_DENYOOM)
        .category(CATEGORIES)
        .keys(&[KeySpec::single_key(1, key::READ), PATTERN_KEYS, DESTINATION_KEY])
        .parse_keys(parse_sort_keys)
        .run(sort)
        .with_estimate(estimates::elements_cost::<80>)
        .releases_locks(reads_only_source)
        .with_key_patterns(),
    Command::new(
        "sort_ro",
        Group::Generic,
        "7.0.0",
        -2,
        "Sorts the elements of a list, a set or a sorted set, and stores nothing.",
    )
    .flags(READ)
    .category(CATEGORIES)
    .keys(&[KeySpec::single_key(1, key::READ), PATTERN_KEYS])
    .run(sort_ro)
    .with_estimate(estimates::elements_cost::<80>)
    .releases_locks(reads_only_source)
    .with_key_patterns(),
];

/// Whether the command neither reads other keys nor stores a result.
fn reads_only_source(args: Args<'_>) -> bool {
    let others = ["by", "get", "store"];
    !args.skip(2).iter().any(|word| others.iter().any(|other| word.eq_ignore_ascii_case(other.as_bytes())))
}

fn sort(context: &mut Context<'_>) -> Result<(), CommandError> {
    run_sort(context, StoreOption::Allowed)
}

fn sort_ro(context: &mut Context<'_>) -> Result<(), CommandError> {
    run_sort(context, StoreOption::Forbidden)
}

/// Handles `SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC | DESC] [ALPHA] [STORE destination]`.
fn run_sort(context: &mut Context<'_>, store_option: StoreOption) -> Result<(), CommandError> {
    let mut options = SortOptions::parse(context, store_option)?;
    let all = load_elements(context, &mut options)?;
    let sorted = if matches!(options.sort_by, SortBy::Unsorted) {
        all
    } else {
        sort_elements(context, &options, all)?
    };
    match options.destination_index {
        None => reply_sorted(context, &options, &sorted),
        Some(index) => store_sorted(context, &options, &sorted, index),
    }
}

fn reply_sorted(
    context: &mut Context<'_>,
    options: &SortOptions<'_>,
    sorted: &[ElementBytes],
) -> Result<(), CommandError> {
    let width = options.get_patterns.len().max(1);
    context.reply.array(sorted.len() * width);
    for element in sorted {
        if options.get_patterns.is_empty() {
            context.reply.bulk(element);
        }
        for pattern in &options.get_patterns {
            match pattern::pattern_value(context, pattern, element)? {
                Some(value) => context.reply.bulk(&value),
                None => context.reply.null(),
            }
        }
        if context.reply.is_over_limit() {
            break;
        }
    }
    Ok(())
}

/// Stores the result as a list under the key at argument `index`, or deletes the key if the result is empty. A missing
/// value becomes an empty element.
fn store_sorted(
    context: &mut Context<'_>,
    options: &SortOptions<'_>,
    sorted: &[ElementBytes],
    index: usize,
) -> Result<(), CommandError> {
    let (mut made, width) = (StoredListBuilder::new(), options.get_patterns.len().max(1));
    for element in sorted {
        if options.get_patterns.is_empty() {
            made.push(element);
        }
        for pattern in &options.get_patterns {
            made.push(&pattern::pattern_value(context, pattern, element)?.unwrap_or_default());
        }
    }
    let (key, len) = (context.key(index)?, sorted.len() * width);
    let found = context.find(&key);
    if len > 0 {
        let list = made.finish_with_encoding(&context.engine.settings.value_limits.encoding_limits());
        context.put(&key, found, list.packed(), None);
        context.notify(EventClass::LIST, "sortstore", &key);
        // Each element counts as a change, as in Redis.
        context.count_changes(len as u64 - 1);
    } else if let Some(place) = found {
        context.delete(&key, place);
        context.notify(EventClass::GENERIC, "del", &key);
    }
    context.reply.integer(len as i64);
    Ok(())
}

/// Loads the elements of the source. Without sorting, only the elements within LIMIT are loaded.
fn load_elements(
    context: &mut Context<'_>,
    options: &mut SortOptions<'_>,
) -> Result<Vec<ElementBytes>, CommandError> {
    let key = context.key(1)?;
    let Some(place) = context.find_for_read(&key) else { return Ok(Vec::new()) };
    let value = context.table_ref(&key).value(place);
    let elements = as_any_value(&value).as_sortable().ok_or(CommandError::WrongType)?;
    let (len, is_ordered) = (elements.len(), elements.is_ordered());
    let must_be_same = options.destination_index.is_some() || context.is_called_by_script();
    if matches!(options.sort_by, SortBy::Unsorted) && !is_ordered && must_be_same {
        // The iteration order of a set is private to this process, so it must not determine a stored result or a
        // script's input.
        options.sort_by = SortBy::Element;
        options.is_alphabetic = true;
    }
    if matches!(options.sort_by, SortBy::Unsorted) {
        return Ok(elements.load_elements(options.limit_range(len), options.is_descending));
    }
    let reads_itself =
        matches!(options.sort_by, SortBy::Element) && options.get_patterns.is_empty() && !must_be_same;
    if reads_itself && let Some(pinned) = context.pin_values(&[(key, place)]) {
        return Ok(load_pinned_elements(pinned, len));
    }
    let value = context.table_ref(&key).value(place);
    let elements = as_any_value(&value).as_sortable().ok_or(CommandError::WrongType)?;
    let mut all = elements.load_elements(0..len, false);
    if !is_ordered && options.is_stable() {
        all.sort_unstable();
    }
    Ok(all)
}

fn load_pinned_elements(pinned: PinnedValues, len: usize) -> Vec<ElementBytes> {
    let mut all = Vec::with_capacity(len);
    pinned.visit_elements(|_, part| {
        part.visit_names(&mut |name| all.push(ElementBytes::from_slice(name)));
        true
    });
    all
}

/// The weights to sort by.
struct SortWeights {
    /// Numeric weights of the elements; empty for an alphabetic sort.
    numeric_weights: Vec<f64>,
    /// Values of the BY keys for an alphabetic sort, one per element. Empty if the elements themselves are compared.
    text_weights: Vec<Option<ElementBytes>>,
}

/// A weight, and the index of the element with that weight.
type SortItem = (f64, u32);

/// Sorts the elements and returns those within LIMIT.
fn sort_elements(
    context: &mut Context<'_>,
    options: &SortOptions<'_>,
    mut elements: Vec<ElementBytes>,
) -> Result<Vec<ElementBytes>, CommandError> {
    let range = options.limit_range(elements.len());
    let weights = SortWeights::load_weights(context, options, &elements)?;
    let mut light: Vec<SortItem> = weights.numeric_weights.iter().copied().zip(0..).collect();
    let order = |a: &SortItem, b: &SortItem| weights.compare(options, &elements, a, b);
    if range.end < light.len() && !range.is_empty() {
        light.select_nth_unstable_by(range.end - 1, order);
        light.truncate(range.end);
    }
    light.sort_unstable_by(order);
    Ok(light[range].iter().map(|&(_, number)| std::mem::take(&mut elements[number as usize])).collect())
}

impl SortWeights {
    fn load_weights(
        context: &mut Context<'_>,
        options: &SortOptions<'_>,
        elements: &[ElementBytes],
    ) -> Result<Self, CommandError> {
        let mut weights =
            Self { numeric_weights: Vec::with_capacity(elements.len()), text_weights: Vec::new() };
        for element in elements {
            let weight = match options.sort_by {
                SortBy::Pattern(pattern) => {
                    let text = pattern::pattern_value(context, pattern, element)?;
                    let weight = text
                        .as_deref()
                        .filter(|_| !options.is_alphabetic)
                        .map_or(Some(0.0), |text| parse_weight(context, text));
                    if options.is_alphabetic {
                        weights.text_weights.push(text);
                    }
                    weight
                }
                SortBy::Element | SortBy::Unsorted if options.is_alphabetic => Some(0.0),
                SortBy::Element | SortBy::Unsorted => parse_weight(context, element),
            };
            weights.numeric_weights.push(weight.ok_or(NOT_A_NUMBER)?);
        }
        Ok(weights)
    }

    /// Compares by numeric weight, by the text of the BY keys, or by the elements themselves. Elements that compare
    /// equal keep their order if the options require a stable sort.
    fn compare(
        &self,
        options: &SortOptions<'_>,
        elements: &[ElementBytes],
        a: &SortItem,
        b: &SortItem,
    ) -> Ordering {
        let by_weight = a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal);
        let (one, other) = (a.1 as usize, b.1 as usize);
        let by_text = || {
            if options.is_stable() {
                self.text_weights[one].cmp(&self.text_weights[other])
            } else {
                elements[one].cmp(&elements[other])
            }
        };
        let order = by_weight.then_with(by_text);
        let order = if options.is_descending { order.reverse() } else { order };
        order.then(one.cmp(&other))
    }
}

/// Parses a number, which ends at the first NUL. An empty text from a Redis 7.0 master counts as 0.
fn parse_weight(context: &Context<'_>, text: &[u8]) -> Option<f64> {
    // Fast path: most numbers are integers, and below this limit each one is exactly representable.
    if let Some(whole) = resp::parse_i64(text).filter(|whole| whole.unsigned_abs() < 1 << 53) {
        return Some(whole as f64);
    }
    match (truncate_at_nul(text), context.session.origin()) {
        (b"", CommandOrigin::Master | CommandOrigin::SlotMigrationSource) => Some(0.0),
        (text, _) => context.parse_double(text),
    }
}

#[cfg(test)]
mod tests;
