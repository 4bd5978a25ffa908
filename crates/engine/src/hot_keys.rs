//! HOTKEYS: the most expensive keys in the format of Redis 8.6, and the most frequently used keys in that of Valkey
//! 9.2.
//!
//! In Redis a client starts and stops a session; Valkey counts in time windows while `hotkeys-top-k` is not 0. Both use
//! a bounded [`SpaceSaving`] summary. While both are off, commands pay nothing: [`Measurements::KEYS`] is a bit in a
//! word that each command reads anyway.
//!
//! The commands of transactions and scripts are counted one by one, and the enclosing EXEC or script is not counted.
//! The cost of a command with several keys is divided equally among them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use clock::Millis;
use parking_lot::Mutex;
use slot_routing::Slot;

use crate::settings::{Measurements, Settings};

/// The summary's capacity as a multiple of the requested top-k, and its minimum.
const CAPACITY_FACTOR: usize = 8;
const MIN_CAPACITY: usize = 256;

/// A heavy-hitters summary in bounded memory (the Space-Saving algorithm): a new key that does not fit replaces the key
/// with the smallest count and inherits that count.
#[derive(Debug, Default)]
struct SpaceSaving<K> {
    capacity: usize,
    by_key: HashMap<K, u64>,
    by_count: BTreeSet<(u64, K)>,
}

impl<K: Clone + Eq + Ord + std::hash::Hash> SpaceSaving<K> {
    fn new(top_k: usize) -> Self {
        let room = top_k.saturating_mul(CAPACITY_FACTOR).max(MIN_CAPACITY);
        Self { capacity: room, by_key: HashMap::new(), by_count: BTreeSet::new() }
    }

    fn add(&mut self, key: K, amount: u64) {
        let before = match self.by_key.get(&key) {
            Some(before) => {
                self.by_count.remove(&(*before, key.clone()));
                *before
            }
            None if self.by_key.len() < self.capacity => 0,
            None => match self.by_count.pop_first() {
                Some((least, other)) => {
                    self.by_key.remove(&other);
                    least
                }
                None => 0,
            },
        };
        let after = before.saturating_add(amount);
        self.by_key.insert(key.clone(), after);
        self.by_count.insert((after, key));
    }

    /// Returns the keys with the largest counts in descending order.
    fn largest(&self, count: usize) -> Vec<(K, u64)> {
        self.by_count.iter().rev().take(count).map(|(count, key)| (key.clone(), *count)).collect()
    }
}

/// The options of HOTKEYS START.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotKeysRequest {
    /// Whether execution time is measured (METRICS CPU).
    pub measures_cpu: bool,
    /// Whether the bytes of requests and replies are measured (METRICS NET).
    pub measures_net: bool,
    /// Number of keys to report.
    pub top_k: usize,
    /// Duration in seconds; 0 means unlimited.
    pub duration_secs: u64,
    /// Sampling ratio: one in this many commands is sampled.
    pub sample_ratio: u64,
    /// Slots whose keys are counted; an empty list means all slots.
    pub slots: Vec<Slot>,
}

/// CPU time and network bytes of one or several commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyCost {
    /// Execution time in nanoseconds.
    pub nanos: u64,
    /// Bytes of requests and replies.
    pub bytes: u64,
}

