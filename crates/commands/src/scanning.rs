//! Shared parts of SCAN, HSCAN, SSCAN and ZSCAN: cursors, options and reply pages.

use bitflags::bitflags;
use engine::{CommandError, Context, quote};
use keyspace::{Kind, ScanItem, SlotData, TypedView};
use resp::{Protocol, Writer};
use slot_routing::{Slot, hash_tag};

bitflags! {
    /// The options that a command accepts in addition to MATCH and COUNT.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct AcceptedOptions: u8 {
        const TYPE = 1;
        const NOVALUES = 1 << 1;
        const NOSCORES = 1 << 2;
        const SLOT = 1 << 3;
    }
}

/// Parses an option that omits a part of each element from the reply, such as NOVALUES.
fn parse_omit_option(word: &[u8]) -> Option<AcceptedOptions> {
    let options = [(&b"novalues"[..], AcceptedOptions::NOVALUES), (b"noscores", AcceptedOptions::NOSCORES)];
    options.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, option)| option)
}

fn unsupported_option_error(option: AcceptedOptions) -> CommandError {
    CommandError::text(match option {
        AcceptedOptions::NOVALUES => "ERR NOVALUES option can only be used in HSCAN",
        _ => "ERR NOSCORES option can only be used in ZSCAN",
    })
}

/// The options of a scan command, which follow the cursor.
pub(super) struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    pub(super) count: usize,
    pub(super) kind: Option<Kind>,
    pub(super) slot: Option<Slot>,
    pub(super) includes_values: bool,
}

impl<'a> ScanOptions<'a> {
    /// Parses the arguments from index `from` on.
    pub(super) fn parse(
        context: &Context<'a>,
        from: usize,
        allowed: AcceptedOptions,
    ) -> Result<Self, CommandError> {
        let mut options = Self { pattern: None, count: 10, kind: None, slot: None, includes_values: true };
        let mut index = from;
        while let Some(word) = context.args.get(index) {
            index += 1;
            if let Some(option) = parse_omit_option(word) {
                if !allowed.contains(option) {
                    return Err(unsupported_option_error(option));
                }
                options.includes_values = false;
                continue;
            }
            let value = context.args.get(index).ok_or(CommandError::Syntax)?;
            if word.eq_ignore_ascii_case(b"match") {
                options.pattern = Some(value).filter(|pattern| pattern != b"*");
            } else if word.eq_ignore_ascii_case(b"count") {
                let count = context.integer_arg(index)?;
                options.count = usize::try_from(count).ok().filter(|c| *c > 0).ok_or(CommandError::Syntax)?;
            } else if allowed.contains(AcceptedOptions::TYPE) && word.eq_ignore_ascii_case(b"type") {
                options.kind = Some(parse_kind(value)?);
            } else if allowed.contains(AcceptedOptions::SLOT) && word.eq_ignore_ascii_case(b"slot") {
                if options.slot.is_some() {
                    return Err(CommandError::text("ERR SLOT option can only be specified once"));
                }
                options.slot = Some(parse_slot_argument(value)?);
            } else {
                return Err(CommandError::Syntax);
            }
            index += 1;
        }
        Ok(options)
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }

    /// Whether a keyspace scan returns this key.
    pub(super) fn matches_item(&self, item: &ScanItem<'_>) -> bool {
        self.kind.is_none_or(|kind| kind == item.kind) && self.matches(item.key)
    }

    /// The single slot of all keys that the pattern can match, if the pattern determines it: there is no wildcard
    /// within its hash tag or before it.
    pub(super) fn pattern_slot(&self) -> Option<Slot> {
        let pattern = self.pattern?;
        let tag = hash_tag(pattern);
        let plain = match tag.len() == pattern.len() {
            true => pattern,
            false => pattern.split_inclusive(|byte| *byte == b'}').next()?,
        };
        let is_wild = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
        (!plain.iter().any(is_wild)).then(|| Slot::of_key(pattern))
    }
}

