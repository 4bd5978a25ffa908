//! Worker threads: each runs a tokio current-thread runtime with its own connections. A command runs to
//! its end on the thread that read it.
//!
//! `io-threads` says how many serve; while the server runs it may say another number (`Listeners::set_serving`). A
//! worker that is then too many lives on without connections: those that are at rest move to others, soon or when
//! they next are, as do those that come on their way to it.
//!
//! One more such thread stands by. A watch looks every few milliseconds whether one thing keeps a worker; the worker's
//! other connections, and new clients, are then served on that thread until it is back ([`net::worker_pool`]).
//!
//! Background workers (`long-command-threads`) are such threads, too. A connection whose next command takes long goes
//! to one with it ([`go_to_background`]), and comes back when it has nothing more to run ([`come_back`]).

pub(crate) mod connection_slot;

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use config::keys;
use net::scratch::{install_scratch, with_scratch};
use net::tls::HANDSHAKE_TIMEOUT;
use net::transport::{Socket, Stream};
use net::wake_batches::WakeBatches;
use net::worker_pool::{
    self, InFlightCount, Mailbox as _, MailboxMessage, MigratingConnection, WorkerHandle,
};
use parking_lot::Mutex;
use process::event_loops::WORKER_NAME_PREFIX;
use process::stall_detector::ThreadActivity;
use process::time;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use self::connection_slot::Slots;
use crate::connection::Connection;
use crate::server::Server;

/// How often a thread with connections that are away from home looks whether they can go there.
const MISPLACED_CHECK_DELAY: Duration = Duration::from_millis(100);

/// A worker's connections and messages. Other threads take them from there when one thing keeps the worker.
struct Mailbox {
    receiver: Mutex<mpsc::UnboundedReceiver<MailboxMessage>>,
    slots: Arc<Slots>,
    /// Connections may be away from home here.
    misplaced: Notify,
}

/// A worker thread's own state: its server, its number and its desk.
struct ThisWorker {
    server: Arc<Server>,
    /// None, if it is in the background.
    number: Option<usize>,
    mailbox: Arc<Mailbox>,
}

thread_local! {
    static THIS_WORKER: RefCell<Option<ThisWorker>> = const { RefCell::new(None) };
}

/// Starts worker number `number`.
pub(crate) fn spawn(server: &Arc<Server>, number: usize) -> std::io::Result<WorkerHandle> {
    spawn_as(server, Some(number), format!("{WORKER_NAME_PREFIX}{number}"))
}

/// Starts the background workers, if there are to be any: so many for what takes long, and one for waits.
pub(crate) fn spawn_background(server: &Arc<Server>) -> std::io::Result<Vec<WorkerHandle>> {
    let names = match server.config.get(keys::LONG_COMMAND_THREADS) {
        0 => Vec::new(),
        count => {
            (0..count).map(|number| format!("background-{number}")).chain(["waiting".to_owned()]).collect()
        }
    };
    names.into_iter().map(|name| spawn_as(server, None, name)).collect()
}

fn spawn_as(server: &Arc<Server>, number: Option<usize>, name: String) -> std::io::Result<WorkerHandle> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mailbox =
        Arc::new(Mailbox { receiver: Mutex::new(receiver), slots: Arc::default(), misplaced: Notify::new() });
    let activity = Arc::<ThreadActivity>::default();
    let (server, own_mailbox, shown) = (server.clone(), mailbox.clone(), activity.clone());
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        install_scratch(&server.engine, &server.network);
        shown.register_current_thread();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        THIS_WORKER.set(Some(ThisWorker { server: server.clone(), number, mailbox: own_mailbox.clone() }));
        runtime.block_on(accept(server, number, own_mailbox));
        // Not at the thread's very end, when little of it is left.
        drop(runtime);
        THIS_WORKER.set(None);
    })?;
    Ok(WorkerHandle { sender, thread, activity, mailbox })
}

/// Starts the watch that relieves workers which one thing keeps; none if commands that take long make others wait.
pub(crate) fn watch(server: &Arc<Server>) -> std::io::Result<Option<JoinHandle<()>>> {
    if server.config.get(keys::LONG_COMMAND_THREADS) == 0 {
        return Ok(None);
    }
    let server = server.clone();
    let look = move || {
        while !server.stopping.is_stopped() {
            server.network.tick.sleep_while_idle();
            std::thread::sleep(server.network.worker_pool.offload_stalled_workers(time::nanos()));
        }
    };
    std::thread::Builder::new().name("watch".to_owned()).spawn(look).map(Some)
}

/// A script keeps the calling thread for so long that others are told: its other connections go on elsewhere.
pub(crate) fn make_way() {
    THIS_WORKER.with_borrow(|place| {
        let Some(place) = place else { return };
        let (worker_pool, engine) = (&place.server.network.worker_pool, &place.server.engine);
        match place.number {
            Some(number) => worker_pool.offload(number, engine),
            // In the background others wait for their turn, unless they are to be told of a busy script.
            None => {
                // Before the connections that go elsewhere ask there for what the script holds.
                worker_pool.watch_scripts(engine);
                place.mailbox.drain().into_iter().for_each(|message| match message {
                    MailboxMessage::Migrated(client) => worker_pool.return_from_background(client),
                    // Those have a worker as their home, and come there.
                    MailboxMessage::Accepted(..) => {}
                });
            }
        }
    });
}

