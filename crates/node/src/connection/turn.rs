//! The time slice during which a connection may use its worker without interruption.
//!
//! A client that sends continuously always has another request ready. When its time slice is over, its task yields, so
//! that the thread's other connections run first, including those that become ready meanwhile. The end of the slice is
//! checked between reads, between steps of a node command, and by the engine between requests
//! ([`Session::time_slice_end`]), so a slice is exceeded by at most one request. The used time is shown in CLIENT LIST
//! and INFO.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use engine::{Client, Engine, Session};
use process::stall_detector;

/// The length of a time slice, enough for thousands of short requests. If fifty clients use their slices fully, another
/// client's request waits for 25 ms.
const TIME_SLICE_NANOS: u64 = 500_000;

/// A connection's time slice on its worker.
#[derive(Debug, Default)]
pub(super) struct TimeSlice {
    is_running: bool,
    /// When the work that is not counted yet began, in nanoseconds; `None` if all work is counted.
    uncounted_since: Option<u64>,
}

impl TimeSlice {
    /// Begins a time slice unless one is running, and counts the work done. Returns whether the slice is over.
    pub(super) fn is_over(&mut self, engine: &Engine, session: &mut Session) -> bool {
        let now = process::time::nanos();
        stall_detector::begin_task(now);
        engine.check_lease(now);
        if !std::mem::replace(&mut self.is_running, true) {
            session.set_time_slice_end(now + TIME_SLICE_NANOS);
        }
        if let Some(since) = self.uncounted_since.replace(now) {
            session.client().count_worker_nanos(now.saturating_sub(since));
        }
        now >= session.time_slice_end()
    }

    /// Counts the work so far, before a node command runs and counts its own work ([`count_work`]).
    pub(super) fn suspend_counting(&mut self, client: &Client) {
        stall_detector::end_task();
        if let Some(since) = self.uncounted_since.take() {
            client.count_worker_nanos(process::time::nanos().saturating_sub(since));
        }
    }

    /// Ends the time slice, because the connection waits or yields to others.
    pub(super) fn end(&mut self) {
        stall_detector::end_task();
        (self.is_running, self.uncounted_since) = (false, None);
    }
}

/// Counts the time during which `work` keeps the thread busy, without the time during which it waits.
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

/// Yields: the task is polled again after the thread's other tasks have run and its sockets have been polled.
pub(super) fn yield_to_other_tasks<T>(context: &mut Context<'_>) -> Poll<T> {
    // `yield_now` wakes the task only after the sockets have been polled. Waking the task here would run it before they
    // are polled.
    let polled = pin!(tokio::task::yield_now()).poll(context);
    debug_assert!(polled.is_pending(), "tokio yields once");
    Poll::Pending
}
