//! Wakes large numbers of tasks in batches, so that other tasks are not delayed.
//!
//! Publishing to a channel with ten thousand subscribers wakes as many tasks. A thread runs tasks in wake order, so a
//! client that sends a command at that moment would wait for all of them. Therefore only [`MAX_TASKS_PER_BATCH`] tasks
//! are woken at once, and the others are queued. A driver task starts the next batch; the driver runs after the tasks
//! of the current batch. A task woken by a socket thus waits for at most two batches.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Number of tasks woken per batch. A batch takes a few hundred microseconds if each task writes to its socket.
const MAX_TASKS_PER_BATCH: usize = 128;
/// When the queue is empty, its capacity shrinks to this number of tasks.
const MAX_RETAINED_CAPACITY: usize = 1024;

/// The wake queue of one thread.
#[derive(Debug, Default)]
pub struct WakeBatcher(Mutex<WakeQueue>);

#[derive(Debug, Default)]
struct WakeQueue {
    /// Number of tasks woken in the current batch.
    batch_size: usize,
    pending_wakers: VecDeque<Waker>,
    /// Whether a driver task runs. Without a driver, all tasks are woken at once.
    has_driver: bool,
    /// The waker of the driver task while it sleeps.
    driver_waker: Option<Waker>,
}

thread_local! {
    static CURRENT_BATCHER: RefCell<Arc<WakeBatcher>> = RefCell::default();
}

impl WakeBatcher {
    /// The wake queue of the calling thread.
    pub fn current() -> Arc<Self> {
        CURRENT_BATCHER.with_borrow(Arc::clone)
    }

    /// Wakes a task now, or queues it for a later batch.
    pub fn wake(&self, waker: &Waker) {
        let mut queue = self.0.lock();
        if queue.has_driver && queue.batch_size >= MAX_TASKS_PER_BATCH {
            queue.pending_wakers.push_back(waker.clone());
            return;
        }
        queue.batch_size += 1;
        let driver = queue.driver_waker.take();
        drop(queue);
        waker.wake_by_ref();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Runs as the driver task of this queue. Never completes.
    pub async fn run(self: Arc<Self>) {
        self.0.lock().has_driver = true;
        poll_fn(|context| self.poll_run(context)).await;
    }

    fn poll_run(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.0.lock();
        queue.batch_size = queue.pending_wakers.len().min(MAX_TASKS_PER_BATCH);
        if queue.batch_size == 0 {
            queue.pending_wakers.shrink_to(MAX_RETAINED_CAPACITY);
            queue.driver_waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = queue.batch_size;
        let next: Vec<Waker> = queue.pending_wakers.drain(..count).collect();
        drop(queue);
        next.into_iter().for_each(Waker::wake);
        // Wake this driver task again, behind the tasks of this batch.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn new_task_waits_for_two_batches_and_no_task_is_lost() {
        const TASK_COUNT: usize = 10_000;
        let batches = WakeBatcher::current();
        tokio::spawn(batches.clone().run());
        let asleep: Arc<Mutex<Vec<Waker>>> = Arc::default();
        let served = Arc::new(AtomicUsize::new(0));
        let sleepers: Vec<_> = (0..TASK_COUNT)
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
        while asleep.lock().len() < TASK_COUNT {
            tokio::task::yield_now().await;
        }
        asleep.lock().iter().for_each(|waker| batches.wake(waker));
        for _ in 0..3 {
            let before = served.load(Ordering::Relaxed);
            tokio::spawn(async {}).await.unwrap();
            assert!(served.load(Ordering::Relaxed) - before <= 3 * MAX_TASKS_PER_BATCH);
        }
        assert!(served.load(Ordering::Relaxed) < TASK_COUNT);
        for sleeper in sleepers {
            sleeper.await.unwrap();
        }
        assert_eq!(batches.0.lock().pending_wakers.len(), 0);
    }
}
