//! Worker threads: each runs a tokio current-thread runtime with its own connections. A command runs to
//! its end on the thread that read it.
//!
//! `io-threads` says how many serve; while the server runs it may say another number (`Listeners::set_serving`). A
//! worker that is then too many lives on without connections: those that are at rest move to others, at once or when
//! they next are, as do those that come on their way to it.
//!
//! One more such thread stands by. While a script keeps a worker busy, the worker's other connections, and new clients,
//! are served there ([`make_way`]); afterwards they go back.

pub(crate) mod connection_slot;

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::connection::Connection;
use crate::net::listener::{Arrival, Handle, Traveller};
use crate::net::scratch::install_scratch;
use crate::net::tls::HANDSHAKE_TIMEOUT;
use crate::net::transport::{Socket, Stream};
use crate::net::wake_batches::WakeBatches;
use crate::process::event_loops::WORKER;
use crate::server::Server;

/// How often a thread that should have no connections looks whether those that it has can go to others.
const GUESTS_STAY: Duration = Duration::from_millis(100);

/// A worker thread's own state: its server, its number and its messages.
struct ThisWorker {
    server: Arc<Server>,
    number: usize,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
}

thread_local! {
    static THIS_WORKER: RefCell<Option<ThisWorker>> = const { RefCell::new(None) };
}

/// Starts worker number `number`.
pub(crate) fn spawn(server: &Arc<Server>, number: usize) -> std::io::Result<Handle> {
    let (connections, arrivals) = mpsc::unbounded_channel();
    let server = server.clone();
    let thread = std::thread::Builder::new().name(format!("{WORKER}{number}")).spawn(move || {
        install_scratch(&server.engine, &server.door);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        THIS_WORKER.set(Some(ThisWorker { server: server.clone(), number, arrivals }));
        runtime.block_on(accept(server, number));
        // Not at the thread's very end, when little of it is left.
        drop(runtime);
        THIS_WORKER.set(None);
    })?;
    Ok(Handle { connections, thread })
}

/// The calling thread is about to do one thing for long: its other connections go on elsewhere.
pub(crate) fn make_way() {
    THIS_WORKER.with_borrow_mut(|place| {
        let Some(place) = place else { return };
        let server = &place.server;
        let Some(elsewhere) = server.door.listeners.leave(place.number, &server.engine) else { return };
        while let Ok(arrival) = place.arrivals.try_recv() {
            // An end that is gone belongs to a server that stops.
            let _ = elsewhere.send(arrival);
        }
        for (connection, socket) in connection_slot::vacate() {
            let _ = elsewhere.send(Arrival::Moved(Box::new(Moved(connection, socket))));
        }
    });
}

/// Serves a client whose connection is ready.
fn serve(server: &Arc<Server>, stream: Stream) {
    match Connection::new(server.clone(), stream) {
        Ok(connection) => drop(tokio::spawn(connection_slot::serve(Box::new(connection)))),
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

/// A client that another thread has served so far.
struct Moved(Box<Connection>, Socket);

impl Traveller for Moved {
    fn arrive(self: Box<Self>) {
        let Self(mut connection, socket) = *self;
        match connection.enter_event_loop(socket) {
            Ok(()) => drop(tokio::spawn(connection_slot::serve(connection))),
            Err(error) => tracing::debug!("a connection was lost on its way: {error}"),
        }
    }
}

fn welcome(server: &Arc<Server>, arrival: Arrival) {
    match arrival {
        Arrival::News => {}
        Arrival::Moved(traveller) => traveller.arrive(),
        Arrival::New(socket) => match Stream::open(socket) {
            // Boxed, and only here: what agreeing takes is not to be every connection's size.
            Ok(stream @ Stream::Tls(_)) => drop(tokio::spawn(Box::pin(receive(server.clone(), stream)))),
            Ok(stream) => serve(server, stream),
            Err(error) => lose(server, &error),
        },
    }
}

/// Serves connections on the calling event loop.
async fn accept(server: Arc<Server>, number: usize) {
    tokio::spawn(WakeBatches::here().give());
    let next = || {
        poll_fn(|context| {
            THIS_WORKER.with_borrow_mut(|place| match place {
                Some(place) => place.arrivals.poll_recv(context),
                None => Poll::Ready(None),
            })
        })
    };
    let listeners = &server.door.listeners;
    // A connection that has just come may not have its connection slot yet.
    let mut came = false;
    loop {
        let has_guests = listeners.is_spare(number) && (came || connection_slot::any_taken());
        tokio::select! {
            arrival = next() => match arrival {
                Some(arrival) => {
                    welcome(&server, arrival);
                    came = true;
                }
                None => return,
            },
            () = tokio::time::sleep(GUESTS_STAY), if has_guests => {
                came = false;
                if listeners.is_to_be_left(number) {
                    for (turn, (connection, socket)) in connection_slot::vacate().into_iter().enumerate() {
                        listeners.hand_over(turn, Arrival::Moved(Box::new(Moved(connection, socket))));
                    }
                }
            }
            () = server.stopping.stopped() => return,
        }
    }
}
