//! `client-output-buffer-limit`: how much may wait to be sent to one connection.

use std::time::Duration;

use clock::Instant;

/// A connection is given up when more than `hard` bytes wait, or more than `soft` for `soft_for`. Zero
/// is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimit {
    /// More bytes than this close the link; 0 is no limit.
    pub hard: u64,
    /// More bytes than this for `soft_for` close it; 0 is no limit.
    pub soft: u64,
    /// How long more than `soft` may wait.
    pub soft_for: Duration,
}

impl OutputLimit {
    /// Limits below `bytes` are raised to that, as Valkey raises those of its replicas.
    pub(super) fn at_least(self, bytes: u64) -> Self {
        let raised = |limit: u64| if limit == 0 { 0 } else { limit.max(bytes) };
        Self { hard: raised(self.hard), soft: raised(self.soft), ..self }
    }

    /// Whether `pending` bytes at `now` are too many; `since` remembers when the soft limit was passed.
    pub(super) fn exceeded(self, now: Instant, pending: u64, since: &mut Option<Instant>) -> bool {
        if self.hard > 0 && pending > self.hard {
            return true;
        }
        if self.soft == 0 || pending <= self.soft {
            *since = None;
            return false;
        }
        now.since(*since.get_or_insert(now)) > self.soft_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_at_once_soft_after_a_while_and_only_without_a_break() {
        let limit = OutputLimit { hard: 100, soft: 10, soft_for: Duration::from_secs(5) };
        let mut since = None;
        // second, bytes that wait, given up
        let table = [
            (0, 10, false),
            (1, 11, false),
            (6, 11, false),
            (7, 10, false),
            (8, 50, false),
            (13, 50, false),
            (14, 50, true),
            (15, 101, true),
        ];
        for (second, pending, expected) in table {
            let now = Instant::from_millis(second * 1000);
            assert_eq!(limit.exceeded(now, pending, &mut since), expected, "second {second}");
        }
        let raised = OutputLimit { hard: 100, soft: 50, ..limit };
        assert_eq!(limit.at_least(50), raised);
        let none = OutputLimit { hard: 0, soft: 0, soft_for: Duration::ZERO };
        assert_eq!(none.at_least(50), none);
        assert!(!none.exceeded(Instant::ORIGIN, u64::MAX, &mut None));
    }
}
