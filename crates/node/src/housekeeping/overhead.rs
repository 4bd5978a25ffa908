//! Memory used in addition to the data.

use std::sync::atomic::Ordering;

use engine::ClientKind;

use super::Housekeeping;

/// Memory used in addition to the data, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryOverhead {
    /// Memory that was used when startup had finished.
    pub(crate) startup: usize,
    /// The replication backlog.
    pub(crate) backlog: usize,
    /// Memory of replica connections, including log bytes retained beyond the backlog.
    pub(crate) replicas: usize,
    /// The part of the memory of replica connections that does not count towards `maxmemory`.
    pub(crate) beyond_backlog: usize,
    /// Memory of all clients that are not replicas.
    pub(crate) clients: usize,
}

impl MemoryOverhead {
    pub(crate) fn measure(housekeeping: &Housekeeping) -> Self {
        let startup = housekeeping.memory.startup();
        let (kept, beyond_backlog) = {
            let log = housekeeping.replication.log.lock();
            (log.retained_range().map_or(0, |(_, len)| len as usize), log.len_beyond_capacity() as usize)
        };
        let backlog = kept - beyond_backlog;
        let mut overhead =
            Self { startup, backlog, beyond_backlog, replicas: beyond_backlog, ..Self::default() };
        for client in housekeeping.engine.clients.list() {
            match client.kind() {
                // Output for a replica is read directly from the log, so its memory is counted as part of the log.
                ClientKind::Replica => {
                    overhead.replicas += client.memory_bytes() - client.output_bytes.load(Ordering::Relaxed);
                }
                ClientKind::Normal | ClientKind::Master | ClientKind::PubSub => {
                    overhead.clients += client.memory_bytes();
                }
            }
        }
        overhead
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.startup + self.backlog + self.replicas + self.clients
    }
}
