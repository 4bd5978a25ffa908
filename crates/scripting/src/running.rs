//! The state of an interpreter as seen by other threads: whether its script is busy, and a way to stop it.
//!
//! A hook checks at regular intervals whether the script may continue. Once the script exceeds its timeout it is busy:
//! other clients receive a BUSY error and may kill it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The result of a request to kill a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillResult {
    /// The busy script, or one of them, will stop.
    Stopped,
    /// The script has already written, so stopping it would leave partial changes.
    Unkillable,
    /// No script or function has exceeded its timeout.
    NotBusy,
    /// The busy code is a function although SCRIPT KILL was called, or a script although FUNCTION KILL was called.
    WrongKind,
}

const KEEP_RUNNING: u8 = 0;
const KILLED: u8 = 1;
/// Values of `shutdown_stop_policy`: a shutdown stops only scripts that have not written, or all scripts.
const STOP_UNWRITTEN_SCRIPTS: u8 = 1;
const STOP_ALL_SCRIPTS: u8 = 2;

/// Grace period in nanoseconds for scripts that may be stopped during shutdown.
const SHUTDOWN_GRACE_NANOS: u64 = 500_000_000;

/// The state of one interpreter that other threads can read and use to stop its script.
#[derive(Debug, Default)]
pub struct InterpreterState {
    is_busy: AtomicBool,
    stop_request: AtomicU8,
    /// Whether the running script has executed a write command.
    has_written: AtomicBool,
    is_function: AtomicBool,
    /// Start time of the script in nanoseconds, by the thread's clock.
    started_nanos: AtomicU64,
    memory: StateMemory,
    /// The arguments of the command that called the script. They are set only once the script is busy.
    command_args: Mutex<Vec<Vec<u8>>>,
    /// Whether the server is shutting down, and which scripts the shutdown may stop. All interpreters share this value.
    shutdown_stop_policy: Arc<AtomicU8>,
}

/// The memory of one Lua state, included in the total of all states.
#[derive(Debug, Default)]
struct StateMemory {
    interpreter_bytes: AtomicUsize,
    /// The total of all Lua states of a server, in bytes.
    total_bytes: Arc<AtomicUsize>,
}

impl StateMemory {
    fn set_bytes(&self, bytes: usize) {
        let before = self.interpreter_bytes.swap(bytes, Ordering::Relaxed);
        self.total_bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for StateMemory {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}

impl InterpreterState {
    pub(crate) fn new(shutdown_stop_policy: &Arc<AtomicU8>, lua_bytes: &Arc<AtomicUsize>) -> Self {
        let memory = StateMemory { interpreter_bytes: AtomicUsize::new(0), total_bytes: lua_bytes.clone() };
        Self { shutdown_stop_policy: shutdown_stop_policy.clone(), memory, ..Self::default() }
    }

    /// Marks the start of a script or function.
    #[inline]
    pub(crate) fn begin(&self, nanos: u64, is_function: bool) {
        self.started_nanos.store(nanos, Ordering::Relaxed);
        self.is_function.store(is_function, Ordering::Relaxed);
        self.has_written.store(false, Ordering::Relaxed);
        self.stop_request.store(KEEP_RUNNING, Ordering::Relaxed);
    }

    /// Start time of the last script or function by the thread's clock.
    #[must_use]
    pub fn started_nanos(&self) -> u64 {
        self.started_nanos.load(Ordering::Relaxed)
    }

    /// Marks the end of the script. Returns whether the script was busy.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        let busy = self.is_busy.load(Ordering::Relaxed);
        if busy {
            self.command_args.lock().clear();
            self.is_busy.store(false, Ordering::Release);
            self.stop_request.store(KEEP_RUNNING, Ordering::Release);
        }
        busy
    }

    pub(crate) fn publish_memory(&self, bytes: usize) {
        self.memory.set_bytes(bytes);
    }

    /// Memory of all Lua states of the server in bytes.
    pub(crate) fn total_memory(&self) -> usize {
        self.memory.total_bytes.load(Ordering::Relaxed)
    }

    /// Marks the script as busy: it has exceeded its timeout.
    pub(crate) fn set_busy(&self, command: Vec<Vec<u8>>) {
        *self.command_args.lock() = command;
        self.is_busy.store(true, Ordering::Release);
    }

    /// Whether the script has exceeded its timeout.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    /// Whether the script must stop because it was killed or the server shuts down.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop_request.load(Ordering::Acquire) != KEEP_RUNNING
    }

