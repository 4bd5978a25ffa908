//! Ends the process after a panic: logs a report in Redis's format, then aborts.
//!
//! A panicking thread may leave slots half-changed. If the node lived on without that thread, it would look healthy:
//! its connections would hang while its cluster bus still answers. So a panic in any thread ends the process, which
//! clients and other nodes notice: connections break, the port refuses connections, and the node is failed over or
//! restarted. Before that, the server stops serving clients ([`CrashReportSource::stop_serving`]) and logs the failed
//! assertion with its location, the stack, the client with its command, INFO and the client list. A separate thread
//! writes the report and gets [`REPORT_TIMEOUT`] to finish, because the panicking thread may hold locks that the report
//! needs.
//!
//! Invariant: a panic in a command ([`run_guarded`]) is reported after unwinding, when the command's arguments are
//! available and its locks are released. Any other panic is reported where it happens, without unwinding.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use acl::CommandCatalogue;
use engine::Client;
use resp::Args;

/// Time limit for the report. It must be shorter than the time in which other nodes detect a failure. Debug builds need
/// longer, because symbolizing a stack is slow there.
const REPORT_TIMEOUT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
/// The maximum number of the command's arguments in the report.
const MAX_ARGUMENTS: usize = 32;
const MAX_ARGUMENT_BYTES: usize = 128;

/// The first thread that panicked. Panics of other threads are ignored, because this one ends the process.
static PANICKING_THREAD: OnceLock<ThreadId> = OnceLock::new();
/// The panic of a guarded thread, stored until that thread has been unwound.
static CAPTURED_PANIC: Mutex<Option<CapturedPanic>> = Mutex::new(None);

thread_local! {
    /// Whether this thread is running a client's commands ([`run_guarded`]).
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
struct CapturedPanic {
    thread: String,
    message: String,
    stack: Backtrace,
}

/// A server whose state goes into the crash report.
pub trait CrashReportSource: Send + Sync {
    /// Stops serving clients immediately. Must not wait for locks, which the panicking thread may hold.
    fn stop_serving(&self);

    /// Calls `write_section` with a title and a text for each section, in order. If one section blocks, the earlier
    /// ones are logged already.
    fn write_sections(&self, write_section: &mut dyn FnMut(&str, &str));
}

/// The server to report on; not set in a sentinel.
static REPORT_SOURCE: OnceLock<Arc<dyn CrashReportSource>> = OnceLock::new();

/// Makes every later panic end the process. `source` provides the server's state for the report.
pub fn abort_on_panic(source: Option<Arc<dyn CrashReportSource>>) {
    if let Some(source) = source {
        // An error means that a test runs several servers in one process. The first source stays.
        let _ = REPORT_SOURCE.set(source);
    }
    std::panic::set_hook(Box::new(on_panic));
}

fn on_panic(panic: &PanicHookInfo<'_>) {
    let this = std::thread::current();
    if *PANICKING_THREAD.get_or_init(|| this.id()) != this.id() {
        // Another thread's panic is ending the process. This thread must not touch anything more.
        loop {
            std::thread::park();
        }
    }
    let message = panic.payload_as_str().unwrap_or("(panic payload is not a string)");
    let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let found = CapturedPanic {
        thread: this.name().unwrap_or("(unnamed)").to_owned(),
        message: format!("{message}{place}"),
        stack: Backtrace::force_capture(),
    };
    let second = CAPTURED_PANIC.lock().unwrap_or_else(PoisonError::into_inner).replace(found);
    if second.is_some() {
        // The panic happened while unwinding another one.
        report_and_abort(String::new());
    }
    if let Some(source) = REPORT_SOURCE.get() {
        source.stop_serving();
    }
    if !IS_GUARDED.get() {
        report_and_abort(String::new());
    }
}

/// Runs a client's commands. Returns `None` after a panic; in that case the caller must call [`abort_in_command`].
pub fn run_guarded<T>(run: impl FnOnce() -> T) -> Option<T> {
    IS_GUARDED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run)).ok();
    IS_GUARDED.set(false);
    outcome
}

/// Logs the crash report with this client's command, and ends the process.
pub fn abort_in_command(client: &Client, catalogue: &CommandCatalogue, args: Option<Args<'_>>) -> ! {
    let line = client.format_line(crate::time::now(), catalogue);
    let mut text = format!("{}\n", String::from_utf8_lossy(&line));
    for (index, arg) in args.iter().flat_map(|args| args.iter()).take(MAX_ARGUMENTS).enumerate() {
        let shown = arg[..arg.len().min(MAX_ARGUMENT_BYTES)].escape_ascii();
        let more =
            if arg.len() > MAX_ARGUMENT_BYTES { format!(" ({} bytes)", arg.len()) } else { String::new() };
        text.push_str(&format!("argv[{index}]: '\"{shown}\"'{more}\n"));
    }
    report_and_abort(text)
}

/// Writes the report on a separate thread, and aborts when it is complete or the time limit has passed.
fn report_and_abort(client: String) -> ! {
    let found = CAPTURED_PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (done, finished) = std::sync::mpsc::channel();
    let reporting = std::thread::Builder::new().name("report".to_owned()).spawn(move || {
        if let Some(found) = found {
            write_report(&found, &client);
        }
        // The thread that waits for the report may have timed out.
        let _ = done.send(());
    });
    if reporting.is_ok() {
        let _ = finished.recv_timeout(REPORT_TIMEOUT);
    }
    std::process::abort()
}

fn write_report(panic: &CapturedPanic, client: &str) {
    let version = env!("CARGO_PKG_VERSION");
    let CapturedPanic { thread, message, stack } = panic;
    // First log the parts of the report that need no lock.
    tracing::error!(
        "=== REDIS BUG REPORT START: Cut & paste starting from here ===\n\
         Redoubt {version} crashed: thread '{thread}' panicked: {message}"
    );
    let mut write_section = |title: &str, text: &str| tracing::error!("------ {title} ------\n{text}");
    write_section("STACK TRACE", &stack.to_string());
    if !client.is_empty() {
        write_section("CURRENT CLIENT INFO", client);
    }
    if let Some(source) = REPORT_SOURCE.get() {
        source.write_sections(&mut write_section);
    }
    tracing::error!("=== REDIS BUG REPORT END. Make sure to include from START to END. ===");
}
