//! Per-thread scratch memory: buffers and counters shared by all connections of a worker thread.

use std::cell::RefCell;
use std::sync::Arc;

use engine::{Engine, Worker};
use resp::Batch;

use crate::context::NetworkContext;
use crate::traffic::Traffic;

/// Size in bytes of the read buffer. The thread's connections share it, so idle connections need no buffer.
const READ_BUFFER_SIZE: usize = 64 * 1024;

/// Memory that all connections of one thread use in turn.
#[derive(Debug)]
pub struct Scratch {
    /// The thread's context for running commands in the engine.
    pub worker: Worker,
    /// The thread's traffic counters, which other threads only read.
    pub traffic: Arc<Traffic>,
    /// Sockets are read into this buffer.
    pub read_buffer: Box<[u8]>,
    /// The requests parsed from the last read.
    pub batch: Batch,
    /// Replies that have not yet been sent or moved to the connection's output buffer.
    pub replies: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// Runs `f` with the calling thread's scratch memory. Calls must not be nested.
pub fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| f(scratch.as_mut().expect("connections run on worker threads only")))
}

/// Prepares the calling thread for running commands. Must be called before [`with_scratch`].
pub fn install_scratch(engine: &Engine, network: &NetworkContext) {
    SCRATCH.set(Some(Scratch {
        worker: engine
            .new_worker(process::time::nanos)
            .with_allocator_stats(process::memory::ALLOCATOR_STATS),
        traffic: network.register_traffic_counters(),
        read_buffer: vec![0; READ_BUFFER_SIZE].into_boxed_slice(),
        batch: Batch::default(),
        replies: Vec::new(),
    }));
}
