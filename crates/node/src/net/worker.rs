//! Worker threads: each runs a tokio current-thread runtime with its own connections. A command runs to
//! its end on the thread that read it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use engine::{Engine, Worker};
use resp::Batch;
use tokio::sync::mpsc;

use crate::net::connection::Connection;
use crate::net::door::Door;
use crate::net::tls::HANDSHAKE_TIMEOUT;
use crate::net::transport::{Socket, Stream};
use crate::process::totals::Traffic;
use crate::server::Server;

/// Bytes read at once; also what one idle connection does not cost, since threads share it.
const READ_SIZE: usize = 64 * 1024;

/// What the connections of one thread take turns in using.
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

/// A worker thread and the way to hand it connections.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) connections: mpsc::UnboundedSender<Socket>,
    pub(crate) thread: JoinHandle<()>,
}

/// Starts worker number `index`.
pub(crate) fn spawn(server: &Arc<Server>, index: usize) -> std::io::Result<Handle> {
    let (connections, accepted) = mpsc::unbounded_channel();
    let server = server.clone();
    let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
        install_scratch(&server.engine, &server.door);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        runtime.block_on(accept(server, accepted));
    })?;
    Ok(Handle { connections, thread })
}

/// Gives the calling thread what it needs to run commands.
pub(crate) fn install_scratch(engine: &Engine, door: &Door) {
    SCRATCH.set(Some(Scratch {
        worker: engine
            .worker(crate::process::time::nanos)
            .counting_heap(crate::process::memory::heap_of_thread),
        traffic: door.new_traffic(),
        read: vec![0; READ_SIZE].into_boxed_slice(),
        batch: Batch::default(),
        out: Vec::new(),
    }));
}

/// Serves a client whose connection is ready.
fn serve(server: &Arc<Server>, stream: Stream) {
    match Connection::new(server.clone(), stream) {
        Ok(connection) => drop(tokio::spawn(connection.run())),
        Err(error) => lose(server, &error),
    }
}

fn lose(server: &Server, error: &std::io::Error) {
    server.door.connected.fetch_sub(1, Ordering::Relaxed);
    tracing::debug!("a connection was lost before it was served: {error}");
}

/// Agrees with a client on how to speak, which it must do in time, and serves it.
async fn receive(server: Arc<Server>, mut stream: Stream) {
    let peer = stream.addresses().ok().flatten().map(|(peer, _)| peer.to_string()).unwrap_or_default();
    let agreed = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.handshake()).await;
    match agreed.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(()) => serve(&server, stream),
        Err(error) => {
            tracing::debug!("Error accepting a client connection: {error} (addr={peer})");
            lose(&server, &error);
        }
    }
}

/// Serves connections on the calling event loop.
pub(crate) async fn accept(server: Arc<Server>, mut accepted: mpsc::UnboundedReceiver<Socket>) {
    loop {
        tokio::select! {
            socket = accepted.recv() => {
                let Some(socket) = socket else { return };
                match Stream::open(socket) {
                    // Boxed, and only here: what agreeing takes is not to be every connection's size.
                    Ok(stream @ Stream::Tls(_)) => drop(tokio::spawn(Box::pin(receive(server.clone(), stream)))),
                    Ok(stream) => serve(&server, stream),
                    Err(error) => lose(&server, &error),
                }
            }
            () = server.stopping.stopped() => return,
        }
    }
}
