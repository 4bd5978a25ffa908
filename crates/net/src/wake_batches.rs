//! Wake batching: tasks that other clients wake are woken some at a time.
//!
//! A message to a channel of ten thousand subscribers wakes as many tasks, and a thread runs its tasks in the order in
//! which they were woken: a client that sends a command meanwhile would wait for all of them. So only [`AT_ONCE`] are
//! woken in one turn, and the others stand in line. A turn ends when the task that gives the next one runs; it was
//! woken behind those of the turn before, so a task that a socket wakes has no more than two turns ahead of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Tasks that are woken in one turn: some hundred microseconds, if each writes to its socket.
const AT_ONCE: usize = 128;
/// A line as long as this keeps its memory.
const KEPT: usize = 1024;

/// The line of one thread's tasks.
#[derive(Debug, Default)]
pub struct WakeBatches(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    /// How many were woken in this turn.
    woken: usize,
    waiting: VecDeque<Waker>,
    /// A task gives turns; else there is no line.
    is_given: bool,
    /// The task that gives the next turn, while it sleeps.
    giver: Option<Waker>,
}

thread_local! {
    static HERE: RefCell<Arc<WakeBatches>> = RefCell::default();
}

impl WakeBatches {
    /// Those of the calling thread.
    pub fn here() -> Arc<Self> {
        HERE.with_borrow(Arc::clone)
    }

    /// Wakes a task now or in one of the next turns.
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

    /// Gives turns for as long as the thread serves.
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
        // Behind those of this turn.
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
