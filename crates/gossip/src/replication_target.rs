//! The master that this node replicates from, as last reported to the driver.

use std::net::IpAddr;

use slot_routing::NodeId;

use crate::contract::ClusterAction;
use crate::effect::Effect;
use crate::state::ClusterState;

/// The master that the driver was last instructed to replicate from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReplicationTarget {
    target: Option<Target>,
    data: DataOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target {
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
        self.data = DataOrigin::OtherShard;
    }

    /// Instructs the driver to replicate from another master if the master or its address has changed.
    pub(crate) fn update(&mut self, state: &ClusterState) -> Option<Effect> {
        let me = state.myself();
        if me.is_master() {
            let was_replica = std::mem::take(self).target.is_some();
            return was_replica.then_some(Effect::Act(ClusterAction::BecomeMaster));
        }
        let master = me.master().and_then(|id| state.node(id))?;
        let ip = master.address.ip?;
        let (port, tls_port) = state.client_ports(&master.address);
        let uses_tls = state.config().announce.tls_replication && tls_port != 0;
        let target = Target { master: master.id, ip, port: if uses_tls { tls_port } else { port } };
        if self.target == Some(target) {
            return None;
        }
        let foreign = self.data == DataOrigin::OtherShard;
        *self = Self { target: Some(target), data: DataOrigin::OwnShard };
        let Target { master, ip, port } = target;
        Some(Effect::Act(ClusterAction::BecomeReplica { master, ip, port, foreign }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    #[test]
    fn driver_is_told_once_about_each_change() {
        let (mut cluster, mut part) = (TestCluster::new(3, &[]), ReplicationTarget::default());
        assert_eq!(part.update(&cluster.state), None);
        cluster.become_replica_of(1);
        part.on_shard_change();
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let follows = |index: u8, port, foreign| {
            Some(Effect::Act(ClusterAction::BecomeReplica { master: id(index), ip, port, foreign }))
        };
        assert_eq!(part.update(&cluster.state), follows(1, 7001, true));
        assert_eq!(part.update(&cluster.state), None);
        cluster.node(1).address.port = 8000;
        assert_eq!(part.update(&cluster.state), follows(1, 8000, false));
        cluster.node(0).role = crate::Role::Master;
        assert_eq!(part.update(&cluster.state), Some(Effect::Act(ClusterAction::BecomeMaster)));
        assert_eq!(part.update(&cluster.state), None);
    }

    #[test]
    fn replicas_use_the_tls_port_if_replication_is_encrypted() {
        let (mut cluster, mut part) = (TestCluster::new(3, &[]), ReplicationTarget::default());
        cluster.become_replica_of(1);
        cluster.state.config_mut().announce.tls_replication = true;
        cluster.node(1).address.other_port = 9000;
        let effect = part.update(&cluster.state);
        assert!(matches!(effect, Some(Effect::Act(ClusterAction::BecomeReplica { port: 9000, .. }))));
    }
}
