//! Answers the status page's request for the failovers that this node observed, newest first.

use crate::server::Server;

pub(super) fn failovers_json(server: &Server) -> String {
    let Some(cluster) = &server.cluster else { return "[]".to_owned() };
    let mut told = crate::cluster::failovers::list_failovers(&cluster.view(), process::time::now());
    told.reverse();
    failover_history::to_json(&told)
}
