//! Pauses: for a while, writes or all commands wait (CLIENT PAUSE, a manual failover, a shutdown, a standstill).
//!
//! Each purpose has its own pause and ends it by itself; commands wait as the strictest of them says.
//! The gate ([`crate::Settings::gate`]) shows the outcome, so that a command that runs while nothing is
//! paused pays nothing. A pause whose time is over ends when it is looked at ([`Pauses::end_overdue`]): every
//! command that would wait does so, and so should the shell that lets connections wait, at [`Pauses::until`].
//!
//! Every end of a pause or of a hold is counted ([`Pauses::ends`]) and told to the shell, after the gate shows it. So
//! whoever reads the count, then the gate, and waits for another count misses no end.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Millis;
use parking_lot::Mutex;

use crate::settings::{Gate, Settings};

/// The purpose of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PausePurpose {
    /// CLIENT PAUSE
    Client,
    /// A manual failover: writes wait until the replica has them all.
    Failover,
    /// The server stops: what it acknowledges from now on would be lost.
    Shutdown,
    /// The server stands still (DEBUG SLEEP).
    Sleep,
    /// The server stood still, and has not heard yet whether it was replaced.
    Standstill,
}

const PURPOSES: [PausePurpose; 5] = [
    PausePurpose::Client,
    PausePurpose::Failover,
    PausePurpose::Shutdown,
    PausePurpose::Sleep,
    PausePurpose::Standstill,
];

/// By [`PausePurpose`].
type ByPurpose = [Option<Pause>; PURPOSES.len()];

/// The commands that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PauseMode {
    /// Writes.
    Writes,
    /// Everything.
    All,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    mode: PauseMode,
    until: Millis,
}

/// The pauses that hold.
#[derive(Default)]
pub struct Pauses {
    held: Mutex<ByPurpose>,
    /// How many hold a slot; which ones, the slots know ([`keyspace::SlotData::is_held`]).
    slots: Mutex<usize>,
    ends: AtomicU64,
    /// Called at each end.
    ring: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pauses").field("held", &self.held).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl Pauses {
    /// Starts a pause, or replaces the one for the same purpose; one that holds longer is not shortened.
    pub fn pause(&self, settings: &Settings, purpose: PausePurpose, mode: PauseMode, until: Millis) {
        let mut held = self.held.lock();
        let held_for = &mut held[purpose as usize];
        let weaker = held_for.is_some_and(|pause| pause.mode > mode);
        let until = held_for.map_or(until, |pause| pause.until.max(until));
        *held_for = Some(Pause { mode, until });
        show(settings, &held);
        drop(held);
        if weaker {
            self.tell_end();
        }
    }

    /// Ends the pause for this purpose.
    pub fn unpause(&self, settings: &Settings, purpose: PausePurpose) {
        let mut held = self.held.lock();
        let ended = held[purpose as usize].take().is_some();
        show(settings, &held);
        drop(held);
        if ended {
            self.tell_end();
        }
    }

    /// Ends the pauses whose time is over. Returns when the next one ends, if any holds.
    pub fn end_overdue(&self, settings: &Settings, now: Millis) -> Option<Millis> {
        let mut held = self.held.lock();
        let before = held.iter().flatten().count();
        for held_for in held.iter_mut() {
            *held_for = held_for.filter(|pause| pause.until > now);
        }
        show(settings, &held);
        let ended = held.iter().flatten().count() < before;
        let next = held.iter().flatten().map(|pause| pause.until).min();
        drop(held);
        if ended {
            self.tell_end();
        }
        next
    }

    /// How many pauses and holds have ended. A command that was kept from running may run once this has changed since
    /// before it was asked about.
    #[must_use]
    pub fn ends(&self) -> u64 {
        self.ends.load(Ordering::Acquire)
    }

    /// Has `ring` called, from then on, at each end. To be called once.
    ///
    /// # Panics
    /// If it was called before.
    pub fn call_at_end(&self, ring: impl Fn() + Send + Sync + 'static) {
        assert!(self.ring.set(Box::new(ring)).is_ok(), "one shell lets commands wait");
    }

    fn tell_end(&self) {
        self.ends.fetch_add(1, Ordering::Release);
        if let Some(ring) = self.ring.get() {
            ring();
        }
    }

    /// One more slot is going to be held: from now on each thread that locks a slot for a write asks it.
    pub(crate) fn hold_slot(&self, settings: &Settings) {
        let mut slots = self.slots.lock();
        *slots += 1;
        settings.set_gate(Gate::SLOTS_HELD, true);
    }

