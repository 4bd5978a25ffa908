//! Progress, throughput and remaining time of a slot migration.

use clock::Millis;

/// The amount of data that this node has sent or received in a migration.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct MigrationProgress {
    /// Number of keys in the slots when the snapshot was taken; `None` on the receiving side.
    pub total_keys: Option<u64>,
    /// Number of keys sent or received. The receiving side knows it only after the snapshot.
    pub transferred_keys: Option<u64>,
    /// Bytes sent or received since the start of the migration.
    pub transferred_bytes: u64,
    /// Bytes of changes that the source still has to send.
    pub remaining_bytes: u64,
}

impl MigrationProgress {
    /// Mean throughput between `from` and `to`, in bytes per second.
    #[must_use]
    pub fn bytes_per_sec(&self, from: Millis, to: Millis) -> u64 {
        self.transferred_bytes.saturating_mul(1000) / elapsed_ms(from, to)
    }

    /// Estimated remaining time in milliseconds at the mean speed so far; `None` if unknown.
    #[must_use]
    pub fn remaining_ms(&self, started_at: Millis, now: Millis) -> Option<u64> {
        let (all, keys, elapsed_ms) = (self.total_keys?, self.transferred_keys?, elapsed_ms(started_at, now));
        if keys < all {
            return (all - keys).saturating_mul(elapsed_ms).checked_div(keys);
        }
        self.remaining_bytes.saturating_mul(elapsed_ms).checked_div(self.transferred_bytes)
    }
}

/// The elapsed time in milliseconds, at least 1 to avoid a division by zero.
fn elapsed_ms(from: Millis, to: Millis) -> u64 {
    u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_TIME: Millis = Millis(10_000);

    fn remaining_ms_at(progress: MigrationProgress, now: i64) -> Option<u64> {
        progress.remaining_ms(START_TIME, Millis(now))
    }

    #[test]
    fn remaining_time_is_estimated_from_keys_and_later_from_changes() {
        let begun = MigrationProgress {
            total_keys: Some(1000),
            transferred_keys: Some(0),
            ..MigrationProgress::default()
        };
        assert_eq!(remaining_ms_at(begun, 11_000), None, "nothing was sent yet");
        let quarter = MigrationProgress { transferred_keys: Some(250), transferred_bytes: 5000, ..begun };
        assert_eq!(remaining_ms_at(quarter, 11_000), Some(3000));
        assert_eq!(quarter.bytes_per_sec(START_TIME, Millis(12_000)), 2500);
        let all_keys = MigrationProgress {
            transferred_keys: Some(1000),
            transferred_bytes: 20_000,
            remaining_bytes: 5000,
            ..begun
        };
        assert_eq!(remaining_ms_at(all_keys, 14_000), Some(1000), "the changes at 5 bytes a millisecond");
        assert_eq!(remaining_ms_at(MigrationProgress { remaining_bytes: 0, ..all_keys }, 14_000), Some(0));
        assert_eq!(
            remaining_ms_at(MigrationProgress { total_keys: None, ..quarter }, 11_000),
            None,
            "the other side knows"
        );
    }

    #[test]
    fn clock_jumps_do_not_overflow() {
        let some = MigrationProgress {
            total_keys: Some(u64::MAX),
            transferred_keys: Some(1),
            transferred_bytes: u64::MAX,
            remaining_bytes: u64::MAX,
        };
        for now in [9000, 10_000, i64::MAX] {
            let (_, _) = (remaining_ms_at(some, now), some.bytes_per_sec(START_TIME, Millis(now)));
        }
        assert_eq!(
            MigrationProgress { transferred_bytes: 7, ..some }.bytes_per_sec(START_TIME, START_TIME),
            7000
        );
    }
}
