//! The end of a process that has found a bug in itself: a report in Redis's form, then SIGABRT.
//!
//! A thread that panics may leave slots half-changed, and a node that lives on without it would be taken for a working
//! one: its connections hang while its bus answers. So whichever thread panics ends the process, at once for every
//! watcher: connections break, the port refuses, and it is failed over or started again. Before that no client is
//! served any more ([`Subject::stop_serving`]), and the log gets what is needed to find the bug: the
//! failed assertion and its place, the stack, the client and its command, INFO, the clients. The report is written by a
//! thread of its own and given up after [`TIMEOUT`]: what it asks may be locked by the thread that panicked.
//!
//! Must hold: the panic of a thread that runs a command ([`guarded`]) is reported after its stack was unwound, when its
//! command is at hand and its locks are free; any other is reported where it happens, and does not unwind.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use acl::Catalogue;
use engine::Client;
use resp::Args;

/// How long the report may take: less than others need to see that the process is gone. A build for development has
/// tables of lines that take long to read for a stack.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
/// As many arguments, and as many bytes of each, are shown.
const MAX_ARGUMENTS: usize = 32;
const MAX_ARGUMENT: usize = 128;

/// The thread whose panic ends the process.
static REPORTER: OnceLock<ThreadId> = OnceLock::new();
/// The panic's message and stack, until the thread has been unwound.
static FOUND: Mutex<Option<Found>> = Mutex::new(None);

thread_local! {
    /// This thread runs a client's commands.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// A panic: its thread, its message and its stack.
#[derive(Debug)]
struct Found {
    thread: String,
    message: String,
    stack: Backtrace,
}

/// The server whose process ends.
pub trait Subject: Send + Sync {
    /// No client is served from now on.
    fn stop_serving(&self);

    /// Says its parts of the report, a title and a text each: one that cannot be had does not cost those before it.
    fn report(&self, say: &mut dyn FnMut(&str, &str));
}

/// The server of this process; a sentinel's has none.
static SUBJECT: OnceLock<Arc<dyn Subject>> = OnceLock::new();

/// Has every panic of this process, from now on, end it.
pub fn end_on_panic(subject: Option<Arc<dyn Subject>>) {
    if let Some(subject) = subject {
        // A second one is a second server in one process, which only tests have.
        let _ = SUBJECT.set(subject);
    }
    std::panic::set_hook(Box::new(on_panic));
}

fn on_panic(panic: &PanicHookInfo<'_>) {
    let this = std::thread::current();
    if *REPORTER.get_or_init(|| this.id()) != this.id() {
        // The process ends anyway, and soon: this thread touches nothing more.
        loop {
            std::thread::park();
        }
    }
    let message = panic.payload_as_str().unwrap_or("a value that is no text");
    let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let found = Found {
        thread: this.name().unwrap_or("without a name").to_owned(),
        message: format!("{message}{place}"),
        stack: Backtrace::force_capture(),
    };
    let second = FOUND.lock().unwrap_or_else(PoisonError::into_inner).replace(found);
    if second.is_some() {
        // Unwinding panicked in its turn.
        end(String::new());
    }
    if let Some(subject) = SUBJECT.get() {
        subject.stop_serving();
    }
    if !GUARDED.get() {
        end(String::new());
    }
}

/// Runs a client's commands; `None` if they panicked: then [`end_in`] is to be called.
pub fn guarded<T>(run: impl FnOnce() -> T) -> Option<T> {
    GUARDED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run)).ok();
    GUARDED.set(false);
    outcome
}

/// Ends the process after a command of this client panicked.
pub fn end_in(client: &Client, catalogue: &Catalogue, args: Option<Args<'_>>) -> ! {
    let line = client.describe(crate::time::now(), catalogue);
    let mut text = format!("{}\n", String::from_utf8_lossy(&line));
    for (index, arg) in args.iter().flat_map(|args| args.iter()).take(MAX_ARGUMENTS).enumerate() {
        let shown = arg[..arg.len().min(MAX_ARGUMENT)].escape_ascii();
        let more = if arg.len() > MAX_ARGUMENT { format!(" ({} bytes)", arg.len()) } else { String::new() };
        text.push_str(&format!("argv[{index}]: '\"{shown}\"'{more}\n"));
    }
    end(text)
}

/// Reports, then ends the process.
fn end(client: String) -> ! {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (done, finished) = std::sync::mpsc::channel();
    let reporting = std::thread::Builder::new().name("report".to_owned()).spawn(move || {
        if let Some(found) = found {
            write(&found, &client);
        }
        // The receiver may have given up waiting.
        let _ = done.send(());
    });
    if reporting.is_ok() {
        let _ = finished.recv_timeout(TIMEOUT);
    }
    std::process::abort()
}

fn write(found: &Found, client: &str) {
    let version = env!("CARGO_PKG_VERSION");
    let Found { thread, message, stack } = found;
    // First of all what is at hand.
    tracing::error!(
        "=== REDIS BUG REPORT START: Cut & paste starting from here ===\n\
         Redoubt {version} crashed: thread '{thread}' panicked: {message}"
    );
    let mut say = |title: &str, text: &str| tracing::error!("------ {title} ------\n{text}");
    say("STACK TRACE", &stack.to_string());
    if !client.is_empty() {
        say("CURRENT CLIENT INFO", client);
    }
    if let Some(subject) = SUBJECT.get() {
        subject.report(&mut say);
    }
    tracing::error!("=== REDIS BUG REPORT END. Make sure to include from START to END. ===");
}
