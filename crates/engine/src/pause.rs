//! Pauses: for a while, writes or all commands wait (CLIENT PAUSE, a manual failover, a shutdown).
//!
//! Each purpose has its own pause and ends it by itself; commands wait as the strictest of them says.
//! The gate ([`crate::Settings::gate`]) shows the outcome, so that a command that runs while nothing is
//! paused pays nothing. A pause whose time is over ends when it is looked at ([`Pauses::end_overdue`]): every
//! command that would wait does so, and so should the shell that lets connections wait, at [`Pauses::until`].

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
}

const PURPOSES: [PausePurpose; 4] =
    [PausePurpose::Client, PausePurpose::Failover, PausePurpose::Shutdown, PausePurpose::Sleep];

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
#[derive(Debug, Default)]
pub struct Pauses {
    held: Mutex<ByPurpose>,
    /// How many hold a slot; which ones, the slots know ([`keyspace::SlotData::is_held`]).
    slots: Mutex<usize>,
}

impl Pauses {
    /// Starts a pause, or replaces the one for the same purpose; one that holds longer is not shortened.
    pub fn pause(&self, settings: &Settings, purpose: PausePurpose, mode: PauseMode, until: Millis) {
        let mut held = self.held.lock();
        let held_for = &mut held[purpose as usize];
        let until = held_for.map_or(until, |pause| pause.until.max(until));
        *held_for = Some(Pause { mode, until });
        show(settings, &held);
    }

    /// Ends the pause for this purpose.
    pub fn unpause(&self, settings: &Settings, purpose: PausePurpose) {
        let mut held = self.held.lock();
        held[purpose as usize] = None;
        show(settings, &held);
    }

    /// Ends the pauses whose time is over. Returns when the next one ends, if any holds.
    pub fn end_overdue(&self, settings: &Settings, now: Millis) -> Option<Millis> {
        let mut held = self.held.lock();
        for held_for in held.iter_mut() {
            *held_for = held_for.filter(|pause| pause.until > now);
        }
        show(settings, &held);
        held.iter().flatten().map(|pause| pause.until).min()
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
}