    /// Whether the script delays a shutdown beyond its grace period. `now` reads the thread's clock.
    pub(crate) fn delays_shutdown(&self, now: impl Fn() -> u64) -> bool {
        let ended = match self.shutdown_stop_policy.load(Ordering::Acquire) {
            STOP_UNWRITTEN_SCRIPTS => !self.has_written(),
            STOP_ALL_SCRIPTS => true,
            _ => false,
        };
        ended && self.elapsed_nanos(now()) > SHUTDOWN_GRACE_NANOS
    }

    /// Marks that the script has written, after which SCRIPT KILL cannot stop it.
    #[inline]
    pub fn mark_written(&self) {
        self.has_written.store(true, Ordering::Release);
    }

    /// Whether the running script has executed a write command.
    #[must_use]
    pub fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Acquire)
    }

    /// The arguments of the command that called the script; empty unless the script is busy.
    #[must_use]
    pub fn command_args(&self) -> Vec<Vec<u8>> {
        self.command_args.lock().clone()
    }

    /// Nanoseconds since the script started. `now` is the current time by the same clock.
    #[must_use]
    pub fn elapsed_nanos(&self, now: u64) -> u64 {
        now.saturating_sub(self.started_nanos.load(Ordering::Relaxed))
    }

    /// Whether the running code is a function (FCALL) rather than a script.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.is_function.load(Ordering::Relaxed)
    }

    /// Stops the script even if it has written. Used when the server exits without saving.
    pub fn stop_at_once(&self) {
        self.stop_request.store(KILLED, Ordering::Release);
    }

    fn kill(&self, kills_functions: bool) -> KillResult {
        if self.has_written() {
            KillResult::Unkillable
        } else if self.is_function() != kills_functions {
            KillResult::WrongKind
        } else {
            self.stop_request.store(KILLED, Ordering::Release);
            KillResult::Stopped
        }
    }
}

impl crate::Scripts {
    /// Stops every busy script, or with `kills_functions` every busy function, unless it has written (SCRIPT KILL and
    /// FUNCTION KILL).
    #[must_use]
    pub fn kill(&self, kills_functions: bool) -> KillResult {
        let busy = self.interpreter_states().into_iter().filter(|running| running.is_busy());
        let verdicts: Vec<KillResult> = busy.map(|running| running.kill(kills_functions)).collect();
        let order = [KillResult::Stopped, KillResult::Unkillable, KillResult::WrongKind];
        order.into_iter().find(|verdict| verdicts.contains(verdict)).unwrap_or(KillResult::NotBusy)
    }

    /// Begins a shutdown: scripts are stopped after a grace period, except that scripts with writes continue if the
    /// data will be saved.
    pub fn begin_shutdown(&self, saves_data: bool) {
        self.shutdown_stop_policy
            .store(if saves_data { STOP_UNWRITTEN_SCRIPTS } else { STOP_ALL_SCRIPTS }, Ordering::Release);
    }

    /// Cancels a shutdown, so that scripts continue to run.
    pub fn cancel_shutdown(&self) {
        self.shutdown_stop_policy.store(KEEP_RUNNING, Ordering::Release);
    }

    /// Whether the script of any thread is busy.
    #[must_use]
    pub fn has_busy_script(&self) -> bool {
        self.interpreter_states().iter().any(|running| running.is_busy())
    }
}
