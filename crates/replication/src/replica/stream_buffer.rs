//! Buffers the master's stream until a snapshot has been received and loaded.

use std::collections::VecDeque;

/// Size of a chunk in bytes. Every chunk but the last is full, so that little memory is wasted.
const CHUNK_SIZE: usize = 64 * 1024;

/// The buffered stream, as a queue of chunks.
#[derive(Debug, Default)]
pub(super) struct StreamBuffer {
    chunks: VecDeque<Vec<u8>>,
    buffered_bytes: u64,
}

impl StreamBuffer {
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.buffered_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.chunks.back().is_none_or(|last| last.len() >= CHUNK_SIZE) {
                self.chunks.push_back(Vec::new());
            }
            if let Some(last) = self.chunks.back_mut() {
                let (now, later) = bytes.split_at(bytes.len().min(CHUNK_SIZE - last.len()));
                last.extend_from_slice(now);
                bytes = later;
            }
        }
    }

    /// Removes and returns the first chunk; `None` if the buffer is empty.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let piece = self.chunks.pop_front()?;
        self.buffered_bytes -= piece.len() as u64;
        Some(piece)
    }

    /// Returns the number of buffered bytes.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffered_bytes_come_back_in_full_chunks() {
        let mut held = StreamBuffer::default();
        let all: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
        for part in all.chunks(7777) {
            held.push(part);
        }
        assert_eq!(held.buffered_bytes(), 300_000);
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| held.pop()).collect();
        assert!(pieces[..pieces.len() - 1].iter().all(|piece| piece.len() == CHUNK_SIZE));
        assert_eq!(pieces.concat(), all);
        assert_eq!(held.buffered_bytes(), 0);
    }
}
