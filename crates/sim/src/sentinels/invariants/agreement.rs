//! After all faults have ended, the sentinels agree on one master under one epoch, and every other server is its
//! replica. A server that no sentinel knows is exempt: it was never in sync with a monitored master, so no sentinel can
//! reconfigure it.

use std::collections::BTreeSet;

use sentinel::Sentinel;

use crate::sentinels::MASTER;
use crate::sentinels::server::Server;

/// Returns a description of the first disagreement, or `None`. Each server comes with its sync state.
pub(in crate::sentinels) fn disagreement<'a>(
    sentinels: impl Iterator<Item = &'a Sentinel>,
    servers: &[(&Server, bool)],
) -> Option<String> {
    let sentinels: Vec<&Sentinel> = sentinels.collect();
    let known: BTreeSet<String> = sentinels
        .iter()
        .filter_map(|sentinel| sentinel.status(MASTER))
        .flat_map(|status| std::iter::once(status.addr).chain(status.replicas))
        .map(|addr| addr.host)
        .collect();
    let servers: Vec<_> = servers.iter().filter(|(server, _)| known.contains(&server.host)).collect();
    let masters: Vec<_> = servers.iter().filter(|(server, _)| server.upstream.is_none()).collect();
    let [(master, _)] = masters[..] else {
        return Some(format!("{} servers are masters", masters.len()));
    };
    for (server, in_sync) in &servers {
        let follows = server.upstream.as_ref().is_none_or(|(host, _)| *host == master.host);
        if !follows || (server.upstream.is_some() && !*in_sync) {
            return Some(format!("{} does not replicate {}", server.host, master.host));
        }
    }
    let mut epoch = None;
    for sentinel in sentinels {
        let id = sentinel.my_id();
        let status = sentinel.status(MASTER)?;
        if status.addr.host != master.host {
            return Some(format!("{id} sends clients to {} instead of {}", status.addr, master.host));
        }
        if *epoch.get_or_insert(status.config_epoch) != status.config_epoch {
            return Some(format!("{id} has another configuration epoch"));
        }
        if status.subjectively_down || status.failover_epoch.is_some() {
            return Some(format!("{id} is still busy"));
        }
        if status.replicas.len() + 1 != servers.len() {
            return Some(format!("{id} knows {} replicas", status.replicas.len()));
        }
    }
    None
}
