//! The memory that a server takes besides its data.

use std::sync::atomic::Ordering;

use engine::ClientKind;

use super::Housekeeping;

/// The memory in use besides the data, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Overhead {
    /// When the server had started.
    pub(crate) startup: usize,
    /// The replication backlog.
    pub(crate) backlog: usize,
    /// Connections of replicas, with what the log keeps for them beyond the backlog.
    pub(crate) replicas: usize,
    /// The part of that which does not count for `maxmemory`.
    pub(crate) beyond_backlog: usize,
    /// Other clients'.
    pub(crate) clients: usize,
}

impl Overhead {
    pub(crate) fn of(house: &Housekeeping) -> Self {
        let startup = house.memory.startup();
        let (kept, beyond_backlog) = {
            let log = house.replication.log.lock();
            (log.first_byte().map_or(0, |(_, len)| len as usize), log.len_beyond_capacity() as usize)
        };
        let backlog = kept - beyond_backlog;
        let mut overhead =
            Self { startup, backlog, beyond_backlog, replicas: beyond_backlog, ..Self::default() };
        for client in house.engine.clients.all() {
            match client.kind() {
                // Its output lies in the log.
                ClientKind::Replica => {
                    overhead.replicas += client.bytes() - client.output_bytes.load(Ordering::Relaxed);
                }
                ClientKind::Normal | ClientKind::Master | ClientKind::PubSub => {
                    overhead.clients += client.bytes();
                }
            }
        }
        overhead
    }

    pub(crate) fn total(&self) -> usize {
        self.startup + self.backlog + self.replicas + self.clients
    }
}
