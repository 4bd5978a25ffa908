//! Which keys commands are about, counted for a moment when somebody wants to see what is hot.
//!
//! Counting is on for some milliseconds, by whoever looks. In between it costs nothing: commands come here by way of
//! [`crate::settings::Gate::MONITORED`], as they do to monitors. Room is bounded: a key that would be one too many is
//! counted among the rest.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// So many different keys are kept apart.
const MOST_KEYS: usize = 16 * 1024;
/// Bytes of a key that are kept.
const MOST_BYTES: usize = 256;

/// The counts while a sample is taken.
#[derive(Debug, Default)]
pub(crate) struct KeySampler(Mutex<Option<KeySample>>);

/// How often keys were named by commands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeySample {
    /// By the key, or its beginning if it is long, and the slot that it is in.
    pub keys: BTreeMap<(Vec<u8>, u16), u64>,
    /// How often others were.
    pub others: u64,
}

impl KeySampler {
    /// Begins to count anew.
    pub(crate) fn begin(&self) {
        *self.0.lock() = Some(KeySample::default());
    }

    /// Ends counting.
    pub(crate) fn end(&self) -> KeySample {
        self.0.lock().take().unwrap_or_default()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.lock().is_some()
    }

    /// A command names this key.
    pub(crate) fn count(&self, key: &[u8], slot: u16) {
        let mut sample = self.0.lock();
        let Some(sample) = &mut *sample else { return };
        let key = &key[..key.len().min(MOST_BYTES)];
        if sample.keys.len() < MOST_KEYS {
            *sample.keys.entry((key.to_vec(), slot)).or_default() += 1;
        } else if let Some(count) = sample.keys.get_mut(&(key.to_vec(), slot)) {
            *count += 1;
        } else {
            sample.others += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_between_beginning_and_end() {
        let sampler = KeySampler::default();
        sampler.count(b"before", 1);
        sampler.begin();
        assert!(sampler.is_on());
        sampler.count(b"a", 1);
        sampler.count(b"a", 1);
        sampler.count(&[b'x'; 1000], 2);
        let sample = sampler.end();
        assert_eq!(sample.keys.get(&(b"a".to_vec(), 1)), Some(&2));
        assert_eq!(sample.keys.get(&(vec![b'x'; MOST_BYTES], 2)), Some(&1));
        assert_eq!((sample.keys.len(), sample.others, sampler.is_on()), (2, 0, false));
    }

    #[test]
    fn room_is_bounded_and_what_is_known_is_counted_on() {
        let sampler = KeySampler::default();
        sampler.begin();
        for number in 0..MOST_KEYS as u32 + 10 {
            sampler.count(&number.to_le_bytes(), 0);
        }
        sampler.count(&0u32.to_le_bytes(), 0);
        let sample = sampler.end();
        assert_eq!((sample.keys.len(), sample.others), (MOST_KEYS, 10));
        assert_eq!(sample.keys.get(&(0u32.to_le_bytes().to_vec(), 0)), Some(&2));
    }
}
