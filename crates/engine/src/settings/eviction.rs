//! The parameters of key eviction, and of the usage data by which keys are chosen.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use config::{EvictionPolicy, Values, keys};
use keyspace::LfuSettings;

use crate::eviction::{EVICTION_POLICIES, EvictionOrder, EvictionRule, time_limit_nanos};

/// The meaning of a key's usage data, depending on the eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UsageMeaning {
    /// Usage data is the time of the last access (LRU, and policies without usage data).
    LastAccess,
    /// Usage data is the access frequency (LFU).
    AccessFrequency,
    /// Usage data is the time of the last write (LRM).
    LastWrite,
}

/// The parameters of key eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionSettings {
    /// Which keys are evicted first.
    pub policy: EvictionRule,
    /// Number of keys sampled per eviction (`maxmemory-samples`).
    pub sample_count: usize,
    /// Maximum eviction time per command in nanoseconds.
    pub time_limit_nanos: u64,
    /// Whether a replica does not evict (`replica-ignore-maxmemory`).
    pub replica_ignores_maxmemory: bool,
}

/// [`EvictionSettings`] and the LFU parameters, which several threads may read while one changes them.
#[derive(Debug)]
pub struct AtomicEvictionSettings {
    /// The meaning of the keys' usage data, by `maxmemory-policy`.
    usage_meaning: AtomicU8,
    /// Index of the policy in [`EVICTION_POLICIES`].
    policy: AtomicU8,
    /// Whether a replica does not evict (`replica-ignore-maxmemory`).
    replica_ignores_maxmemory: AtomicBool,
    /// How slowly the LFU counter grows with accesses (`lfu-log-factor`).
    lfu_log_factor: AtomicU32,
    /// Minutes after which an unused LFU counter is decremented (`lfu-decay-time`).
    lfu_decay_minutes: AtomicU32,
    /// Number of keys sampled per eviction (`maxmemory-samples`).
    sample_count: AtomicUsize,
    /// Maximum eviction time per command in nanoseconds (`maxmemory-eviction-tenacity`).
    time_limit_nanos: AtomicU64,
}

impl Default for AtomicEvictionSettings {
    fn default() -> Self {
        Self {
            usage_meaning: AtomicU8::new(UsageMeaning::LastAccess as u8),
            policy: AtomicU8::new(0),
            replica_ignores_maxmemory: AtomicBool::new(true),
            lfu_log_factor: AtomicU32::new(10),
            lfu_decay_minutes: AtomicU32::new(1),
            sample_count: AtomicUsize::new(5),
            time_limit_nanos: AtomicU64::new(time_limit_nanos(10)),
        }
    }
}

impl AtomicEvictionSettings {
    pub(super) fn configure(&self, values: &Values) {
        self.lfu_log_factor.store(values[keys::LFU_LOG_FACTOR], Ordering::Relaxed);
        let minutes = u32::try_from(values[keys::LFU_DECAY_TIME]).unwrap_or(u32::MAX);
        self.lfu_decay_minutes.store(minutes, Ordering::Relaxed);
        self.store(
            values[keys::MAXMEMORY_POLICY],
            values[keys::MAXMEMORY_SAMPLES],
            values[keys::MAXMEMORY_EVICTION_TENACITY],
            values[keys::REPLICA_IGNORE_MAXMEMORY],
        );
    }

    /// Returns the LFU parameters if the policy is LFU.
    #[must_use]
    pub fn lfu(&self) -> Option<LfuSettings> {
        (self.usage_meaning() == UsageMeaning::AccessFrequency).then(|| self.lfu_settings())
    }

    pub(crate) fn lfu_settings(&self) -> LfuSettings {
        LfuSettings {
            log_factor: self.lfu_log_factor.load(Ordering::Relaxed),
            decay_minutes: self.lfu_decay_minutes.load(Ordering::Relaxed),
        }
    }

    /// Returns the meaning of the keys' usage data.
    #[inline(always)]
    pub(crate) fn usage_meaning(&self) -> UsageMeaning {
        match self.usage_meaning.load(Ordering::Relaxed) {
            kind if kind == UsageMeaning::AccessFrequency as u8 => UsageMeaning::AccessFrequency,
            kind if kind == UsageMeaning::LastWrite as u8 => UsageMeaning::LastWrite,
            _ => UsageMeaning::LastAccess,
        }
    }

    /// Returns the eviction parameters.
    #[must_use]
    pub fn load(&self) -> EvictionSettings {
        EvictionSettings {
            policy: EVICTION_POLICIES[usize::from(self.policy.load(Ordering::Relaxed))].1,
            sample_count: self.sample_count.load(Ordering::Relaxed).max(1),
            time_limit_nanos: self.time_limit_nanos.load(Ordering::Relaxed),
            replica_ignores_maxmemory: self.replica_ignores_maxmemory.load(Ordering::Relaxed),
        }
    }

    /// Sets the eviction parameters (`maxmemory-policy`, `maxmemory-samples`, `maxmemory-eviction-tenacity`,
    /// `replica-ignore-maxmemory`).
    pub fn store(
        &self,
        policy: EvictionPolicy,
        sample_count: usize,
        tenacity: u32,
        replica_ignores_maxmemory: bool,
    ) {
        let place = EVICTION_POLICIES.iter().position(|(known, _)| *known == policy);
        let place = place.expect("all policies are there");
        let kind = match EVICTION_POLICIES[place].1.order {
            Some(EvictionOrder::Lfu) => UsageMeaning::AccessFrequency,
            Some(EvictionOrder::Lrm) => UsageMeaning::LastWrite,
            _ => UsageMeaning::LastAccess,
        };
        self.policy.store(place as u8, Ordering::Relaxed);
        self.usage_meaning.store(kind as u8, Ordering::Relaxed);
        self.sample_count.store(sample_count, Ordering::Relaxed);
        self.time_limit_nanos.store(time_limit_nanos(tenacity), Ordering::Relaxed);
        self.replica_ignores_maxmemory.store(replica_ignores_maxmemory, Ordering::Relaxed);
    }
}
