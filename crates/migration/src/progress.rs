//! How far a job is, how fast it goes, and how long it will take yet.

use clock::Millis;

/// The share of a job that a node has sent, or taken.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The keys of the slots when they were cut; the side that takes them is not told.
    pub all_keys: Option<u64>,
    /// Keys of those that were sent; the side that takes them counts when it has them all.
    pub keys: Option<u64>,
    /// All bytes that were sent, or came.
    pub bytes: u64,
    /// Bytes of changes that are still to be sent.
    pub remaining: u64,
}

impl Progress {
    /// Bytes a second, in the mean of all of `from..to`.
    #[must_use]
    pub fn bytes_per_sec(&self, from: Millis, to: Millis) -> u64 {
        self.bytes.saturating_mul(1000) / lasted(from, to)
    }

    /// In how many milliseconds it will be done if it goes on as it did since it began; None if that is not known.
    #[must_use]
    pub fn left_ms(&self, began: Millis, now: Millis) -> Option<u64> {
        let (all, keys, lasted) = (self.all_keys?, self.keys?, lasted(began, now));
        if keys < all {
            return (all - keys).saturating_mul(lasted).checked_div(keys);
        }
        self.remaining.saturating_mul(lasted).checked_div(self.bytes)
    }
}

/// At least one millisecond.
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
