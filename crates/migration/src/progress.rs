//! Progress, throughput and remaining time of a slot migration.

use clock::Millis;

/// The amount of data that a node has sent or received.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Number of keys in the slots when the snapshot was taken. Unknown on the receiving side.
    pub all_keys: Option<u64>,
    /// Number of keys sent. Only known on the receiving side after the snapshot.
    pub keys: Option<u64>,
    /// Bytes sent or received.
    pub bytes: u64,
    /// Bytes of changes still to be sent.
    pub remaining: u64,
}

impl Progress {
    /// Mean throughput between `from` and `to`, in bytes per second.
    #[must_use]
    pub fn bytes_per_sec(&self, from: Millis, to: Millis) -> u64 {
        self.bytes.saturating_mul(1000) / lasted(from, to)
    }

    /// Estimated remaining time in milliseconds at the mean speed so far; `None` if unknown.
    #[must_use]
    pub fn left_ms(&self, began: Millis, now: Millis) -> Option<u64> {
        let (all, keys, lasted) = (self.all_keys?, self.keys?, lasted(began, now));
        if keys < all {
            return (all - keys).saturating_mul(lasted).checked_div(keys);
        }
        self.remaining.saturating_mul(lasted).checked_div(self.bytes)
    }
}

/// The elapsed time in milliseconds, at least 1.
fn lasted(from: Millis, to: Millis) -> u64 {
    u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Millis = Millis(10_000);

    fn left(progress: Progress, now: i64) -> Option<u64> {
        progress.left_ms(BEGAN, Millis(now))
    }

    #[test]
    fn time_left_goes_by_keys_and_then_by_changes() {
        let begun = Progress { all_keys: Some(1000), keys: Some(0), ..Progress::default() };
        assert_eq!(left(begun, 11_000), None, "nothing was sent yet");
        let quarter = Progress { keys: Some(250), bytes: 5000, ..begun };
        assert_eq!(left(quarter, 11_000), Some(3000));
        assert_eq!(quarter.bytes_per_sec(BEGAN, Millis(12_000)), 2500);
        let all_keys = Progress { keys: Some(1000), bytes: 20_000, remaining: 5000, ..begun };
        assert_eq!(left(all_keys, 14_000), Some(1000), "the changes at 5 bytes a millisecond");
        assert_eq!(left(Progress { remaining: 0, ..all_keys }, 14_000), Some(0));
        assert_eq!(left(Progress { all_keys: None, ..quarter }, 11_000), None, "the other side knows");
    }

    #[test]
    fn clocks_that_stand_or_go_back_do_no_harm() {
        let some = Progress { all_keys: Some(u64::MAX), keys: Some(1), bytes: u64::MAX, remaining: u64::MAX };
        for now in [9000, 10_000, i64::MAX] {
            let (_, _) = (left(some, now), some.bytes_per_sec(BEGAN, Millis(now)));
        }
        assert_eq!(Progress { bytes: 7, ..some }.bytes_per_sec(BEGAN, BEGAN), 7000);
    }
}