impl KeyCost {
    fn add(&mut self, other: Self) {
        self.nanos = self.nanos.saturating_add(other.nanos);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// A key's name, in an `Arc` because both summaries contain it.
type KeyName = Arc<[u8]>;

/// A session started by HOTKEYS START.
#[derive(Debug)]
struct HotKeysSession {
    request: HotKeysRequest,
    started_at: Millis,
    ended_at: Option<Millis>,
    top_by_nanos: SpaceSaving<KeyName>,
    top_by_bytes: SpaceSaving<KeyName>,
    commands_seen: u64,
    total_cost: KeyCost,
    selected_cost: KeyCost,
    sampled_cost: KeyCost,
}

/// The results of a session for HOTKEYS GET.
#[derive(Debug, Clone)]
pub struct HotKeysReport {
    /// The options with which the session was started.
    pub request: HotKeysRequest,
    /// Whether the session is still running; otherwise these are its final results.
    pub is_active: bool,
    /// Wall-clock time at which the session was started.
    pub started_at: Millis,
    /// Time for which the session has been running or ran, in milliseconds.
    pub duration_millis: u64,
    /// Cost of all commands that ran during the session.
    pub total_cost: KeyCost,
    /// Cost of commands with keys in the selected slots.
    pub selected_cost: KeyCost,
    /// Cost of the sampled commands.
    pub sampled_cost: KeyCost,
    /// Keys in descending order of execution time, with that time in nanoseconds.
    pub top_by_nanos: Vec<(Arc<[u8]>, u64)>,
    /// Keys in descending order of bytes, with their bytes.
    pub top_by_bytes: Vec<(Arc<[u8]>, u64)>,
}

impl HotKeysSession {
    /// Ends the session if its duration is over.
    fn end_if_expired(&mut self, now: Millis) {
        let until =
            self.started_at.0.saturating_add_unsigned(self.request.duration_secs.saturating_mul(1000));
        if self.ended_at.is_none() && self.request.duration_secs > 0 && until <= now.0 {
            self.ended_at = Some(Millis(until));
        }
    }

    fn count(&mut self, keys: &[&[u8]], cost: KeyCost) {
        self.total_cost.add(cost);
        let slots = &self.request.slots;
        let is_selected = |key: &&&[u8]| slots.is_empty() || slots.contains(&Slot::of_key(key));
        let selected: Vec<_> = keys.iter().filter(is_selected).collect();
        if selected.is_empty() {
            return;
        }
        self.selected_cost.add(cost);
        self.commands_seen = self.commands_seen.wrapping_add(1);
        if !self.commands_seen.is_multiple_of(self.request.sample_ratio) {
            return;
        }
        self.sampled_cost.add(cost);
        let shares = keys.len() as u64;
        for key in selected {
            let name = KeyName::from(*key);
            if self.request.measures_cpu {
                self.top_by_nanos.add(name.clone(), cost.nanos / shares);
            }
            if self.request.measures_net {
                self.top_by_bytes.add(name, cost.bytes / shares);
            }
        }
    }

    fn report(&self, now: Millis) -> HotKeysReport {
        let end = self.ended_at.unwrap_or(now);
        HotKeysReport {
            request: self.request.clone(),
            is_active: self.ended_at.is_none(),
            started_at: self.started_at,
            duration_millis: end.0.saturating_sub(self.started_at.0).max(0).unsigned_abs(),
            total_cost: self.total_cost,
            selected_cost: self.selected_cost,
            sampled_cost: self.sampled_cost,
            top_by_nanos: self.top_by_nanos.largest(self.request.top_k),
            top_by_bytes: self.top_by_bytes.largest(self.request.top_k),
        }
    }
}

/// Parameters of the time windows of Valkey's HOTKEYS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HotKeyWindowSettings {
    /// Number of keys to report (`hotkeys-top-k`); 0 disables the windows.
    pub top_k: usize,
    /// Percentage of accesses that are sampled (`hotkeys-sampling-percentage`).
    pub sampling_percent: u64,
    /// Length of a window in seconds (`hotkeys-window-seconds`).
    pub window_secs: u64,
}

/// The current window and the last complete one.
#[derive(Debug, Default)]
struct HotKeyWindowState {
    settings: HotKeyWindowSettings,
    started_at: Millis,
    commands_seen: u64,
    current_window: SpaceSaving<(u16, KeyName)>,
    sample_count: u64,
    last_complete: Option<HotKeyWindow>,
}

/// The counts of a complete window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HotKeyWindow {
    /// Number of sampled accesses in the window.
    pub sample_count: u64,
    /// Length of the window in milliseconds.
    pub duration_millis: u64,
    /// Database, key and accesses per second, the most frequently used key first.
    pub keys: Vec<(u16, Arc<[u8]>, u64)>,
}

impl HotKeyWindowState {
    fn new(settings: HotKeyWindowSettings) -> Self {
        Self { settings, current_window: SpaceSaving::new(settings.top_k), ..Self::default() }
    }

