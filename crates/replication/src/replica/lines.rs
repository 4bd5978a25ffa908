//! A master's answers, line by line, however the bytes come.

use memchr::memchr;

use super::Reason;

/// No answer's line is longer: it may name a node for each slot.
const MAX_LINE: usize = 1024 * 1024;

/// A line whose end has not come yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// The next whole line of what came, which is taken from `bytes`. Empty lines are signs of life and left out.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, Reason> {
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
            return Err(Reason::Nonsense("a line without end".into()));
        }
        Ok(None)
    }
}
