//! Simulates clients that block on keys.

use clock::Millis;
use engine::Session;

use crate::clients::CommandWords;
use crate::executor::Executor;

/// A client whose commands may block on keys.
pub(crate) struct WaitingClient {
    session: Session,
    command: CommandWords,
    /// A command that counts the elements for which the client waits, if there is one.
    count_command: Option<CommandWords>,
}

/// A client that is still blocked although its wait should have ended.
#[derive(Debug)]
pub(crate) struct StuckClient {
    pub(crate) command: CommandWords,
    pub(crate) reason: &'static str,
    /// Whether the client's timeout has passed.
    pub(crate) has_timed_out: bool,
}

impl WaitingClient {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, command: CommandWords::new(), count_command: None }
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

    /// Returns whether the client has sent a command that is not complete: the client is blocked, or its command must
    /// run again after a pause.
    pub(crate) fn awaits_reply(&self) -> bool {
        self.is_blocked() || self.session.waiter_to_retry().is_some()
    }

    /// Sends a command that may block. `length` is a command that counts the elements for which the client waits.
    /// Returns a trace line.
    pub(crate) fn send(
        &mut self,
        executor: &mut Executor,
        db: u16,
        wall: Millis,
        words: CommandWords,
        length: Option<CommandWords>,
    ) -> String {
        self.session.select(db);
        (self.command, self.count_command) = (words, length);
        let reply = executor.run_on_session(&mut self.session, wall, &self.command);
        self.describe_reply(&reply)
    }

    /// Unblocks the client if its reply is ready, its timeout has passed or the server has ended the wait. Returns a
    /// trace line.
    pub(crate) fn end_wait_if_due(&mut self, executor: &mut Executor, wall_time: Millis) -> Option<String> {
        if self.session.waiter_to_retry().is_some() {
            let reply = executor.retry(&mut self.session, wall_time)?;
            return Some(self.describe_reply(&reply));
        }
        let waiter = self.session.waiter()?;
        let is_over = waiter.is_served() || waiter.deadline().is_some_and(|until| until <= wall_time);
        let how =
            if is_over { waiter.deadline_reason() } else { self.session.client().take_unblock_reason()? };
        let reply = executor.end_wait(&mut self.session, wall_time, how)?;
        Some(self.describe_reply(&reply))
    }

    /// Describes the client if it is blocked although its timeout has passed or an element is available.
    pub(crate) fn check_stuck(&self, executor: &mut Executor, wall_time: Millis) -> Option<StuckClient> {
        let waiter = self.session.waiter()?;
        let words = self.command.clone();
        let is_late = waiter.deadline().is_some_and(|until| until <= wall_time);
        if is_late || waiter.is_served() {
            let reason = if is_late { "its timeout has passed" } else { "its reply is ready" };
            return Some(StuckClient { command: words, reason, has_timed_out: true });
        }
        let reply = executor.run_command(self.session.db(), wall_time, self.count_command.as_ref()?);
        let is_there = reply.starts_with(b":") && reply != b":0\r\n";
        is_there.then_some(StuckClient {
            command: words,
            reason: "what it waits for is there",
            has_timed_out: false,
        })
    }

    fn describe_reply(&self, reply: &[u8]) -> String {
        let (db, line) = (self.session.db(), self.command.join(" "));
        let text = String::from_utf8_lossy(reply);
        if reply.is_empty() { format!("{db}> {line} waits") } else { format!("{db}> {line}: {text}") }
    }
}

#[cfg(test)]
mod tests {
    use engine::{PauseMode, PausePurpose, UnblockReason};
    use slot_routing::{Slot, SlotSet};

    use super::*;

    /// Regression test, found with seed 441 and seven nodes: a manual failover paused writes while a command had to run
    /// again. The client sent other commands in between, and the first of them that blocked got the old deadline.
    #[test]
    fn command_that_runs_again_is_not_complete_before_the_end_of_a_pause() {
        let slots = SlotSet::from_iter([Slot::of_key(b"l")]);
        let mut executor = Executor::new(&slots, 1, None, Box::new(engine::NoLog));
        let mut client = WaitingClient::new(Session::new(1, engine::CommandOrigin::Client, true));
        let command = ["BLPOP", "l", "3"].map(str::to_owned).to_vec();
        client.send(&mut executor, 0, Millis(0), command, None);
        assert!(client.is_blocked());
        let engine = &executor.engine;
        let purpose = PausePurpose::Failover;
        engine.scheduling.pauses.pause(&engine.settings, purpose, PauseMode::Writes, Millis(i64::MAX));
        client.session.client().unblock(UnblockReason::Retry);
        assert_eq!(client.end_wait_if_due(&mut executor, Millis(1)), None);
        assert!(!client.is_blocked() && client.awaits_reply());
        assert_eq!(client.end_wait_if_due(&mut executor, Millis(2)), None);
        executor.engine.scheduling.pauses.unpause(&executor.engine.settings, purpose);
        assert!(client.end_wait_if_due(&mut executor, Millis(3)).is_some());
        assert!(client.is_blocked());
    }
}
