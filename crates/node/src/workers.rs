//! Worker threads: each runs a tokio current-thread runtime with its own connections. A command runs to completion on
//! the thread that read it.
//!
//! `io-threads` sets the number of workers that serve clients, and can be changed at runtime
//! (`Listeners::set_serving`). A surplus worker stays alive without connections: idle connections move to other workers
//! at once, and busy ones follow when they become idle.
//!
//! One more worker is in reserve. A watchdog checks every few milliseconds whether a command blocks a worker. The
//! worker's other connections and new clients are then served by the reserve thread ([`net::worker_pool`]).
//!
//! Background workers (`long-command-threads`) run slow commands, and commands that wait long for slots. A connection
//! whose next command is one of these moves to such a worker ([`move_to_background`]), and returns when it has nothing more to run ([`return_to_owner`]).
pub(crate) mod connection_slot;

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use config::keys;
use engine::OffloadReason;
use net::scratch::{install_scratch, with_scratch};
use net::tls::HANDSHAKE_TIMEOUT;
use net::transport::{Socket, Stream};
use net::wake_batches::WakeBatcher;
use net::worker_pool::{
    self, BackgroundHandles, InFlightCount, Mailbox as _, MailboxMessage, MigratingConnection, WorkerHandle,
};
use parking_lot::Mutex;
use process::event_loops::WORKER_NAME_PREFIX;
use process::stall_detector::ThreadActivity;
use process::time;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use self::connection_slot::ConnectionSlots;
use crate::connection::Connection;
use crate::server::Server;

/// How often a thread checks whether connections that belong to other workers can move there.
const MISPLACED_CONNECTION_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The messages and connections of a worker. Other threads take both over while a command blocks the worker.
struct WorkerMailbox {
    receiver: Mutex<mpsc::UnboundedReceiver<MailboxMessage>>,
    connection_slots: Arc<ConnectionSlots>,
    /// Signalled when connections on this thread may belong to other workers.
    connections_misplaced: Notify,
}

/// The thread-local state of a worker: its server, number and mailbox.
struct WorkerContext {
    server: Arc<Server>,
    /// The worker's number; `None` for a background worker.
    number: Option<usize>,
    mailbox: Arc<WorkerMailbox>,
}

thread_local! {
    static THIS_WORKER: RefCell<Option<WorkerContext>> = const { RefCell::new(None) };
}

pub(crate) fn spawn_worker(server: &Arc<Server>, number: usize) -> std::io::Result<WorkerHandle> {
    spawn_thread(server, Some(number), format!("{WORKER_NAME_PREFIX}{number}"))
}

/// Starts the configured number of background workers for slow commands, and those for commands that wait for slots.
pub(crate) fn spawn_background_workers(server: &Arc<Server>) -> std::io::Result<Option<BackgroundHandles>> {
    let count = server.config.get(keys::LONG_COMMAND_THREADS);
    if count == 0 {
        return Ok(None);
    }
    let spawn = |name: String| spawn_thread(server, None, name);
    Ok(Some(BackgroundHandles {
        slow_command_workers: (0..count)
            .map(|number| spawn(format!("background-{number}")))
            .collect::<Result<_, _>>()?,
        slot_wait_worker: spawn("slot-waits".to_owned())?,
        all_slots_wait_worker: spawn("all-slots-waits".to_owned())?,
    }))
}

fn spawn_thread(server: &Arc<Server>, number: Option<usize>, name: String) -> std::io::Result<WorkerHandle> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mailbox = Arc::new(WorkerMailbox {
        receiver: Mutex::new(receiver),
        connection_slots: Arc::default(),
        connections_misplaced: Notify::new(),
    });
    let activity = Arc::<ThreadActivity>::default();
    let (server, own_mailbox, shown) = (server.clone(), mailbox.clone(), activity.clone());
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        install_scratch(&server.engine, &server.network);
        shown.register_current_thread();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        THIS_WORKER.set(Some(WorkerContext { server: server.clone(), number, mailbox: own_mailbox.clone() }));
        runtime.block_on(run_mailbox(server, number, own_mailbox));
        // The runtime must be dropped before the thread-local state that its tasks use is destroyed.
        drop(runtime);
        THIS_WORKER.set(None);
    })?;
    Ok(WorkerHandle { sender, thread, activity, mailbox })
}

