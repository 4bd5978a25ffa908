//! What a node announces about itself: names and client addresses, in PING extensions.

use slot_routing::{ClientEndpoint, NodeId};

use crate::effect::Effect;
use crate::node::{Node, SupportedExtensions};
use crate::state::ClusterState;
use crate::wire::Extension;

/// The values that one message announces about its sender. A node withdraws a value by omitting it.
#[derive(Default)]
struct Announcements<'a> {
    hostname: &'a str,
    human_name: &'a str,
    zone: &'a str,
    client_endpoint: ClientEndpoint,
}

impl Announcements<'_> {
    /// Copies the announced values into the sender's entry. If `copy_all` is false, only the hostname is copied.
    /// Returns whether the entry changed.
    fn apply_to(self, node: &mut Node, copy_all: bool) -> bool {
        let set = |field: &mut String, text: &str| {
            let news = field != text;
            if news {
                text.clone_into(field);
            }
            news
        };
        let mut news = set(&mut node.hostname, self.hostname);
        if copy_all {
            news |= set(&mut node.human_name, self.human_name) | set(&mut node.zone, self.zone);
            news |=
                std::mem::replace(&mut node.client_endpoint, self.client_endpoint) != self.client_endpoint;
        }
        news
    }
}

/// Updates the sender's entry from the extensions of a message. Ignores [`Extension::Forgotten`], which does not
/// describe the sender.
pub(crate) fn apply_extensions(
    state: &mut ClusterState,
    sender: NodeId,
    extensions: &[Extension],
) -> Vec<Effect> {
    let mut told = Announcements::default();
    let mut effects = Vec::new();
    let mut all = false;
    for extension in extensions {
        match extension {
            Extension::Forgotten { .. } => {}
            Extension::Shard(shard) => {
                all = true;
                effects.extend(update_shard(state, sender, *shard));
            }
            Extension::Hostname(name) => told.hostname = name,
            Extension::HumanName(name) => told.human_name = name,
            Extension::ClientIpv4(ip) => told.client_endpoint.ipv4 = Some(*ip),
            Extension::ClientIpv6(ip) => told.client_endpoint.ipv6 = Some(*ip),
            Extension::ClientPort(port) => told.client_endpoint.port = *port,
            Extension::ClientTlsPort(port) => told.client_endpoint.tls_port = *port,
            Extension::Zone(zone) => told.zone = zone,
        }
    }
    let Some(node) = state.nodes.get_mut(&sender) else { return effects };
    if all {
        node.extensions = SupportedExtensions::All;
    }
    // Redis 7.0 sends only its hostname; a node that sends a shard id sends everything that it announces.
    if !extensions.is_empty() && told.apply_to(node, all) {
        effects.push(Effect::ConfigChanged);
    }
    effects
}

/// Sets the announced shard id, which only masters determine. A replica has its master's shard id, whatever it
/// announces.
fn update_shard(state: &mut ClusterState, id: NodeId, shard: NodeId) -> Option<Effect> {
    let node = state.nodes.get_mut(&id)?;
    if node.shard == shard || node.master().is_some() {
        return None;
    }
    node.shard = shard;
    for replica in state.nodes.values_mut().filter(|node| node.master() == Some(id)) {
        replica.shard = shard;
    }
    Some(Effect::ConfigChanged)
}

/// Applies the configured addresses and options to this node's own entry.
pub(crate) fn apply_own_announcement(state: &mut ClusterState) {
    let announce = state.config().announced_address.clone();
    let no_failover = state.config().replica_no_failover;
    let me = state.myself_mut();
    me.address.ip = announce.ip.or(me.address.ip);
    let (first, other) = if announce.tls_cluster {
        (announce.tls_port, announce.port)
    } else {
        (announce.port, announce.tls_port)
    };
    (me.address.port, me.address.secondary_port) = (first, other);
    me.address.bus_port = announce.bus_port;
    me.hostname = announce.hostname;
    me.human_name = announce.human_name;
    me.client_endpoint = announce.client_endpoint;
    me.zone = announce.zone;
    me.disables_failover = no_failover;
    me.extensions = SupportedExtensions::All;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    fn hostname_extension(name: &str) -> Extension {
        Extension::Hostname(name.to_owned())
    }

    #[test]
    fn values_missing_in_an_announcement_are_cleared() {
        let mut cluster = TestCluster::new(3, &[]);
        let all = [hostname_extension("one"), Extension::Zone("a".to_owned()), Extension::Shard(id(1))];
        assert_eq!(apply_extensions(&mut cluster.state, id(1), &all), [Effect::ConfigChanged]);
        assert_eq!(apply_extensions(&mut cluster.state, id(1), &all), []);
        // Redis 7.0 sends only its hostname.
        assert_eq!(apply_extensions(&mut cluster.state, id(1), &[hostname_extension("one")]), []);
        assert_eq!(cluster.node(1).zone, "a");
        let shard = [Extension::Shard(id(1))];
        assert_eq!(apply_extensions(&mut cluster.state, id(1), &shard), [Effect::ConfigChanged]);
        assert!(cluster.node(1).hostname.is_empty() && cluster.node(1).zone.is_empty());
    }

    #[test]
    fn master_determines_the_shard_of_its_replicas() {
        let mut cluster = TestCluster::new(3, &[(3, 1)]);
        assert_eq!(apply_extensions(&mut cluster.state, id(3), &[Extension::Shard(id(9))]), []);
        apply_extensions(&mut cluster.state, id(1), &[Extension::Shard(id(8))]);
        assert_eq!((cluster.node(1).shard, cluster.node(3).shard), (id(8), id(8)));
    }
}
