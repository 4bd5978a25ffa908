//! An output queue for one receiver, kept as a list of chunks.
//!
//! Replies are appended to the last chunk. A large chunk is closed before more is appended, so the memory of
//! a long queue is freed chunk by chunk as it is sent. A long message for many receivers is stored once and
//! shared by their queues ([`SharedBytes`]).

use std::collections::VecDeque;
use std::sync::Arc;

/// Capacity in bytes above which an empty buffer is freed.
const MAX_IDLE_BUFFER_BYTES: usize = 16 * 1024;
/// A chunk of at least this length is closed before more is appended.
const MIN_CLOSED_CHUNK_BYTES: usize = 64 * 1024;
/// A message of at least this length is shared between its receivers. A shorter one is copied, because a separate chunk
/// would need a separate socket write.
const MIN_SHARED_MESSAGE_BYTES: usize = 16 * 1024;

/// An immutable message for any number of receivers.
#[derive(Debug, Clone)]
pub struct SharedBytes(Arc<Vec<u8>>);

impl SharedBytes {
    /// Returns the length of the message in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(mut bytes: Vec<u8>) -> Self {
        if bytes.len() >= MIN_SHARED_MESSAGE_BYTES {
            bytes.shrink_to_fit();
        }
        Self(Arc::new(bytes))
    }
}

#[derive(Debug)]
enum Chunk {
    Owned(Vec<u8>),
    Shared(SharedBytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => &bytes.0,
        }
    }

    /// Returns the memory of the chunk. A shared chunk counts in full for each receiver, as in Valkey.
    fn memory_bytes(&self) -> usize {
        match self {
            Self::Owned(bytes) => bytes.capacity(),
            Self::Shared(bytes) => bytes.len(),
        }
    }
}

/// Pending output of one connection, in sending order.
#[derive(Debug, Default)]
pub struct ByteQueue {
    /// All chunks except the last one; none of them is empty.
    closed_chunks: VecDeque<Chunk>,
    /// Number of bytes in `closed_chunks`, including those already sent.
    closed_len: usize,
    closed_memory_bytes: usize,
    open_chunk: Vec<u8>,
    /// Number of bytes at the start of the first chunk that have been sent.
    sent_bytes: usize,
}

