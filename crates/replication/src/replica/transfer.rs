//! Receives a snapshot.
//!
//! The snapshot is either `$<length>` and that many bytes, or `$EOF:` and a random mark of 40 characters, then bytes
//! until the mark is repeated. Empty lines before the first line show that the master is alive while it prepares the
//! snapshot. The mark may be split between two reads, so the last 40 bytes are never passed on before more bytes
//! arrive.

use memchr::memchr;
use memchr::memmem::Finder;

use super::link::{malformed_reply, refusal_error};
use super::{LinkError, ReplicaAction};
use crate::log::ReplPosition;

const END_MARK_LEN: usize = 40;
const MAX_FIRST_LINE_LEN: usize = 1024;

#[derive(Debug)]
enum TransferBody {
    WithLength {
        missing_bytes: u64,
    },
    WithEndMark {
        end_mark: Box<Finder<'static>>,
        /// The last received bytes, which may be the start of the end mark.
        possible_mark: Vec<u8>,
    },
}

#[derive(Debug)]
pub(super) struct IncomingTransfer {
    position: ReplPosition,
    len: Option<u64>,
    /// The received part of the first line.
    first_line: Vec<u8>,
    /// The body announced by the first line.
    body: Option<TransferBody>,
}

impl IncomingTransfer {
    pub(super) fn new(position: ReplPosition) -> Self {
        Self { position, len: None, first_line: Vec::new(), body: None }
    }

    pub(super) fn position(&self) -> ReplPosition {
        self.position
    }

    /// Returns the length of the snapshot in bytes, if known.
    pub(super) fn len(&self) -> Option<u64> {
        self.len
    }

    /// Handles received bytes. Once the snapshot is complete, returns the bytes that follow it.
    pub(super) fn advance(
        &mut self,
        bytes: Vec<u8>,
        out: &mut Vec<ReplicaAction>,
    ) -> Result<Option<Vec<u8>>, LinkError> {
        let (body, bytes) = match self.body.take() {
            Some(body) => (body, bytes),
            None => match self.parse_first_line(&bytes, out)? {
                Some(begun) => begun,
                None => return Ok(None),
            },
        };
        match self.body.insert(body) {
            TransferBody::WithLength { missing_bytes: missing } => {
                let mut bytes = bytes;
                let here = usize::try_from(*missing).map_or(bytes.len(), |missing| missing.min(bytes.len()));
                let rest = bytes.split_off(here);
                *missing -= here as u64;
                let done = *missing == 0;
                push_snapshot(bytes, out);
                Ok(done.then_some(rest))
            }
            TransferBody::WithEndMark { end_mark: mark, possible_mark: held } => {
                Ok(take_until_mark(mark, held, bytes, out))
            }
        }
    }

    /// Parses the first line once it is complete. Returns the announced body and the bytes that follow the line.
    fn parse_first_line(
        &mut self,
        received: &[u8],
        out: &mut Vec<ReplicaAction>,
    ) -> Result<Option<(TransferBody, Vec<u8>)>, LinkError> {
        let mut bytes = std::mem::take(&mut self.first_line);
        bytes.extend_from_slice(received);
        let start = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let Some(len) = memchr(b'\n', &bytes[start..]) else {
            bytes.drain(..start);
            if bytes.len() > MAX_FIRST_LINE_LEN {
                return Err(malformed_reply(&bytes));
            }
            self.first_line = bytes;
            return Ok(None);
        };
        let rest = bytes.split_off(start + len + 1);
        let line = &bytes[start..start + len];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(announced) = line.strip_prefix(b"$") else { return Err(refusal_error(line)) };
        let body = if let Some(mark) = announced.strip_prefix(b"EOF:") {
            if mark.len() != END_MARK_LEN {
                return Err(malformed_reply(line));
            }
            let mark = Box::new(Finder::new(mark).into_owned());
            TransferBody::WithEndMark { end_mark: mark, possible_mark: Vec::new() }
        } else {
            let len = resp::parse_i64(announced).and_then(|len| u64::try_from(len).ok());
            let len = len.ok_or_else(|| malformed_reply(line))?;
            self.len = Some(len);
            TransferBody::WithLength { missing_bytes: len }
        };
        out.push(ReplicaAction::BeginTransfer { position: self.position, len: self.len });
        Ok(Some((body, rest)))
    }
}

fn take_until_mark(
    mark: &Finder<'static>,
    possible_mark: &mut Vec<u8>,
    bytes: Vec<u8>,
    out: &mut Vec<ReplicaAction>,
) -> Option<Vec<u8>> {
    let mut all = std::mem::take(possible_mark);
    if all.is_empty() {
        all = bytes;
    } else {
        all.extend_from_slice(&bytes);
    }
    if let Some(place) = mark.find(&all) {
        let rest = all.split_off(place + END_MARK_LEN);
        all.truncate(place);
        push_snapshot(all, out);
        return Some(rest);
    }
    *possible_mark = all.split_off(all.len().saturating_sub(END_MARK_LEN - 1));
    push_snapshot(all, out);
    None
}

fn push_snapshot(bytes: Vec<u8>, out: &mut Vec<ReplicaAction>) {
    if !bytes.is_empty() {
        out.push(ReplicaAction::SnapshotBytes(bytes));
    }
}