impl worker_pool::Mailbox for Mailbox {
    fn drain(&self) -> Vec<MailboxMessage> {
        let mut all = Vec::new();
        let mut receiver = self.receiver.lock();
        while let Ok(message) = receiver.try_recv() {
            all.push(message);
        }
        drop(receiver);
        let moved = |(connection, socket)| MailboxMessage::Migrated(Box::new(Moved(connection, socket)));
        all.extend(self.slots.vacate(|_| true).into_iter().map(moved));
        all
    }

    fn request_check(&self) {
        self.misplaced.notify_one();
    }
}

/// Serves a connection on the calling thread.
fn serve_here(connection: Box<Connection>) {
    THIS_WORKER.with_borrow(|place| {
        let place = place.as_ref().expect("connections are served on worker threads only");
        let placement = place.server.network.worker_pool.placement();
        if place.number.is_some_and(|number| placement.is_misplaced(connection.owner(), number)) {
            place.mailbox.misplaced.notify_one();
        }
        tokio::spawn(place.mailbox.slots.serve(connection));
    });
}

/// Has a background worker go on with a connection of the calling worker, the one where commands wait if this one does.
fn go_to_background(mut connection: Box<Connection>, waits: bool) {
    let server = connection.server.clone();
    // An error shows that its socket is gone, and the connection ends with it.
    let Ok(socket) = connection.leave_event_loop() else { return };
    let client = Box::new(Moved(connection, socket));
    server.network.worker_pool.move_to_background(client, waits, &server.engine);
}

/// Has the home of a connection go on with it.
fn come_back(mut connection: Box<Connection>) {
    let server = connection.server.clone();
    let Ok(socket) = connection.leave_event_loop() else { return };
    server.network.worker_pool.return_from_background(Box::new(Moved(connection, socket)));
}

/// Serves a client whose connection is ready.
fn serve(server: &Arc<Server>, stream: Stream, owner: usize) {
    match Connection::new(server.clone(), stream, owner) {
        Ok(connection) => serve_here(Box::new(connection)),
        Err(error) => lose(server, &error),
    }
}

fn lose(server: &Server, error: &std::io::Error) {
    server.network.connected.fetch_sub(1, Ordering::Relaxed);
    tracing::debug!("a connection was lost before it was served: {error}");
}

/// Agrees with a client on how to speak, which it must do in time, and serves it.
async fn receive(server: Arc<Server>, mut stream: Stream, owner: usize) {
    let peer = stream.addresses().ok().flatten().map(|(peer, _)| peer.to_string()).unwrap_or_default();
    let agreed = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.handshake()).await;
    match agreed.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(()) => serve(&server, stream, owner),
        Err(error) => {
            tracing::debug!("Error accepting a client connection: {error} (addr={peer})");
            lose(&server, &error);
        }
    }
}

/// A client that another thread has served so far.
struct Moved(Box<Connection>, Socket);

impl MigratingConnection for Moved {
    fn resume_here(self: Box<Self>) {
        let Self(mut connection, socket) = *self;
        match connection.enter_event_loop(socket) {
            Ok(()) => serve_here(connection),
            Err(error) => tracing::debug!("a connection was lost on its way: {error}"),
        }
    }

    fn owner(&self) -> usize {
        self.0.owner()
    }

    fn set_owner(&mut self, owner: usize) {
        self.0.set_owner(owner);
    }

    fn enter_background(&mut self, in_flight: InFlightCount, waits: bool) {
        self.0.enter_background(in_flight, waits);
    }

    fn leave_background(&mut self) {
        self.0.leave_background();
    }
}

fn welcome(server: &Arc<Server>, message: MailboxMessage) {
    match message {
        MailboxMessage::Migrated(client) => client.resume_here(),
        MailboxMessage::Accepted(socket, owner) => match Stream::open(socket) {
            // Boxed, and only here: what agreeing takes is not to be every connection's size.
            Ok(stream @ Stream::Tls(_)) => {
                drop(tokio::spawn(Box::pin(receive(server.clone(), stream, owner))));
            }
            Ok(stream) => serve(server, stream, owner),
            Err(error) => lose(server, &error),
        },
    }
}

/// Serves connections on the calling event loop.
async fn accept(server: Arc<Server>, number: Option<usize>, mailbox: Arc<Mailbox>) {
    tokio::spawn(WakeBatches::current().run());
    let next = || poll_fn(|context| mailbox.receiver.lock().poll_recv(context));
    let mut look_at = None;
    loop {
        let scripts_released = server.scripts_released.notified();
        with_scratch(|scratch| server.engine.forget_released_scripts(&mut scratch.worker));
        tokio::select! {
            message = next() => match message {
                Some(message) => welcome(&server, message),
                None => return,
            },
            () = mailbox.misplaced.notified() => {
                look_at.get_or_insert_with(|| Instant::now() + MISPLACED_CHECK_DELAY);
            }
            () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {
                look_at = None;
                if number.is_some_and(|number| return_connections(&server, number, &mailbox.slots)) {
                    mailbox.request_check();
                }
            }
            () = scripts_released => {}
            () = server.stopping.stopped() => return,
        }
    }
}

/// Sends those connections of worker number `number` home that can go; says whether others are to.
fn return_connections(server: &Server, number: usize, slots: &Slots) -> bool {
    let worker_pool = &server.network.worker_pool;
    // A copy: others hold the crew's lock when they want that of the slots.
    let placement = worker_pool.placement();
    for (connection, socket) in slots.vacate(|owner| placement.can_return_to_owner(owner, number)) {
        worker_pool.return_to_owner(Box::new(Moved(connection, socket)));
    }
    slots.any(|owner| placement.is_misplaced(owner, number))
}
