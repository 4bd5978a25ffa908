//! The scratch memory of a thread that runs commands: buffers and counters that its connections take turns in using.

use std::cell::RefCell;
use std::sync::Arc;

use engine::{Engine, Worker};
use resp::Batch;

use crate::net::door::Door;
use crate::net::traffic::Traffic;

/// Bytes read at once; also what one idle connection does not cost, since threads share it.
const READ_SIZE: usize = 64 * 1024;

/// One thread's.
pub(crate) struct Scratch {
    pub(crate) worker: Worker,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) read: Box<[u8]>,
    pub(crate) batch: Batch,
    pub(crate) out: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// Runs `f` with this thread's scratch memory.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| f(scratch.as_mut().expect("connections run on worker threads only")))
}

/// Gives the calling thread what it needs to run commands.
pub(crate) fn install_scratch(engine: &Engine, door: &Door) {
    SCRATCH.set(Some(Scratch {
        worker: engine.worker(process::time::nanos).counting_heap(process::memory::HEAP),
        traffic: door.new_traffic(),
        read: vec![0; READ_SIZE].into_boxed_slice(),
        batch: Batch::default(),
        out: Vec::new(),
    }));
}