    /// One fewer is held.
    pub(crate) fn free_slot(&self, settings: &Settings) {
        let mut slots = self.slots.lock();
        *slots -= 1;
        settings.set_gate(Gate::SLOTS_HELD, *slots > 0);
        drop(slots);
        self.tell_end();
    }

    /// Whether any slot is held.
    pub fn holds_slots(&self) -> bool {
        *self.slots.lock() > 0
    }

    /// The purpose of the pause; of several, the one that holds back most.
    #[must_use]
    pub fn purpose(&self) -> Option<PausePurpose> {
        let held = self.held.lock();
        let modes = PURPOSES.into_iter().filter_map(|purpose| Some((held[purpose as usize]?.mode, purpose)));
        modes.max_by_key(|(mode, _)| *mode).map(|(_, purpose)| purpose)
    }

    /// Whether a pause for this purpose holds at `now`.
    #[must_use]
    pub fn holds(&self, purpose: PausePurpose, now: Millis) -> bool {
        self.held.lock()[purpose as usize].is_some_and(|pause| pause.until > now)
    }

    /// When the last of the pauses ends, if any holds, and what they hold back.
    #[must_use]
    pub fn until(&self) -> Option<(PauseMode, Millis)> {
        let held = self.held.lock();
        let mode = held.iter().flatten().map(|pause| pause.mode).max()?;
        let until = held.iter().flatten().map(|pause| pause.until).max()?;
        Some((mode, until))
    }
}

fn show(settings: &Settings, held: &ByPurpose) {
    let holds = |mode| held.iter().flatten().any(|pause| pause.mode == mode);
    settings.set_gate(Gate::WRITES_PAUSED, holds(PauseMode::Writes));
    settings.set_gate(Gate::ALL_PAUSED, holds(PauseMode::All));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_strictest_pause_counts_and_each_ends_by_itself() {
        let (settings, pauses) = (Settings::default(), Pauses::default());
        pauses.pause(&settings, PausePurpose::Failover, PauseMode::Writes, Millis(50));
        pauses.pause(&settings, PausePurpose::Client, PauseMode::All, Millis(30));
        assert_eq!(settings.gate(), Gate::WRITES_PAUSED | Gate::ALL_PAUSED);
        assert_eq!(pauses.until(), Some((PauseMode::All, Millis(50))));
        assert_eq!(pauses.end_overdue(&settings, Millis(30)), Some(Millis(50)));
        assert_eq!(settings.gate(), Gate::WRITES_PAUSED);
        pauses.unpause(&settings, PausePurpose::Client);
        assert_eq!(settings.gate(), Gate::WRITES_PAUSED);
        pauses.pause(&settings, PausePurpose::Failover, PauseMode::Writes, Millis(40));
        assert_eq!(pauses.end_overdue(&settings, Millis(49)), Some(Millis(50)), "not shortened");
        assert_eq!(pauses.end_overdue(&settings, Millis(50)), None);
        assert!(settings.gate().is_empty());
    }

    /// A client waited for a pause that an operator had ended: it was told with the next look at the clock.
    #[test]
    fn each_end_is_counted_and_told_after_the_gate_shows_it() {
        let (settings, pauses) = (Arc::new(Settings::default()), Arc::new(Pauses::default()));
        let told = Arc::<Mutex<Vec<Gate>>>::default();
        let (gates, seen) = (settings.clone(), told.clone());
        pauses.call_at_end(move || seen.lock().push(gates.gate()));
        let pause = |purpose, mode, until| pauses.pause(&settings, purpose, mode, Millis(until));
        pause(PausePurpose::Client, PauseMode::All, 30);
        pause(PausePurpose::Failover, PauseMode::Writes, 50);
        pause(PausePurpose::Failover, PauseMode::All, 50);
        pauses.hold_slot(&settings);
        pauses.end_overdue(&settings, Millis(29));
        assert_eq!((told.lock().len(), pauses.ends()), (0, 0), "nothing has ended");
        let both = Gate::SLOTS_HELD | Gate::ALL_PAUSED;
        pauses.unpause(&settings, PausePurpose::Client);
        pauses.unpause(&settings, PausePurpose::Client);
        pause(PausePurpose::Failover, PauseMode::Writes, 40);
        pauses.end_overdue(&settings, Millis(50));
        pauses.free_slot(&settings);
        let expected = [both, Gate::SLOTS_HELD | Gate::WRITES_PAUSED, Gate::SLOTS_HELD, Gate::empty()];
        assert_eq!(*told.lock(), expected);
        assert_eq!(pauses.ends(), 4);
    }
}
