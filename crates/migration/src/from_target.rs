//! Parses the replies and messages that the target sends, from a stream that arrives in pieces.

use resp::{Value, parse_value};

use crate::message::Message;

/// Upper bound for unparsed input. Messages of a target are small.
const MOST_BYTES: usize = 64 * 1024;

/// Received bytes that have not been parsed yet.
#[derive(Debug, Default)]
pub struct FromTarget {
    received: Vec<u8>,
}

/// A reply or message from the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// `+OK`
    Accepted,
    /// An error reply.
    Refused(String),
    /// The reply to RESUME: number of bytes applied since the start of the migration.
    Applied(u64),
    /// A message, with the number of applied bytes if the target reports it.
    Message(Message, Option<u64>),
    /// The migration has ended on the target.
    Finished,
}

/// The received bytes are no valid reply or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed reply from the target node")]
pub struct NoSense;

impl FromTarget {
    /// The buffer to append received bytes to.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.received
    }

    /// Discards unparsed bytes of the previous link.
    pub fn begin_link(&mut self) {
        self.received.clear();
    }

    /// Returns the next complete reply or message, if there is one. Unknown messages are skipped.
    ///
    /// # Errors
    /// The input is malformed or too long.
    pub fn next_said(&mut self) -> Result<Option<Said>, NoSense> {
        loop {
            let Some((value, len)) = parse_value(&self.received).map_err(|_| NoSense)? else {
                return if self.received.len() > MOST_BYTES { Err(NoSense) } else { Ok(None) };
            };
            self.received.drain(..len);
            let said = match value {
                Value::Simple(_) => Some(Said::Accepted),
                Value::Error(text) => Some(Said::Refused(text)),
                Value::Integer(count) => Some(Said::Applied(u64::try_from(count).map_err(|_| NoSense)?)),
                Value::Array(words) => said_in(&words),
                _ => None,
            };
            if said.is_some() {
                return Ok(said);
            }
        }
    }
}

/// Parses a `CLUSTER SYNCSLOTS` command sent by the target.
fn said_in(words: &[Value]) -> Option<Said> {
    let words: Vec<&[u8]> = words.iter().map_while(Value::as_bytes).collect();
    let [cluster, syncslots, word, more @ ..] = &words[..] else { return None };
    if !cluster.eq_ignore_ascii_case(b"cluster") || !syncslots.eq_ignore_ascii_case(b"syncslots") {
        return None;
    }
    if word.eq_ignore_ascii_case(b"finish") {
        return Some(Said::Finished);
    }
    let count = more.first().and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
    Some(Said::Message(Message::parse(word)?, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `bytes`, which arrive in pieces of the given size.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Said>, NoSense> {
        let (mut from, mut all) = (FromTarget::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            from.buffer().extend_from_slice(piece);
            while let Some(said) = from.next_said()? {
                all.push(said);
            }
        }
        Ok(all)
    }

    #[test]
    fn what_is_said_is_heard_in_whatever_pieces_it_comes() {
        let mut ack = Vec::new();
        crate::message::ack_applied(500, &mut ack);
        let mut asks = Vec::new();
        Message::RequestFailover.encode(&mut asks);
        let finish =
            b"*5\r\n$7\r\ncluster\r\n$9\r\nsyncslots\r\n$6\r\nFinish\r\n$5\r\nSTATE\r\n$6\r\nFAILED\r\n";
        let other = b"*1\r\n$4\r\nPING\r\n*3\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$3\r\nNEW\r\n$1\r\nx\r\n";
        // A target replies to RESUME and immediately repeats its request.
        let resumed = [b":1234\r\n", &asks[..]].concat();
        let all = [b"+OK\r\n-ERR no\r\n", &resumed[..], &ack, other, finish].concat();
        let expected = [
            Said::Accepted,
            Said::Refused("ERR no".to_owned()),
            Said::Applied(1234),
            Said::Message(Message::RequestFailover, None),
            Said::Message(Message::Ack, Some(500)),
            Said::Finished,
        ];
        for piece in [1, 2, 7, 30, all.len()] {
            assert_eq!(read(&all, piece).unwrap(), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn what_no_target_says_is_an_error() {
        let long = [b"$1000000\r\n", &[b'x'; MOST_BYTES][..]].concat();
        for bytes in [&b"hello\r\n"[..], b":-1\r\n", b"*x\r\n", &long] {
            assert_eq!(read(bytes, bytes.len()), Err(NoSense), "{:?}", &bytes[..bytes.len().min(20)]);
        }
    }

    #[test]
    fn nothing_of_a_broken_link_is_read_from_the_next() {
        let mut from = FromTarget::default();
        from.buffer().extend_from_slice(b"*3\r\n$7\r\nCLUS");
        assert_eq!(from.next_said(), Ok(None));
        from.begin_link();
        from.buffer().extend_from_slice(b":7\r\n");
        assert_eq!(from.next_said(), Ok(Some(Said::Applied(7))));
    }
}
