//! Simulates clients that block on keys.

use clock::Millis;
use engine::Session;

use crate::clients::Words;
use crate::executor::Executor;

/// A client whose commands may block on keys.
pub(crate) struct WaitingClient {
    session: Session,
    words: Words,
    /// A command that counts the elements for which the client waits, if there is one.
    length: Option<Words>,
}

/// A client that is still blocked although its wait should have ended.
#[derive(Debug)]
pub(crate) struct StuckClient {
    pub(crate) words: Words,
    pub(crate) reason: &'static str,
    /// Whether the client's timeout has passed.
    pub(crate) is_late: bool,
}

impl WaitingClient {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, words: Words::new(), length: None }
    }

    pub(crate) fn id(&self) -> u64 {
        self.session.id()
    }

    /// Returns whether the server has closed the client's connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.session.is_closing()
    }

    /// Returns whether the client is blocked.
    pub(crate) fn is_blocked(&self) -> bool {
        self.session.waiter().is_some()
    }

    /// Sends a command that may block. `length` is a command that counts the elements for which the client waits.
    /// Returns a trace line.
    pub(crate) fn send(
        &mut self,
        data: &mut Executor,
        (db, wall): (u16, Millis),
        (words, length): (Words, Option<Words>),
    ) -> String {
        self.session.select(db);
        (self.words, self.length) = (words, length);
        let reply = data.call(&mut self.session, wall, &self.words);
        self.describe_reply(&reply)
    }

    /// Unblocks the client if its reply is ready, its timeout has passed or the server has ended the wait. Returns a
    /// trace line.
    pub(crate) fn end(&mut self, data: &mut Executor, wall: Millis) -> Option<String> {
        let waiter = self.session.waiter()?;
        let is_over = waiter.is_served() || waiter.deadline().is_some_and(|until| until <= wall);
        let how = if is_over { waiter.deadline_reason() } else { self.session.client().take_unblock()? };
        let reply = data.end_wait(&mut self.session, wall, how);
        Some(self.describe_reply(&reply))
    }

    /// Describes the client if it is blocked although its timeout has passed or an element is available.
    pub(crate) fn check_stuck(&self, data: &mut Executor, wall: Millis) -> Option<StuckClient> {
        let waiter = self.session.waiter()?;
        let words = self.words.clone();
        if waiter.is_served() || waiter.deadline().is_some_and(|until| until <= wall) {
            return Some(StuckClient { words, reason: "its time is over", is_late: true });
        }
        let reply = data.run_command(self.session.db(), wall, self.length.as_ref()?);
        let is_there = reply.starts_with(b":") && reply != b":0\r\n";
        is_there.then_some(StuckClient { words, reason: "what it waits for is there", is_late: false })
    }

    fn describe_reply(&self, reply: &[u8]) -> String {
        let (db, line) = (self.session.db(), self.words.join(" "));
        let text = String::from_utf8_lossy(reply);
        if reply.is_empty() { format!("{db}> {line} waits") } else { format!("{db}> {line}: {text}") }
    }
}
