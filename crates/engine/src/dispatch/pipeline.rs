//! The requests of one read on their way: what the dispatcher keeps from one command to the next.

use clock::Millis;
use resp::Writer;
use smallvec::SmallVec;

use super::{Ahead, Context};
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::session::{Mute, Session};

/// Commands that run one after another.
pub(super) struct Pipeline<'a> {
    /// What handlers work with.
    pub(super) context: Context<'a>,
    /// What is locked for commands to come.
    pub(super) ahead: Ahead<'a>,
    /// When the command before ended, by the worker's clock.
    pub(super) clock: u64,
}

impl<'a> Pipeline<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        worker: &'a mut Worker,
        session: &'a mut Session,
        now: Millis,
        reply: Writer<'a>,
    ) -> Self {
        let clock = (worker.nanos)();
        Self { context: Context::new(engine, worker, session, now, reply), ahead: SmallVec::new(), clock }
    }

    /// Replies with an error and counts it.
    pub(super) fn refuse(&mut self, error: &CommandError) {
        let text = error.to_string();
        self.context.worker.stats.count_error(&text);
        self.context.reply.error(&text);
    }

    /// Takes back a reply that began at `start` if the client does not want it (CLIENT REPLY).
    pub(super) fn keep_reply_from(&mut self, start: usize) {
        let Context { session, reply, .. } = &mut self.context;
        if matches!(session.mute, Mute::This | Mute::Everything) {
            reply.truncate(start);
        }
        if session.mute == Mute::This {
            session.mute = Mute::Nothing;
        }
    }
}
