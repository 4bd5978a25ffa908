//! Pauses of commands: CLIENT PAUSE, manual failover, shutdown, and after a process suspension.
//!
//! Each purpose has its own pause and ends it independently; the strictest active pause applies. The node flags
//! ([`crate::Settings::node_flags`]) reflect this pause, so commands pay nothing while there is none. An expired pause
//! ends when a thread checks it ([`Pauses::end_expired`]): every command that would wait does so, and a server with
//! waiting connections should do so at the time that [`Pauses::strictest_pause`] returns.
//!
//! The end of each pause, including write pauses of single slots, is counted ([`Pauses::ended_count`]) and reported
//! through a callback after the flags are updated. A caller that reads the count, then the flags, and then waits until
//! the count changes therefore misses no end.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Millis;
use parking_lot::Mutex;

use crate::settings::{NodeFlags, Settings};

/// The purpose of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PausePurpose {
    /// The pause set by CLIENT PAUSE.
    Client,
    /// Manual failover: writes wait until the replica has caught up.
    Failover,
    /// Shutdown: writes acknowledged during the shutdown would be lost.
    Shutdown,
    /// The pause of DEBUG SLEEP.
    Sleep,
    /// The process was suspended and does not know yet whether it was failed over.
    ProcessSuspended,
}

const ALL_PURPOSES: [PausePurpose; 5] = [
    PausePurpose::Client,
    PausePurpose::Failover,
    PausePurpose::Shutdown,
    PausePurpose::Sleep,
    PausePurpose::ProcessSuspended,
];

/// The active pause for each purpose, indexed by [`PausePurpose`].
type PausesByPurpose = [Option<Pause>; ALL_PURPOSES.len()];

/// Which commands wait during a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PauseMode {
    /// Only write commands wait.
    Writes,
    /// All commands wait.
    All,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    mode: PauseMode,
    until: Millis,
}

/// The active pauses.
#[derive(Default)]
pub struct Pauses {
    active_pauses: Mutex<PausesByPurpose>,
    /// Number of slots with paused writes; the slots know which ones ([`keyspace::SlotData::has_paused_writes`]).
    paused_slot_count: Mutex<usize>,
    ended_count: AtomicU64,
    /// Called each time a pause ends, after the flags were updated.
    end_callback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pauses")
            .field("held", &self.active_pauses)
            .field("slots", &self.paused_slot_count)
            .finish_non_exhaustive()
    }
}

impl Pauses {
    /// Starts or replaces the pause for a purpose; a longer existing pause is not shortened.
    pub fn pause(&self, settings: &Settings, purpose: PausePurpose, mode: PauseMode, until: Millis) {
        let mut held = self.active_pauses.lock();
        let held_for = &mut held[purpose as usize];
        let weaker = held_for.is_some_and(|pause| pause.mode > mode);
        let until = held_for.map_or(until, |pause| pause.until.max(until));
        *held_for = Some(Pause { mode, until });
        update_node_flags(settings, &held);
        drop(held);
        if weaker {
            self.report_end();
        }
    }

    /// Ends the pause for this purpose; pauses for other purposes stay in force.
    pub fn unpause(&self, settings: &Settings, purpose: PausePurpose) {
        let mut held = self.active_pauses.lock();
        let ended = held[purpose as usize].take().is_some();
        update_node_flags(settings, &held);
        drop(held);
        if ended {
            self.report_end();
        }
    }

    /// Ends expired pauses. Returns when the next active one ends.
    pub fn end_expired(&self, settings: &Settings, now: Millis) -> Option<Millis> {
        let mut held = self.active_pauses.lock();
        let before = held.iter().flatten().count();
        for held_for in held.iter_mut() {
            *held_for = held_for.filter(|pause| pause.until > now);
        }
        update_node_flags(settings, &held);
        let ended = held.iter().flatten().count() < before;
        let next = held.iter().flatten().map(|pause| pause.until).min();
        drop(held);
        if ended {
            self.report_end();
        }
        next
    }

    /// Returns the number of pauses that have ended. A waiting command should check again once this number has changed.
    #[must_use]
    pub fn ended_count(&self) -> u64 {
        self.ended_count.load(Ordering::Acquire)
    }

    /// Registers a callback for each end of a pause.
    ///
    /// # Panics
    /// If called twice.
    pub fn set_end_callback(&self, callback: impl Fn() + Send + Sync + 'static) {
        assert!(self.end_callback.set(Box::new(callback)).is_ok(), "one shell lets commands wait");
    }

    fn report_end(&self) {
        self.ended_count.fetch_add(1, Ordering::Release);
        if let Some(ring) = self.end_callback.get() {
            ring();
        }
    }

    /// Increments the number of slots with paused writes. From now on, each thread that locks a slot for a write checks
    /// whether the slot is paused.
    pub(crate) fn count_paused_slot(&self, settings: &Settings) {
        let mut slots = self.paused_slot_count.lock();
        *slots += 1;
        settings.set_node_flag(NodeFlags::SLOT_WRITES_PAUSED, true);
    }

