//! BITOP: bitwise operations over several strings.

use engine::{CommandError, Context, EventClass};
use keyspace::{EncodingHint, EntryRef, Key, Kind, PackedValue};
use smallvec::SmallVec;

/// The rule that computes each result bit from the bits at the same offset in all sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BitOperation {
    /// One if all source bits are set.
    And,
    /// One if at least one source bit is set.
    Or,
    /// One if an odd number of source bits is set.
    Xor,
    /// Inverts the only source.
    Not,
    /// One if only the first source has the bit set.
    Diff,
    /// One if the first source has the bit clear and another source has it set.
    Diff1,
    /// One if the first source and at least one other source have the bit set.
    AndOr,
    /// One if exactly one source bit is set.
    One,
}

impl BitOperation {
    const NAMES: [(&'static str, Self); 8] = [
        ("AND", Self::And),
        ("OR", Self::Or),
        ("XOR", Self::Xor),
        ("NOT", Self::Not),
        ("DIFF", Self::Diff),
        ("DIFF1", Self::Diff1),
        ("ANDOR", Self::AndOr),
        ("ONE", Self::One),
    ];

    /// Whether only Redis 8 has this operation. Its result is then replicated instead of the command, because a Valkey
    /// replica would refuse the command.
    fn is_redis_only(self) -> bool {
        match self {
            Self::And | Self::Or | Self::Xor | Self::Not => false,
            Self::Diff | Self::Diff1 | Self::AndOr | Self::One => true,
        }
    }

    /// Parses the operation's name and checks the number of source keys.
    fn parse(word: &[u8], source_count: usize) -> Result<Self, CommandError> {
        let named = Self::NAMES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        let &(name, operation) = named.ok_or(CommandError::Syntax)?;
        match operation {
            Self::Not if source_count != 1 => {
                Err(CommandError::text("ERR BITOP NOT must be called with a single source key."))
            }
            Self::Diff | Self::Diff1 | Self::AndOr if source_count < 2 => {
                let text = format!("ERR BITOP {name} must be called with at least two source keys.");
                Err(CommandError::Text(text.into()))
            }
            _ => Ok(operation),
        }
    }
}

/// Bytes combined per step, chosen to fit in the L1 cache.
const CHUNK_BYTES: usize = 16 << 10;

/// Applies `operation` to each byte of `target` and the byte of `source` at the same index.
#[inline(always)]
fn apply_bytewise(target: &mut [u8], source: &[u8], operation: impl Fn(u8, u8) -> u8) {
    for (into, from) in target.iter_mut().zip(source) {
        *into = operation(*into, *from);
    }
}

/// Combines chunks that start at the same offset, at most [`CHUNK_BYTES`] bytes each. A chunk shorter than the others
/// is padded with zeros.
#[inline(always)]
fn combine(operation: BitOperation, chunks: &[&[u8]], target: &mut [u8]) {
    let (first, others) = (chunks[0], &chunks[1..]);
    let set = |into: &mut [u8], part: &[u8]| {
        into[..part.len()].copy_from_slice(part);
        into[part.len()..].fill(0);
    };
    match operation {
        BitOperation::And => {
            set(target, first);
            for part in others {
                apply_bytewise(target, part, |a, b| a & b);
                target[part.len()..].fill(0);
            }
        }
        BitOperation::Or | BitOperation::Xor => {
            set(target, first);
            for part in others {
                match operation {
                    BitOperation::Xor => apply_bytewise(target, part, |a, b| a ^ b),
                    _ => apply_bytewise(target, part, |a, b| a | b),
                }
            }
        }
        BitOperation::Not => {
            target.fill(0xff);
            apply_bytewise(target, first, |_, b| !b);
        }
        BitOperation::Diff | BitOperation::Diff1 | BitOperation::AndOr => {
            target.fill(0);
            others.iter().for_each(|part| apply_bytewise(target, part, |a, b| a | b));
            let behind = match operation {
                BitOperation::Diff1 => {
                    apply_bytewise(target, first, |others, first| others & !first);
                    target.len()
                }
                BitOperation::Diff => {
                    apply_bytewise(target, first, |others, first| first & !others);
                    first.len()
                }
                _ => {
                    apply_bytewise(target, first, |others, first| first & others);
                    first.len()
                }
            };
            target[behind..].fill(0);
        }
        BitOperation::One => {
            let mut several = [0; CHUNK_BYTES];
            set(target, first);
            for part in others {
                for ((seen, several), new) in target.iter_mut().zip(&mut several).zip(*part) {
                    *several |= *seen & new;
                    *seen |= new;
                }
            }
            apply_bytewise(target, &several, |seen, several| seen & !several);
        }
    }
}

/// Handles `BITOP operation destination key [key ...]`.
pub(super) fn bitop(context: &mut Context<'_>) -> Result<(), CommandError> {
    let operation = BitOperation::parse(context.arg(1), context.args.len() - 3)?;
    let mut longest = 0;
    for index in 3..context.args.len() {
        let key = context.key(index)?;
        if let Some(place) = context.find_for_read(&key) {
            longest = longest.max(context.string_value(&key, place)?.bytes.len());
        }
    }
    let key = context.key(2)?;
    let found = context.find(&key);
    if longest > 0 {
        let place = resize_destination(context, &key, found, longest);
        write_result(context, operation, &key, place, longest)?;
        context.report_modified(&key);
        context.notify(EventClass::STRING, "set", &key);
        if operation.is_redis_only() {
            let made = context.string_value(&key, place)?.bytes.to_vec();
            context.log_effect(&[b"SET", key.bytes(), &made]);
        }
    } else if let Some(place) = found {
        context.delete(&key, place);
        context.notify(EventClass::GENERIC, "del", &key);
        if operation.is_redis_only() {
            context.log_effect(&[b"DEL", key.bytes()]);
        }
    }
    context.reply.integer(longest as i64);
    Ok(())
}

/// Creates a string of `len` bytes under `key`, or resizes the existing one. The key may be one of the sources, so its
/// bytes are kept and only the added bytes are zeroed.
fn resize_destination(
    context: &mut Context<'_>,
    key: &Key<'_>,
    found: Option<EntryRef>,
    len: usize,
) -> EntryRef {
    let string = found.filter(|place| context.table_ref(key).kind(*place) == Kind::String);
    let place = match string {
        Some(place) => context.table(key).set_expiry(place, key, None),
        None => {
            if let Some(other) = found {
                let dropped = context.table(key).remove(other, key);
                context.discard(dropped);
            }
            context.table(key).insert(key, PackedValue::string(b""), None)
        }
    };
    context.table(key).edit_string(place, key, len, EncodingHint::Raw).0
}

/// Writes the result into the string of `len` bytes under `destination`, chunk by chunk. If the destination is also a
/// source, each chunk is read before it is overwritten.
fn write_result(
    context: &mut Context<'_>,
    operation: BitOperation,
    destination: &Key<'_>,
    entry_ref: EntryRef,
    len: usize,
) -> Result<(), CommandError> {
    // Look the sources up again: resizing the destination may have moved their entries.
    let mut sources: SmallVec<[(Key<'_>, Option<EntryRef>); 4]> = SmallVec::new();
    for index in 3..context.args.len() {
        let key = context.key(index)?;
        sources.push((key, context.peek(&key)));
    }
    let mut chunk = [0; CHUNK_BYTES];
    for start in (0..len).step_by(CHUNK_BYTES) {
        let end = len.min(start + CHUNK_BYTES);
        let into = &mut chunk[..end - start];
        let mut parts: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for (key, found) in &sources {
            let bytes = match found {
                Some(place) => context.string_value(key, *place)?.bytes,
                None => b"",
            };
            parts.push(bytes.get(start..).map_or(b"", |rest| &rest[..rest.len().min(end - start)]));
        }
        keyspace::with_wide_vectors(|| combine(operation, &parts, into));
        drop(parts);
        let (_, bytes) =
            context.table(destination).edit_string(entry_ref, destination, len, EncodingHint::Raw);
        bytes[start..end].copy_from_slice(into);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BitOperation, combine};
    use crate::testing::Client;

    #[test]
    fn bitop_combines_strings() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("mset f foobar ff \"\\x0f\\x0f\\x0f\"", "+OK"),
            ("bitop and d f ff", ":6"),
            ("get d", "$6|\u{6}\u{f}\u{f}\0\0\0"),
            ("object encoding d", "$3|raw"),
            ("bitop or d f ff nosuch", ":6"),
            ("get d", "$6|ooobar"),
            ("bitop xor d f f", ":6"),
            ("get d", "$6|\0\0\0\0\0\0"),
            ("bitop xor d f nosuch", ":6"),
            ("get d", "$6|foobar"),
            ("bitop not d ff", ":3"),
            ("bitop not d d", ":3"),
            ("get d", "$3|\u{f}\u{f}\u{f}"),
            ("bitop Diff d f ff", ":6"),
            ("get d", "$6|```bar"),
            ("bitop diff1 d f ff", ":6"),
            ("get d", "$6|\u{9}\0\0\0\0\0"),
            ("bitop andor d f ff nosuch", ":6"),
            ("get d", "$6|\u{6}\u{f}\u{f}\0\0\0"),
            ("bitop one d f ff f", ":6"),
            ("get d", "$6|\u{9}\0\0\0\0\0"),
            ("expire d 100", ":1"),
            ("bitop one d f", ":6"),
            ("ttl d", ":-1"),
            ("bitop not d nosuch", ":0"),
            ("bitop not d nosuch", ":0"),
            ("exists d", ":0"),
        ]);
        assert_eq!(client.logged_commands().last().map(String::as_str), Some("0 bitop not d nosuch"));
    }

