//! Simulates a client whose requests run in the foreground or in the background.

use clock::Millis;
use engine::{BackgroundMode, CommandOrigin, OffloadReason, Session};

use crate::clients::CommandWords;
use crate::executor::{ExecutionStop, Executor, RequestProgress, return_from_background};

/// A client that sends pipelines and counts their replies.
pub(super) struct PipeliningClient {
    session: Session,
    progress: Option<RequestProgress>,
}

/// The numbers of requests and replies of a finished pipeline.
#[derive(Debug)]
pub(super) struct PipelineCounts {
    pub(super) request_count: usize,
    pub(super) reply_count: usize,
}

impl PipeliningClient {
    pub(super) fn new(id: u64, background: BackgroundMode) -> Self {
        let mut session = Session::new(id, CommandOrigin::Client, true);
        session.set_background(background);
        Self { session, progress: None }
    }

    /// Returns whether some requests have not been executed yet.
    pub(super) fn is_running(&self) -> bool {
        self.progress.is_some()
    }

    pub(super) fn send(&mut self, commands: &[CommandWords]) {
        let mut request = Vec::new();
        for words in commands {
            resp::encode_request(&mut request, words.iter().map(String::as_bytes));
        }
        self.progress = Some(RequestProgress::from_buffer(request));
    }

    /// Executes requests until one of them must run in the background or the time slice ends. With `loses`, a request
    /// for the background is dropped.
    pub(super) fn continue_requests(
        &mut self,
        executor: &mut Executor,
        wall_time: Millis,
        runs_alone: bool,
        loses_background_requests: bool,
    ) -> Option<PipelineCounts> {
        let mut running = self.progress.take()?;
        self.session.set_time_slice_end(if runs_alone { 0 } else { u64::MAX });
        let stop = executor.continue_execution(&mut self.session, wall_time, &mut running);
        match stop {
            ExecutionStop::Finished => {
                return_from_background(&mut self.session);
                let requests = running.batch.len() - running.unanswered_count;
                return Some(PipelineCounts {
                    request_count: requests,
                    reply_count: count_replies(&running.replies),
                });
            }
            ExecutionStop::NeedsBackground => {
                self.session.set_background(BackgroundMode::Offloaded(OffloadReason::SlowCommand));
                running.next_index += usize::from(loses_background_requests);
            }
            ExecutionStop::TimeSliceOver | ExecutionStop::Paused => return_from_background(&mut self.session),
        }
        self.progress = Some(running);
        None
    }
}

/// Returns the number of replies in the buffer.
fn count_replies(mut replies: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(Some((_, len))) = resp::parse_value(replies) {
        replies = &replies[len..];
        count += 1;
    }
    count
}
