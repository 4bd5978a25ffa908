//! Revocation: CLIENT KILL and ACL changes take effect before their OK reply.
//!
//! A client's requests run on the client's own thread, many per read. A revoker is a thread that removes permissions or
//! closes connections; it must reply OK only when no request of an affected client still runs under the old rules. Each
//! client therefore has a counter that is odd while its requests run and that changes whenever the client has checked
//! for revocations. The client checks before the first request of a batch, and before each further request while
//! [`NodeFlags::REVOKING`] is set; otherwise the check is a single load. The revoker publishes its change, sets the
//! flag, and waits until each affected client's counter is even or has changed ([`Engine::await_revoked_clients`]).
//!
//! Invariants: the revoker holds no slot lock while it waits, because a client may wait for that slot. The revoker also
//! counts as a client without running requests, because another revoker may wait for it. A fence on each side orders
//! its stores before its loads.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Engine;
use crate::clients::Client;
use crate::session::Session;
use crate::settings::{NodeFlags, Settings};

/// Number of checks in a spin loop before the revoker sleeps; most commands finish earlier.
const SPIN_LIMIT: u32 = 200;
/// Time to sleep between two checks of the running clients.
const SLEEP_INTERVAL: Duration = Duration::from_micros(50);

/// Number of waiting revokers.
#[derive(Debug, Default)]
pub(super) struct Revocations {
    revoker_count: Mutex<usize>,
    /// Condition variable on which revokers sleep with a timeout; it is never notified.
    sleep_condvar: Condvar,
}

impl Revocations {
    fn update_revoker_count(&self, settings: &Settings, change: impl FnOnce(&mut usize)) {
        let mut revokers = self.revoker_count.lock();
        change(&mut revokers);
        settings.set_node_flag(NodeFlags::REVOKING, *revokers > 0);
    }
}

impl Engine {
    /// Checks the session's permissions before its next request; returns whether the session may continue.
    #[inline]
    pub(crate) fn check_session(&self, session: &mut Session) -> bool {
        let gone = session.client().is_killed()
            || session.users_version() != self.access.users_version() && !self.access.refresh_user(session);
        if gone {
            session.close_after_reply();
        }
        !gone
    }

    /// Checks the session's permissions between two requests of a batch, because a revoker is waiting for this check.
    #[cold]
    pub(crate) fn check_revocation(&self, session: &mut Session) -> bool {
        session.client().running_requests.mark_revocation_check();
        self.check_session(session)
    }

    /// Waits until no request of these clients is running that began before the change. The caller must hold no slot
    /// lock, and none of its own requests may be marked as running. Clients that are blocked by a busy script are not
    /// waited for.
    pub fn await_revoked_clients(&self, clients: &[Arc<Client>]) {
        fence(Ordering::SeqCst);
        if clients.iter().any(|client| client.running_requests.is_running()) {
            self.wait_for_request_end(clients);
        }
        clients.iter().filter(|client| client.is_killed()).for_each(|client| self.stop_notifications(client));
    }

    #[cold]
    fn wait_for_request_end(&self, clients: &[Arc<Client>]) {
        self.access.revocations.update_revoker_count(&self.settings, |revokers| *revokers += 1);
        fence(Ordering::SeqCst);
        for turns in clients.iter().map(|client| &client.running_requests) {
            let (count, mut spins) = (turns.generation(), 0);
            while turns.is_running() && turns.generation() == count {
                spins += 1;
                if spins < SPIN_LIMIT {
                    std::hint::spin_loop();
                } else if self.settings.node_flags().contains(NodeFlags::BUSY) {
                    break;
                } else {
                    let mut revokers = self.access.revocations.revoker_count.lock();
                    let _ = self.access.revocations.sleep_condvar.wait_for(&mut revokers, SLEEP_INTERVAL);
                }
            }
        }
        self.access.revocations.update_revoker_count(&self.settings, |revokers| *revokers -= 1);
    }
}
