//! A client whose requests run, here or in the background.

use clock::Millis;
use engine::{Background, Origin, Session};

use crate::clients::Words;
use crate::executor::{Executor, Running, Stop, leave_background};

/// A client that sends several requests at once.
pub(super) struct RunningClient {
    session: Session,
    running: Option<Running>,
}

/// The requests that a client has sent at once have run, so many, with so many replies.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) requests: usize,
    pub(super) replies: usize,
}

impl RunningClient {
    pub(super) fn new(id: u64, background: Background) -> Self {
        let mut session = Session::new(id, Origin::Client, true);
        session.background = background;
        Self { session, running: None }
    }

    /// Whether some of what it sent has not run.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn send(&mut self, batch: &[Words]) {
        let mut request = Vec::new();
        for words in batch {
            resp::encode_request(&mut request, words.iter().map(String::as_bytes));
        }
        self.running = Some(Running::of(request));
    }

    /// Its requests run until one is for another thread, or in the background, where one may do so for itself. `loses`:
    /// one that goes there is not run.
    pub(super) fn go_on(
        &mut self,
        data: &mut Executor,
        wall: Millis,
        (alone, loses): (bool, bool),
    ) -> Option<Answered> {
        let mut running = self.running.take()?;
        self.session.turn_ends = if alone { 0 } else { u64::MAX };
        let stop = data.go_on(&mut self.session, wall, &mut running);
        match stop {
            Stop::Ended => {
                leave_background(&mut self.session);
                let requests = running.batch.len() - running.unanswered;
                return Some(Answered { requests, replies: count(&running.replies) });
            }
            Stop::Long => {
                self.session.background = Background::Here;
                running.next += usize::from(loses);
            }
            Stop::TurnOver | Stop::Paused => leave_background(&mut self.session),
        }
        self.running = Some(running);
        None
    }
}

/// How many replies these are.
fn count(mut replies: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(Some((_, len))) = resp::parse_value(replies) {
        replies = &replies[len..];
        count += 1;
    }
    count
}
