//! Detects threads that are stalled by one long task.
//!
//! A worker records when it begins and ends a task ([`turn_to`], [`rest`]). Another thread polls these times
//! ([`Look`]). A thread is stalled if a single task has used much processor time. Time during which the system ran
//! other threads does not count, so the check reads the thread's own CPU clock.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Tasks that have run for this long are checked more closely.
const SUSPICIOUS_NANOS: u64 = 1_000_000;
/// A suspicious task that then uses this much more CPU time has stalled its thread.
const MORE_NANOS: u64 = 500_000;
/// So has a task of this age, even if it only waits.
const STUCK_NANOS: u64 = 50_000_000;

/// A thread's current task, as published to other threads.
#[derive(Debug, Default)]
pub struct Occupation {
    /// Start time of the current task; 0 while the thread is idle.
    since: AtomicU64,
    /// The thread's CPU clock.
    clock: OnceLock<ClockId>,
}

thread_local! {
    static OWN: OnceCell<Arc<Occupation>> = const { OnceCell::new() };
}

/// Records that the calling thread begins a task at `now`, in nanoseconds.
#[inline]
pub fn turn_to(now: u64) {
    OWN.with(|own| {
        if let Some(own) = own.get() {
            own.since.store(now, Ordering::Relaxed);
        }
    });
}

/// Records that the calling thread is idle.
#[inline]
pub fn rest() {
    turn_to(0);
}

impl Occupation {
    /// Makes the calling thread publish its tasks here.
    pub fn show(self: &Arc<Self>) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // The kernel's encoding of a thread's CPU clock.
        let _ = self.clock.set(ClockId::from_raw((!thread << 3) | 0b110));
        OWN.with(|own| {
            let _ = own.set(self.clone());
        });
    }

    /// Start time of the current task; 0 while the thread is idle.
    pub fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// CPU time the thread has used so far, in nanoseconds.
    fn worked(&self) -> Option<u64> {
        let worked = clock_gettime(*self.clock.get()?).ok()?;
        u64::try_from(Duration::from(worked).as_nanos()).ok()
    }
}

/// The result of a check, in order of urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// The thread is idle or runs a short task.
    Free,
    /// The current task has run for some time.
    Suspicious,
    /// The current task has stalled the thread.
    Kept,
}

impl Seen {
    /// Delay until the next check.
    pub fn next(self) -> Duration {
        match self {
            Self::Free => Duration::from_millis(2),
            Self::Suspicious | Self::Kept => Duration::from_micros(500),
        }
    }
}

/// Tracks one thread across several checks.
#[derive(Debug, Default)]
pub struct Look {
    /// Start time of the suspicious task, and the thread's CPU time when it became suspicious.
    suspicion: Option<(u64, u64)>,
}

impl Look {
    /// Checks a thread whose current task started at `since`.
    pub fn at(&mut self, thread: &Occupation, since: u64, now: u64) -> Seen {
        self.evaluate(now, since, || thread.worked().unwrap_or(0))
    }

    fn evaluate(&mut self, now: u64, since: u64, worked: impl FnOnce() -> u64) -> Seen {
        let age = now.saturating_sub(since);
        if since == 0 || age < SUSPICIOUS_NANOS {
            self.suspicion = None;
            return Seen::Free;
        }
        match self.suspicion {
            Some((same, before)) if same == since => {
                let kept = age >= STUCK_NANOS || worked().saturating_sub(before) >= MORE_NANOS;
                if kept { Seen::Kept } else { Seen::Suspicious }
            }
            _ => {
                self.suspicion = Some((since, worked()));
                Seen::Suspicious
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_by_one_thing_that_it_works_on_for_long() {
        const MS: u64 = 1_000_000;
        use Seen::{Free, Kept, Suspicious};
        // Time of the check, start time of the task, CPU time of the thread so far, and the expected state, in
        // milliseconds.
        let tables: [&[(u64, u64, u64, Seen)]; 5] = [
            // A long command.
            &[
                (10, 10, 5, Free),
                (12, 10, 7, Suspicious),
                (13, 10, 8, Kept),
                (14, 10, 9, Kept),
                (15, 0, 9, Free),
            ],
            // Many short commands.
            &[(10, 9, 5, Suspicious), (12, 11, 7, Suspicious), (14, 13, 9, Suspicious)],
            // The system runs other threads for some time.
            &[(10, 9, 5, Suspicious), (11, 9, 5, Suspicious), (40, 9, 5, Suspicious), (41, 41, 6, Free)],
            // The task waits for something, for too long.
            &[(10, 9, 5, Suspicious), (58, 9, 5, Suspicious), (59, 9, 5, Kept)],
            // The thread is idle.
            &[(10, 0, 5, Free), (500, 0, 5, Free)],
        ];
        for table in tables {
            let mut look = Look::default();
            for (now, since, worked, seen) in table {
                let found = look.evaluate(now * MS, since * MS, || worked * MS);
                assert_eq!(found, *seen, "at {now} in {table:?}");
            }
        }
    }

    #[test]
    fn a_threads_work_is_seen_by_another() {
        let thread = Arc::<Occupation>::default();
        let own = thread.clone();
        let (began, begun) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::spawn(move || {
            own.show();
            turn_to(7);
            began.send(()).unwrap();
            while stopped.try_recv().is_err() {}
            rest();
        });
        begun.recv().unwrap();
        let before = thread.worked().unwrap();
        while thread.worked().unwrap() < before + MORE_NANOS {
            std::thread::yield_now();
        }
        assert_eq!(thread.since(), 7);
        stop.send(()).unwrap();
        busy.join().unwrap();
        assert_eq!(thread.since(), 0);
    }
}
