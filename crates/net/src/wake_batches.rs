//! Wakes large numbers of tasks in batches, so that other tasks are not delayed.
//!
//! Publishing to a channel with ten thousand subscribers wakes as many tasks. A thread runs tasks in wake order, so a
//! client that sends a command at that moment would wait for all of them. Therefore only [`AT_ONCE`] tasks are woken
//! per batch, and the others are queued. A driver task starts the next batch; it is woken after the tasks of the
//! current batch. A task woken by a socket thus waits for two batches at most.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Tasks woken per batch. One batch takes a few hundred microseconds if each task writes to its socket.
const AT_ONCE: usize = 128;
/// A drained queue shrinks to this capacity.
const KEPT: usize = 1024;

/// The wake queue of one thread.
#[derive(Debug, Default)]
pub struct WakeBatches(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    /// Number of tasks woken in the current batch.
    woken: usize,
    waiting: VecDeque<Waker>,
    /// Whether a driver task runs. Without one, all tasks are woken at once.
    is_given: bool,
    /// The waker of the driver task while it sleeps.
    giver: Option<Waker>,
}

thread_local! {
    static HERE: RefCell<Arc<WakeBatches>> = RefCell::default();
}

impl WakeBatches {
    /// The wake queue of the calling thread.
    pub fn here() -> Arc<Self> {
        HERE.with_borrow(Arc::clone)
    }

    /// Wakes a task now, or queues it for a later batch.
    pub fn wake(&self, waker: &Waker) {
        let mut line = self.0.lock();
        if line.is_given && line.woken >= AT_ONCE {
            line.waiting.push_back(waker.clone());
            return;
        }
        line.woken += 1;
        let giver = line.giver.take();
        drop(line);
        waker.wake_by_ref();
        if let Some(giver) = giver {
            giver.wake();
        }
    }

    /// Runs the driver task, which never completes.
    pub async fn give(self: Arc<Self>) {
        self.0.lock().is_given = true;
        poll_fn(|context| self.poll_give(context)).await;
    }

    fn poll_give(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut line = self.0.lock();
        line.woken = line.waiting.len().min(AT_ONCE);
        if line.woken == 0 {
            line.waiting.shrink_to(KEPT);
            line.giver = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = line.woken;
        let next: Vec<Waker> = line.waiting.drain(..count).collect();
        drop(line);
        next.into_iter().for_each(Waker::wake);
        // Reschedules this task behind the tasks of this batch.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn who_comes_while_ten_thousand_are_woken_has_two_turns_ahead_and_none_is_forgotten() {
        const MANY: usize = 10_000;
        let turns = WakeBatches::here();
        tokio::spawn(turns.clone().give());
        let asleep: Arc<Mutex<Vec<Waker>>> = Arc::default();
        let served = Arc::new(AtomicUsize::new(0));
        let sleepers: Vec<_> = (0..MANY)
            .map(|_| {
                let (asleep, served, mut slept) = (asleep.clone(), served.clone(), false);
                tokio::spawn(poll_fn(move |context| {
                    if !std::mem::replace(&mut slept, true) {
                        asleep.lock().push(context.waker().clone());
                        return Poll::Pending;
                    }
                    served.fetch_add(1, Ordering::Relaxed);
                    Poll::Ready(())
                }))
            })
            .collect();
        while asleep.lock().len() < MANY {
            tokio::task::yield_now().await;
        }
        asleep.lock().iter().for_each(|waker| turns.wake(waker));
        for _ in 0..3 {
            let before = served.load(Ordering::Relaxed);
            tokio::spawn(async {}).await.unwrap();
            assert!(served.load(Ordering::Relaxed) - before <= 3 * AT_ONCE);
        }
        assert!(served.load(Ordering::Relaxed) < MANY);
        for sleeper in sleepers {
            sleeper.await.unwrap();
        }
        assert_eq!(turns.0.lock().waiting.len(), 0);
    }
}
