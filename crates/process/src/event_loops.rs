//! CPU time of the workers' event loops, read from the kernel's per-thread statistics. Measuring costs the event loops
//! nothing.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Prefix of worker thread names, followed by the worker's number.
pub const WORKER: &str = "worker-";

/// The CPU time of all event loops, and the sample for the mean time of a cycle.
#[derive(Debug, Default)]
pub struct EventLoops {
    /// CPU time at the last CONFIG RESETSTAT, in microseconds.
    base: AtomicU64,
    last: Mutex<Seen>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    micros: u64,
    cycles: u64,
    /// Mean duration of a cycle between the last two samples, in microseconds.
    each: u64,
}

impl EventLoops {
    /// CPU time since the last reset, in microseconds.
    pub fn micros(&self) -> u64 {
        at_work().saturating_sub(self.base.load(Ordering::Relaxed))
    }

    /// Mean duration of a cycle since the last call, in microseconds. `cycles` is the total number so far.
    pub fn micros_of_a_cycle(&self, micros: u64, cycles: u64) -> u64 {
        let mut last = self.last.lock();
        if let Some(more) = cycles.checked_sub(last.cycles).filter(|more| *more > 0) {
            let each = micros.saturating_sub(last.micros) / more;
            *last = Seen { micros, cycles, each };
        }
        last.each
    }

    /// Restarts all counts (CONFIG RESETSTAT).
    pub fn reset(&self) {
        self.base.store(at_work(), Ordering::Relaxed);
        *self.last.lock() = Seen::default();
    }
}

/// CPU time of the threads that are workers now, in microseconds.
fn at_work() -> u64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0 };
    let nanos = threads.filter_map(|thread| {
        let folder = thread.ok()?.path();
        let name = fs::read_to_string(folder.join("comm")).ok()?;
        // The first field is the CPU time in nanoseconds.
        let times = name.starts_with(WORKER).then(|| fs::read_to_string(folder.join("schedstat")).ok())??;
        times.split(' ').next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_is_counted_by_its_name() {
        let before = at_work();
        let worker = std::thread::Builder::new().name(format!("{WORKER}0")).spawn(|| {
            let mut spent = 0;
            while spent < 2000 {
                spent = std::hint::black_box(at_work());
            }
            spent
        });
        assert!(worker.expect("a thread").join().expect("it ends") >= before);
    }

    #[test]
    fn a_cycle_is_the_mean_since_it_was_last_asked_for() {
        let loops = EventLoops::default();
        assert_eq!(loops.micros_of_a_cycle(1000, 10), 100);
        assert_eq!(loops.micros_of_a_cycle(1500, 20), 50);
        assert_eq!(loops.micros_of_a_cycle(1600, 20), 50, "nothing more has happened");
        assert_eq!(loops.micros_of_a_cycle(10, 1), 50, "counted anew");
    }
}
