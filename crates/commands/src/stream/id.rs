//! Parsing and formatting of entry ids.

use engine::CommandError;
use keyspace::StreamId;
use smallvec::SmallVec;

const INVALID_ID_ERROR: CommandError =
    CommandError::text("ERR Invalid stream ID specified as stream command argument");
/// Maximum length of an id's text.
const MAX_TEXT_LEN: usize = 127;

/// Formats an id as `milliseconds-sequence`.
pub(super) fn format_id(id: StreamId) -> SmallVec<[u8; 48]> {
    let (mut text, mut digits) = (SmallVec::new(), itoa::Buffer::new());
    text.extend_from_slice(digits.format(id.millis).as_bytes());
    text.push(b'-');
    text.extend_from_slice(digits.format(id.sequence).as_bytes());
    text
}

/// Parses a number like C's strtoull.
fn parse_number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses `milliseconds-sequence`. If the sequence is absent, `default_sequence` is used.
fn parse_with_default_sequence(word: &[u8], default_sequence: u64) -> Option<StreamId> {
    if word.len() > MAX_TEXT_LEN {
        return None;
    }
    let mut parts = word.splitn(2, |byte| *byte == b'-');
    let millis = parse_number(parts.next()?)?;
    let sequence = parts.next().map_or(Some(default_sequence), parse_number)?;
    Some(StreamId { millis, sequence })
}

/// Parses an id. If the sequence is absent, it is 0.
pub(super) fn parse_id(word: &[u8]) -> Result<StreamId, CommandError> {
    parse_with_default_sequence(word, 0).ok_or(INVALID_ID_ERROR)
}

/// Parses an id, or `-` for the lowest and `+` for the highest id.
pub(super) fn parse_id_or_extreme(word: &[u8]) -> Result<StreamId, CommandError> {
    match word {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        _ => parse_id(word),
    }
}

/// The id that an XADD requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedId {
    /// `*`: generate the id from the clock.
    Generated,
    /// `ms-*`: generate the sequence within this millisecond.
    GeneratedSequence(u64),
    /// The id is given in full.
    Explicit(StreamId),
}

pub(super) fn parse_requested_id(word: &[u8]) -> Result<RequestedId, CommandError> {
    match word.strip_suffix(b"-*") {
        _ if word == b"*" => Ok(RequestedId::Generated),
        Some(millis) if word.len() <= MAX_TEXT_LEN => {
            parse_number(millis).map(RequestedId::GeneratedSequence).ok_or(INVALID_ID_ERROR)
        }
        _ => parse_id(word).map(RequestedId::Explicit),
    }
}

/// Parses one end of an id range. `-` and `+` are the extremes, and a leading `(` excludes the id.
fn parse_range_end_id(word: &[u8], default_sequence: u64) -> Result<(StreamId, bool), CommandError> {
    match word {
        b"-" => Ok((StreamId::MIN, false)),
        b"+" => Ok((StreamId::MAX, false)),
        [b'(', rest @ ..] if !rest.is_empty() => {
            Ok((parse_with_default_sequence(rest, default_sequence).ok_or(INVALID_ID_ERROR)?, true))
        }
        _ => Ok((parse_with_default_sequence(word, default_sequence).ok_or(INVALID_ID_ERROR)?, false)),
    }
}

/// Parses the start of an id range.
pub(super) fn parse_range_start(word: &[u8]) -> Result<StreamId, CommandError> {
    let (id, is_left_out) = parse_range_end_id(word, 0)?;
    let first = if is_left_out { id.next() } else { Some(id) };
    first.ok_or(CommandError::text("ERR invalid start ID for the interval"))
}

/// Parses the end of an id range.
pub(super) fn parse_range_end(word: &[u8]) -> Result<StreamId, CommandError> {
    let (id, is_left_out) = parse_range_end_id(word, u64::MAX)?;
    let last = if is_left_out { id.previous() } else { Some(id) };
    last.ok_or(CommandError::text("ERR invalid end ID for the interval"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_ids_are_parsed_as_in_redis() {
        let id = |millis, sequence| Some(StreamId { millis, sequence });
        for (word, expected) in [
            ("1-2", id(1, 2)),
            ("7", id(7, 0)),
            ("007-08", id(7, 8)),
            ("18446744073709551615-18446744073709551615", id(u64::MAX, u64::MAX)),
            ("18446744073709551616", None),
            ("-", None),
            ("+", None),
            ("1-", None),
            ("-1", None),
            ("1-2-3", None),
            ("1-*", None),
            ("", None),
            ("a", None),
        ] {
            assert_eq!(parse_id(word.as_bytes()).ok(), expected, "{word}");
        }
        assert_eq!(parse_requested_id(b"5-*"), Ok(RequestedId::GeneratedSequence(5)));
        assert_eq!(parse_requested_id(b"*"), Ok(RequestedId::Generated));
        assert!(parse_requested_id(b"-*").is_err() && parse_requested_id(b"*-1").is_err());
        assert_eq!(parse_range_start(b"(1-18446744073709551615").ok(), id(2, 0));
        assert_eq!(parse_range_end(b"(1").ok(), id(1, u64::MAX - 1));
        assert_eq!(parse_range_end(b"(1-0").ok(), id(0, u64::MAX));
        assert!(
            parse_range_end(b"(0-0").is_err()
                && parse_range_start(b"(+").is_err()
                && parse_range_start(b"(").is_err()
        );
    }
}
