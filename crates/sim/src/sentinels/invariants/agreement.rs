//! After healing, everybody agrees: one master, known to all sentinels under one epoch, and every other
//! server its replica.

use sentinel::Sentinel;

use crate::sentinels::MASTER;
use crate::sentinels::server::Server;

/// Returns the first thing that is not agreed on yet. Each server comes with whether it is in sync with its master.
pub(in crate::sentinels) fn disagreement<'a>(
    sentinels: impl Iterator<Item = &'a Sentinel>,
    servers: &[(&Server, bool)],
) -> Option<String> {
    let masters: Vec<_> = servers.iter().filter(|(server, _)| server.upstream.is_none()).collect();
    let [(master, _)] = masters[..] else {
        return Some(format!("{} servers are masters", masters.len()));
    };
    for (server, in_sync) in servers {
        let follows = server.upstream.as_ref().is_none_or(|(host, _)| *host == master.host);
        if !follows || (server.upstream.is_some() && !in_sync) {
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