impl ByteQueue {
    /// Returns the number of pending bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.closed_len + self.open_chunk.len() - self.sent_bytes
    }

    /// Returns whether no bytes are pending.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory of the queue in bytes, including spare capacity.
    #[inline]
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.closed_memory_bytes + self.open_chunk.capacity()
    }

    /// Returns the memory that counts against the output buffer limit: [`Self::memory`] minus the buffer that an idle
    /// queue retains, but at least the number of pending bytes.
    #[must_use]
    pub fn charged_bytes(&self) -> usize {
        charged_bytes(self.len(), self.memory_bytes())
    }

    /// Returns the length that [`Self::buffer`] may reach before the queue uses `limit` bytes of memory.
    #[must_use]
    pub fn buffer_limit(&self, limit: usize) -> usize {
        let sent = if self.closed_chunks.is_empty() { self.sent_bytes } else { 0 };
        limit.saturating_sub(self.closed_memory_bytes).saturating_add(sent)
    }

    /// Returns the last chunk, to which output is appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if self.closed_chunks.is_empty() && self.sent_bytes > 0 {
            self.release_sent(MAX_IDLE_BUFFER_BYTES);
        }
        if self.open_chunk.len() >= MIN_CLOSED_CHUNK_BYTES {
            self.close_open_chunk();
        }
        &mut self.open_chunk
    }

    /// Puts back the buffer taken out of [`Self::buffer`], to which output may have been appended. If nothing is
    /// pending, any other buffer may be put back instead.
    pub fn restore_buffer(&mut self, mut bytes: Vec<u8>) {
        shrink_if_large(&mut bytes);
        self.open_chunk = bytes;
    }

    /// Appends a message; a long message is not copied but shared with other receivers.
    pub fn push_message(&mut self, message: &SharedBytes) {
        if message.len() < MIN_SHARED_MESSAGE_BYTES {
            self.buffer().extend_from_slice(&message.0);
        } else {
            self.close_open_chunk();
            self.push_closed(Chunk::Shared(message.clone()));
        }
    }

    /// Moves all pending bytes of `other`, which must not have sent any, to the end of this queue.
    pub fn append(&mut self, other: &mut Self) {
        debug_assert_eq!(other.sent_bytes, 0, "a queue that is sent from stays where it is");
        if !other.closed_chunks.is_empty() {
            self.close_open_chunk();
            other.closed_chunks.drain(..).for_each(|piece| self.push_closed(piece));
            (other.closed_len, other.closed_memory_bytes) = (0, 0);
        }
        self.buffer().extend_from_slice(&other.open_chunk);
        other.clear_open_chunk();
    }

    /// Moves all pending bytes to `out`.
    pub fn drain_into(&mut self, out: &mut Vec<u8>) {
        while !self.is_empty() {
            let first = self.next_bytes();
            out.extend_from_slice(first);
            let len = first.len();
            self.consume(len);
        }
    }

    /// Returns whether all pending bytes are in one chunk that is not shared.
    #[must_use]
    pub fn is_single_chunk(&self) -> bool {
        self.closed_chunks.is_empty()
    }

    /// Returns the next bytes to send; they are empty only if nothing is pending.
    #[inline]
    #[must_use]
    pub fn next_bytes(&self) -> &[u8] {
        match self.closed_chunks.front() {
            None => &self.open_chunk[self.sent_bytes..],
            Some(piece) => &piece.bytes()[self.sent_bytes..],
        }
    }

    /// Records that `len` bytes of [`Self::next_bytes`] have been sent.
    pub fn consume(&mut self, len: usize) {
        self.sent_bytes += len;
        match self.closed_chunks.front() {
            None if self.sent_bytes == self.open_chunk.len() => {
                self.sent_bytes = 0;
                self.clear_open_chunk();
            }
            Some(piece) if self.sent_bytes == piece.bytes().len() => {
                self.sent_bytes = 0;
                self.pop_closed();
            }
            _ => self.release_sent(MIN_CLOSED_CHUNK_BYTES),
        }
    }

    /// Copies the pending bytes except the first `skip`.
    #[must_use]
    pub fn copy_pending(&self, skip: usize) -> Vec<u8> {
        let mut skip = skip + self.sent_bytes;
        let mut copy = Vec::with_capacity((self.closed_len + self.open_chunk.len()).saturating_sub(skip));
        for bytes in self.closed_chunks.iter().map(Chunk::bytes).chain([self.open_chunk.as_slice()]) {
            let here = skip.min(bytes.len());
            copy.extend_from_slice(&bytes[here..]);
            skip -= here;
        }
        copy
    }

    /// Keeps only the first `len` pending bytes.
    pub fn truncate(&mut self, len: usize) {
        let mut surplus = self.len().saturating_sub(len);
        let of_last = surplus.min(self.open_chunk.len());
        self.open_chunk.truncate(self.open_chunk.len() - of_last);
        surplus -= of_last;
        while surplus > 0
            && let Some(piece) = self.closed_chunks.pop_back()
        {
            (self.closed_len, self.closed_memory_bytes) =
                (self.closed_len - piece.bytes().len(), self.closed_memory_bytes - piece.memory_bytes());
            let kept = piece.bytes().len().saturating_sub(surplus);
            surplus -= piece.bytes().len() - kept;
            if kept > 0 {
                self.push_closed(Chunk::Owned(piece.bytes()[..kept].to_vec()));
            }
        }
        if self.is_empty() {
            *self = Self { open_chunk: std::mem::take(&mut self.open_chunk), ..Self::default() };
            self.clear_open_chunk();
        }
    }

    fn clear_open_chunk(&mut self) {
        self.open_chunk.clear();
        if self.open_chunk.capacity() > MAX_IDLE_BUFFER_BYTES {
            self.open_chunk = Vec::new();
        }
    }

    fn close_open_chunk(&mut self) {
        if !self.open_chunk.is_empty() {
            let mut last = std::mem::take(&mut self.open_chunk);
            shrink_if_large(&mut last);
            self.push_closed(Chunk::Owned(last));
        }
    }

    fn push_closed(&mut self, chunk: Chunk) {
        self.closed_len += chunk.bytes().len();
        self.closed_memory_bytes += chunk.memory_bytes();
        self.closed_chunks.push_back(chunk);
    }

    fn pop_closed(&mut self) {
        if let Some(piece) = self.closed_chunks.pop_front() {
            self.closed_len -= piece.bytes().len();
            self.closed_memory_bytes -= piece.memory_bytes();
        }
        if self.closed_chunks.is_empty() && self.closed_chunks.capacity() > 64 {
            self.closed_chunks = VecDeque::new();
        }
    }

    /// Removes the sent bytes of the first chunk if there are at least `min_sent` of them and at least as many as
    /// remain unsent. Moving the unsent bytes therefore costs at most one byte per byte sent.
    fn release_sent(&mut self, min_sent: usize) {
        let (bytes, is_closed) = match self.closed_chunks.front_mut() {
            None => (&mut self.open_chunk, false),
            Some(Chunk::Owned(bytes)) => (bytes, true),
            Some(Chunk::Shared(_)) => return,
        };
        if self.sent_bytes < min_sent.max(bytes.len() - self.sent_bytes) {
            return;
        }
        let (len, memory) = (bytes.len(), bytes.capacity());
        bytes.drain(..self.sent_bytes);
        if bytes.capacity() > MIN_CLOSED_CHUNK_BYTES {
            shrink_if_large(bytes);
        }
        if is_closed {
            self.closed_len -= len - bytes.len();
            self.closed_memory_bytes -= memory - bytes.capacity();
        }
        self.sent_bytes = 0;
    }
}

/// Returns the bytes that count against the output buffer limit, for a queue with `pending` bytes that uses `memory`
/// bytes.
#[must_use]
pub fn charged_bytes(pending: usize, memory: usize) -> usize {
    pending.max(memory.saturating_sub(MAX_IDLE_BUFFER_BYTES))
}

