//! Parses the replies and messages that the target sends. The stream may be split anywhere.

use resp::{Request, Value, parse_value};

use crate::control::ControlCommand;
use crate::message::SyncSlotsCommand;

/// Maximum size of unparsed input in bytes. Messages from a target are small.
const MAX_UNPARSED_BYTES: usize = 64 * 1024;

/// Splits the bytes that the target sent into replies and messages.
#[derive(Debug, Default)]
pub(crate) struct TargetReplyParser {
    unparsed_bytes: Vec<u8>,
}

/// A reply or message from the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetReply {
    /// The target replied `+OK`.
    Accepted,
    /// The target replied with an error.
    Refused(String),
    /// The target replied to RESUME: the number of bytes that it has applied since the start of the migration.
    Applied(u64),
    /// The target sent a message of the migration, or reported its end.
    Command(SyncSlotsCommand),
}

/// The received bytes are not a valid reply or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed reply from the target node")]
pub(crate) struct MalformedReplyError;

impl TargetReplyParser {
    /// The buffer to append received bytes to.
    pub(crate) fn input_buffer(&mut self) -> &mut Vec<u8> {
        &mut self.unparsed_bytes
    }

    /// Discards unparsed bytes of the previous link.
    pub(crate) fn reset_for_new_link(&mut self) {
        self.unparsed_bytes.clear();
    }

    /// Returns the next complete reply or message, or `None` if the input is incomplete. Unknown messages are skipped.
    ///
    /// # Errors
    /// The input is malformed or too long.
    pub(crate) fn next_reply(&mut self) -> Result<Option<TargetReply>, MalformedReplyError> {
        loop {
            let Some((value, len)) = parse_value(&self.unparsed_bytes).map_err(|_| MalformedReplyError)?
            else {
                return if self.unparsed_bytes.len() > MAX_UNPARSED_BYTES {
                    Err(MalformedReplyError)
                } else {
                    Ok(None)
                };
            };
            self.unparsed_bytes.drain(..len);
            let reply = match value {
                Value::Simple(_) => Some(TargetReply::Accepted),
                Value::Error(text) => Some(TargetReply::Refused(text)),
                Value::Integer(count) => {
                    Some(TargetReply::Applied(u64::try_from(count).map_err(|_| MalformedReplyError)?))
                }
                Value::Array(words) => parse_command(&words),
                _ => None,
            };
            if reply.is_some() {
                return Ok(reply);
            }
        }
    }
}

/// Parses a `CLUSTER SYNCSLOTS` command sent by the target.
fn parse_command(words: &[Value]) -> Option<TargetReply> {
    let request: Request = words.iter().map_while(Value::as_bytes).collect();
    match ControlCommand::decode(request.args()) {
        Ok(Some(ControlCommand::SyncSlots(command))) => Some(TargetReply::Command(command)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::JobName;
    use crate::message::{FinishMessage, MigrationMessage};

    use super::*;

    /// Parses `bytes`, delivered in chunks of `chunk_size` bytes.
    fn parse_in_chunks(bytes: &[u8], chunk_size: usize) -> Result<Vec<TargetReply>, MalformedReplyError> {
        let (mut from, mut all) = (TargetReplyParser::default(), Vec::new());
        for piece in bytes.chunks(chunk_size) {
            from.input_buffer().extend_from_slice(piece);
            while let Some(reply) = from.next_reply()? {
                all.push(reply);
            }
        }
        Ok(all)
    }

    #[test]
    fn replies_are_parsed_from_arbitrary_chunks() {
        let ack = SyncSlotsCommand::AppliedBytes(500).to_resp();
        let asks = SyncSlotsCommand::Message(MigrationMessage::RequestFailover).to_resp();
        let end = SyncSlotsCommand::Finish(FinishMessage::failed(JobName::from_random([1; 20])));
        let other = b"*1\r\n$4\r\nPING\r\n*3\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$3\r\nNEW\r\n$1\r\nx\r\n";
        // A target replies to RESUME and immediately repeats its last request.
        let resumed = [b":1234\r\n", &asks[..]].concat();
        let all = [b"+OK\r\n-ERR no\r\n", &resumed[..], &ack, other, &end.to_resp()].concat();
        let expected = [
            TargetReply::Accepted,
            TargetReply::Refused("ERR no".to_owned()),
            TargetReply::Applied(1234),
            TargetReply::Command(SyncSlotsCommand::Message(MigrationMessage::RequestFailover)),
            TargetReply::Command(SyncSlotsCommand::AppliedBytes(500)),
            TargetReply::Command(end),
        ];
        for piece in [1, 2, 7, 30, all.len()] {
            assert_eq!(parse_in_chunks(&all, piece).unwrap(), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn malformed_replies_are_errors() {
        let long = [b"$1000000\r\n", &[b'x'; MAX_UNPARSED_BYTES][..]].concat();
        for bytes in [&b"hello\r\n"[..], b":-1\r\n", b"*x\r\n", &long] {
            assert_eq!(
                parse_in_chunks(bytes, bytes.len()),
                Err(MalformedReplyError),
                "{:?}",
                &bytes[..bytes.len().min(20)]
            );
        }
    }

    #[test]
    fn input_of_a_broken_link_is_discarded() {
        let mut from = TargetReplyParser::default();
        from.input_buffer().extend_from_slice(b"*3\r\n$7\r\nCLUS");
        assert_eq!(from.next_reply(), Ok(None));
        from.reset_for_new_link();
        from.input_buffer().extend_from_slice(b":7\r\n");
        assert_eq!(from.next_reply(), Ok(Some(TargetReply::Applied(7))));
    }
}
