//! HOTKEYS: which keys cost the most time and bytes (Redis 8.6's form), and which are named most often (Valkey 9.2's).
//!
//! Redis's form is a session that a client starts and stops; Valkey's counts in windows for as long as
//! `hotkeys-top-k` is not 0. Both keep the keys in a [`SpaceSaving`] summary, whose size is bounded. While neither is on,
//! a command pays nothing: [`Measures::KEYS`] stands in the word that is read once a command.
//!
//! Commands of clients are counted, those of transactions and scripts one by one, and not the script or EXEC around
//! them. A command with several keys counts for each of them in equal shares.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use clock::Millis;
use parking_lot::Mutex;
use slot_routing::Slot;

use crate::settings::{Measures, Settings};

/// A summary has room for so many times the keys that are told, and for so many at least.
const ROOM: usize = 8;
const LEAST_ROOM: usize = 256;

/// The keys with the largest counts of a stream of counted keys, in bounded room (the Space-Saving algorithm): a key for
/// which there is no room takes the place, and the count, of the one with the least.
#[derive(Debug, Default)]
struct SpaceSaving<K> {
    room: usize,
    by_key: HashMap<K, u64>,
    by_count: BTreeSet<(u64, K)>,
}

impl<K: Clone + Eq + Ord + std::hash::Hash> SpaceSaving<K> {
    fn new(top: usize) -> Self {
        let room = top.saturating_mul(ROOM).max(LEAST_ROOM);
        Self { room, by_key: HashMap::new(), by_count: BTreeSet::new() }
    }

    fn add(&mut self, key: K, amount: u64) {
        let before = match self.by_key.get(&key) {
            Some(before) => {
                self.by_count.remove(&(*before, key.clone()));
                *before
            }
            None if self.by_key.len() < self.room => 0,
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

    /// The keys with the largest counts, the largest first.
    fn top(&self, count: usize) -> Vec<(K, u64)> {
        self.by_count.iter().rev().take(count).map(|(count, key)| (key.clone(), *count)).collect()
    }
}

/// The words of HOTKEYS START.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotKeysRequest {
    /// Time is counted.
    pub cpu: bool,
    /// Bytes of requests and replies are counted.
    pub net: bool,
    /// How many keys are told.
    pub top: usize,
    /// Seconds after which it ends by itself; 0 is never.
    pub seconds: u64,
    /// One of so many commands is counted.
    pub sample: u64,
    /// Keys of these slots are counted; empty: of all.
    pub slots: Vec<Slot>,
}

/// Time and bytes of commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyCost {
    /// Nanoseconds.
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

/// A key as counts are kept for it.
type Name = Arc<[u8]>;

/// A session that HOTKEYS START began.
#[derive(Debug)]
struct Session {
    request: HotKeysRequest,
    begun: Millis,
    ended: Option<Millis>,
    by_nanos: SpaceSaving<Name>,
    by_bytes: SpaceSaving<Name>,
    seen: u64,
    all: KeyCost,
    selected: KeyCost,
    sampled: KeyCost,
}

/// HOTKEYS GET's reply about a session.
#[derive(Debug, Clone)]
pub struct HotKeysReport {
    /// The words with which it began.
    pub request: HotKeysRequest,
    /// Whether it goes on.
    pub is_active: bool,
    /// When it began.
    pub begun: Millis,
    /// Milliseconds for which it lasted.
    pub lasted: u64,
    /// The cost of all commands.
    pub all: KeyCost,
    /// The cost of those with keys in the slots that are counted.
    pub selected: KeyCost,
    /// The cost of those that were counted for their keys.
    pub sampled: KeyCost,
    /// Keys with their nanoseconds, the most first.
    pub by_nanos: Vec<(Arc<[u8]>, u64)>,
    /// Keys with their bytes, the most first.
    pub by_bytes: Vec<(Arc<[u8]>, u64)>,
}

impl Session {
    /// Ends it if its time is up.
    fn expire(&mut self, now: Millis) {
        let until = self.begun.0.saturating_add_unsigned(self.request.seconds.saturating_mul(1000));
        if self.ended.is_none() && self.request.seconds > 0 && until <= now.0 {
            self.ended = Some(Millis(until));
        }
    }

    fn count(&mut self, keys: &[&[u8]], cost: KeyCost) {
        self.all.add(cost);
        let slots = &self.request.slots;
        let is_selected = |key: &&&[u8]| slots.is_empty() || slots.contains(&Slot::of_key(key));
        let selected: Vec<_> = keys.iter().filter(is_selected).collect();
        if selected.is_empty() {
            return;
        }
        self.selected.add(cost);
        self.seen = self.seen.wrapping_add(1);
        if !self.seen.is_multiple_of(self.request.sample) {
            return;
        }
        self.sampled.add(cost);
        let shares = keys.len() as u64;
        for key in selected {
            let name = Name::from(*key);
            if self.request.cpu {
                self.by_nanos.add(name.clone(), cost.nanos / shares);
            }
            if self.request.net {
                self.by_bytes.add(name, cost.bytes / shares);
            }
        }
    }

