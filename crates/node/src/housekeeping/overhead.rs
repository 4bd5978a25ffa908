//! Memory used in addition to the data.

use std::sync::atomic::Ordering;

use engine::ClientKind;

use super::Housekeeping;

/// Memory used in addition to the data, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryOverhead {
    /// Memory that was used when startup had finished.
    pub(crate) startup_bytes: usize,
    /// The replication backlog.
    pub(crate) backlog_bytes: usize,
    /// Memory of replica connections, including log bytes retained beyond the backlog.
    pub(crate) replica_bytes: usize,
    /// The part of the memory of replica connections that does not count towards `maxmemory`.
    pub(crate) bytes_beyond_backlog: usize,
    /// Memory of all clients that are not replicas.
    pub(crate) client_bytes: usize,
}

impl MemoryOverhead {
    pub(crate) fn measure(housekeeping: &Housekeeping) -> Self {
        let startup = housekeeping.memory_tracker.startup_bytes();
        let (kept, beyond_backlog) = {
            let log = housekeeping.replication.log.lock();
            (log.retained_range().map_or(0, |(_, len)| len as usize), log.len_beyond_capacity() as usize)
        };
        let backlog = kept - beyond_backlog;
        let mut overhead = Self {
            startup_bytes: startup,
            backlog_bytes: backlog,
            bytes_beyond_backlog: beyond_backlog,
            replica_bytes: beyond_backlog,
            ..Self::default()
        };
        for client in housekeeping.engine.clients.list() {
            match client.kind() {
                // Output for a replica is read directly from the log, so its memory is counted as part of the log.
                ClientKind::Replica => {
                    overhead.replica_bytes +=
                        client.memory_bytes() - client.output_bytes.load(Ordering::Relaxed);
                }
                ClientKind::Normal | ClientKind::Master | ClientKind::PubSub => {
                    overhead.client_bytes += client.memory_bytes();
                }
            }
        }
        overhead
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.startup_bytes + self.backlog_bytes + self.replica_bytes + self.client_bytes
    }
}
