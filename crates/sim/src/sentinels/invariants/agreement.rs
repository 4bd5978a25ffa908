//! After healing, everybody agrees: one master, known to all sentinels under one epoch, and every other
//! server its replica. A server that no sentinel knows is asked for nothing: it had not been in sync with a master
//! that sentinels watched before that was gone, so nobody can tell it whom to follow.

use std::collections::BTreeSet;

use sentinel::Sentinel;

use crate::sentinels::MASTER;
use crate::sentinels::server::Server;

/// Returns the first thing that is not agreed on yet. Each server comes with whether it is in sync with its master.
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
