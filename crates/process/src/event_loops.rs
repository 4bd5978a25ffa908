//! CPU time of the workers' event loops, read from the kernel's per-thread statistics. Measuring costs the event loops
//! nothing.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Prefix of worker thread names, followed by the worker's number.
pub const WORKER_NAME_PREFIX: &str = "worker-";

/// The CPU time of all workers' event loops, and samples for the mean time of a cycle.
#[derive(Debug, Default)]
pub struct EventLoopTime {
    /// CPU time at the last CONFIG RESETSTAT, in microseconds.
    micros_at_reset: AtomicU64,
    last_sample: Mutex<CycleSample>,
}

#[derive(Debug, Clone, Copy, Default)]
struct CycleSample {
    micros: u64,
    cycles: u64,
    /// Mean duration of a cycle between the last two samples, in microseconds.
    mean_micros: u64,
}

impl EventLoopTime {
    /// Returns the CPU time since the last CONFIG RESETSTAT, in microseconds.
    pub fn total_micros(&self) -> u64 {
        worker_cpu_micros().saturating_sub(self.micros_at_reset.load(Ordering::Relaxed))
    }

    /// Returns the mean duration of a cycle since the last call, in microseconds. `micros` and `cycles` are the totals
    /// so far.
    pub fn mean_cycle_micros(&self, micros: u64, cycles: u64) -> u64 {
        let mut last = self.last_sample.lock();
        if let Some(more) = cycles.checked_sub(last.cycles).filter(|more| *more > 0) {
            let mean = micros.saturating_sub(last.micros) / more;
            *last = CycleSample { micros, cycles, mean_micros: mean };
        }
        last.mean_micros
    }

    /// Restarts the CPU time at zero (CONFIG RESETSTAT).
    pub fn reset(&self) {
        self.micros_at_reset.store(worker_cpu_micros(), Ordering::Relaxed);
        *self.last_sample.lock() = CycleSample::default();
    }
}

/// Returns the CPU time of the current workers' threads, in microseconds.
fn worker_cpu_micros() -> u64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0 };
    let nanos = threads.filter_map(|thread| {
        let folder = thread.ok()?.path();
        let name = fs::read_to_string(folder.join("comm")).ok()?;
        // The first field is the CPU time in nanoseconds.
        let times = name
            .starts_with(WORKER_NAME_PREFIX)
            .then(|| fs::read_to_string(folder.join("schedstat")).ok())??;
        times.split(' ').next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_threads_are_recognized_by_name() {
        let before = worker_cpu_micros();
        let worker = std::thread::Builder::new().name(format!("{WORKER_NAME_PREFIX}0")).spawn(|| {
            let mut spent = 0;
            while spent < 2000 {
                spent = std::hint::black_box(worker_cpu_micros());
            }
            spent
        });
        assert!(worker.expect("a thread").join().expect("it ends") >= before);
    }

    #[test]
    fn mean_covers_the_cycles_since_the_last_call() {
        let loops = EventLoopTime::default();
        assert_eq!(loops.mean_cycle_micros(1000, 10), 100);
        assert_eq!(loops.mean_cycle_micros(1500, 20), 50);
        assert_eq!(loops.mean_cycle_micros(1600, 20), 50, "no cycles since");
        assert_eq!(loops.mean_cycle_micros(10, 1), 50, "the counters were reset");
    }
}
