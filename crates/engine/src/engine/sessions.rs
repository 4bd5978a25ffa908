//! Session lifecycle: DISCARD, RESET and disconnecting.

use super::Engine;
use crate::session::Session;

impl Engine {
    /// Discards the transaction, if any, and unwatches all keys.
    pub fn discard_transaction(&self, session: &mut Session) {
        session.take_transaction();
        session.leave_transaction();
        self.notifications.unwatch(session);
    }

    /// Removes a closed connection's session with its watches, waits and subscriptions.
    pub fn disconnect(&self, session: &mut Session) {
        self.discard_transaction(session);
        self.scheduling.cancel_wait(session);
        self.stop_notifications(session.client());
        self.clients.disconnect(session.id());
    }

    /// Resets the session to its initial state (RESET). Queued messages are appended to `out`.
    pub fn reset_session(&self, session: &mut Session, out: &mut Vec<u8>) {
        self.discard_transaction(session);
        self.stop_notifications(session.client());
        session.take_messages(out);
        self.access.log_out(session);
        session.reset_settings();
    }
}
