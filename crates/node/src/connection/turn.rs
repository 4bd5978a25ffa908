//! How long a connection keeps its worker.
//!
//! A client that sends without pause always has one more request. So a connection that is polled has a turn: when that
//! is over it lets the others of its thread go first, also those that become ready meanwhile. It is asked between
//! reads, between the steps of the shell for it, and by the engine between requests ([`Session::time_slice_end`]); so a turn
//! is longer by one request at most. The time is told in CLIENT LIST and INFO.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use engine::{Client, Engine, Session};
use process::stall_detector;

/// Thousands of short requests; fifty clients that all keep their worker so long at a time leave another client's
/// request waiting for 25 ms.
const LENGTH_NANOS: u64 = 500_000;

/// A connection's turn on its worker.
#[derive(Debug, Default)]
pub(super) struct Turn {
    is_on: bool,
    /// Since when the connection has worked without that being counted.
    since: Option<u64>,
}

impl Turn {
    /// Begins a turn unless one is on. Whether it is over.
    pub(super) fn is_over(&mut self, engine: &Engine, session: &mut Session) -> bool {
        let now = process::time::nanos();
        stall_detector::begin_task(now);
        engine.check_lease(now);
        if !std::mem::replace(&mut self.is_on, true) {
            session.set_time_slice_end(now + LENGTH_NANOS);
        }
        if let Some(since) = self.since.replace(now) {
            session.client().count_worker_nanos(now.saturating_sub(since));
        }
        now >= session.time_slice_end()
    }

    /// The shell goes on with the connection's turn, and counts for itself ([`count_work`]).
    pub(super) fn lend(&mut self, client: &Client) {
        stall_detector::end_task();
        if let Some(since) = self.since.take() {
            client.count_worker_nanos(process::time::nanos().saturating_sub(since));
        }
    }

    /// The connection sleeps, or lets others go first.
    pub(super) fn end(&mut self) {
        stall_detector::end_task();
        (self.is_on, self.since) = (false, None);
    }
}

/// Counts the time for which `work` keeps the thread busy, not that for which it waits.
pub(crate) async fn count_work<T>(client: &Client, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        let began = process::time::nanos();
        stall_detector::begin_task(began);
        let polled = work.as_mut().poll(context);
        stall_detector::end_task();
        client.count_worker_nanos(process::time::nanos().saturating_sub(began));
        polled
    })
    .await
}

/// Has the task polled again when the thread's other tasks have been, and its sockets have been asked.
pub(super) fn give_way<T>(context: &mut Context<'_>) -> Poll<T> {
    // It wakes the task only after that; waking it here would put it before the sockets.
    let polled = pin!(tokio::task::yield_now()).poll(context);
    debug_assert!(polled.is_pending(), "tokio yields once");
    Poll::Pending
}
