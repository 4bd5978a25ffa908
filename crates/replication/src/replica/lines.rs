//! Splits a master's replies into lines. The bytes may arrive in chunks of any size.

use memchr::memchr;

use super::LinkError;

/// The maximum length of a line in bytes. A `+CONTINUE` may list a node for every slot.
const MAX_LINE: usize = 1024 * 1024;

/// Splits replies into lines and buffers an incomplete line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Removes the next complete line from `bytes` and returns it. Empty lines are skipped, because they only show that
    /// the master is alive.
    pub(super) fn next_line(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, LinkError> {
        while let Some(end) = memchr(b'\n', bytes) {
            self.partial.extend_from_slice(&bytes[..end]);
            *bytes = &bytes[end + 1..];
            let mut line = std::mem::take(&mut self.partial);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
        self.partial.extend_from_slice(bytes);
        *bytes = &[];
        if self.partial.len() > MAX_LINE {
            return Err(LinkError::MalformedReply("a line without end".into()));
        }
        Ok(None)
    }
}
