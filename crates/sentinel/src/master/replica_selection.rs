//! Selects the replica to promote.
//!
//! As in Redis, the eligible replica with the lowest priority value is selected. Ties are resolved by the largest
//! replication offset, then by the lowest run id. A replica is eligible if it is up, answers, has sent INFO recently,
//! has a priority other than 0, and has not been disconnected from its master for longer than the failure explains. The
//! last condition is dropped if the master reports that it has lost its data. A server of another group at the
//! replica's address is never eligible.

use std::time::Duration;

use crate::addr::Addr;
use crate::info::Role;
use crate::master::instance::Instance;
use crate::master::monitored_servers::MonitoredServers;
use crate::shared::Context;

/// A replica's state at the time of the selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) addr: Addr,
    /// The replica is subjectively down or disconnected from this sentinel.
    pub(crate) is_down: bool,
    /// Time since the last answer to a PING.
    pub(crate) silent_for: Duration,
    /// Time since the last INFO reply; `None` if there was none.
    pub(crate) info_age: Option<Duration>,
    pub(crate) priority: u32,
    /// How long the replica has been without its master, according to the replica.
    pub(crate) disconnected_for: Duration,
    /// Whether the replica recently refused to be promoted.
    pub(crate) has_refused: bool,
    /// Whether the server belongs to another group.
    pub(crate) is_foreign: bool,
    pub(crate) offset: u64,
    pub(crate) run_id: String,
}

/// The limits that an eligible replica must not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EligibilityLimits {
    pub(crate) silent_for: Duration,
    pub(crate) info_age: Duration,
    pub(crate) disconnected_for: Duration,
}

/// Returns why `candidate` cannot be promoted, or `None` if it can.
pub(crate) fn find_ineligibility_reason(
    candidate: &Candidate,
    limits: EligibilityLimits,
) -> Option<&'static str> {
    if candidate.is_down {
        return Some("down");
    }
    if candidate.is_foreign {
        return Some("of another group");
    }
    if candidate.has_refused {
        return Some("refused to be promoted");
    }
    if candidate.silent_for > limits.silent_for {
        return Some("silent");
    }
    if candidate.priority == 0 {
        return Some("priority 0");
    }
    if candidate.info_age.is_none_or(|info_age| info_age > limits.info_age) {
        return Some("stale");
    }
    (candidate.disconnected_for > limits.disconnected_for).then_some("without its master too long")
}

/// Returns the best eligible candidate, or `None` if there is none.
pub(crate) fn select_best(candidates: &[Candidate], limits: EligibilityLimits) -> Option<&Candidate> {
    candidates.iter().filter(|candidate| find_ineligibility_reason(candidate, limits).is_none()).min_by(
        |a, b| {
            let rank = |candidate: &Candidate| (candidate.priority, std::cmp::Reverse(candidate.offset));
            // A replica with an unknown run id comes last.
            let name = |candidate: &Candidate| (candidate.run_id.is_empty(), candidate.run_id.clone());
            rank(a).cmp(&rank(b)).then_with(|| name(a).cmp(&name(b)))
        },
    )
}

impl MonitoredServers {
    /// The state of all replicas.
    pub(crate) fn candidates(&self, cx: &Context<'_>) -> Vec<Candidate> {
        self.replicas().map(|replica| to_candidate(cx, replica)).collect()
    }

    /// The limits for a failover that starts now. `down_after` is the time after which a silent server counts as down.
    pub(crate) fn eligibility_limits(&self, cx: &Context<'_>, down_after: Duration) -> EligibilityLimits {
        let timing = &cx.shared.timing;
        let down = self.master().sdown();
        let info_age = if down.is_some() { timing.ping_period * 5 } else { timing.info_period * 3 };
        // A demoted master counts as down much later than its replicas lost it.
        let none = Some(self.master().reported().role_since())
            .filter(|_| self.master().reported().role() == Role::Replica);
        let lost = down.into_iter().chain(none).min();
        let down_for = lost.map_or(Duration::ZERO, |since| cx.now.since(since));
        // If the master restarted without data, even old data is better.
        let is_empty = cx.shared.links.at(self.master().command_link()).reports_no_data;
        let disconnected_for = if is_empty { Duration::MAX } else { down_for + down_after * 10 };
        EligibilityLimits { silent_for: timing.ping_period * 5, info_age, disconnected_for }
    }
}

fn to_candidate(cx: &Context<'_>, replica: &Instance) -> Candidate {
    let link = cx.shared.links.at(replica.command_link());
    Candidate {
        addr: replica.addr().clone(),
        is_down: replica.sdown().is_some() || !link.is_up(),
        silent_for: cx.now.since(link.last_correct_reply),
        info_age: replica.reported().received_at().map(|at| cx.now.since(at)),
        priority: replica.reported().priority(),
        disconnected_for: replica.reported().master_link_down_for(),
        has_refused: replica.has_recently_refused(cx.now),
        is_foreign: replica.foreign().is_some(),
        offset: replica.reported().offset(),
        run_id: replica.reported().run_id().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: EligibilityLimits = EligibilityLimits {
        silent_for: Duration::from_secs(5),
        info_age: Duration::from_secs(5),
        disconnected_for: Duration::from_secs(20),
    };

    /// Parses one replica per line: port, state, silent s, INFO age s, priority, orphaned s, offset, run id.
    fn candidates(table: &str) -> Vec<Candidate> {
        let line = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            Candidate {
                addr: Addr::new("h", number(0) as u16),
                is_down: words[1] == "down",
                silent_for: Duration::from_secs(number(2)),
                info_age: words[3].parse().ok().map(Duration::from_secs),
                priority: number(4) as u32,
                disconnected_for: Duration::from_secs(number(5)),
                has_refused: words[1] == "refuses",
                is_foreign: words[1] == "foreign",
                offset: number(6),
                run_id: words.get(7).unwrap_or(&"").to_string(),
            }
        };
        table.lines().map(str::trim).filter(|line| !line.is_empty()).map(line).collect()
    }

    #[test]
    fn best_eligible_replica_is_selected() {
        let table = [
            // Priority counts before offset, and offset before run id.
            ("1 up 0 0 100 0 50 a\n2 up 0 0 10 0 10 b", Some(2)),
            ("1 up 0 0 100 0 50 a\n2 up 0 0 100 0 60 b", Some(2)),
            ("1 up 0 0 100 0 50 b\n2 up 0 0 100 0 50 a", Some(2)),
            ("1 up 0 0 100 0 50\n2 up 0 0 100 0 50 z", Some(2)),
            // In these tables some replicas are not eligible.
            ("1 refuses 0 0 1 0 99 a\n2 up 0 0 100 0 1 b", Some(2)),
            ("1 foreign 0 0 1 0 99 a\n2 up 0 0 100 0 1 b", Some(2)),
            ("1 down 0 0 1 0 99 a\n2 up 0 0 100 0 1 b", Some(2)),
            ("1 up 6 0 1 0 99 a", None),
            ("1 up 0 6 1 0 99 a", None),
            ("1 up 0 never 1 0 99 a", None),
            ("1 up 0 0 0 0 99 a", None),
            ("1 up 0 0 1 21 99 a", None),
            ("1 up 5 5 1 20 99 a", Some(1)),
            ("", None),
        ];
        for (text, port) in table {
            let candidates = candidates(text);
            assert_eq!(select_best(&candidates, LIMITS).map(|best| best.addr.port), port, "{text}");
        }
    }
}