/// Starts the watchdog that moves connections away from blocked workers. Returns `None` if the configuration lets slow
/// commands block other clients.
pub(crate) fn spawn_watchdog(server: &Arc<Server>) -> std::io::Result<Option<JoinHandle<()>>> {
    if server.config.get(keys::LONG_COMMAND_THREADS) == 0 {
        return Ok(None);
    }
    let server = server.clone();
    let look = move || {
        while !server.stop_signal.is_stopped() {
            server.network.tick.sleep_while_idle();
            std::thread::sleep(server.network.worker_pool.offload_stalled_workers(time::nanos()));
        }
    };
    std::thread::Builder::new().name("watch".to_owned()).spawn(look).map(Some)
}

/// Called when a script has run for so long that other clients get BUSY. Moves the other connections of the calling
/// worker to another thread.
pub(crate) fn offload_this_worker() {
    THIS_WORKER.with_borrow(|place| {
        let Some(place) = place else { return };
        let (worker_pool, engine) = (&place.server.network.worker_pool, &place.server.engine);
        match place.number {
            Some(number) => worker_pool.offload_worker(number, engine),
            // On a background worker, other connections wait in its queue, unless they must get the BUSY error.
            None => {
                // The busy state is updated before the moved connections request locks that the script holds.
                worker_pool.update_busy_flag_and_stalls(engine);
                place.mailbox.take_messages().into_iter().for_each(|message| match message {
                    MailboxMessage::Migrated(client) => worker_pool.return_from_background(client),
                    // New clients are only sent to workers, never to a background worker.
                    MailboxMessage::Accepted(..) => {}
                });
            }
        }
    });
}

impl worker_pool::Mailbox for WorkerMailbox {
    fn take_messages(&self) -> Vec<MailboxMessage> {
        let mut all = Vec::new();
        let mut receiver = self.receiver.lock();
        while let Ok(message) = receiver.try_recv() {
            all.push(message);
        }
        drop(receiver);
        let moved =
            |(connection, socket)| MailboxMessage::Migrated(Box::new(MovedConnection(connection, socket)));
        all.extend(self.connection_slots.take_idle_connections(|_| true).into_iter().map(moved));
        all
    }

    fn request_placement_check(&self) {
        self.connections_misplaced.notify_one();
    }
}

/// Serves a connection on the calling thread.
fn serve_connection(connection: Box<Connection>) {
    THIS_WORKER.with_borrow(|place| {
        let place = place.as_ref().expect("connections are served on worker threads only");
        let placement = place.server.network.worker_pool.placement();
        if place.number.is_some_and(|number| placement.is_misplaced(connection.owner(), number)) {
            place.mailbox.connections_misplaced.notify_one();
        }
        tokio::spawn(place.mailbox.connection_slots.serve(connection));
    });
}

/// Moves a connection of the calling worker to the background worker for commands with this reason.
fn move_to_background(mut connection: Box<Connection>, reason: OffloadReason) {
    let server = connection.server.clone();
    // An error means that the socket is gone. The connection is dropped.
    let Ok(socket) = connection.leave_event_loop() else { return };
    let client = Box::new(MovedConnection(connection, socket));
    server.network.worker_pool.move_to_background(client, reason, &server.engine);
}

/// Returns a connection from the background to the worker that owns it.
fn return_to_owner(mut connection: Box<Connection>) {
    let server = connection.server.clone();
    let Ok(socket) = connection.leave_event_loop() else { return };
    server.network.worker_pool.return_from_background(Box::new(MovedConnection(connection, socket)));
}

/// Serves a client after TCP accept and TLS handshake.
fn serve_client(server: &Arc<Server>, stream: Stream, owner: usize) {
    match Connection::new(server.clone(), stream, owner) {
        Ok(connection) => serve_connection(Box::new(connection)),
        Err(error) => log_lost_connection(server, &error),
    }
}

