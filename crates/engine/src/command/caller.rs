//! The callers that commands run for.

use crate::session::{Origin, Session};

/// The caller that a command runs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A client.
    Client,
    /// EXEC, which was asked about as a whole, as a client's command: its queue runs or does not.
    Exec,
    /// A script, on its way: a call that is refused is an error to it.
    Script,
    /// A client that waits, for which the command is run again.
    Waiter,
    /// The stream of this node's master, or a file: what was done there is done here.
    Master,
    /// The node from which slots are imported.
    Source,
}

impl Caller {
    /// The sender of a session's commands, as a caller.
    pub(crate) fn of(session: &Session) -> Self {
        match session.origin {
            Origin::Client => Self::Client,
            Origin::Master => Self::Master,
            Origin::Source => Self::Source,
        }
    }

    /// The same, within EXEC or a script: what a master does is done, by whatever way.
    pub(crate) fn within(self, session: &Session) -> Self {
        match session.origin {
            Origin::Client => self,
            Origin::Master => Self::Master,
            Origin::Source => Self::Source,
        }
    }
}
