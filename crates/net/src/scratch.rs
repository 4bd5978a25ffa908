//! The scratch memory of a thread that runs commands: buffers and counters that its connections take turns in using.

use std::cell::RefCell;
use std::sync::Arc;

use engine::{Engine, Worker};
use resp::Batch;

use crate::door::Door;
use crate::traffic::Traffic;

/// Bytes read at once; also what one idle connection does not cost, since threads share it.
const READ_SIZE: usize = 64 * 1024;

/// One thread's.
#[derive(Debug)]
pub struct Scratch {
    /// Its part of the engine.
    pub worker: Worker,
    /// Its counters.
    pub traffic: Arc<Traffic>,
    /// Where sockets are read into.
    pub read: Box<[u8]>,
    /// The requests that were read.
    pub batch: Batch,
    /// Replies, until they are sent or a connection keeps them.
    pub out: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// Runs `f` with this thread's scratch memory.
pub fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| f(scratch.as_mut().expect("connections run on worker threads only")))
}

/// Gives the calling thread what it needs to run commands.
pub fn install_scratch(engine: &Engine, door: &Door) {
    SCRATCH.set(Some(Scratch {
        worker: engine.worker(process::time::nanos).counting_heap(process::memory::HEAP),
        traffic: door.new_traffic(),
        read: vec![0; READ_SIZE].into_boxed_slice(),
        batch: Batch::default(),
        out: Vec::new(),
    }));
}