fn log_lost_connection(server: &Server, error: &std::io::Error) {
    server.network.client_count.fetch_sub(1, Ordering::Relaxed);
    tracing::debug!("a connection was lost before it was served: {error}");
}

/// Completes the TLS handshake with a client within a timeout, and then serves the client.
async fn accept_tls_client(server: Arc<Server>, mut stream: Stream, owner: usize) {
    let peer = stream.addresses().ok().flatten().map(|(peer, _)| peer.to_string()).unwrap_or_default();
    let agreed = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.handshake()).await;
    match agreed.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(()) => serve_client(&server, stream, owner),
        Err(error) => {
            tracing::debug!("Error accepting a client connection: {error} (addr={peer})");
            log_lost_connection(&server, &error);
        }
    }
}

/// A connection and its socket while they move from one thread to another.
struct MovedConnection(Box<Connection>, Socket);

impl MigratingConnection for MovedConnection {
    fn resume_here(self: Box<Self>) {
        let Self(mut connection, socket) = *self;
        match connection.enter_event_loop(socket) {
            Ok(()) => serve_connection(connection),
            Err(error) => tracing::debug!("a connection was lost on its way: {error}"),
        }
    }

    fn owner(&self) -> usize {
        self.0.owner()
    }

    fn set_owner(&mut self, owner: usize) {
        self.0.set_owner(owner);
    }

    fn enter_background(&mut self, in_flight: InFlightCount, reason: OffloadReason) {
        self.0.enter_background(in_flight, reason);
    }

    fn leave_background(&mut self) {
        self.0.leave_background();
    }
}

fn handle_message(server: &Arc<Server>, message: MailboxMessage) {
    match message {
        MailboxMessage::Migrated(client) => client.resume_here(),
        MailboxMessage::Accepted(socket, owner) => match Stream::open(socket) {
            // Only a TLS handshake is boxed here, so that its state does not enlarge every connection.
            Ok(stream @ Stream::Tls(_)) => {
                drop(tokio::spawn(Box::pin(accept_tls_client(server.clone(), stream, owner))));
            }
            Ok(stream) => serve_client(server, stream, owner),
            Err(error) => log_lost_connection(server, &error),
        },
    }
}

/// Handles the mailbox messages of the calling thread: new and moved connections.
async fn run_mailbox(server: Arc<Server>, number: Option<usize>, mailbox: Arc<WorkerMailbox>) {
    tokio::spawn(WakeBatcher::current().run());
    let next = || poll_fn(|context| mailbox.receiver.lock().poll_recv(context));
    let mut look_at = None;
    loop {
        let scripts_released = server.scripts_released.notified();
        with_scratch(|scratch| server.engine.scripting.drop_released(&mut scratch.worker));
        tokio::select! {
            message = next() => match message {
                Some(message) => handle_message(&server, message),
                None => return,
            },
            () = mailbox.connections_misplaced.notified() => {
                look_at.get_or_insert_with(|| Instant::now() + MISPLACED_CONNECTION_CHECK_INTERVAL);
            }
            () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {
                look_at = None;
                if number.is_some_and(|number| return_misplaced_connections(&server, number, &mailbox.connection_slots)) {
                    mailbox.request_placement_check();
                }
            }
            () = scripts_released => {}
            () = server.stop_signal.wait_until_stopped() => return,
        }
    }
}

/// Moves connections that this thread serves for others back to their owners. Returns whether connections must still be
/// moved later.
fn return_misplaced_connections(server: &Server, number: usize, slots: &ConnectionSlots) -> bool {
    let worker_pool = &server.network.worker_pool;
    // The placement is copied, since other threads lock the pool and the slots in the other order.
    let placement = worker_pool.placement();
    for (connection, socket) in
        slots.take_idle_connections(|owner| placement.can_return_to_owner(owner, number))
    {
        worker_pool.return_to_owner(Box::new(MovedConnection(connection, socket)));
    }
    slots.has_owner(|owner| placement.is_misplaced(owner, number))
}
