//! Splits a master's replies into lines. The bytes may arrive in chunks of any size.

use memchr::memchr;

use super::LinkError;

/// The maximum length of a line in bytes. A `+CONTINUE` may list a node for every slot.
const MAX_LINE_LEN: usize = 1024 * 1024;

/// Splits replies into lines and buffers an incomplete line.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    partial_line: Vec<u8>,
}

impl LineSplitter {
    /// Removes the next complete line from `bytes` and returns it. Empty lines are skipped, because they only show that
    /// the master is alive.
    pub(super) fn next_line(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, LinkError> {
        while let Some(end) = memchr(b'\n', bytes) {
            self.partial_line.extend_from_slice(&bytes[..end]);
            *bytes = &bytes[end + 1..];
            let mut line = std::mem::take(&mut self.partial_line);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
        self.partial_line.extend_from_slice(bytes);
        *bytes = &[];
        if self.partial_line.len() > MAX_LINE_LEN {
            return Err(LinkError::MalformedReply("a line without end".into()));
        }
        Ok(None)
    }
}