/// Frees the spare capacity if it is large.
fn shrink_if_large(bytes: &mut Vec<u8>) {
    let spare = bytes.capacity() - bytes.len();
    if spare > MAX_IDLE_BUFFER_BYTES && spare > bytes.len() / 4 {
        bytes.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_message_is_shared_between_receivers() {
        let message = SharedBytes::from(vec![b'x'; 1 << 20]);
        let mut queues: Vec<ByteQueue> = (0..40).map(|_| ByteQueue::default()).collect();
        for queue in &mut queues {
            queue.buffer().extend_from_slice(b"before");
            queue.push_message(&message);
            queue.buffer().extend_from_slice(b"behind");
            assert_eq!(queue.len(), (1 << 20) + 12);
            assert!(queue.memory_bytes() >= 1 << 20, "each counts it");
        }
        assert_eq!(Arc::strong_count(&message.0), 41);
        let mut sent = Vec::new();
        queues[0].drain_into(&mut sent);
        assert!(sent.starts_with(b"beforex") && sent.ends_with(b"xbehind"));
        assert_eq!((sent.len(), Arc::strong_count(&message.0)), ((1 << 20) + 12, 40));
    }

    #[test]
    fn queue_frees_memory_as_a_slow_reader_reads() {
        // Test many small replies, and one large reply.
        for pieces in [20_000, 1] {
            let mut queue = ByteQueue::default();
            for _ in 0..pieces {
                let len = queue.buffer().len() + 20_000_000 / pieces;
                queue.buffer().resize(len, b'x');
            }
            while queue.len() > 1_700_000 {
                let len = queue.next_bytes().len().min(4000);
                queue.consume(len);
            }
            assert!(queue.memory_bytes() < 4_000_000, "{pieces} pieces: {}", queue.memory_bytes());
        }
    }

    #[test]
    fn buffer_limit_counts_closed_chunks() {
        let mut queue = ByteQueue::default();
        assert_eq!(queue.buffer_limit(100_000), 100_000);
        queue.push_message(&SharedBytes::from(vec![0; 60_000]));
        assert_eq!(queue.buffer_limit(100_000), 40_000);
        assert_eq!(queue.buffer_limit(50_000), 0);
    }

    #[derive(Debug, Clone)]
    enum QueueOp {
        Reply(usize),
        Message(usize),
        Append(usize, usize),
        Send(usize),
        Truncate(usize),
    }

    fn queue_ops() -> impl Strategy<Value = Vec<QueueOp>> {
        let len = || 0..90_000_usize;
        let step = prop_oneof![
            len().prop_map(QueueOp::Reply),
            len().prop_map(QueueOp::Message),
            (len(), len()).prop_map(|(message, reply)| QueueOp::Append(message, reply)),
            len().prop_map(QueueOp::Send),
            len().prop_map(QueueOp::Send),
            (0..400_000_usize).prop_map(QueueOp::Truncate),
        ];
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        #[test]
        fn queue_matches_a_single_buffer(steps in queue_ops()) {
            let (mut queue, mut twin, mut next) = (ByteQueue::default(), VecDeque::<u8>::new(), 0_u8);
            let mut fresh = |len: usize| -> Vec<u8> {
                (0..len).map(|_| { next = next.wrapping_add(1); next }).collect()
            };
            for step in steps {
                match step {
                    QueueOp::Reply(len) => {
                        let bytes = fresh(len);
                        queue.buffer().extend_from_slice(&bytes);
                        twin.extend(bytes);
                    }
                    QueueOp::Message(len) => {
                        let bytes = fresh(len);
                        queue.push_message(&SharedBytes::from(bytes.clone()));
                        twin.extend(bytes);
                    }
                    QueueOp::Append(message, reply) => {
                        let (message, reply) = (fresh(message), fresh(reply));
                        let mut other = ByteQueue::default();
                        other.push_message(&SharedBytes::from(message.clone()));
                        other.buffer().extend_from_slice(&reply);
                        queue.append(&mut other);
                        prop_assert!(other.is_empty());
                        twin.extend(message);
                        twin.extend(reply);
                    }
                    QueueOp::Send(most) => {
                        let first = queue.next_bytes().len().min(most);
                        let sent: Vec<u8> = twin.drain(..first).collect();
                        prop_assert_eq!(&queue.next_bytes()[..first], sent.as_slice());
                        queue.consume(first);
                    }
                    QueueOp::Truncate(len) => {
                        queue.truncate(len);
                        twin.truncate(len);
                    }
                }
                prop_assert_eq!(queue.len(), twin.len());
                prop_assert_eq!(queue.next_bytes().is_empty(), twin.is_empty());
                prop_assert!(queue.memory_bytes() >= queue.len());
                let skip = twin.len() / 3;
                prop_assert_eq!(queue.copy_pending(skip), twin.iter().skip(skip).copied().collect::<Vec<u8>>());
            }
        }
    }
}