/// Parses a slot number.
///
/// # Errors
/// The text is not a number, or the number is out of range.
pub(super) fn parse_slot_argument(number: &[u8]) -> Result<Slot, CommandError> {
    let number = resp::parse_i64(number).and_then(|number| u16::try_from(number).ok());
    number.and_then(Slot::new).ok_or(CommandError::text("ERR Invalid or out of range slot"))
}

/// Finds a data type by its name in TYPE.
fn parse_kind(name: &[u8]) -> Result<Kind, CommandError> {
    let known = Kind::ALL.iter().find(|kind| name.eq_ignore_ascii_case(kind.name().as_bytes()));
    let unknown = || format!("ERR unknown type name '{}'", quote(name, name.len()));
    known.copied().ok_or_else(|| CommandError::Text(unknown().into()))
}

/// Parses a cursor like C's `strtoull`: leading space and a sign are accepted, and after a space a negative number
/// wraps around 2^64. A negative number without leading space is refused.
pub(super) fn parse_cursor(text: &[u8]) -> Result<u64, CommandError> {
    let invalid = CommandError::text("ERR invalid cursor");
    if resp::parse_i64(text).is_some_and(|number| number < 0) {
        return Err(invalid);
    }
    let (negative, digits) = match text.trim_ascii_start() {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(invalid);
    }
    let value = digits.iter().try_fold(0u64, |value, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    });
    let value = value.ok_or(invalid)?;
    Ok(if negative { value.wrapping_neg() } else { value })
}

/// Collects the bulk strings of a reply when their number is not known in advance.
#[derive(Default)]
pub(super) struct BulkStringCollector {
    encoded: Vec<u8>,
    count: usize,
}

impl BulkStringCollector {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        Writer::new(&mut self.encoded, Protocol::Resp2).bulk(bytes);
        self.count += 1;
    }

    pub(super) fn write_array_reply(&self, reply: &mut Writer<'_>) {
        reply.array(self.count);
        reply.raw(&self.encoded);
    }

    pub(super) fn write_set_reply(&self, reply: &mut Writer<'_>) {
        reply.set(self.count);
        reply.raw(&self.encoded);
    }
}

