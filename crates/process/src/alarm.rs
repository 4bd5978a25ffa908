//! SIGALRM: the log says what each thread of the process is doing, and the process goes on, as with Valkey.
//!
//! The kernel is asked about the other threads. Their own stacks are not walked: that would have to happen in a signal
//! handler, and a thread that was interrupted while it holds the allocator's lock would never go on.

use std::backtrace::Backtrace;
use std::fmt::Write as _;
use std::fs;

use tokio::signal::unix::{SignalKind, signal};

/// Answers the signal from now on, on the event loop of the calling thread.
///
/// # Errors
/// The signal cannot be listened to.
pub fn watch() -> std::io::Result<()> {
    let mut alarm = signal(SignalKind::alarm())?;
    tokio::spawn(async move {
        while alarm.recv().await.is_some() {
            tracing::warn!("Received SIGALRM\n------ STACK TRACE ------\n{}", report());
        }
    });
    Ok(())
}

/// A line for each thread, and the stack of the calling one.
fn report() -> String {
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

/// The state of a thread and the processor time that it has used, from its line of /proc.
fn describe_state(stat: &str) -> String {
    // The name before may have anything in it, parentheses as well.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or("?");
    format!("state {}, ticks of processor time: {} user, {} system", field(0), field(11), field(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_in_the_report() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let (tell, started) = std::sync::mpsc::channel();
        let other = std::thread::Builder::new().name("other-one".to_owned());
        // A thread takes its name itself, before it does anything else.
        let run = move || tell.send(()).is_ok() && wait.recv().is_err();
        let other = other.spawn(run).unwrap();
        started.recv().unwrap();
        let report = report();
        drop(stop);
        other.join().unwrap();
        assert!(report.contains(" other-one: state "), "{report}");
        assert!(report.contains("Stack of thread "), "{report}");
    }

    #[test]
    fn state_is_found_behind_any_name() {
        let line = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 21 22 0";
        assert_eq!(describe_state(line), "state R, ticks of processor time: 21 user, 22 system");
    }
}
