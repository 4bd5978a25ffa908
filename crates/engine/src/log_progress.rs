//! How far a client's writes are in the replication log.

use slot_routing::ReplOffset;

/// Replication offsets up to which a client's changes are in the log.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogProgress {
    /// Offset after the client's last write, which WAIT waits for.
    pub(crate) last_write: ReplOffset,
    /// Offset after the client's last change of data, for which the reply may have to wait; published messages are
    /// excluded.
    pub(crate) last_change: ReplOffset,
    /// Number of times that changes of data were passed to the log.
    pub(crate) change_count: u64,
}
