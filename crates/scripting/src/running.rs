//! The state of an interpreter as other threads see it: whether a script has run for too long, and how to stop it.
//!
//! A script asks now and then whether it may go on (a hook of Lua's, every so many instructions). Once it has run
//! longer than its timeout it is busy: other clients are told so, and may stop it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The outcome of a request to stop a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It will stop.
    Stopped,
    /// It has written: half of it must not stay.
    Unkillable,
    /// None is busy.
    NotBusy,
    /// The busy one is a function and not a script, or the other way round.
    OtherKind,
}

const GO_ON: u8 = 0;
const KILLED: u8 = 1;
/// While the server stops: the scripts that have written nothing are ended, or all are.
const UNWRITTEN: u8 = 1;
const ALL: u8 = 2;

/// Nanoseconds that a script may take while the server stops, if it may be ended.
const PATIENCE_OF_A_STOP: u64 = 500_000_000;

/// The state of one interpreter, shared with other threads.
#[derive(Debug, Default)]
pub struct Running {
    busy: AtomicBool,
    stop: AtomicU8,
    /// It has written.
    dirty: AtomicBool,
    is_function: AtomicBool,
    /// When it began, by the thread's clock in nanoseconds.
    started: AtomicU64,
    memory: StateMemory,
    /// The words of the command that runs it; written once it is busy.
    command: Mutex<Vec<Vec<u8>>>,
    /// Whether the server stops, and which scripts are ended then; shared by all interpreters.
    server_stops: Arc<AtomicU8>,
}

/// The memory of one state of Lua, as a part of what all states take.
#[derive(Debug, Default)]
struct StateMemory {
    own: AtomicUsize,
    /// Shared by all interpreters of a server.
    all: Arc<AtomicUsize>,
}

impl StateMemory {
    fn set(&self, bytes: usize) {
        let before = self.own.swap(bytes, Ordering::Relaxed);
        self.all.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for StateMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Running {
    pub(crate) fn of(server_stops: &Arc<AtomicU8>, lua_bytes: &Arc<AtomicUsize>) -> Self {
        let memory = StateMemory { own: AtomicUsize::new(0), all: lua_bytes.clone() };
        Self { server_stops: server_stops.clone(), memory, ..Self::default() }
    }

    /// A script or function begins.
    #[inline]
    pub(crate) fn begin(&self, nanos: u64, is_function: bool) {
        self.started.store(nanos, Ordering::Relaxed);
        self.is_function.store(is_function, Ordering::Relaxed);
        self.dirty.store(false, Ordering::Relaxed);
        self.stop.store(GO_ON, Ordering::Relaxed);
    }

    /// When the last script or function began, by the thread's clock.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// It has ended; says whether it was busy.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        let busy = self.busy.load(Ordering::Relaxed);
        if busy {
            self.command.lock().clear();
            self.busy.store(false, Ordering::Release);
            self.stop.store(GO_ON, Ordering::Release);
        }
        busy
    }

    pub(crate) fn note_memory(&self, bytes: usize) {
        self.memory.set(bytes);
    }

    /// Bytes that all states of the server take.
    pub(crate) fn memory_of_all(&self) -> usize {
        self.memory.all.load(Ordering::Relaxed)
    }

    /// Marks it as busy: it has run for longer than its timeout.
    pub(crate) fn set_busy(&self, command: Vec<Vec<u8>>) {
        *self.command.lock() = command;
        self.busy.store(true, Ordering::Release);
    }

    /// Whether it has run for longer than its timeout.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Whether it was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire) != GO_ON
    }

    /// Whether it keeps the server from stopping. `now` reads the thread's clock.
    pub(crate) fn is_in_the_way(&self, now: impl Fn() -> u64) -> bool {
        let ended = match self.server_stops.load(Ordering::Acquire) {
            UNWRITTEN => !self.is_dirty(),
            ALL => true,
            _ => false,
        };
        ended && self.elapsed(now()) > PATIENCE_OF_A_STOP
    }

    /// Marks it as having written: it can no longer be stopped.
    #[inline]
    pub fn set_dirty(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    /// Whether it has written.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// The words of the command that runs it, while it is busy.
    #[must_use]
    pub fn command(&self) -> Vec<Vec<u8>> {
        self.command.lock().clone()
    }

    /// Nanoseconds since it began, by the same clock.
    #[must_use]
    pub fn elapsed(&self, nanos: u64) -> u64 {
        nanos.saturating_sub(self.started.load(Ordering::Relaxed))
    }

    /// Whether a function runs, and not a script.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.is_function.load(Ordering::Relaxed)
    }

    /// Stops it whatever it has done: the server ends without saving.
    pub fn stop_at_once(&self) {
        self.stop.store(KILLED, Ordering::Release);
    }

    fn kill(&self, function: bool) -> Verdict {
        if self.is_dirty() {
            Verdict::Unkillable
        } else if self.is_function() != function {
            Verdict::OtherKind
        } else {
            self.stop.store(KILLED, Ordering::Release);
            Verdict::Stopped
        }
    }
}

impl crate::Scripts {
    /// SCRIPT KILL and FUNCTION KILL: stops every busy one that may be stopped.
    #[must_use]
    pub fn kill(&self, function: bool) -> Verdict {
        let busy = self.running().into_iter().filter(|running| running.is_busy());
        let verdicts: Vec<Verdict> = busy.map(|running| running.kill(function)).collect();
        let order = [Verdict::Stopped, Verdict::Unkillable, Verdict::OtherKind];
        order.into_iter().find(|verdict| verdicts.contains(verdict)).unwrap_or(Verdict::NotBusy)
    }

    /// The server stops: scripts are ended after a short time, except, where the data is `saved`, those that have
    /// written.
    pub fn begin_stop(&self, saved: bool) {
        self.server_stops.store(if saved { UNWRITTEN } else { ALL }, Ordering::Release);
    }

    /// The server does not stop after all.
    pub fn take_back_stop(&self) {
        self.server_stops.store(GO_ON, Ordering::Release);
    }

    /// Whether any script is busy.
    #[must_use]
    pub fn any_busy(&self) -> bool {
        self.running().iter().any(|running| running.is_busy())
    }
}
