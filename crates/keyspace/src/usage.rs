//! Usage counters of a key, in two bytes per entry.
//!
//! The eviction policy defines their meaning. For LRU they are the second of the last access, modulo 2^16. For LFU, as
//! in Redis ("Using Redis as an LRU cache"), the low byte is a logarithmic counter and the high byte the minute of its
//! last decay, modulo 2^8. Both clocks wrap around, after 18 and 4 hours, so the counters of every key must be aged
//! more often than that ([`Usage::aged_lru`], [`Usage::aged_lfu`], through [`crate::Keyspace::age_usage_step`]). Idle
//! times are then exact to the second up to 9 hours; longer times are reported as 9 hours.

use std::sync::atomic::{AtomicU16, Ordering};

use clock::Millis;

/// The usage of newly created keys.
static NEW_KEY_USAGE: AtomicU16 = AtomicU16::new(0);

/// Initial LFU counter of a new key, so that it is not evicted first.
const INITIAL_LFU_COUNTER: u8 = 5;
/// Maximum idle time in seconds that the two bytes can represent. Longer times are reduced to this.
const MAX_IDLE_SECONDS: u16 = 1 << 15;

/// The two bytes of usage counters; see the module documentation for their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage(pub u16);

/// Parameters of the LFU counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LfuSettings {
    /// Determines how many accesses are needed to increment the counter (`lfu-log-factor`).
    pub log_factor: u32,
    /// Number of minutes after which the counter is decremented (`lfu-decay-time`); 0 means never.
    pub decay_minutes: u32,
}

fn wrapped_second(now: Millis) -> u16 {
    now.secs() as u16
}

fn wrapped_minute(now: Millis) -> u8 {
    now.secs().div_euclid(60) as u8
}

impl Usage {
    /// Returns the LRU usage of a key that was accessed at `now`.
    #[must_use]
    pub fn with_access_time(now: Millis) -> Self {
        Self(wrapped_second(now))
    }

    /// Returns the LRU usage of a key that has been idle for this many seconds.
    #[must_use]
    pub fn with_idle_time(now: Millis, seconds: u64) -> Self {
        Self(wrapped_second(now).wrapping_sub(
            u16::try_from(seconds).map_or(MAX_IDLE_SECONDS, |seconds| seconds.min(MAX_IDLE_SECONDS)),
        ))
    }

    /// Returns the LFU usage with this counter value.
    #[must_use]
    pub fn with_frequency(now: Millis, counter: u8) -> Self {
        Self::from_counter(counter, now)
    }

    /// Returns the usage for a newly created key. [`Self::set_for_new_keys`] must be called regularly to update it,
    /// because this crate reads no clock.
    #[must_use]
    pub fn for_new_keys() -> Self {
        Self(NEW_KEY_USAGE.load(Ordering::Relaxed))
    }

    /// Makes this the usage of keys that are created from now on.
    pub fn set_for_new_keys(self) {
        NEW_KEY_USAGE.store(self.0, Ordering::Relaxed);
    }

    /// Returns the seconds since the last access.
    #[must_use]
    pub fn idle_seconds(self, now: Millis) -> u64 {
        u64::from(wrapped_second(now).wrapping_sub(self.0))
    }

    /// Returns the usage at `now`, with a time that will not wrap around for another 9 hours.
    #[must_use]
    pub fn aged_lru(self, now: Millis) -> Self {
        if wrapped_second(now).wrapping_sub(self.0) > MAX_IDLE_SECONDS {
            Self(wrapped_second(now).wrapping_sub(MAX_IDLE_SECONDS))
        } else {
            self
        }
    }

    /// Returns the LFU usage of a new key.
    #[must_use]
    pub fn new_lfu(now: Millis) -> Self {
        Self::from_counter(INITIAL_LFU_COUNTER, now)
    }

    fn from_counter(counter: u8, now: Millis) -> Self {
        Self(u16::from(counter) | u16::from(wrapped_minute(now)) << 8)
    }

    /// Returns the counter reported by OBJECT FREQ: decayed by the minutes that have passed.
    #[must_use]
    pub fn frequency(self, now: Millis, settings: LfuSettings) -> u8 {
        let passed = u32::from(wrapped_minute(now).wrapping_sub((self.0 >> 8) as u8));
        let down = passed.checked_div(settings.decay_minutes).unwrap_or(0);
        (self.0 as u8).saturating_sub(down.min(255) as u8)
    }

    /// Returns the usage after one more access. `random` is a uniform random number.
    #[must_use]
    pub fn incremented_lfu(self, now: Millis, settings: LfuSettings, random: u32) -> Self {
        let counter = self.frequency(now, settings);
        let above = u64::from(counter.saturating_sub(INITIAL_LFU_COUNTER));
        let chance = u64::from(u32::MAX) / (above * u64::from(settings.log_factor) + 1);
        let counter = counter.saturating_add(u8::from(u64::from(random) <= chance));
        Self::from_counter(counter, now)
    }

    /// Returns the usage at `now`, with a time that will not wrap around for another 4 hours.
    #[must_use]
    pub fn aged_lfu(self, now: Millis, settings: LfuSettings) -> Self {
        let counter = self.frequency(now, settings);
        if counter == self.0 as u8 && wrapped_minute(now).wrapping_sub((self.0 >> 8) as u8) < 128 {
            return self;
        }
        Self::from_counter(counter, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LFU_SETTINGS: LfuSettings = LfuSettings { log_factor: 10, decay_minutes: 1 };

    #[test]
    fn idle_time_is_exact_and_saturates_at_nine_hours() {
        let start = Millis(1_700_000_000_000);
        let later = |seconds: i64| Millis(start.0 + seconds * 1000);
        let mut usage = Usage::with_access_time(start);
        assert_eq!(usage.idle_seconds(start), 0);
        assert_eq!(usage.idle_seconds(later(30_000)), 30_000);
        for hour in 1..100 {
            usage = usage.aged_lru(later(hour * 3600));
        }
        let idle = usage.idle_seconds(later(99 * 3600));
        assert!((32_768..40_000).contains(&idle), "{idle}");
    }

    #[test]
    fn lfu_counter_grows_logarithmically_and_decays() {
        let now = Millis(1_700_000_000_000);
        let mut usage = Usage::new_lfu(now);
        assert_eq!(usage.frequency(now, LFU_SETTINGS), 5);
        let mut random = 1u32;
        let mut after = Vec::new();
        for uses in 1..=100_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            usage = usage.incremented_lfu(now, LFU_SETTINGS, random);
            if [100, 1000, 100_000].contains(&uses) {
                after.push(usage.frequency(now, LFU_SETTINGS));
            }
        }
        // According to Redis's documentation, the counters are 10, 18 and 142 for a factor of 10.
        assert!((8..14).contains(&after[0]) && (15..24).contains(&after[1]), "{after:?}");
        assert!((125..160).contains(&after[2]), "{after:?}");
        let later = Millis(now.0 + 100 * 60_000);
        assert_eq!(usage.frequency(later, LFU_SETTINGS), after[2] - 100);
        let aged = usage.aged_lfu(later, LFU_SETTINGS);
        assert_eq!(aged.frequency(later, LFU_SETTINGS), after[2] - 100);
    }
}
