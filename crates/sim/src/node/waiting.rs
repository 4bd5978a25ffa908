//! Clients that wait for keys.

use clock::Millis;
use engine::{Background, Origin, Session};

use crate::Chance;
use crate::clients::{self, DATABASES, Words};
use crate::executor::Executor;

/// A client of which each command may wait.
pub(super) struct WaitingClient {
    session: Session,
    words: Words,
    /// Says how much there is of what it waits for.
    length: Option<Words>,
}

/// A client that waits, and should not.
#[derive(Debug)]
pub(super) struct Stuck {
    pub(super) words: Words,
    pub(super) why: &'static str,
}

impl WaitingClient {
    pub(super) fn new(id: u64, background: Background) -> Self {
        let mut session = Session::new(id, Origin::Client, true);
        session.background = background;
        Self { session, words: Words::new(), length: None }
    }

    /// Sends a command, if it does not wait; returns what is to be noted.
    pub(super) fn send(&mut self, data: &mut Executor, wall: Millis, chance: &mut Chance) -> Option<String> {
        if self.session.waiter().is_some() {
            return None;
        }
        self.session.db = chance.below(DATABASES.into()) as u16;
        (self.words, self.length) = clients::wait(chance);
        let reply = data.call(&mut self.session, wall, &self.words);
        Some(self.told(&reply))
    }

    /// Ends its wait, if its reply is there or its time is over; returns what is to be noted.
    pub(super) fn end(&mut self, data: &mut Executor, wall: Millis) -> Option<String> {
        let waiter = self.session.waiter()?;
        if !waiter.is_served() && waiter.until().is_none_or(|until| wall < until) {
            return None;
        }
        let reply = data.end_wait(&mut self.session, wall, waiter.at_end());
        Some(self.told(&reply))
    }

    /// Whether it waits though its time is over, or though there is what it waits for.
    pub(super) fn stuck(&self, data: &mut Executor, wall: Millis) -> Option<Stuck> {
        let waiter = self.session.waiter()?;
        let words = self.words.clone();
        if waiter.is_served() || waiter.until().is_some_and(|until| until <= wall) {
            return Some(Stuck { words, why: "its time is over" });
        }
        let reply = data.ask(self.session.db, wall, self.length.as_ref()?);
        (reply != b":0\r\n").then_some(Stuck { words, why: "what it waits for is there" })
    }

    fn told(&self, reply: &[u8]) -> String {
        let (db, line) = (self.session.db, self.words.join(" "));
        let text = String::from_utf8_lossy(reply);
        if reply.is_empty() { format!("{db}> {line} waits") } else { format!("{db}> {line}: {text}") }
    }
}