    /// Completes the current window if it is over. If it ended more than one window length ago, it is discarded.
    fn rotate(&mut self, now: Millis) {
        let length = self.settings.window_secs.saturating_mul(1000).max(1);
        if self.started_at == Millis::default() {
            self.started_at = now;
        }
        let passed = now.0.saturating_sub(self.started_at.0).max(0).unsigned_abs();
        if passed < length {
            return;
        }
        self.last_complete =
            Some(if passed < 2 * length { self.completed_window(length) } else { HotKeyWindow::default() });
        self.current_window = SpaceSaving::new(self.settings.top_k);
        self.sample_count = 0;
        self.started_at = Millis(self.started_at.0.saturating_add_unsigned(passed / length * length));
    }

    fn completed_window(&self, millis: u64) -> HotKeyWindow {
        let a_second = |count: u64| {
            let scaled = u128::from(count) * 100 * 1000;
            (scaled / u128::from((self.settings.sampling_percent * millis).max(1))) as u64
        };
        let top = self.current_window.largest(self.settings.top_k).into_iter();
        let keys = top.map(|((db, key), count)| (db, key, a_second(count))).collect();
        HotKeyWindow { sample_count: self.sample_count, duration_millis: millis, keys }
    }

    fn count(&mut self, db: u16, keys: &[&[u8]], now: Millis) {
        self.rotate(now);
        for key in keys {
            self.commands_seen = self.commands_seen.wrapping_add(1);
            // Sample at even intervals, which needs no random numbers.
            if (self.commands_seen % 100) * self.settings.sampling_percent % 100
                < self.settings.sampling_percent
            {
                self.sample_count += 1;
                self.current_window.add((db, KeyName::from(*key)), 1);
            }
        }
    }
}

/// The session of Redis's HOTKEYS and the time windows of Valkey's.
#[derive(Debug, Default)]
pub struct HotKeys {
    session: Mutex<Option<HotKeysSession>>,
    windows: Mutex<HotKeyWindowState>,
}

/// Why a HOTKEYS subcommand failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HotKeysError {
    /// A session is already running.
    SessionActive,
}

impl HotKeys {
    /// Starts a session.
    ///
    /// # Errors
    /// [`HotKeysError::SessionActive`] if a session is already running.
    pub fn start(
        &self,
        settings: &Settings,
        request: HotKeysRequest,
        now: Millis,
    ) -> Result<(), HotKeysError> {
        let mut session = self.session.lock();
        if is_active(&mut session, now) {
            return Err(HotKeysError::SessionActive);
        }
        let top = request.top_k;
        *session = Some(HotKeysSession {
            request,
            started_at: now,
            ended_at: None,
            top_by_nanos: SpaceSaving::new(top),
            top_by_bytes: SpaceSaving::new(top),
            commands_seen: 0,
            total_cost: KeyCost::default(),
            selected_cost: KeyCost::default(),
            sampled_cost: KeyCost::default(),
        });
        settings.set_measurements(Measurements::KEYS, true);
        Ok(())
    }

    /// Returns whether a session is running.
    pub fn is_active(&self, now: Millis) -> bool {
        is_active(&mut self.session.lock(), now)
    }

    /// Stops the session and preserves its counts; returns whether one was running.
    pub fn stop(&self, settings: &Settings, now: Millis) -> bool {
        let mut session = self.session.lock();
        let was_active = is_active(&mut session, now);
        if let Some(session) = session.as_mut().filter(|_| was_active) {
            session.ended_at = Some(now);
        }
        settings.set_measurements(Measurements::KEYS, self.windows.lock().settings.top_k > 0);
        was_active
    }

    /// Discards the counts of the session and of the windows.
    ///
    /// # Errors
    /// [`HotKeysError::SessionActive`] while a session is running.
    pub fn reset(&self, now: Millis) -> Result<(), HotKeysError> {
        let mut session = self.session.lock();
        if is_active(&mut session, now) {
            return Err(HotKeysError::SessionActive);
        }
        *session = None;
        self.discard_windows();
        Ok(())
    }

    /// Discards the windows' counts. Called after the data set was emptied.
    pub fn discard_windows(&self) {
        let mut windows = self.windows.lock();
        *windows = HotKeyWindowState::new(windows.settings);
    }

