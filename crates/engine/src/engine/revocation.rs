//! Ending at once what a client may do: CLIENT KILL, and changes of users.
//!
//! A client runs on its own thread, many requests of one read after another. A revoker, which takes rights from it or
//! closes its connection, answers OK only when none of its requests runs any more under what held before. So each
//! client counts its turns: the count is odd while its requests run, and another behind each point at which it has
//! looked at what others want of it. It looks before the first request of a batch, and before each of them while
//! [`Gate::REVOKING`] holds: until then that is one load. The revoker sets what it wants, then the gate, and waits
//! until the count of each client that it means is even or another than it was ([`Engine::await_revoked`]).
//!
//! Invariant: the revoker waits with no slot locked, since a client may wait for that slot, and counts as a client
//! whose requests do not run, since others may wait for it. Stores and loads of both sides cannot pass each other: a
//! fence stands between those of each.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Engine;
use crate::clients::Client;
use crate::session::Session;
use crate::settings::{Gate, Settings};

/// Most commands are over by then.
const SPINS: u32 = 200;
/// How long the revoker sleeps before it looks again.
const ROUND: Duration = Duration::from_micros(50);

/// How many revokers wait.
#[derive(Debug, Default)]
pub(super) struct Revocations {
    revokers: Mutex<usize>,
    /// Revokers sleep here; it is never notified.
    sleep: Condvar,
}

impl Revocations {
    fn change(&self, settings: &Settings, change: impl FnOnce(&mut usize)) {
        let mut revokers = self.revokers.lock();
        change(&mut revokers);
        settings.set_gate(Gate::REVOKING, *revokers > 0);
    }
}

impl Engine {
    /// Looks at what others want of the session before one more of its requests runs; says whether one may.
    #[inline]
    pub(crate) fn may_go_on(&self, session: &mut Session) -> bool {
        let gone = session.client.is_killed()
            || session.users_version != self.users_version() && !self.refresh_user(session);
        session.closing |= gone;
        !gone
    }

    /// [`Engine::may_go_on`] between two requests of a batch, for a revoker that waits for that.
    #[cold]
    pub(crate) fn look_up_from_work(&self, session: &mut Session) -> bool {
        session.client.running.renew();
        self.may_go_on(session)
    }

    /// Returns when nothing of these clients runs any more that began before they were killed or their users changed.
    /// The caller, whose own requests do not run now, holds no slot. What a busy script keeps from ending is not waited
    /// for.
    pub fn await_revoked(&self, clients: &[Arc<Client>]) {
        fence(Ordering::SeqCst);
        if clients.iter().any(|client| client.running.are_on()) {
            self.wait_for_turns(clients);
        }
        clients.iter().filter(|client| client.is_killed()).for_each(|client| self.stop_telling(client));
    }

    #[cold]
    fn wait_for_turns(&self, clients: &[Arc<Client>]) {
        self.revocations.change(&self.settings, |revokers| *revokers += 1);
        fence(Ordering::SeqCst);
        for turns in clients.iter().map(|client| &client.running) {
            let (count, mut spins) = (turns.count(), 0);
            while turns.are_on() && turns.count() == count {
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                } else if self.settings.gate().contains(Gate::BUSY) {
                    break;
                } else {
                    let mut revokers = self.revocations.revokers.lock();
                    let _ = self.revocations.sleep.wait_for(&mut revokers, ROUND);
                }
            }
        }
        self.revocations.change(&self.settings, |revokers| *revokers -= 1);
    }
}
