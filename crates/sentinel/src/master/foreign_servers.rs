//! Detects servers of other groups at the addresses of this group's replicas.
//!
//! Addresses are reused: a master of another group may start at the address of a dead replica. Making it a replica
//! would delete its data, and promoting it would delete this group's data. Two observations identify such a server:
//!
//! * Sentinels of another group announce it as their master, or as a replica of their master.
//! * Its replication history differs from this group's, and it has replicas that this group does not know.
//!
//! Hello messages take time, because the other group's sentinels have to discover their master first. A master that has
//! keys and a foreign history is therefore left alone for four hello periods, which is what Redis sentinels grant every
//! server.

use std::time::Duration;

use clock::Instant;

use crate::addr::Addr;
use crate::event::EventLevel;
use crate::hello::Hello;
use crate::info::Role;
use crate::link::Link;
use crate::master::Master;
use crate::master::instance::Instance;
use crate::master::monitored_servers::MonitoredServers;
use crate::shared::Context;

/// How long a hello message proves that a server belongs to another group. It covers a restart of that group's
/// sentinels.
const CLAIM_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of groups remembered per server.
const MAX_CLAIMS: usize = 8;

/// A hello message at a server: the group of its sender, and the master that it announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HelloClaim {
    group: String,
    master: Addr,
    at: Instant,
}

/// The replication history of a server according to INFO.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ReplicationHistory {
    /// The values of `master_replid` and `master_replid2` that are set.
    pub(crate) ids: Vec<String>,
    /// Whether the server has keys.
    pub(crate) has_keys: bool,
    /// The replicas that are connected to the server, if it is a master.
    pub(crate) replicas: Vec<Addr>,
}

impl ReplicationHistory {
    /// Whether the histories have no replication id in common. A server without ids counts as related.
    fn is_foreign_to(&self, other: &Self) -> bool {
        let known = !self.ids.is_empty() && !other.ids.is_empty();
        known && !self.ids.iter().any(|id| other.ids.contains(id))
    }
}

/// Why a server at a replica's address is not treated as a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ForeignReason {
    /// Sentinels of the named group announce the server.
    Claimed(String),
    /// The server has a different history and replicas of its own.
    OwnReplicas,
    /// The server has keys of a different history and has not been up long enough for sentinels to announce it.
    TooNew,
}

impl Link {
    /// Records the group and the master that a hello message at this link's server announces.
    pub(crate) fn record_claim(&mut self, now: Instant, hello: &Hello) {
        if let Some(known) = self.hello_claims.iter_mut().find(|claim| claim.group == hello.master) {
            known.at = now;
            if known.master != hello.master_addr {
                known.master = hello.master_addr.clone();
            }
            return;
        }
        if self.hello_claims.len() == MAX_CLAIMS {
            let oldest = self.hello_claims.iter().enumerate().min_by_key(|(_, claim)| claim.at);
            if let Some((index, _)) = oldest {
                self.hello_claims.swap_remove(index);
            }
        }
        let (group, master) = (hello.master.clone(), hello.master_addr.clone());
        self.hello_claims.push(HelloClaim { group, master, at: now });
    }
}

impl Master {
    /// Updates which servers at the addresses of replicas belong to other groups, and logs new ones.
    pub(crate) fn detect_foreign_servers(&mut self, cx: &mut Context<'_>) {
        let current = self.current_addr();
        let judge = |replica| self.servers.foreign_reason(cx, &self.name, current, replica);
        let judged = self.servers.replicas().map(|replica| (replica.addr().clone(), judge(replica)));
        let judged: Vec<(Addr, Option<ForeignReason>)> = judged.collect();
        let mut news = Vec::new();
        for (addr, foreign) in judged {
            let Some(replica) = self.servers.replica_mut(&addr) else { continue };
            if replica.set_foreign(foreign.clone()) {
                news.extend(foreign.map(|foreign| (addr, foreign)));
            }
        }
        for (addr, foreign) in news {
            let why = match foreign {
                ForeignReason::Claimed(group) => format!("it belongs to the group of {group}"),
                ForeignReason::OwnReplicas => "it has replicas of its own and another history".to_owned(),
                ForeignReason::TooNew => continue,
            };
            let name = &self.name;
            cx.log(
                EventLevel::Warning,
                format!(
                    "The server at {addr}, the address of a replica of {name}, is left alone: {why}. SENTINEL RESET \
                     {name} forgets the address"
                ),
            );
        }
    }
}

impl MonitoredServers {
    /// Returns why the server at a replica's address is not treated as a replica; `None` if it is one. `group` is the
    /// name of this group, `current` the address of its master.
    fn foreign_reason(
        &self,
        cx: &Context<'_>,
        group: &str,
        current: &Addr,
        replica: &Instance,
    ) -> Option<ForeignReason> {
        let serves_as = match (replica.reported().role(), replica.reported().master()) {
            (Role::Master, _) => replica.addr(),
            (Role::Replica, Some(master)) if !cx.shared.same_addr(master, current) => master,
            (Role::Replica, _) => return None,
        };
        // A recently promoted server belongs to this group.
        if cx.shared.same_addr(replica.addr(), current) {
            return None;
        }
        let claims = &cx.shared.links.at(replica.hello_link()).hello_claims;
        let claim = claims.iter().find(|claim| {
            claim.group != group
                && cx.now.since(claim.at) < CLAIM_LIFETIME
                && cx.shared.same_addr(&claim.master, serves_as)
        });
        if let Some(claim) = claim {
            return Some(ForeignReason::Claimed(claim.group.clone()));
        }
        if replica.reported().role() == Role::Replica
            || !replica.reported().history().is_foreign_to(self.master().reported().history())
        {
            return None;
        }
        let own = &replica.reported().history().replicas;
        let knows = |addr: &Addr| self.iter().any(|known| cx.shared.same_addr(known.addr(), addr));
        if !own.is_empty() && !own.iter().any(knows) {
            return Some(ForeignReason::OwnReplicas);
        }
        let is_new = cx.now.since(replica.reported().role_since()) < cx.shared.timing.publish_period * 4;
        (replica.reported().history().has_keys && is_new).then_some(ForeignReason::TooNew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_with_a_common_id_belong_to_one_group() {
        let history = |ids: &[&str]| ReplicationHistory {
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            ..ReplicationHistory::default()
        };
        for (ours, theirs, foreign) in [
            (&["a"][..], &["a"][..], false),
            (&["b", "a"], &["a"], false),
            (&["b", "a"], &["c", "a"], false),
            (&["b", "a"], &["c"], true),
            (&[], &["c"], false),
            (&["b"], &[], false),
        ] {
            assert_eq!(history(theirs).is_foreign_to(&history(ours)), foreign, "{ours:?} {theirs:?}");
        }
    }
}
