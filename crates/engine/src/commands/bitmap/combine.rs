//! BITOP.

use keyspace::{Naming, Packed, Str};

use crate::context::Context;
use crate::error::CommandError;
use crate::notifications::Class;

/// What becomes of the bits that stand in one place of all the strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// All are set.
    And,
    /// One is set.
    Or,
    /// An odd number is set.
    Xor,
    /// The only one is not set.
    Not,
    /// That of the first is set and no other.
    Diff,
    /// That of the first is not set and another is.
    Diff1,
    /// That of the first is set and another, too.
    AndOr,
    /// Exactly one is set.
    One,
}

impl Operation {
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

    /// Reads a name, and whether it works on so many strings.
    fn parse(word: &[u8], strings: usize) -> Result<Self, CommandError> {
        let named = Self::NAMES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        let &(name, operation) = named.ok_or(CommandError::Syntax)?;
        match operation {
            Self::Not if strings != 1 => {
                Err(CommandError::text("ERR BITOP NOT must be called with a single source key."))
            }
            Self::Diff | Self::Diff1 | Self::AndOr if strings < 2 => {
                let text = format!("ERR BITOP {name} must be called with at least two source keys.");
                Err(CommandError::Text(text.into()))
            }
            _ => Ok(operation),
        }
    }
}

/// Strings on their way to become one, which is as long as the longest of them; the others are followed by zeros.
struct Combined {
    operation: Operation,
    bytes: Vec<u8>,
    /// Of [`Operation::One`]: bits that more than one string has set.
    several: Vec<u8>,
    first: bool,
}

/// Applies `with` to each byte of `into` and its counterpart.
fn each(into: &mut [u8], from: &[u8], with: impl Fn(u8, u8) -> u8) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = with(*into, *from);
    }
}

impl Combined {
    fn new(operation: Operation, len: usize) -> Self {
        let several = if operation == Operation::One { vec![0; len] } else { Vec::new() };
        Self { operation, bytes: vec![0; len], several, first: true }
    }

    /// Adds a string; for those that tell the first from the others, that comes last ([`Combined::finish`]).
    fn add(&mut self, string: &[u8]) {
        let first = std::mem::replace(&mut self.first, false);
        let bytes = &mut self.bytes[..];
        match self.operation {
            Operation::And if !first => {
                each(bytes, string, |a, b| a & b);
                bytes[string.len()..].fill(0);
            }
            Operation::And => bytes[..string.len()].copy_from_slice(string),
            Operation::Not => {
                bytes.fill(0xff);
                each(bytes, string, |_, b| !b);
            }
            Operation::Xor => each(bytes, string, |a, b| a ^ b),
            Operation::Or | Operation::Diff | Operation::Diff1 | Operation::AndOr => {
                each(bytes, string, |a, b| a | b);
            }
            Operation::One => {
                for ((seen, several), new) in bytes.iter_mut().zip(&mut self.several).zip(string) {
                    *several |= *seen & new;
                    *seen |= new;
                }
            }
        }
    }

    /// What came of it; `apart` is the string that an operation tells from the others.
    fn finish(mut self, apart: &[u8]) -> Vec<u8> {
        let bytes = &mut self.bytes[..];
        match self.operation {
            Operation::And | Operation::Or | Operation::Xor | Operation::Not => {}
            Operation::One => each(bytes, &self.several, |seen, several| seen & !several),
            Operation::Diff1 => each(bytes, apart, |others, first| others & !first),
            Operation::Diff => {
                each(bytes, apart, |others, first| first & !others);
                bytes[apart.len()..].fill(0);
            }
            Operation::AndOr => {
                each(bytes, apart, |others, first| first & others);
                bytes[apart.len()..].fill(0);
            }
        }
        self.bytes
    }
}

/// BITOP operation destination key [key ...]
pub(super) fn bitop(context: &mut Context<'_>) -> Result<(), CommandError> {
    let operation = Operation::parse(context.arg(1), context.args.len() - 3)?;
    let sources = 3..context.args.len();
    // First whatever has expired goes, which may move others; then they are looked at.
    let mut longest = 0;
    for index in sources.clone() {
        let key = context.key(index);
        if let Some(place) = context.read(&key) {
            longest = longest.max(context.string(&key, place)?.bytes.len());
        }
    }
    let apart = matches!(operation, Operation::Diff | Operation::Diff1 | Operation::AndOr);
    let mut combined = Combined::new(operation, longest);
    for index in sources.skip(usize::from(apart)) {
        combined.add(source(context, index)?);
    }
    let bytes = combined.finish(if apart { source(context, 3)? } else { b"" });
    let key = context.key(2);
    let found = context.find(&key);
    if !bytes.is_empty() {
        context.put(&key, found, Packed::named_string(&bytes, Naming::Raw), None);
        context.notify(Class::STRING, "set", &key);
    } else if let Some(place) = found {
        context.delete(&key, place);
        context.notify(Class::GENERIC, "del", &key);
    }
    context.reply.integer(bytes.len() as i64);
    Ok(())
}

/// The string that argument `index` names; none is one without bytes.
fn source<'c>(context: &'c mut Context<'_>, index: usize) -> Result<&'c [u8], CommandError> {
    let key = context.key(index);
    match context.peek(&key) {
        Some(place) => Ok(context.typed::<Str<'_>>(&key, place)?.bytes),
        None => Ok(b""),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Combined, Operation};
    use crate::testing::Client;

    #[test]
    fn strings_are_combined() {
        let mut client = Client::logged();
        client.table(&[
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
        assert_eq!(client.log().last().map(String::as_str), Some("0 bitop not d nosuch"));
    }

    #[test]
    fn operations_want_their_numbers_of_strings() {
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        Client::new().table(&[
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
    fn what_subscribers_hear_of() {
        Client::new().events(&[
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
        fn each_byte_is_what_its_sources_come_to(
            strings in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 2..5),
        ) {
            let longest = strings.iter().map(Vec::len).max().unwrap_or(0);
            let column = |at: usize| strings.iter().map(move |string| string.get(at).copied().unwrap_or(0));
            for (name, operation) in Operation::NAMES {
                let apart = matches!(name, "DIFF" | "DIFF1" | "ANDOR");
                let mut combined = Combined::new(operation, longest);
                let added = if name == "NOT" { &strings[..1] } else { &strings[usize::from(apart)..] };
                added.iter().for_each(|string| combined.add(string));
                let bytes = combined.finish(if apart { &strings[0] } else { b"" });
                for (at, byte) in bytes.iter().enumerate() {
                    let first = column(at).next().unwrap_or(0);
                    let others = column(at).skip(1).fold(0, |seen, byte| seen | byte);
                    let bits = |wanted: &dyn Fn(u32) -> bool| {
                        let set = |bit: u32| column(at).filter(|byte| byte >> bit & 1 == 1).count() as u32;
                        (0..8).fold(0_u8, |bits, bit| bits | u8::from(wanted(set(bit))) << bit)
                    };
                    let expected = match operation {
                        Operation::And => bits(&|set| set as usize == strings.len()),
                        Operation::Or => bits(&|set| set > 0),
                        Operation::Xor => bits(&|set| set % 2 == 1),
                        Operation::One => bits(&|set| set == 1),
                        Operation::Not => !first,
                        Operation::Diff => first & !others,
                        Operation::Diff1 => others & !first,
                        Operation::AndOr => first & others,
                    };
                    prop_assert_eq!(*byte, expected, "{} at {}", name, at);
                }
            }
        }
    }
}
