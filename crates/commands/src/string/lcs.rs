//! LCS: the longest common subsequence of two strings, by dynamic programming.
//!
//! `table[i][j]` is the length for the first `i` bytes of one string and the first `j` bytes of the other. Backtracking
//! from the last cell gives the subsequence, or the ranges in which both strings agree.

use std::sync::atomic::Ordering;

use engine::{CommandError, Context};

#[derive(Default)]
struct LcsOptions {
    reports_indexes: bool,
    reports_length: bool,
    reports_match_len: bool,
    min_match_len: i64,
}

impl LcsOptions {
    fn parse(context: &Context<'_>) -> Result<Self, CommandError> {
        let mut options = Self::default();
        let mut index = 3;
        while let Some(word) = context.args.get(index) {
            if word.eq_ignore_ascii_case(b"idx") {
                options.reports_indexes = true;
            } else if word.eq_ignore_ascii_case(b"len") {
                options.reports_length = true;
            } else if word.eq_ignore_ascii_case(b"withmatchlen") {
                options.reports_match_len = true;
            } else if word.eq_ignore_ascii_case(b"minmatchlen") && index + 1 < context.args.len() {
                index += 1;
                options.min_match_len = context.integer_arg(index)?.max(0);
            } else {
                return Err(CommandError::Syntax);
            }
            index += 1;
        }
        if options.reports_indexes && options.reports_length {
            return Err(CommandError::text(
                "ERR If you want both the length and indexes, please just use IDX.",
            ));
        }
        Ok(options)
    }
}

pub(super) fn lcs(context: &mut Context<'_>) -> Result<(), CommandError> {
    let a = read_string(context, 1)?;
    let b = read_string(context, 2)?;
    let options = LcsOptions::parse(context)?;
    let cells = (a.len() as u64 + 1).checked_mul(b.len() as u64 + 1);
    let most = context.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed) as u64;
    if cells.and_then(|cells| cells.checked_mul(4)).is_none_or(|bytes| bytes > most) {
        return Err(CommandError::text(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let table = LcsTable::new(&a, &b);
    if options.reports_indexes {
        reply_ranges(context, &table, &options);
    } else if options.reports_length {
        context.reply.integer(i64::from(table.lcs_len()));
    } else {
        context.reply.bulk(&table.common_sequence());
    }
    Ok(())
}

/// The string under argument `index`. A missing key reads as the empty string.
fn read_string(context: &mut Context<'_>, index: usize) -> Result<Vec<u8>, CommandError> {
    let key = context.key(index)?;
    let Some(place) = context.find_for_read(&key) else { return Ok(Vec::new()) };
    let string = context.string_value(&key, place);
    let string =
        string.map_err(|_| CommandError::text("ERR The specified keys must contain string values"))?;
    Ok(string.bytes.to_vec())
}

/// A range of bytes that both strings have in common: its start in each string and its length.
#[derive(Clone, Copy)]
struct CommonRange {
    first_start: usize,
    second_start: usize,
    len: usize,
}

struct LcsTable<'a> {
    first_string: &'a [u8],
    second_string: &'a [u8],
    cells: Vec<u32>,
}

impl<'a> LcsTable<'a> {
    fn new(a: &'a [u8], b: &'a [u8]) -> Self {
        let width = b.len() + 1;
        let mut cells = vec![0u32; (a.len() + 1) * width];
        for (i, x) in a.iter().enumerate() {
            for (j, y) in b.iter().enumerate() {
                cells[(i + 1) * width + j + 1] = if x == y {
                    cells[i * width + j] + 1
                } else {
                    cells[i * width + j + 1].max(cells[(i + 1) * width + j])
                };
            }
        }
        Self { first_string: a, second_string: b, cells }
    }

    fn cell(&self, i: usize, j: usize) -> u32 {
        self.cells[i * (self.second_string.len() + 1) + j]
    }

    fn lcs_len(&self) -> u32 {
        self.cell(self.first_string.len(), self.second_string.len())
    }

    /// Backtracks from the last cell and visits the matched index pairs, last first.
    fn backtrack(&self, mut visit: impl FnMut(usize, usize)) {
        let (mut i, mut j) = (self.first_string.len(), self.second_string.len());
        while i > 0 && j > 0 {
            if self.first_string[i - 1] == self.second_string[j - 1] {
                i -= 1;
                j -= 1;
                visit(i, j);
            } else if self.cell(i - 1, j) > self.cell(i, j - 1) {
                i -= 1;
            } else {
                j -= 1;
            }
        }
    }

    fn common_sequence(&self) -> Vec<u8> {
        let mut sequence = Vec::with_capacity(self.lcs_len() as usize);
        self.backtrack(|i, _| sequence.push(self.first_string[i]));
        sequence.reverse();
        sequence
    }

    /// Returns the ranges that both strings have in common, the last one first.
    fn common_ranges(&self) -> Vec<CommonRange> {
        let mut matches: Vec<CommonRange> = Vec::new();
        self.backtrack(|i, j| match matches.last_mut() {
            Some(last) if last.first_start == i + 1 && last.second_start == j + 1 => {
                *last = CommonRange { first_start: i, second_start: j, len: last.len + 1 };
            }
            _ => matches.push(CommonRange { first_start: i, second_start: j, len: 1 }),
        });
        matches
    }
}

fn reply_ranges(context: &mut Context<'_>, table: &LcsTable<'_>, options: &LcsOptions) {
    let mut matches = table.common_ranges();
    matches.retain(|found| found.len as i64 >= options.min_match_len);
    let reply = &mut context.reply;
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(matches.len());
    for found in matches {
        reply.array(if options.reports_match_len { 3 } else { 2 });
        for start in [found.first_start, found.second_start] {
            reply.array(2);
            reply.integer(start as i64);
            reply.integer((start + found.len - 1) as i64);
        }
        if options.reports_match_len {
            reply.integer(found.len as i64);
        }
    }
    reply.bulk(b"len");
    reply.integer(i64::from(table.lcs_len()));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::testing::Client;

    #[test]
    fn lcs_returns_sequence_length_and_ranges() {
        let mut client = Client::new();
        client.check_replies(&[
            ("mset a ohmytext b mynewtext", "+OK"),
            ("lcs a b", "$6|mytext"),
            ("lcs a b len", ":6"),
            ("lcs a b idx", "*4|$7|matches|*2|*2|*2|:4|:7|*2|:5|:8|*2|*2|:2|:3|*2|:0|:1|$3|len|:6"),
            ("lcs a b idx minmatchlen 4 withmatchlen", "*4|$7|matches|*1|*3|*2|:4|:7|*2|:5|:8|:4|$3|len|:6"),
            ("lcs a nosuch", "$0|"),
            ("lcs a nosuch idx", "*4|$7|matches|*0|$3|len|:0"),
            ("lcs a b idx len", "-ERR If you want both the length and indexes, please just use IDX."),
            ("lcs a b nosuch", "-ERR syntax error"),
            ("lcs a b minmatchlen", "-ERR syntax error"),
            ("lcs a b minmatchlen x", "-ERR value is not an integer or out of range"),
            ("lcs a", "-ERR wrong number of arguments for 'lcs' command"),
        ]);
        client.session.set_protocol(resp::Protocol::Resp3);
        client.check_replies(&[("lcs a nosuch idx", "%2|$7|matches|*0|$3|len|:0")]);
        client.engine.settings.value_limits.proto_max_bulk_len.store(64, Ordering::Relaxed);
        client.check_replies(&[(
            "lcs a b",
            "-ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        )]);
    }
}
