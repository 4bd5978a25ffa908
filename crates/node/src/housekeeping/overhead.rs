//! The memory that a server takes besides its data.

use engine::ClientKind;

use super::Housekeeping;

/// The memory in use besides the data, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Overhead {
    /// When the server had started.
    pub(crate) startup: usize,
    /// The replication backlog.
    pub(crate) backlog: usize,
    /// Connections of replicas.
    pub(crate) replicas: usize,
    /// Other clients'.
    pub(crate) clients: usize,
}

impl Overhead {
    pub(crate) fn of(house: &Housekeeping) -> Self {
        let startup = house.memory.startup();
        let backlog = house.replication.log.lock().first_byte().map_or(0, |(_, len)| len as usize);
        let mut overhead = Self { startup, backlog, ..Self::default() };
        for client in house.engine.clients.all() {
            let replica = client.kind() == ClientKind::Replica;
            *(if replica { &mut overhead.replicas } else { &mut overhead.clients }) += client.bytes();
        }
        overhead
    }

    pub(crate) fn total(&self) -> usize {
        self.startup + self.backlog + self.replicas + self.clients
    }
}