    fn report(&self, now: Millis) -> HotKeysReport {
        let end = self.ended.unwrap_or(now);
        HotKeysReport {
            request: self.request.clone(),
            is_active: self.ended.is_none(),
            begun: self.begun,
            lasted: end.0.saturating_sub(self.begun.0).max(0).unsigned_abs(),
            all: self.all,
            selected: self.selected,
            sampled: self.sampled,
            by_nanos: self.by_nanos.top(self.request.top),
            by_bytes: self.by_bytes.top(self.request.top),
        }
    }
}

/// The parameters of Valkey's form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HotKeyWindows {
    /// How many keys are told (`hotkeys-top-k`); 0 counts nothing.
    pub top: usize,
    /// Percent of the accesses that are counted (`hotkeys-sampling-percentage`).
    pub percent: u64,
    /// Seconds of a window (`hotkeys-window-seconds`).
    pub seconds: u64,
}

/// The window that counts, and the last one that is complete.
#[derive(Debug, Default)]
struct Windows {
    settings: HotKeyWindows,
    begun: Millis,
    seen: u64,
    live: SpaceSaving<(u16, Name)>,
    samples: u64,
    last: Option<HotKeyWindow>,
}

/// A window that is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HotKeyWindow {
    /// How many accesses were counted.
    pub samples: u64,
    /// For how many milliseconds.
    pub millis: u64,
    /// Database, key, and accesses a second, the most first.
    pub keys: Vec<(u16, Arc<[u8]>, u64)>,
}

impl Windows {
    fn new(settings: HotKeyWindows) -> Self {
        Self { settings, live: SpaceSaving::new(settings.top), ..Self::default() }
    }

    /// Completes the window if its time is up. One that nobody looked at while another one passed is lost with its keys.
    fn turn(&mut self, now: Millis) {
        let length = self.settings.seconds.saturating_mul(1000).max(1);
        if self.begun == Millis::default() {
            self.begun = now;
        }
        let passed = now.0.saturating_sub(self.begun.0).max(0).unsigned_abs();
        if passed < length {
            return;
        }
        self.last = Some(if passed < 2 * length { self.complete(length) } else { HotKeyWindow::default() });
        self.live = SpaceSaving::new(self.settings.top);
        self.samples = 0;
        self.begun = Millis(self.begun.0.saturating_add_unsigned(passed / length * length));
    }

    fn complete(&self, millis: u64) -> HotKeyWindow {
        let a_second = |count: u64| {
            let scaled = u128::from(count) * 100 * 1000;
            (scaled / u128::from((self.settings.percent * millis).max(1))) as u64
        };
        let top = self.live.top(self.settings.top).into_iter();
        let keys = top.map(|((db, key), count)| (db, key, a_second(count))).collect();
        HotKeyWindow { samples: self.samples, millis, keys }
    }

    fn count(&mut self, db: u16, keys: &[&[u8]], now: Millis) {
        self.turn(now);
        for key in keys {
            self.seen = self.seen.wrapping_add(1);
            // Spread evenly, not at random: nothing here depends on chance.
            if (self.seen % 100) * self.settings.percent % 100 < self.settings.percent {
                self.samples += 1;
                self.live.add((db, Name::from(*key)), 1);
            }
        }
    }
}

/// Both forms.
#[derive(Debug, Default)]
pub struct HotKeys {
    session: Mutex<Option<Session>>,
    windows: Mutex<Windows>,
}

/// A refusal of HOTKEYS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HotKeysError {
    /// A session goes on.
    Active,
}

impl HotKeys {
    /// Begins a session.
    ///
    /// # Errors
    /// One goes on already.
    pub fn start(
        &self,
        settings: &Settings,
        request: HotKeysRequest,
        now: Millis,
    ) -> Result<(), HotKeysError> {
        let mut session = self.session.lock();
        if is_active(&mut session, now) {
            return Err(HotKeysError::Active);
        }
        let top = request.top;
        *session = Some(Session {
            request,
            begun: now,
            ended: None,
            by_nanos: SpaceSaving::new(top),
            by_bytes: SpaceSaving::new(top),
            seen: 0,
            all: KeyCost::default(),
            selected: KeyCost::default(),
            sampled: KeyCost::default(),
        });
        settings.set_measures(Measures::KEYS, true);
        Ok(())
    }

