//! The retained bytes of the log, as a queue of fixed-size chunks. The last freed chunk is reused, so a steady stream
//! allocates nothing.

use std::collections::VecDeque;

/// The chunk size in bytes: small compared with the default backlog, so that trimming is precise, and large enough that
/// one read rarely crosses two chunks.
pub(super) const CHUNK_SIZE: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Chunks {
    chunks: VecDeque<Vec<u8>>,
    /// Offset of the first byte of the first chunk.
    start_offset: u64,
    len: u64,
    spare_chunk: Option<Vec<u8>>,
}

impl Chunks {
    /// Creates an empty queue whose first byte will have the offset `start`.
    pub(super) fn new(start: u64) -> Self {
        Self { chunks: VecDeque::new(), start_offset: start, len: 0, spare_chunk: None }
    }

    /// Returns the offset of the first retained byte.
    pub(super) fn start_offset(&self) -> u64 {
        self.start_offset
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn allocated_bytes(&self) -> u64 {
        (self.chunks.len() as u64 + u64::from(self.spare_chunk.is_some())) * CHUNK_SIZE as u64
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = self.chunks.back().map_or(0, |chunk| CHUNK_SIZE - chunk.len());
            if room == 0 {
                self.chunks
                    .push_back(self.spare_chunk.take().unwrap_or_else(|| Vec::with_capacity(CHUNK_SIZE)));
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunks.back_mut().expect("there is room in it").extend_from_slice(now);
            bytes = later;
        }
    }

    /// Frees the chunks that end at or before `offset`.
    pub(super) fn trim(&mut self, offset: u64) {
        while let Some(first) = self.chunks.front() {
            let len = first.len() as u64;
            // Never free the last chunk, which is still being filled.
            if self.start_offset + len > offset || self.chunks.len() == 1 {
                return;
            }
            let mut chunk = self.chunks.pop_front().expect("it was just seen");
            chunk.clear();
            self.spare_chunk = Some(chunk);
            self.start_offset += len;
            self.len -= len;
        }
    }

    /// Appends up to `max` bytes from `offset` to `out` and returns their number. `offset` must not be before the first
    /// retained byte.
    pub(super) fn read(&self, offset: u64, max_bytes: usize, out: &mut Vec<u8>) -> usize {
        // All chunks but the last are full, so the offset determines the chunk.
        let from = (offset - self.start_offset) as usize;
        let (mut chunk, mut within) = (from / CHUNK_SIZE, from % CHUNK_SIZE);
        let mut missing = max_bytes;
        while missing > 0
            && let Some(bytes) = self.chunks.get(chunk)
        {
            let taken = &bytes[within..bytes.len().min(within.saturating_add(missing))];
            out.extend_from_slice(taken);
            missing -= taken.len();
            (chunk, within) = (chunk + 1, 0);
        }
        max_bytes - missing
    }
}
