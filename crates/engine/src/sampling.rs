//! Short-term sampling of the keys used by commands, to show hot keys on demand.
//!
//! Sampling is on for a few milliseconds at a time. Otherwise it costs nothing: commands reach it through
//! [`crate::settings::NodeFlags::MONITORED`], like MONITOR. Memory is bounded: keys beyond the maximum are counted
//! together.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Maximum number of distinct keys counted in a sample.
const MAX_KEYS: usize = 16 * 1024;
/// Maximum number of bytes stored of each key's name.
const MAX_KEY_BYTES: usize = 256;

/// The counts of the running sample; `None` while sampling is off.
#[derive(Debug, Default)]
pub(crate) struct KeySampler(Mutex<Option<KeySample>>);

/// How often commands used each key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeySample {
    /// Number of uses by key (possibly truncated) and slot.
    pub uses_by_key: BTreeMap<(Vec<u8>, u16), u64>,
    /// Number of uses of keys beyond the maximum of distinct keys.
    pub uses_of_other_keys: u64,
}

impl KeySampler {
    /// Starts a new sample, and discards the previous one if it was not ended.
    pub(crate) fn begin(&self) {
        *self.0.lock() = Some(KeySample::default());
    }

    pub(crate) fn finish(&self) -> KeySample {
        self.0.lock().take().unwrap_or_default()
    }

    pub(crate) fn is_sampling(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(crate) fn count_key(&self, key: &[u8], slot: u16) {
        let mut sample = self.0.lock();
        let Some(sample) = &mut *sample else { return };
        let key = &key[..key.len().min(MAX_KEY_BYTES)];
        if sample.uses_by_key.len() < MAX_KEYS {
            *sample.uses_by_key.entry((key.to_vec(), slot)).or_default() += 1;
        } else if let Some(count) = sample.uses_by_key.get_mut(&(key.to_vec(), slot)) {
            *count += 1;
        } else {
            sample.uses_of_other_keys += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_only_while_sampling() {
        let sampler = KeySampler::default();
        sampler.count_key(b"before", 1);
        sampler.begin();
        assert!(sampler.is_sampling());
        sampler.count_key(b"a", 1);
        sampler.count_key(b"a", 1);
        sampler.count_key(&[b'x'; 1000], 2);
        let sample = sampler.finish();
        assert_eq!(sample.uses_by_key.get(&(b"a".to_vec(), 1)), Some(&2));
        assert_eq!(sample.uses_by_key.get(&(vec![b'x'; MAX_KEY_BYTES], 2)), Some(&1));
        assert_eq!(
            (sample.uses_by_key.len(), sample.uses_of_other_keys, sampler.is_sampling()),
            (2, 0, false)
        );
    }

    #[test]
    fn number_of_sampled_keys_is_bounded() {
        let sampler = KeySampler::default();
        sampler.begin();
        for number in 0..MAX_KEYS as u32 + 10 {
            sampler.count_key(&number.to_le_bytes(), 0);
        }
        sampler.count_key(&0u32.to_le_bytes(), 0);
        let sample = sampler.finish();
        assert_eq!((sample.uses_by_key.len(), sample.uses_of_other_keys), (MAX_KEYS, 10));
        assert_eq!(sample.uses_by_key.get(&(0u32.to_le_bytes().to_vec(), 0)), Some(&2));
    }
}
