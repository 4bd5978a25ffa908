//! Computes when an action for a node is due: a connection attempt, a PING, a suspicion or the end of a handshake.
//!
//! The index of [`Nodes`](crate::nodes::Nodes) contains the earliest of these times per node, so all of them are pure
//! functions of the node and the configuration. They do not apply to the local node.

use std::time::Duration;

use clock::Instant;

use crate::config::ClusterConfig;
use crate::node::{LinkState, Node};

/// Delay after a failed connection attempt (as in Redis, the interval of its cron).
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Returns the time of the next action for `node`; `None` if no action is scheduled.
pub(crate) fn next_deadline(node: &Node, config: &ClusterConfig) -> Option<Instant> {
    let deadlines = [
        link_deadline(node, config),
        ping_deadline(node),
        suspicion_deadline(node, config),
        handshake_deadline(node, config),
    ];
    deadlines.into_iter().flatten().min()
}

/// When the link to `node` must be opened or replaced.
///
/// A link counts as dead if a PING on it is unanswered and the node has been silent for half the node timeout. The
/// other half remains to check over a new link whether only the old link was at fault. A link also counts as dead if a
/// PING is unanswered for the whole node timeout although messages arrive on the inbound link; in that case a firewall
/// may drop the packets of one direction.
pub(crate) fn link_deadline(node: &Node, config: &ClusterConfig) -> Option<Instant> {
    node.address.ip?;
    let half = config.node_timeout / 2;
    match node.link {
        LinkState::Down { retry_at } => Some(retry_at),
        LinkState::Connecting { since, .. } => Some(since + half.max(RETRY_DELAY)),
        LinkState::Up { since, .. } => {
            let asked = node.contact_times.ping_sent_at?;
            let heard = node.contact_times.last_message_at.unwrap_or(asked);
            let asked = since.max(asked);
            let silent = asked.max(heard) + half.max(RETRY_DELAY);
            Some(silent.min(asked + config.node_timeout.max(RETRY_DELAY)))
        }
    }
}

/// When to ping `node` again; `None` while a PING is unanswered.
pub(crate) fn ping_deadline(node: &Node) -> Option<Instant> {
    let idle = node.link.is_up() && node.contact_times.ping_sent_at.is_none();
    if idle { node.contact_times.ping_due_at } else { None }
}

/// When `node` becomes suspected unless a message from it arrives before.
pub(crate) fn suspicion_deadline(node: &Node, config: &ClusterConfig) -> Option<Instant> {
    if !node.is_healthy() || node.handshake.is_some() {
        return None;
    }
    let silence = silence_deadline(node, config);
    let refused = refused_deadline(node, config);
    silence.into_iter().chain(refused).min()
}

fn silence_deadline(node: &Node, config: &ClusterConfig) -> Option<Instant> {
    let asked = node.contact_times.ping_sent_at?;
    let heard = node.contact_times.last_message_at.unwrap_or(asked);
    Some((heard + config.node_timeout).max(asked + config.ping_answer_timeout()))
}

/// When `node` becomes suspected for refusing connections. Only applies if a link to the node has worked since this
/// process started, so that nodes that have not started yet are not suspected while a cluster starts.
pub(crate) fn refused_deadline(node: &Node, config: &ClusterConfig) -> Option<Instant> {
    let since = node.contact_times.refused_since?;
    let on = node.contact_times.was_ever_connected && !config.connect_refused_timeout.is_zero();
    on.then(|| since + config.connect_refused_timeout)
}

pub(crate) fn handshake_deadline(node: &Node, config: &ClusterConfig) -> Option<Instant> {
    Some(node.handshake?.started_at + config.handshake_timeout())
}