    /// Returns the session's results, if there is one.
    pub fn report(&self, now: Millis) -> Option<HotKeysReport> {
        let mut session = self.session.lock();
        is_active(&mut session, now);
        session.as_ref().map(|session| session.report(now))
    }

    /// Returns the last complete window, if windows are enabled.
    pub fn last_window(&self, now: Millis) -> Option<HotKeyWindow> {
        let mut windows = self.windows.lock();
        if windows.settings.top_k == 0 {
            return None;
        }
        windows.rotate(now);
        Some(windows.last_complete.clone().unwrap_or_default())
    }

    /// Applies the windows' parameters; a change restarts the current window.
    pub fn configure(&self, settings: &Settings, window_settings: HotKeyWindowSettings) {
        let session = self.session.lock();
        let mut windows = self.windows.lock();
        if windows.settings != window_settings {
            let last = windows.last_complete.take().filter(|_| window_settings.top_k > 0);
            *windows = HotKeyWindowState { last_complete: last, ..HotKeyWindowState::new(window_settings) };
        }
        let is_active = session.as_ref().is_some_and(|session| session.ended_at.is_none());
        settings.set_measurements(Measurements::KEYS, is_active || window_settings.top_k > 0);
    }

    /// Counts a client's command with these keys. `is_access` is false for commands that only inspect a key's encoding,
    /// which the windows do not count.
    pub(crate) fn count(&self, db: u16, keys: &[&[u8]], is_access: bool, cost: KeyCost, now: Millis) {
        let mut session = self.session.lock();
        if is_active(&mut session, now)
            && let Some(session) = session.as_mut()
        {
            session.count(keys, cost);
        }
        drop(session);
        let mut windows = self.windows.lock();
        if windows.settings.top_k > 0 && is_access {
            windows.count(db, keys, now);
        }
    }
}

/// Returns whether a session is running, after ending it if its duration is over.
fn is_active(session: &mut Option<HotKeysSession>, now: Millis) -> bool {
    session.as_mut().is_some_and(|session| {
        session.end_if_expired(now);
        session.ended_at.is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_keeps_the_largest_counts() {
        let mut summary = SpaceSaving::new(2);
        for number in 0..10_000u32 {
            summary.add(number % 2000 + 10, 1);
            summary.add(number % 2, 2);
        }
        assert_eq!(summary.by_key.len(), MIN_CAPACITY);
        let top = summary.largest(2);
        assert_eq!(top, [(1, 10_000), (0, 10_000)]);
    }

    #[test]
    fn last_complete_window_is_reported() {
        let mut windows =
            HotKeyWindowState::new(HotKeyWindowSettings { top_k: 2, sampling_percent: 100, window_secs: 2 });
        for _ in 0..10 {
            windows.count(3, &[b"a", b"b", b"a"], Millis(1000));
        }
        windows.rotate(Millis(2999));
        assert_eq!(windows.last_complete, None);
        windows.rotate(Millis(3000));
        let keys = vec![(3, Arc::from(&b"a"[..]), 10), (3, Arc::from(&b"b"[..]), 5)];
        assert_eq!(
            windows.last_complete,
            Some(HotKeyWindow { sample_count: 30, duration_millis: 2000, keys })
        );
        windows.rotate(Millis(5000));
        assert_eq!(
            windows.last_complete,
            Some(HotKeyWindow { sample_count: 0, duration_millis: 2000, keys: Vec::new() })
        );
        windows.count(0, &[b"a"], Millis(5001));
        // No client requested the complete window in time, so a newer window has replaced it.
        windows.rotate(Millis(9000));
        assert_eq!(windows.last_complete, Some(HotKeyWindow::default()));
    }

    #[test]
    fn sampling_percentage_is_applied() {
        for percent in [1, 7, 50, 99, 100] {
            let mut windows = HotKeyWindowState::new(HotKeyWindowSettings {
                top_k: 2,
                sampling_percent: percent,
                window_secs: 1,
            });
            for _ in 0..1000 {
                windows.count(0, &[b"a"], Millis(1));
            }
            assert_eq!(windows.sample_count, percent * 10, "{percent}");
        }
    }
}
