//! Logs the state of all threads on SIGALRM. The process continues, as in Valkey.
//!
//! The kernel reports the states of other threads. Their stacks are not unwound: this would have to happen in a signal
//! handler, where a thread that holds the allocator's lock would deadlock.

use std::backtrace::Backtrace;
use std::fmt::Write as _;
use std::fs;

use tokio::signal::unix::{SignalKind, signal};

/// Installs the signal handler on the calling thread's event loop.
///
/// # Errors
/// The signal handler cannot be installed.
pub fn log_threads_on_sigalrm() -> std::io::Result<()> {
    let mut alarm = signal(SignalKind::alarm())?;
    tokio::spawn(async move {
        while alarm.recv().await.is_some() {
            tracing::warn!("Received SIGALRM\n------ STACK TRACE ------\n{}", thread_report());
        }
    });
    Ok(())
}

/// Returns one line per thread, followed by the stack of the calling thread.
fn thread_report() -> String {
    let mut text = String::new();
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let mut threads: Vec<i32> = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    threads.sort_unstable();
    for thread in threads {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{thread}/{file}"));
        let (name, state) = (read("comm").unwrap_or_default(), read("stat").unwrap_or_default());
        let place = read("wchan").unwrap_or_default();
        let mark = if thread == own { " *" } else { "" };
        let state = describe_state(&state);
        let _ = writeln!(text, "{thread} {}{mark}: {state}, in the kernel at {place}", name.trim_end());
    }
    let _ = write!(text, "Stack of thread {own}:\n{}", Backtrace::force_capture());
    text
}

/// Formats the state and CPU time from a line of `/proc/.../stat`.
fn describe_state(stat: &str) -> String {
    // The thread name before the last parenthesis may itself contain parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or("?");
    format!("state {}, ticks of processor time: {} user, {} system", field(0), field(11), field(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_lists_every_thread() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let (tell, started) = std::sync::mpsc::channel();
        let other = std::thread::Builder::new().name("other-one".to_owned());
        // The thread sets its own name before it runs this closure.
        let run = move || tell.send(()).is_ok() && wait.recv().is_err();
        let other = other.spawn(run).unwrap();
        started.recv().unwrap();
        let report = thread_report();
        drop(stop);
        other.join().unwrap();
        assert!(report.contains(" other-one: state "), "{report}");
        assert!(report.contains("Stack of thread "), "{report}");
    }

    #[test]
    fn state_is_parsed_after_any_thread_name() {
        let line = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 21 22 0";
        assert_eq!(describe_state(line), "state R, ticks of processor time: 21 user, 22 system");
    }
}
