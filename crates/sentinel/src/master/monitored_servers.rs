//! The servers of a group that a sentinel monitors: the master and its replicas.

use std::collections::BTreeMap;

use clock::Instant;

use crate::addr::Addr;
use crate::link::LinkId;
use crate::master::instance::{Instance, ReconfigurationState};

/// Maximum number of replicas per master, as a protection against floods.
const MAX_REPLICAS: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) struct MonitoredServers {
    master: Instance,
    replicas: BTreeMap<Addr, Instance>,
}

impl MonitoredServers {
    /// Creates the table with a master and no replicas.
    pub(crate) fn new(master: Instance) -> Self {
        Self { master, replicas: BTreeMap::new() }
    }

    pub(crate) fn master(&self) -> &Instance {
        &self.master
    }

    /// The replicas, ordered by address.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Instance> {
        self.replicas.values()
    }

    pub(crate) fn replica(&self, addr: &Addr) -> Option<&Instance> {
        self.replicas.get(addr)
    }

    pub(crate) fn replica_mut(&mut self, addr: &Addr) -> Option<&mut Instance> {
        self.replicas.get_mut(addr)
    }

    /// The addresses of the replicas.
    pub(crate) fn replica_addrs(&self) -> impl Iterator<Item = &Addr> {
        self.replicas.keys()
    }

    pub(crate) fn replica_count(&self) -> usize {
        self.replicas.len()
    }

    /// The master, followed by the replicas.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Instance> {
        std::iter::once(&self.master).chain(self.replicas.values())
    }

    /// The replica at this address or, without an address, the master.
    pub(crate) fn at_mut(&mut self, addr: Option<&Addr>) -> Option<&mut Instance> {
        match addr {
            None => Some(&mut self.master),
            Some(addr) => self.replicas.get_mut(addr),
        }
    }

    /// Sets the reconfiguration state of a replica. Does nothing if the replica is unknown.
    pub(crate) fn set_reconfiguration(&mut self, now: Instant, addr: &Addr, state: ReconfigurationState) {
        if let Some(replica) = self.replicas.get_mut(addr) {
            replica.set_reconfiguration(now, state);
        }
    }

    /// The server with this command link.
    pub(crate) fn by_command_link_mut(&mut self, link: LinkId) -> Option<&mut Instance> {
        let mut all = std::iter::once(&mut self.master).chain(self.replicas.values_mut());
        all.find(|instance| instance.command_link() == link)
    }

    /// Whether a replica with this address can be added: there is space, and no server has the address.
    pub(crate) fn has_room_for(&self, is_same: impl Fn(&Addr) -> bool) -> bool {
        self.replicas.len() < MAX_REPLICAS && !self.iter().any(|known| is_same(known.addr()))
    }

    pub(crate) fn insert_replica(&mut self, replica: Instance) {
        self.replicas.insert(replica.addr().clone(), replica);
    }

    /// Makes hello messages to all servers due now.
    pub(crate) fn schedule_hellos(&mut self) {
        let all = std::iter::once(&mut self.master).chain(self.replicas.values_mut());
        all.for_each(|instance| instance.set_hello_sent_at(None));
    }

    /// The command links and the hello links of all servers.
    pub(crate) fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.iter().flat_map(Instance::links)
    }

    /// Whether this sentinel considers the master down.
    pub(crate) fn is_master_suspected(&self) -> bool {
        self.master.sdown().is_some()
    }

    /// When each server was last sent a hello message; `None` if one is due now.
    pub(crate) fn hello_times(&self) -> impl Iterator<Item = Option<Instant>> + '_ {
        self.iter().map(Instance::hello_sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::Role;

    const NOW: Instant = Instant::from_millis(1000);

    fn addr(number: u8) -> Addr {
        Addr::new(&format!("10.0.0.{number}"), 6379)
    }

    fn instance(number: u8, role: Role) -> Instance {
        let link = u64::from(number) * 2;
        Instance::with_links(NOW, &addr(number), role, [LinkId(link), LinkId(link + 1)])
    }

    fn servers() -> MonitoredServers {
        let mut servers = MonitoredServers::new(instance(1, Role::Master));
        servers.insert_replica(instance(3, Role::Replica));
        servers.insert_replica(instance(2, Role::Replica));
        servers
    }

    #[test]
    fn servers_are_found_by_address_and_link() {
        let mut servers = servers();
        assert_eq!(servers.replica_addrs().collect::<Vec<_>>(), [&addr(2), &addr(3)]);
        assert_eq!(servers.at_mut(None).unwrap().addr(), &addr(1));
        assert_eq!(servers.at_mut(Some(&addr(3))).unwrap().addr(), &addr(3));
        assert!(servers.at_mut(Some(&addr(1))).is_none(), "it is no replica");
        assert_eq!(servers.by_command_link_mut(LinkId(4)).unwrap().addr(), &addr(2));
        assert!(servers.by_command_link_mut(LinkId(5)).is_none(), "a hello link");
        let links: Vec<u64> = servers.links().map(|link| link.0).collect();
        assert_eq!(links, [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn known_addresses_and_too_many_replicas_are_not_added() {
        let mut servers = servers();
        for known in [1, 2, 3] {
            assert!(!servers.has_room_for(|other| *other == addr(known)));
        }
        assert!(servers.has_room_for(|other| *other == addr(4)));
        for port in 1..=MAX_REPLICAS as u16 {
            let addr = Addr::new("10.0.1.1", port);
            servers.insert_replica(Instance::with_links(NOW, &addr, Role::Replica, [LinkId(0), LinkId(0)]));
        }
        assert!(!servers.has_room_for(|other| *other == addr(4)));
    }

    #[test]
    fn scheduled_hellos_are_due_at_all_servers() {
        let mut servers = servers();
        servers.by_command_link_mut(LinkId(2)).unwrap().set_hello_sent_at(Some(NOW));
        servers.by_command_link_mut(LinkId(6)).unwrap().set_hello_sent_at(Some(NOW));
        assert_eq!(servers.hello_times().collect::<Vec<_>>(), [Some(NOW), None, Some(NOW)]);
        servers.schedule_hellos();
        assert_eq!(servers.hello_times().collect::<Vec<_>>(), [None; 3]);
    }
}