    /// Whether a session goes on.
    pub fn is_active(&self, now: Millis) -> bool {
        is_active(&mut self.session.lock(), now)
    }

    /// Ends the session, whose counts stay; says whether one went on.
    pub fn stop(&self, settings: &Settings, now: Millis) -> bool {
        let mut session = self.session.lock();
        let was_active = is_active(&mut session, now);
        if let Some(session) = session.as_mut().filter(|_| was_active) {
            session.ended = Some(now);
        }
        settings.set_measures(Measures::KEYS, self.windows.lock().settings.top > 0);
        was_active
    }

    /// Forgets all counts of both forms.
    ///
    /// # Errors
    /// A session goes on.
    pub fn reset(&self, now: Millis) -> Result<(), HotKeysError> {
        let mut session = self.session.lock();
        if is_active(&mut session, now) {
            return Err(HotKeysError::Active);
        }
        *session = None;
        self.forget_windows();
        Ok(())
    }

    /// Forgets what was counted in windows: the keys are gone.
    pub fn forget_windows(&self) {
        let mut windows = self.windows.lock();
        *windows = Windows::new(windows.settings);
    }

    /// The session's counts, if there is one.
    pub fn report(&self, now: Millis) -> Option<HotKeysReport> {
        let mut session = self.session.lock();
        is_active(&mut session, now);
        session.as_ref().map(|session| session.report(now))
    }

    /// The last complete window, if windows are counted.
    pub fn window(&self, now: Millis) -> Option<HotKeyWindow> {
        let mut windows = self.windows.lock();
        if windows.settings.top == 0 {
            return None;
        }
        windows.turn(now);
        Some(windows.last.clone().unwrap_or_default())
    }

    /// Takes the parameters of windows. The one that counts begins anew if they change.
    pub fn configure(&self, settings: &Settings, wanted: HotKeyWindows) {
        let session = self.session.lock();
        let mut windows = self.windows.lock();
        if windows.settings != wanted {
            let last = windows.last.take().filter(|_| wanted.top > 0);
            *windows = Windows { last, ..Windows::new(wanted) };
        }
        let is_active = session.as_ref().is_some_and(|session| session.ended.is_none());
        settings.set_measures(Measures::KEYS, is_active || wanted.top > 0);
    }

    /// Counts a command of a client with these keys. One that only looks at how a key is kept is no access.
    pub(crate) fn count(&self, db: u16, keys: &[&[u8]], is_access: bool, cost: KeyCost, now: Millis) {
        let mut session = self.session.lock();
        if is_active(&mut session, now)
            && let Some(session) = session.as_mut()
        {
            session.count(keys, cost);
        }
        drop(session);
        let mut windows = self.windows.lock();
        if windows.settings.top > 0 && is_access {
            windows.count(db, keys, now);
        }
    }
}

/// Whether a session goes on; ends it if its time is up.
fn is_active(session: &mut Option<Session>, now: Millis) -> bool {
    session.as_mut().is_some_and(|session| {
        session.expire(now);
        session.ended.is_none()
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
        assert_eq!(summary.by_key.len(), LEAST_ROOM);
        let top = summary.top(2);
        assert_eq!(top, [(1, 10_000), (0, 10_000)]);
    }

    #[test]
    fn window_is_told_when_it_is_complete_and_until_the_next() {
        let mut windows = Windows::new(HotKeyWindows { top: 2, percent: 100, seconds: 2 });
        for _ in 0..10 {
            windows.count(3, &[b"a", b"b", b"a"], Millis(1000));
        }
        windows.turn(Millis(2999));
        assert_eq!(windows.last, None);
        windows.turn(Millis(3000));
        let keys = vec![(3, Arc::from(&b"a"[..]), 10), (3, Arc::from(&b"b"[..]), 5)];
        assert_eq!(windows.last, Some(HotKeyWindow { samples: 30, millis: 2000, keys }));
        windows.turn(Millis(5000));
        assert_eq!(windows.last, Some(HotKeyWindow { samples: 0, millis: 2000, keys: Vec::new() }));
        windows.count(0, &[b"a"], Millis(5001));
        // Nobody looked when the window was complete, and it is not the last one any more.
        windows.turn(Millis(9000));
        assert_eq!(windows.last, Some(HotKeyWindow::default()));
    }

    #[test]
    fn share_of_accesses_is_counted() {
        for percent in [1, 7, 50, 99, 100] {
            let mut windows = Windows::new(HotKeyWindows { top: 2, percent, seconds: 1 });
            for _ in 0..1000 {
                windows.count(0, &[b"a"], Millis(1));
            }
            assert_eq!(windows.samples, percent * 10, "{percent}");
        }
    }
}