    /// Decrements the number of slots with paused writes.
    pub(crate) fn uncount_paused_slot(&self, settings: &Settings) {
        let mut slots = self.paused_slot_count.lock();
        *slots -= 1;
        settings.set_node_flag(NodeFlags::SLOT_WRITES_PAUSED, *slots > 0);
        drop(slots);
        self.report_end();
    }

    /// Returns whether writes are paused on any slot.
    pub fn has_paused_slots(&self) -> bool {
        *self.paused_slot_count.lock() > 0
    }

    /// Returns the purpose of the strictest active pause.
    #[must_use]
    pub fn strictest_purpose(&self) -> Option<PausePurpose> {
        let held = self.active_pauses.lock();
        let modes =
            ALL_PURPOSES.into_iter().filter_map(|purpose| Some((held[purpose as usize]?.mode, purpose)));
        modes.max_by_key(|(mode, _)| *mode).map(|(_, purpose)| purpose)
    }

    /// Returns whether a pause for this purpose is active at `now`.
    #[must_use]
    pub fn is_active(&self, purpose: PausePurpose, now: Millis) -> bool {
        self.active_pauses.lock()[purpose as usize].is_some_and(|pause| pause.until > now)
    }

    /// Returns the strictest mode and the latest end of the active pauses.
    #[must_use]
    pub fn strictest_pause(&self) -> Option<(PauseMode, Millis)> {
        let held = self.active_pauses.lock();
        let mode = held.iter().flatten().map(|pause| pause.mode).max()?;
        let until = held.iter().flatten().map(|pause| pause.until).max()?;
        Some((mode, until))
    }
}

fn update_node_flags(settings: &Settings, pauses: &PausesByPurpose) {
    let holds = |mode| pauses.iter().flatten().any(|pause| pause.mode == mode);
    settings.set_node_flag(NodeFlags::WRITES_PAUSED, holds(PauseMode::Writes));
    settings.set_node_flag(NodeFlags::ALL_PAUSED, holds(PauseMode::All));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn strictest_pause_applies_and_pauses_end_independently() {
        let (settings, pauses) = (Settings::default(), Pauses::default());
        pauses.pause(&settings, PausePurpose::Failover, PauseMode::Writes, Millis(50));
        pauses.pause(&settings, PausePurpose::Client, PauseMode::All, Millis(30));
        assert_eq!(settings.node_flags(), NodeFlags::WRITES_PAUSED | NodeFlags::ALL_PAUSED);
        assert_eq!(pauses.strictest_pause(), Some((PauseMode::All, Millis(50))));
        assert_eq!(pauses.end_expired(&settings, Millis(30)), Some(Millis(50)));
        assert_eq!(settings.node_flags(), NodeFlags::WRITES_PAUSED);
        pauses.unpause(&settings, PausePurpose::Client);
        assert_eq!(settings.node_flags(), NodeFlags::WRITES_PAUSED);
        pauses.pause(&settings, PausePurpose::Failover, PauseMode::Writes, Millis(40));
        assert_eq!(pauses.end_expired(&settings, Millis(49)), Some(Millis(50)), "not shortened");
        assert_eq!(pauses.end_expired(&settings, Millis(50)), None);
        assert!(settings.node_flags().is_empty());
    }

    /// Regression: a client continued to wait after the pause had ended, until the next clock check.
    #[test]
    fn pause_end_is_reported_after_flags_are_cleared() {
        let (settings, pauses) = (Arc::new(Settings::default()), Arc::new(Pauses::default()));
        let told = Arc::<Mutex<Vec<NodeFlags>>>::default();
        let (gates, seen) = (settings.clone(), told.clone());
        pauses.set_end_callback(move || seen.lock().push(gates.node_flags()));
        let pause = |purpose, mode, until| pauses.pause(&settings, purpose, mode, Millis(until));
        pause(PausePurpose::Client, PauseMode::All, 30);
        pause(PausePurpose::Failover, PauseMode::Writes, 50);
        pause(PausePurpose::Failover, PauseMode::All, 50);
        pauses.count_paused_slot(&settings);
        pauses.end_expired(&settings, Millis(29));
        assert_eq!((told.lock().len(), pauses.ended_count()), (0, 0), "nothing has ended");
        let both = NodeFlags::SLOT_WRITES_PAUSED | NodeFlags::ALL_PAUSED;
        pauses.unpause(&settings, PausePurpose::Client);
        pauses.unpause(&settings, PausePurpose::Client);
        pause(PausePurpose::Failover, PauseMode::Writes, 40);
        pauses.end_expired(&settings, Millis(50));
        pauses.uncount_paused_slot(&settings);
        let expected = [
            both,
            NodeFlags::SLOT_WRITES_PAUSED | NodeFlags::WRITES_PAUSED,
            NodeFlags::SLOT_WRITES_PAUSED,
            NodeFlags::empty(),
        ];
        assert_eq!(*told.lock(), expected);
        assert_eq!(pauses.ended_count(), 4);
    }
}
