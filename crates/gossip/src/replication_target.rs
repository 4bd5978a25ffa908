//! The master that this node replicates from, as last reported to the driver.

use std::net::{IpAddr, Ipv4Addr};

use slot_routing::NodeId;

use crate::contract::ClusterAction;
use crate::effect::Effect;
use crate::state::ClusterState;

/// The master that the driver was last instructed to replicate from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReplicationTarget {
    last_target: Option<TargetAddress>,
    data_origin: DataOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TargetAddress {
    master: NodeId,
    ip: IpAddr,
    port: u16,
}

/// The shard that the data of this node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum DataOrigin {
    #[default]
    OwnShard,
    /// The data belongs to another shard, which has not been reported to the driver yet.
    OtherShard,
}

impl ReplicationTarget {
    /// Records that this node moved to another shard with its old data.
    pub(crate) fn on_shard_change(&mut self) {
        self.data_origin = DataOrigin::OtherShard;
    }

    /// Instructs the driver to replicate from another master if the master or its address has changed.
    pub(crate) fn update(&mut self, state: &ClusterState) -> Option<Effect> {
        let me = state.myself();
        if me.is_master() {
            let was_replica = std::mem::take(self).last_target.is_some();
            return was_replica.then_some(Effect::DriverAction(ClusterAction::BecomeMaster));
        }
        let master = me.master().and_then(|id| state.node(id))?;
        let Some(ip) = master.address.ip else { return self.forget_address(master.id) };
        let (port, tls_port) = state.client_ports(&master.address);
        let uses_tls = state.config().announced_address.tls_replication && tls_port != 0;
        let target = TargetAddress { master: master.id, ip, port: if uses_tls { tls_port } else { port } };
        if self.last_target == Some(target) {
            return None;
        }
        let foreign = self.data_origin == DataOrigin::OtherShard;
        *self = Self { last_target: Some(target), data_origin: DataOrigin::OwnShard };
        let TargetAddress { master, ip, port } = target;
        Some(Effect::DriverAction(ClusterAction::BecomeReplica {
            master,
            ip,
            port,
            is_data_foreign: foreign,
        }))
    }

    /// Ends the replication from a master whose address another node has taken over. That node may belong to another
    /// shard, whose data would replace the data of this node. The unspecified address refuses connections.
    fn forget_address(&mut self, master: NodeId) -> Option<Effect> {
        let unknown = TargetAddress { master, ip: Ipv4Addr::UNSPECIFIED.into(), port: 0 };
        let last = self.last_target.as_mut().filter(|last| last.master == master && **last != unknown)?;
        *last = unknown;
        let TargetAddress { master, ip, port } = unknown;
        Some(Effect::DriverAction(ClusterAction::BecomeReplica { master, ip, port, is_data_foreign: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    #[test]
    fn driver_is_informed_once_about_each_target_change() {
        let (mut cluster, mut part) = (TestCluster::new(3, &[]), ReplicationTarget::default());
        assert_eq!(part.update(&cluster.state), None);
        cluster.become_replica_of(1);
        part.on_shard_change();
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let follows = |index: u8, port, foreign| {
            Some(Effect::DriverAction(ClusterAction::BecomeReplica {
                master: id(index),
                ip,
                port,
                is_data_foreign: foreign,
            }))
        };
        assert_eq!(part.update(&cluster.state), follows(1, 7001, true));
        assert_eq!(part.update(&cluster.state), None);
        cluster.node(1).address.port = 8000;
        assert_eq!(part.update(&cluster.state), follows(1, 8000, false));
        cluster.node(0).role = crate::Role::Master;
        assert_eq!(part.update(&cluster.state), Some(Effect::DriverAction(ClusterAction::BecomeMaster)));
        assert_eq!(part.update(&cluster.state), None);
    }

    #[test]
    fn replication_ends_when_another_node_takes_over_the_address() {
        let (mut cluster, mut part) = (TestCluster::new(3, &[]), ReplicationTarget::default());
        cluster.become_replica_of(1);
        assert!(part.update(&cluster.state).is_some());
        cluster.node(1).address.ip = None;
        let unreachable = ClusterAction::BecomeReplica {
            master: id(1),
            ip: Ipv4Addr::UNSPECIFIED.into(),
            port: 0,
            is_data_foreign: false,
        };
        assert_eq!(part.update(&cluster.state), Some(Effect::DriverAction(unreachable)));
        assert_eq!(part.update(&cluster.state), None);
        cluster.node(1).address.ip = Some(Ipv4Addr::LOCALHOST.into());
        assert!(part.update(&cluster.state).is_some());
    }

    #[test]
    fn replicas_use_the_tls_port_if_replication_is_encrypted() {
        let (mut cluster, mut part) = (TestCluster::new(3, &[]), ReplicationTarget::default());
        cluster.become_replica_of(1);
        cluster.state.config_mut().announced_address.tls_replication = true;
        cluster.node(1).address.secondary_port = 9000;
        let effect = part.update(&cluster.state);
        assert!(matches!(
            effect,
            Some(Effect::DriverAction(ClusterAction::BecomeReplica { port: 9000, .. }))
        ));
    }
}
