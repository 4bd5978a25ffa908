//! How far a client's writes are in the replication log.

use slot_routing::ReplOffset;

/// Replication offsets after what the client changed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogProgress {
    /// After the last write (WAIT).
    pub(crate) last_write: ReplOffset,
    /// After the last change of data, for which the reply may have to wait; excludes published messages.
    pub(crate) last_change: ReplOffset,
    /// Number of times that changes of data were passed to the log.
    pub(crate) change_count: u64,
}