/// Collects the keys of a slot that the options select, and deletes the expired ones among them afterwards. `scan` calls
/// its argument for each key, while the slot is locked. Returns the result of `scan` and the number of visited keys.
pub(super) fn collect_keys_of_slot<R>(
    context: &mut Context<'_>,
    slot: Slot,
    options: &ScanOptions<'_>,
    found: &mut BulkStringCollector,
    scan: impl FnOnce(&mut SlotData, &mut dyn FnMut(ScanItem<'_>)) -> R,
) -> (R, usize) {
    let now = context.expiry_cutoff();
    let (mut visited, mut expired) = (0, Vec::new());
    let mut visit = |item: ScanItem<'_>| {
        visited += 1;
        match item.expiry {
            _ if !options.matches_item(&item) => {}
            Some(at) if at <= now => expired.push(item.key.to_vec()),
            Some(_) | None => found.push(item.key),
        }
    };
    let scanned = context.with_slot(slot, |data| scan(data, &mut visit));
    context.delete_expired_in(slot, &expired);
    (scanned, visited)
}

/// Replies with the next cursor and the page's elements.
pub(super) fn write_scan_reply(reply: &mut Writer<'_>, cursor: u64, found: &BulkStringCollector) {
    let mut digits = itoa::Buffer::new();
    reply.array(2);
    reply.bulk(digits.format(cursor).as_bytes());
    found.write_array_reply(reply);
}

/// Handles HSCAN, SSCAN and ZSCAN: key cursor [MATCH pattern] [COUNT count], plus the `allowed` options. `scan` visits
/// elements from a position in hash order and returns the next position.
pub(super) fn scan_elements<T: TypedView>(
    context: &mut Context<'_>,
    allowed: AcceptedOptions,
    scan: impl FnOnce(T::View<'_>, u64, &ScanOptions<'_>, &mut BulkStringCollector) -> Option<u64>,
) -> Result<(), CommandError> {
    let cursor = parse_cursor(context.arg(2))?;
    let key = context.key(1)?;
    let (mut next, mut page) = (None, BulkStringCollector::default());
    if let Some(place) = context.read_typed::<T>(&key)? {
        let options = ScanOptions::parse(context, 3, allowed)?;
        next = scan(context.typed_value::<T>(&key, place)?, cursor, &options, &mut page);
    }
    write_scan_reply(&mut context.reply, next.unwrap_or(0), &page);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use crate::testing::Client;

    /// The commands that scan, add and remove elements of one type. `add_command_words` holds the words before and after the
    /// name of the element.
    struct CollectionCommands {
        scan_command: &'static str,
        add_command_words: [&'static str; 2],
        remove_command: &'static str,
        /// Number of reply entries for each element.
        entries_per_element: usize,
    }

    const COLLECTION_COMMANDS: &[CollectionCommands] = &[
        CollectionCommands {
            scan_command: "sscan",
            add_command_words: ["sadd c", ""],
            remove_command: "srem c",
            entries_per_element: 1,
        },
        CollectionCommands {
            scan_command: "zscan",
            add_command_words: ["zadd c 1", ""],
            remove_command: "zrem c",
            entries_per_element: 2,
        },
        CollectionCommands {
            scan_command: "hscan",
            add_command_words: ["hset c", "v"],
            remove_command: "hdel c",
            entries_per_element: 2,
        },
    ];

    fn run_line(client: &mut Client, words: &str) {
        client.call(&words.split_whitespace().collect::<Vec<_>>());
    }

    /// Runs the scan command once and returns the next cursor and the elements.
    fn call_scan(
        client: &mut Client,
        family: &CollectionCommands,
        cursor: &str,
        count: usize,
    ) -> (String, Vec<String>) {
        let reply = client.call(&[family.scan_command, "c", cursor, "count", &count.to_string()]);
        let text =
            |value: &resp::Value| String::from_utf8_lossy(value.as_bytes().expect("text")).into_owned();
        let [next, found] = reply.as_array().expect("two") else { panic!("{reply:?}") };
        (
            text(next),
            found
                .as_array()
                .expect("a page")
                .chunks(family.entries_per_element)
                .map(|words| text(&words[0]))
                .collect(),
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Elements that exist during the whole scan are returned, even if the collection grows or shrinks many times
        /// over and changes its encoding.
        #[test]
        fn collection_scan_returns_all_persistent_elements(
            stay in 1usize..300,
            others in 0usize..4000,
            count in 5usize..100,
            grows in any::<bool>(),
            family in 0..COLLECTION_COMMANDS.len(),
        ) {
            let (family, mut client) = (&COLLECTION_COMMANDS[family], Client::new());
            let add = |client: &mut Client, name: &str| {
                run_line(client, &format!("{} {name} {}", family.add_command_words[0], family.add_command_words[1]));
            };
            let stays: BTreeSet<String> = (0..stay).map(|n| format!("stay{n}")).collect();
            stays.iter().for_each(|name| add(&mut client, name));
            let mut left: Vec<String> = (0..others).map(|n| format!("other{n}")).collect();
            if !grows {
                left.iter().for_each(|name| add(&mut client, name));
            }
            let (mut cursor, mut seen, mut calls) = ("0".to_owned(), BTreeSet::new(), 0);
            loop {
                let (next, found) = call_scan(&mut client, family, &cursor, count);
                seen.extend(found);
                if next == "0" {
                    break;
                }
                cursor = next;
                calls += 1;
                prop_assert!(calls < 10_000, "the scan goes on and on");
                for name in left.split_off(left.len().saturating_sub(200)) {
                    match grows {
                        true => add(&mut client, &name),
                        false => run_line(&mut client, &format!("{} {name}", family.remove_command)),
                    }
                }
            }
            prop_assert!(stays.is_subset(&seen));
        }
    }
}
