//! Detects threads that are stalled by one long task.
//!
//! A worker records when it begins and ends a task ([`begin_task`], [`end_task`]). Another thread polls these times
//! ([`StallDetector`]). A thread is stalled if a single task has used much processor time. Time during which the kernel
//! ran other threads does not count, so the check reads the thread's own CPU clock.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Tasks that have run for this long are checked more closely.
const SUSPICIOUS_AGE_NANOS: u64 = 1_000_000;
/// If a suspicious task then uses this much more CPU time, its thread is stalled.
const STALLED_CPU_NANOS: u64 = 500_000;
/// If a task reaches this age, its thread is stalled even if the task only waits.
const STALLED_AGE_NANOS: u64 = 50_000_000;

/// What a thread publishes to other threads about its current task.
#[derive(Debug, Default)]
pub struct ThreadActivity {
    /// When the current task began, in nanoseconds; 0 while the thread is idle.
    task_start: AtomicU64,
    /// The thread's CPU clock, which other threads can read. Set by the thread itself.
    cpu_clock: OnceLock<ClockId>,
}

thread_local! {
    static CURRENT_THREAD_ACTIVITY: OnceCell<Arc<ThreadActivity>> = const { OnceCell::new() };
}

/// Records that the calling thread begins a task at `now`, in nanoseconds.
#[inline]
pub fn begin_task(now: u64) {
    CURRENT_THREAD_ACTIVITY.with(|own| {
        if let Some(own) = own.get() {
            own.task_start.store(now, Ordering::Relaxed);
        }
    });
}

/// Records that the calling thread is idle.
#[inline]
pub fn end_task() {
    begin_task(0);
}

impl ThreadActivity {
    /// Makes [`begin_task`] and [`end_task`] on the calling thread update this value.
    pub fn register_current_thread(self: &Arc<Self>) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // The kernel's encoding of a thread's CPU clock id.
        let _ = self.cpu_clock.set(ClockId::from_raw((!thread << 3) | 0b110));
        CURRENT_THREAD_ACTIVITY.with(|own| {
            let _ = own.set(self.clone());
        });
    }

    /// Returns when the current task began, in nanoseconds; 0 while the thread is idle.
    pub fn task_start(&self) -> u64 {
        self.task_start.load(Ordering::Relaxed)
    }

    /// Returns the CPU time that the thread has used so far, in nanoseconds.
    fn cpu_time(&self) -> Option<u64> {
        let cpu_time = clock_gettime(*self.cpu_clock.get()?).ok()?;
        u64::try_from(Duration::from(cpu_time).as_nanos()).ok()
    }
}

/// The result of a check, from harmless to urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StallState {
    /// The thread is idle or runs a short task.
    Idle,
    /// The current task has run for some time.
    Suspicious,
    /// The current task has stalled the thread.
    Stalled,
}

impl StallState {
    /// Returns how long the watchdog waits before the next check of this thread.
    pub fn next_check_delay(self) -> Duration {
        match self {
            Self::Idle => Duration::from_millis(2),
            Self::Suspicious | Self::Stalled => Duration::from_micros(500),
        }
    }
}

/// Tracks one thread over several checks.
#[derive(Debug, Default)]
pub struct StallDetector {
    /// When the suspicious task began, and the thread's CPU time when the task was found suspicious.
    suspicion: Option<(u64, u64)>,
}

impl StallDetector {
    /// Checks a thread whose current task started at `task_start`.
    pub fn check(&mut self, thread: &ThreadActivity, task_start: u64, now: u64) -> StallState {
        self.evaluate(now, task_start, || thread.cpu_time().unwrap_or(0))
    }

    fn evaluate(&mut self, now: u64, task_start: u64, cpu_time: impl FnOnce() -> u64) -> StallState {
        let age = now.saturating_sub(task_start);
        if task_start == 0 || age < SUSPICIOUS_AGE_NANOS {
            self.suspicion = None;
            return StallState::Idle;
        }
        match self.suspicion {
            Some((same, before)) if same == task_start => {
                let stalled =
                    age >= STALLED_AGE_NANOS || cpu_time().saturating_sub(before) >= STALLED_CPU_NANOS;
                if stalled { StallState::Stalled } else { StallState::Suspicious }
            }
            _ => {
                self.suspicion = Some((task_start, cpu_time()));
                StallState::Suspicious
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_a_task_that_uses_much_cpu_time() {
        const NANOS_PER_MILLI: u64 = 1_000_000;
        use StallState::{Idle, Stalled, Suspicious};
        // Columns, in milliseconds: time of the check, start time of the task, CPU time of the thread so far. The last
        // column is the expected state.
        let tables: [&[(u64, u64, u64, StallState)]; 5] = [
            // The thread runs a long command.
            &[
                (10, 10, 5, Idle),
                (12, 10, 7, Suspicious),
                (13, 10, 8, Stalled),
                (14, 10, 9, Stalled),
                (15, 0, 9, Idle),
            ],
            // The thread runs many short commands.
            &[(10, 9, 5, Suspicious), (12, 11, 7, Suspicious), (14, 13, 9, Suspicious)],
            // The kernel runs other threads for some time.
            &[(10, 9, 5, Suspicious), (11, 9, 5, Suspicious), (40, 9, 5, Suspicious), (41, 41, 6, Idle)],
            // The task waits for too long.
            &[(10, 9, 5, Suspicious), (58, 9, 5, Suspicious), (59, 9, 5, Stalled)],
            // The thread is idle.
            &[(10, 0, 5, Idle), (500, 0, 5, Idle)],
        ];
        for table in tables {
            let mut detector = StallDetector::default();
            for (now, since, worked, expected) in table {
                let found = detector
                    .evaluate(now * NANOS_PER_MILLI, since * NANOS_PER_MILLI, || worked * NANOS_PER_MILLI);
                assert_eq!(found, *expected, "at {now} in {table:?}");
            }
        }
    }

    #[test]
    fn other_threads_can_read_the_cpu_time() {
        let thread = Arc::<ThreadActivity>::default();
        let own = thread.clone();
        let (began, begun) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::spawn(move || {
            own.register_current_thread();
            begin_task(7);
            began.send(()).unwrap();
            while stopped.try_recv().is_err() {}
            end_task();
        });
        begun.recv().unwrap();
        let before = thread.cpu_time().unwrap();
        while thread.cpu_time().unwrap() < before + STALLED_CPU_NANOS {
            std::thread::yield_now();
        }
        assert_eq!(thread.task_start(), 7);
        stop.send(()).unwrap();
        busy.join().unwrap();
        assert_eq!(thread.task_start(), 0);
    }
}
