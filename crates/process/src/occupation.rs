//! Since when a thread has been about one thing, as others see it.
//!
//! A worker notes when it turns to something and when it rests ([`turn_to`], [`rest`]). Another thread looks at it at
//! times ([`Look`]): it is kept if it has worked on one thing for long, and not if the system only gave its processor to
//! others meanwhile. That is told by the thread's own clock, which the other thread reads.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A thread that has been about one thing for so long is looked at more closely.
const SUSPICIOUS_NANOS: u64 = 1_000_000;
/// It is kept when it has then worked on it for so long.
const MORE_NANOS: u64 = 500_000;
/// Or when so long has gone by in all, whatever it waits for.
const STUCK_NANOS: u64 = 50_000_000;

/// A thread's view to the outside.
#[derive(Debug, Default)]
pub struct Occupation {
    /// When it turned to what it is about; 0 while it rests.
    since: AtomicU64,
    /// The clock of the time that it has worked.
    clock: OnceLock<ClockId>,
}

thread_local! {
    static OWN: OnceCell<Arc<Occupation>> = const { OnceCell::new() };
}

/// The calling thread turns to something, at this time.
#[inline]
pub fn turn_to(now: u64) {
    OWN.with(|own| {
        if let Some(own) = own.get() {
            own.since.store(now, Ordering::Relaxed);
        }
    });
}

/// The calling thread is about nothing.
#[inline]
pub fn rest() {
    turn_to(0);
}

impl Occupation {
    /// The calling thread shows here what it is about.
    pub fn show(self: &Arc<Self>) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // As the kernel numbers the processor clocks of threads.
        let _ = self.clock.set(ClockId::from_raw((!thread << 3) | 0b110));
        OWN.with(|own| {
            let _ = own.set(self.clone());
        });
    }

    /// When the thread turned to what it is about; 0 while it rests.
    pub fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// For how long the thread has worked in its life.
    fn worked(&self) -> Option<u64> {
        let worked = clock_gettime(*self.clock.get()?).ok()?;
        u64::try_from(Duration::from(worked).as_nanos()).ok()
    }
}

/// The outcome of a look, the more pressing the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// It is about nothing that takes long.
    Free,
    /// It has been about one thing for some time.
    Suspicious,
    /// One thing keeps it.
    Kept,
}

impl Seen {
    /// When to look again.
    pub fn next(self) -> Duration {
        match self {
            Self::Free => Duration::from_millis(2),
            Self::Suspicious | Self::Kept => Duration::from_micros(500),
        }
    }
}

/// A watcher's memory of a thread.
#[derive(Debug, Default)]
pub struct Look {
    /// The thing that it was suspiciously long about, by when it turned to that, and for how long it had worked then.
    suspicion: Option<(u64, u64)>,
}

impl Look {
    /// Looks at a thread at this time, when it has said since when it is about one thing.
    pub fn at(&mut self, thread: &Occupation, since: u64, now: u64) -> Seen {
        self.judge(now, since, || thread.worked().unwrap_or(0))
    }

    fn judge(&mut self, now: u64, since: u64, worked: impl FnOnce() -> u64) -> Seen {
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
        // At a time, since when it is about one thing, how long it has worked in its life, and what is seen then, in
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
            // Many short ones.
            &[(10, 9, 5, Suspicious), (12, 11, 7, Suspicious), (14, 13, 9, Suspicious)],
            // It does not get the processor for some time.
            &[(10, 9, 5, Suspicious), (11, 9, 5, Suspicious), (40, 9, 5, Suspicious), (41, 41, 6, Free)],
            // It waits for something, and for too long.
            &[(10, 9, 5, Suspicious), (58, 9, 5, Suspicious), (59, 9, 5, Kept)],
            // It rests.
            &[(10, 0, 5, Free), (500, 0, 5, Free)],
        ];
        for table in tables {
            let mut look = Look::default();
            for (now, since, worked, seen) in table {
                let found = look.judge(now * MS, since * MS, || worked * MS);
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
