//! Samples which keys and slots are hot, by counting the keys of commands for a short time.
//!
//! While a sample runs, commands cannot use their fast path, so sampling is limited to a few milliseconds per second,
//! and happens only while a page requests it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Mutex;

use crate::server::Server;

const SAMPLE_DURATION: Duration = Duration::from_millis(10);
/// How long a sample is reused for further requests.
const CACHE_DURATION: Duration = Duration::from_millis(900);
/// The maximum number of keys in a response.
const MAX_KEYS: usize = 20;
const MAX_KEY_BYTES: usize = 120;

/// The last sample as JSON, with the time when it was taken.
#[derive(Debug, Default)]
pub(super) struct LoadSampler(Mutex<Option<(std::time::Instant, String)>>);

#[derive(Debug, Serialize)]
struct LoadSample {
    /// Duration of the sample in seconds.
    seconds: f64,
    /// The number of key accesses in the sample.
    named: u64,
    /// Slots with their number of key accesses in the sample.
    slots: Vec<(u16, u64)>,
    keys: Vec<HotKey>,
}

#[derive(Debug, Serialize)]
struct HotKey {
    key: String,
    slot: u16,
    named: u64,
}

/// Stops sampling when dropped, even if the client disconnects.
struct SamplingGuard<'a>(&'a Server);

impl Drop for SamplingGuard<'_> {
    fn drop(&mut self) {
        self.0.engine.notifications.monitors.end_key_sample(&self.0.engine.settings);
    }
}

impl LoadSampler {
    /// Returns the current load as JSON, from the last sample if it is recent enough.
    pub(super) async fn load_json(&self, server: &Server) -> String {
        let mut last = self.0.lock().await;
        if let Some((_, json)) = last.as_ref().filter(|(at, _)| at.elapsed() < CACHE_DURATION) {
            return json.clone();
        }
        let begun = std::time::Instant::now();
        server.engine.notifications.monitors.begin_key_sample(&server.engine.settings);
        let counting = SamplingGuard(server);
        tokio::time::sleep(SAMPLE_DURATION).await;
        let sample = server.engine.notifications.monitors.end_key_sample(&server.engine.settings);
        drop(counting);
        let json = super::to_json(&summarize_sample(sample, begun.elapsed()));
        *last = Some((begun, json.clone()));
        json
    }
}

fn summarize_sample(sample: engine::KeySample, duration: Duration) -> LoadSample {
    let named = sample.uses_by_key.values().sum::<u64>() + sample.uses_of_other_keys;
    let mut slots: BTreeMap<u16, u64> = BTreeMap::new();
    for ((_, slot), count) in &sample.uses_by_key {
        *slots.entry(*slot).or_default() += count;
    }
    let mut keys: Vec<_> = sample.uses_by_key.into_iter().collect();
    keys.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let hot = |((key, slot), named): ((Vec<u8>, u16), u64)| HotKey {
        key: super::format_bytes(&key, MAX_KEY_BYTES),
        slot,
        named,
    };
    LoadSample {
        seconds: duration.as_secs_f64(),
        named,
        slots: slots.into_iter().collect(),
        keys: keys.into_iter().take(MAX_KEYS).map(hot).collect(),
    }
}
