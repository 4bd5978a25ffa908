//! What SCAN and its kin have in common: cursors, options, pages.

use bitflags::bitflags;
use resp::{Protocol, Writer};

use crate::context::Context;
use crate::error::CommandError;

bitflags! {
    /// Which words a command takes besides MATCH and COUNT.
    #[derive(Debug, Clone, Copy)]
    pub(super) struct Words: u8 {
        const TYPE = 1;
        const NOVALUES = 1 << 1;
    }
}

/// What was asked for besides the cursor.
pub(super) struct Options<'a> {
    pattern: Option<&'a [u8]>,
    pub(super) count: usize,
    pub(super) kind: Option<&'a [u8]>,
    pub(super) values: bool,
}

impl<'a> Options<'a> {
    /// Reads the arguments from number `from` on.
    pub(super) fn parse(context: &Context<'a>, from: usize, allowed: Words) -> Result<Self, CommandError> {
        let mut options = Self { pattern: None, count: 10, kind: None, values: true };
        let mut index = from;
        while let Some(word) = context.args.get(index) {
            index += 1;
            if allowed.contains(Words::NOVALUES) && word.eq_ignore_ascii_case(b"novalues") {
                options.values = false;
                continue;
            }
            let value = context.args.get(index).ok_or(CommandError::Syntax)?;
            if word.eq_ignore_ascii_case(b"match") {
                options.pattern = Some(value).filter(|pattern| pattern != b"*");
            } else if word.eq_ignore_ascii_case(b"count") {
                let count = context.integer(index)?;
                options.count = usize::try_from(count).ok().filter(|c| *c > 0).ok_or(CommandError::Syntax)?;
            } else if allowed.contains(Words::TYPE) && word.eq_ignore_ascii_case(b"type") {
                options.kind = Some(value);
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
}

/// A cursor as C's `strtoul` reads it: a sign is allowed, and a minus counts back from 2^64.
pub(super) fn parse_cursor(text: &[u8]) -> Result<u64, CommandError> {
    let invalid = CommandError::text("ERR invalid cursor");
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return if text.is_empty() { Ok(0) } else { Err(invalid) };
    }
    let value = digits.iter().try_fold(0u64, |value, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    });
    let value = value.ok_or(invalid)?;
    Ok(if negative { value.wrapping_neg() } else { value })
}

/// Bulk strings collected before it is known how many there will be.
#[derive(Default)]
pub(super) struct Found {
    wire: Vec<u8>,
    count: usize,
}

impl Found {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        Writer::new(&mut self.wire, Protocol::Resp2).bulk(bytes);
        self.count += 1;
    }

    pub(super) fn reply(&self, reply: &mut Writer<'_>) {
        reply.array(self.count);
        reply.raw(&self.wire);
    }

    pub(super) fn reply_set(&self, reply: &mut Writer<'_>) {
        reply.set(self.count);
        reply.raw(&self.wire);
    }
}

/// Replies with a cursor and what was found.
pub(super) fn reply_page(reply: &mut Writer<'_>, cursor: u64, found: &Found) {
    let mut digits = itoa::Buffer::new();
    reply.array(2);
    reply.bulk(digits.format(cursor).as_bytes());
    found.reply(reply);
}
