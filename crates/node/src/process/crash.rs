//! The end of a process that has found a bug in itself: a report in Redis's form, then SIGABRT.
//!
//! A thread that panics may leave slots half-changed, and a node that lives on without it would be taken for a working
//! one: its connections hang while its bus answers. So whichever thread panics ends the process, at once for every
//! watcher: connections break, the port refuses, and it is failed over or started again. Before that no client is
//! served any more ([`PauseMode::All`] is asked under the locks), and the log gets what is needed to find the bug: the
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

use clock::Millis;
use engine::{PauseMode, PausePurpose};
use resp::Args;

use crate::commands::info;
use crate::server::Server;

/// How long the report may take: less than others need to see that the process is gone.
const TIMEOUT: Duration = Duration::from_secs(1);
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

/// Has every panic of this process, from now on, end it. A sentinel has no server.
pub(crate) fn end_on_panic(server: Option<Arc<Server>>) {
    std::panic::set_hook(Box::new(move |panic| on_panic(server.as_ref(), panic)));
}

fn on_panic(server: Option<&Arc<Server>>, panic: &PanicHookInfo<'_>) {
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
        end(server, String::new());
    }
    if let Some(server) = server {
        let (purpose, mode) = (PausePurpose::Client, PauseMode::All);
        server.engine.pauses.pause(&server.engine.settings, purpose, mode, Millis(i64::MAX));
    }
    if !GUARDED.get() {
        end(server, String::new());
    }
}

/// Runs a client's commands; `None` if they panicked: then [`end_in`] is to be called.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Option<T> {
    GUARDED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run)).ok();
    GUARDED.set(false);
    outcome
}

/// Ends the process after a command of this client panicked.
pub(crate) fn end_in(server: &Arc<Server>, client: &engine::Client, args: Option<Args<'_>>) -> ! {
    let line = client.describe(crate::process::time::now(), &server.engine.catalogue);
    let mut text = format!("{}\n", String::from_utf8_lossy(&line));
    for (index, arg) in args.iter().flat_map(|args| args.iter()).take(MAX_ARGUMENTS).enumerate() {
        let shown = arg[..arg.len().min(MAX_ARGUMENT)].escape_ascii();
        let more = if arg.len() > MAX_ARGUMENT { format!(" ({} bytes)", arg.len()) } else { String::new() };
        text.push_str(&format!("argv[{index}]: '\"{shown}\"'{more}\n"));
    }
    end(Some(server), text)
}

/// Reports, then ends the process.
fn end(server: Option<&Arc<Server>>, client: String) -> ! {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (done, finished) = std::sync::mpsc::channel();
    let server = server.cloned();
    let reporting = std::thread::Builder::new().name("report".to_owned()).spawn(move || {
        if let Some(found) = found {
            write(server.as_deref(), &found, &client);
        }
        // The receiver may have given up waiting.
        let _ = done.send(());
    });
    if reporting.is_ok() {
        let _ = finished.recv_timeout(TIMEOUT);
    }
    std::process::abort()
}

/// Each part by itself: one that cannot be had does not cost those before it.
fn write(server: Option<&Server>, found: &Found, client: &str) {
    let version = env!("CARGO_PKG_VERSION");
    let Found { thread, message, stack } = found;
    tracing::error!(
        "=== REDIS BUG REPORT START: Cut & paste starting from here ===\n\
         Redoubt {version} crashed: thread '{thread}' panicked: {message}\n\n\
         ------ STACK TRACE ------\n{stack}"
    );
    if !client.is_empty() {
        tracing::error!("------ CURRENT CLIENT INFO ------\n{client}");
    }
    if let Some(server) = server {
        let text =
            info::render(server, &["everything".to_owned()], &mut info::Data::Unknown).replace('\r', "");
        tracing::error!("------ INFO OUTPUT ------\n{text}");
        let now = crate::process::time::now();
        let clients = server.engine.clients.all();
        let lines = clients.iter().map(|client| client.describe(now, &server.engine.catalogue));
        let lines: Vec<String> = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect();
        tracing::error!("------ CLIENT LIST OUTPUT ------\n{}", lines.join("\n"));
        crate::process::startup::remove_files(&server.config);
    }
    tracing::error!("=== REDIS BUG REPORT END. Make sure to include from START to END. ===");
}
