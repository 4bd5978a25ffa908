//! `client-output-buffer-limit`: how many bytes may be pending for one connection.

use std::time::Duration;

use clock::Instant;

/// A connection is closed when more than `hard_bytes` bytes are pending, or more than `soft_bytes` for longer than `soft_duration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimit {
    /// The hard limit in bytes; 0 for no limit.
    pub hard_bytes: u64,
    /// The soft limit in bytes; 0 for no limit.
    pub soft_bytes: u64,
    /// For how long the soft limit may be exceeded before the connection is closed.
    pub soft_duration: Duration,
}

impl OutputLimit {
    /// Returns the limits, raised to at least `min_bytes`, as Valkey does for replicas.
    pub(super) fn raised_to(self, min_bytes: u64) -> Self {
        let raised = |limit: u64| if limit == 0 { 0 } else { limit.max(min_bytes) };
        Self { hard_bytes: raised(self.hard_bytes), soft_bytes: raised(self.soft_bytes), ..self }
    }

    /// Returns whether the limit is exceeded. `soft_exceeded_since` stores when the soft limit was first exceeded.
    pub(super) fn is_exceeded(
        self,
        now: Instant,
        pending_bytes: u64,
        soft_exceeded_since: &mut Option<Instant>,
    ) -> bool {
        if self.hard_bytes > 0 && pending_bytes > self.hard_bytes {
            return true;
        }
        if self.soft_bytes == 0 || pending_bytes <= self.soft_bytes {
            *soft_exceeded_since = None;
            return false;
        }
        now.since(*soft_exceeded_since.get_or_insert(now)) > self.soft_duration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_limit_applies_at_once_and_soft_limit_after_its_duration() {
        let limit = OutputLimit { hard_bytes: 100, soft_bytes: 10, soft_duration: Duration::from_secs(5) };
        let mut since = None;
        // Columns: time in seconds, pending bytes, whether the limit is exceeded
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
            assert_eq!(limit.is_exceeded(now, pending, &mut since), expected, "second {second}");
        }
        let raised = OutputLimit { hard_bytes: 100, soft_bytes: 50, ..limit };
        assert_eq!(limit.raised_to(50), raised);
        let none = OutputLimit { hard_bytes: 0, soft_bytes: 0, soft_duration: Duration::ZERO };
        assert_eq!(none.raised_to(50), none);
        assert!(!none.is_exceeded(Instant::ORIGIN, u64::MAX, &mut None));
    }
}