    /// Covers sources longer than one chunk, and a destination that is also a source and is shorter or longer than the
    /// others. Regression test: a Valkey replica refused BITOP ONE and diverged from then on.
    #[test]
    fn redis_8_operations_are_replicated_by_result() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("mset a a b b", "+OK"),
            ("bitop one d a b", ":1"),
            ("bitop and e a b", ":1"),
            ("bitop one d nosuch", ":0"),
        ]);
        assert_eq!(client.logged_commands()[1..], ["0 SET d \x03", "0 bitop and e a b", "0 DEL d"]);
    }

    #[test]
    fn bitop_destination_can_be_a_source() {
        let mut client = Client::new();
        let text = |len: usize, step: usize| -> Vec<u8> { (0..len).map(|at| (at * step) as u8).collect() };
        for (own, other) in [(100_000, 40_000), (40_000, 100_000), (10, 70_000), (70_000, 0)] {
            let (a, b) = (text(own, 7), text(other, 13));
            for (operation, with) in [("and", (|a, b| a & b) as fn(u8, u8) -> u8), ("xor", |a, b| a ^ b)] {
                client.call_bytes(&[b"set", b"a", &a, b"ex", b"100"]);
                client.call_bytes(&[b"set", b"{a}b", &b]);
                client.call(&["bitop", operation, "a", "{a}b", "a"]);
                let at = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
                let expected: Vec<u8> =
                    (0..own.max(other)).map(|place| with(at(&a, place), at(&b, place))).collect();
                assert_eq!(client.call(&["get", "a"]).as_bytes(), Some(&expected[..]), "{operation}");
                client.check_replies(&[("ttl a", ":-1"), ("object encoding a", "$3|raw")]);
            }
        }
    }

    #[test]
    fn bitop_checks_number_of_sources() {
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        Client::new().check_replies(&[
            ("bitop not d a b", "-ERR BITOP NOT must be called with a single source key."),
            ("bitop diff d a", "-ERR BITOP DIFF must be called with at least two source keys."),
            ("bitop diff1 d a", "-ERR BITOP DIFF1 must be called with at least two source keys."),
            ("bitop andor d a", "-ERR BITOP ANDOR must be called with at least two source keys."),
            ("bitop nosuch d a", "-ERR syntax error"),
            ("bitop and d", "-ERR wrong number of arguments for 'bitop' command"),
            ("hset h a 1", ":1"),
            ("bitop and d nosuch h", wrong_type),
            ("set s 1", "+OK"),
            ("bitop and h s", ":1"),
            ("type h", "+string"),
        ]);
    }

    #[test]
    fn commands_send_keyspace_events() {
        Client::new().check_events(&[
            ("setbit a 1 1", "setbit a"),
            ("setbit a 1 1", ""),
            ("bitop not d a", "set d"),
            ("bitop and d nosuch", "del d"),
            ("bitop and d nosuch", ""),
            ("bitfield a get u8 0", ""),
            ("bitfield a set u8 0 1 incrby u8 0 1", "setbit a"),
            ("bitfield a set u8 0 2", ""),
            ("bitcount a", ""),
        ]);
    }

    proptest! {
        #[test]
        fn bitop_matches_naive_implementation(
            strings in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 2..5),
        ) {
            let longest = strings.iter().map(Vec::len).max().unwrap_or(0);
            let column = |at: usize| strings.iter().map(move |string| string.get(at).copied().unwrap_or(0));
            for (name, operation) in BitOperation::NAMES {
                let parts: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
                let mut bytes = vec![0xaa; longest];
                combine(operation, if name == "NOT" { &parts[..1] } else { &parts }, &mut bytes);
                for (at, byte) in bytes.iter().enumerate() {
                    let first = column(at).next().unwrap_or(0);
                    let others = column(at).skip(1).fold(0, |seen, byte| seen | byte);
                    let bits = |wanted: &dyn Fn(u32) -> bool| {
                        let set = |bit: u32| column(at).filter(|byte| byte >> bit & 1 == 1).count() as u32;
                        (0..8).fold(0_u8, |bits, bit| bits | u8::from(wanted(set(bit))) << bit)
                    };
                    let expected = match operation {
                        BitOperation::And => bits(&|set| set as usize == strings.len()),
                        BitOperation::Or => bits(&|set| set > 0),
                        BitOperation::Xor => bits(&|set| set % 2 == 1),
                        BitOperation::One => bits(&|set| set == 1),
                        BitOperation::Not => !first,
                        BitOperation::Diff => first & !others,
                        BitOperation::Diff1 => others & !first,
                        BitOperation::AndOr => first & others,
                    };
                    prop_assert_eq!(*byte, expected, "{} at {}", name, at);
                }
            }
        }
    }
}
