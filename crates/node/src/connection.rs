//! A client connection.
//!
//! The main loop reads available bytes, parses all complete requests, executes them, and sends the replies with one
//! write, all within a single poll. The task only awaits when a command needs the node. An idle connection owns no
//! buffer: reads use the thread's scratch memory, and only the rest of an incomplete request is kept.

mod dialogue;
mod input;
pub(crate) mod turn;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use config::keys;
use durability::stream::commit_point::{CommitPoint, HistoryEnded, HistoryNumber, HistoryOffset};
use engine::{
    BackgroundMode, Client, ClientFlags, CommandOrigin, DispatchStatus, NodeCommand, OffloadReason,
    PipelinedRequests, Session, UnblockReason, WaitEnd, Waiter,
};
use net::context::OutputLimit;
use net::detached_connection::DetachedConnection;
use net::output::{Output, OutputMark};
use net::scratch::{Scratch, with_scratch};
use net::transport::{Socket, Stream};
use net::wake_batches::WakeBatcher;
use net::worker_pool::InFlightCount;
use parking_lot::Mutex;
use process::crash;
use resp::{ParseLimits, Parser, ProtocolError, Request, Writer};
use slot_routing::ReplOffset;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use self::input::InputBuffer;
use self::turn::{TimeSlice, yield_to_other_tasks};
use crate::replication::SessionProfile;
use crate::server::Server;

/// From this many bytes on, an incomplete request doubles its buffer with each read, by at most `MAX_READ_BYTES`.
const LONG_REQUEST_BYTES: usize = 64 * 1024;
const MAX_READ_BYTES: usize = 16 * 1024 * 1024;
/// Once a client has sent this many bytes of a long argument, memory for the whole argument is allocated.
const TRUSTED_PREFIX_BYTES: usize = 512 * 1024;

/// A reply longer than this is not copied to another buffer if later replies of its batch must wait.
const LONG_REPLY_BYTES: usize = 64 * 1024;

/// The maximum number of requests parsed at once. Requests that do not fit into the time slice are parsed again in the
/// next one.
const MAX_PARSED_REQUESTS: usize = 1024;

/// The maximum number of pending output bytes for an unauthenticated client, as in Redis.
const MAX_UNAUTHENTICATED_OUTPUT: usize = 1024;

/// The waker of a connection's task, and the wake batch of the thread that runs the task.
type SharedWaker = Mutex<Option<(Waker, Arc<WakeBatcher>)>>;

/// A client connection, with everything that is kept while it is idle.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) server: Arc<Server>,
    pub(crate) session: Session,
    stream: Stream,
    parser: Parser,
    /// Received bytes that are not executed yet.
    input_buffer: InputBuffer,
    time_slice: TimeSlice,
    /// Replies that are not sent yet.
    pub(crate) output: Output,
    commit_state: CommitState,
    /// Wakes the task of this connection. `None` until the task first runs.
    waker: Arc<SharedWaker>,
    has_waker: bool,
    /// The properties that a replica announced by REPLCONF. `None` for most clients.
    pub(crate) profile: SessionProfile,
    /// Whether `input` may contain complete requests to execute before reading more.
    has_unexecuted_input: bool,
    /// The log offset of the last write for which the client was throttled.
    throttled_offset: ReplOffset,
    /// The number of the worker that serves this connection unless a command keeps it elsewhere.
    owner: usize,
    /// `Some` while a background worker has the connection.
    in_flight: Option<InFlightCount>,
    /// Fires at the timeout of a blocking command.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Which commits the replies to the client's writes wait for.
#[derive(Debug, Default)]
struct CommitState {
    /// The replication history in which the last batch began.
    batch_history: HistoryNumber,
    /// [`Session::change_count`] when the changes were last checked.
    change_count: u64,
    /// The replication history of the client's last change.
    change_history: HistoryNumber,
    /// The replication history of the held replies, if there are any.
    held_reply_history: HistoryNumber,
}

/// Why a poll of the connection ended.
pub(crate) enum ConnectionEvent {
    Closed,
    RunNodeCommand(NodeCommand, Request),
    /// The command must wait until a pause ends. The value is the number of ended pauses when the wait began.
    Paused(u64),
    /// The command is blocked on keys. Later polls continue the wait.
    Blocked,
    /// The next command must run on a background worker, for this reason.
    Offload(OffloadReason),
    /// The slow command has run, and the connection can leave its background worker.
    ReturnToOwner,
    /// The client has written, and its next request is delayed for this long.
    Throttled(Duration),
}

/// Executes a command of the node for a connection, and writes its reply.
pub(crate) type NodeCommandRunner =
    for<'a> fn(&'a mut Connection, NodeCommand, &'a Request) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The result of a wait during which the client may disconnect.
pub(crate) enum WaitOutcome<T> {
    Done(T),
    /// CLIENT UNBLOCK or a role change ended the wait.
    Unblocked(UnblockReason),
    /// The client has disconnected. The rest of its input is not executed.
    Disconnected,
}

impl Connection {
    pub(crate) fn new(server: Arc<Server>, stream: Stream, owner: usize) -> io::Result<Self> {
        let link = stream.connection_info()?;
        let authenticated = server.engine.access.is_default_user_open();
        let waker = Arc::<SharedWaker>::default();
        let wake = waker.clone();
        let wake = move || {
            if let Some((waker, turns)) = &*wake.lock() {
                turns.wake(waker);
            }
        };
        let client = server.engine.clients.connect(link, process::time::now(), Box::new(wake));
        let mut session = Session::for_client(client, CommandOrigin::Client, authenticated);
        let names = stream.peer_names(server.config.get(keys::TLS_AUTH_CLIENTS_USER));
        server.engine.access.log_in_by_certificate(&mut session, process::time::now(), &names);
        if server.config.get(keys::LONG_COMMAND_THREADS) > 0 {
            session.set_background(BackgroundMode::Offloadable);
        }
        Ok(Self {
            server,
            session,
            stream,
            parser: Parser::new(),
            input_buffer: InputBuffer::default(),
            time_slice: TimeSlice::default(),
            output: Output::default(),
            commit_state: CommitState::default(),
            waker,
            has_waker: false,
            profile: None,
            has_unexecuted_input: false,
            throttled_offset: ReplOffset(0),
            owner,
            in_flight: None,
            deadline: None,
        })
    }

    /// Handles the event that ended a poll. Commands of the node are executed by `run`. Returns whether to continue
    /// serving the client.
    pub(crate) async fn handle_event(&mut self, event: ConnectionEvent, run: NodeCommandRunner) -> bool {
        let client = self.session.client().clone();
        match event {
            ConnectionEvent::Closed => return false,
            // Another client may have killed this one after it sent the request.
            ConnectionEvent::RunNodeCommand(..) if client.is_killed() => return false,
            ConnectionEvent::RunNodeCommand(command, request) => tokio::select! {
                biased;
                // The future is boxed, so that the state of a node command does not enlarge every idle connection.
                () = Box::pin(self.run_node_command(command, &request, run)) => {}
                () = wait_until_killed(&client) => return false,
            },
            ConnectionEvent::Paused(ends) => {
                Box::pin(self.wait_for_unpause(ends)).await;
            }
            // The callers handle these events: the connection moves to another thread or stays in its slot.
            ConnectionEvent::Offload(_) | ConnectionEvent::ReturnToOwner | ConnectionEvent::Blocked => {}
            ConnectionEvent::Throttled(time) => {
                Box::pin(self.wait(tokio::time::sleep(time))).await;
            }
        }
        self.has_unexecuted_input = true;
        !client.is_killed()
    }

    /// Stops serving the client.
    pub(crate) fn close(&self) {
        let client = self.session.client();
        if client.exceeded_output_limit() {
            self.server.network.stats.output_limit_disconnections.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("Client id={} closed for overcoming of output buffer limits.", client.id);
        } else if client.is_evicted() {
            let address = &client.connection.address;
            tracing::info!(
                "Evicting client: id={} addr={address} tot-mem={}",
                client.id,
                client.memory_bytes()
            );
        }
    }

    /// Removes the socket from this thread's event loop. The task that served the connection is woken and finds its
    /// slot empty.
    pub(crate) fn leave_event_loop(&mut self) -> io::Result<Socket> {
        // The waker and the timer belong to the event loop of this thread.
        (self.has_waker, self.deadline) = (false, None);
        if let Some((waker, _)) = self.waker.lock().take() {
            waker.wake();
        }
        self.stream.detach()
    }

    /// Moves the connection to the background worker for commands with this reason.
    pub(crate) fn enter_background(&mut self, in_flight: InFlightCount, reason: OffloadReason) {
        self.in_flight = Some(in_flight);
        self.session.set_background(BackgroundMode::Offloaded(reason));
        self.session.client().set_in_background(true, process::time::now());
        self.restart_time_slice();
    }

    /// Lets the next poll run the pending requests again, in a new time slice, since the current one may be nearly used
    /// up.
    pub(crate) fn restart_time_slice(&mut self) {
        self.has_unexecuted_input = true;
        self.time_slice.end();
    }

    pub(crate) fn leave_background(&mut self) {
        self.session.set_background(BackgroundMode::Offloadable);
        self.session.client().set_in_background(false, process::time::now());
        self.time_slice.end();
        self.in_flight = None;
    }

    pub(crate) fn owner(&self) -> usize {
        self.owner
    }

    pub(crate) fn set_owner(&mut self, owner: usize) {
        self.owner = owner;
    }

    /// Registers the socket with the event loop of the calling thread.
    pub(crate) fn enter_event_loop(&mut self, socket: Socket) -> io::Result<()> {
        self.stream = Stream::open(socket)?;
        Ok(())
    }

    /// Executes a command of the node, which may wait. Earlier replies are sent first.
    async fn run_node_command(&mut self, command: NodeCommand, request: &Request, run: NodeCommandRunner) {
        if let Some(until) = self.output.last_held_offset()
            && let WaitOutcome::Disconnected = self.wait_for_commit(until).await
        {
            return;
        }
        // The next read reports the same error.
        let _ = poll_fn(|context| Poll::Ready(self.poll_send(context))).await;
        let from = self.output.mark();
        self.commit_state.batch_history = self.server.replication.commit_point.history();
        run(self, command, request).await;
        self.hold_uncommitted_output(from);
    }

    /// Checks whether the history of a batch's changes has ended, because this node is becoming a replica. In that case
    /// the changes may be lost: closes the connection and returns false.
    fn check_change_history(&mut self) -> bool {
        let (commit, changes) = (&mut self.commit_state, self.session.change_count());
        if std::mem::replace(&mut commit.change_count, changes) == changes {
            return true;
        }
        commit.change_history = commit.batch_history;
        let is_kept = commit.batch_history.is_unbroken_until(self.server.replication.commit_point.history());
        if !is_kept {
            self.session.client().close_for_ended_history();
        }
        is_kept
    }

    /// Holds the output from mark `from` on if it may contain the reply to an uncommitted write. Discards it if the
    /// write may be lost.
    fn hold_uncommitted_output(&mut self, from: OutputMark) {
        if !self.check_change_history() {
            return self.output.discard_since(from);
        }
        let point = &self.server.replication.commit_point;
        let (history, until) = (point.history(), self.session.last_change());
        if point.is_required() && self.commit_state.change_history == history && until > point.offset() {
            if self.output.first_held_offset().is_none() {
                self.commit_state.held_reply_history = history;
            }
            self.output.hold_from(from, until);
        }
    }

    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        self.output.buffer()
    }

    pub(crate) fn reply(&mut self) -> Writer<'_> {
        Writer::new(self.output.buffer(), self.session.protocol())
    }

    /// Detaches the socket with its unprocessed input and unsent output for another owner, such as the replication
    /// thread.
    pub(crate) fn detach(&mut self) -> io::Result<DetachedConnection> {
        let addresses = self.stream.addresses()?;
        let address = addresses.map_or_else(|| "unixsocket".to_owned(), |(peer, _)| peer.ip().to_string());
        let socket = self.stream.detach()?;
        self.session.close_after_reply();
        let unsent = self.output.take_pending();
        Ok(DetachedConnection {
            socket,
            address,
            unprocessed_input: self.input_buffer.take_unconsumed(),
            unsent_replies: unsent,
        })
    }

    /// Waits for `event` and meanwhile sends earlier replies. The wait ends early if the client disconnects. For a wait
    /// that CLIENT UNBLOCK may end, the caller first marks the client as blocked ([`Client::set_blocked`]).
    pub(crate) async fn wait<T>(&mut self, event: impl Future<Output = T>) -> WaitOutcome<T> {
        let client = self.session.client().clone();
        client.set_flag(ClientFlags::BLOCKED, true);
        let unblocked = poll_fn(|_| client.take_unblock_reason().map_or(Poll::Pending, Poll::Ready));
        let waited = tokio::select! {
            biased;
            () = wait_until_killed(&client) => WaitOutcome::Disconnected,
            done = event => WaitOutcome::Done(done),
            how = unblocked => WaitOutcome::Unblocked(how),
            () = self.stream.wait_until_closed_by_peer() => WaitOutcome::Disconnected,
            () = send_all_output(&self.stream, &mut self.output, &self.server.replication.commit_point, self.commit_state.held_reply_history, &client) => WaitOutcome::Disconnected,
        };
        client.set_blocked(false);
        if matches!(waited, WaitOutcome::Disconnected) {
            client.kill();
        }
        waited
    }

    /// Waits until the log is committed up to the offset `until`.
    async fn wait_for_commit(&mut self, until: ReplOffset) -> WaitOutcome<()> {
        let (server, id) = (self.server.clone(), self.session.id());
        let until = HistoryOffset { history: self.commit_state.held_reply_history, offset: until };
        let committed = poll_fn(|context| server.replication.commit_point.poll_reached(until, id, context));
        match self.wait(committed).await {
            WaitOutcome::Done(Ok(committed)) => {
                self.output.release_until(committed);
                WaitOutcome::Done(())
            }
            WaitOutcome::Done(Err(HistoryEnded)) => {
                self.session.client().close_for_ended_history();
                WaitOutcome::Disconnected
            }
            WaitOutcome::Unblocked(how) => WaitOutcome::Unblocked(how),
            WaitOutcome::Disconnected => WaitOutcome::Disconnected,
        }
    }

    /// Waits until more than `ends` pauses have ended.
    async fn wait_for_unpause(&mut self, ended_count: u64) -> WaitOutcome<()> {
        let server = self.server.clone();
        self.wait(server.pause_gate.wait_for_pause_end_after(ended_count)).await
    }

    /// Continues a blocking command, which may have started on another thread, until it has a result, times out or is
    /// unblocked, or the client disconnects. Earlier replies are sent meanwhile.
    fn poll_blocked(&mut self, context: &mut Context<'_>, waiter: &Waiter) -> Poll<io::Result<()>> {
        let client = self.session.client().clone();
        let how = if waiter.is_served() || self.poll_deadline(context, waiter).is_ready() {
            Some(waiter.deadline_reason())
        } else {
            client.take_unblock_reason()
        };
        let Some(how) = how else {
            let gone = with_scratch(|scratch| self.poll_read_ahead(context, scratch));
            // A socket error ends the wait, but having sent everything does not.
            return match self.poll_send(context) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => gone,
            };
        };
        client.set_blocked(false);
        self.deadline = None;
        self.end_blocking_wait(how);
        self.has_unexecuted_input = true;
        Poll::Ready(Ok(()))
    }

    fn poll_deadline(&mut self, context: &mut Context<'_>, waiter: &Waiter) -> Poll<()> {
        let Some(until) = waiter.deadline() else { return Poll::Pending };
        let left = || u64::try_from(until.0.saturating_sub(process::time::now().0)).unwrap_or(0);
        let timer = || Box::pin(tokio::time::sleep(Duration::from_millis(left())));
        self.deadline.get_or_insert_with(timer).as_mut().poll(context)
    }

    /// Reads ahead while a command is blocked, to notice that the client disconnects. Requests are executed later.
    /// Never returns `Ok`.
    fn poll_read_ahead(&mut self, context: &mut Context<'_>, scratch: &mut Scratch) -> Poll<io::Result<()>> {
        while let Some(left) = self.remaining_input_capacity().filter(|left| *left > 0) {
            let most = left.min(scratch.read_buffer.len());
            let mut buffer = ReadBuf::new(&mut scratch.read_buffer[..most]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let read = buffer.filled();
            if read.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            scratch.traffic.count_read(read.len());
            self.session.client().count_input_bytes(read.len());
            self.input_buffer.extend(read);
        }
        // The buffer is full, so reading continues after the blocked command has ended.
        Poll::Pending
    }

    /// Ends the wait of a blocking command.
    fn end_blocking_wait(&mut self, reason: UnblockReason) {
        let Server { engine, commands, .. } = &*self.server;
        let (now, mark) = (process::time::now(), self.output.mark());
        let resumed = with_scratch(|scratch| {
            let dispatcher = commands.dispatcher(engine);
            dispatcher.end_wait(&mut scratch.worker, &mut self.session, now, reason, self.output.buffer())
        });
        match resumed {
            WaitEnd::Replied => {
                self.discard_disabled_reply(mark);
                self.session.move_messages_to(self.output.queue());
                self.hold_uncommitted_output(mark);
            }
            // `poll_requests` runs the blocked command again before it executes new input.
            WaitEnd::Retry => {}
        }
    }

    /// Removes the reply that starts at `mark` if the client has disabled replies (CLIENT REPLY).
    pub(crate) fn discard_disabled_reply(&mut self, mark: OutputMark) {
        if self.session.is_reply_suppressed() {
            self.output.discard_since(mark);
        }
        self.session.end_suppression();
    }

    /// Serves the client until nothing more can be read or the poll must end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ConnectionEvent> {
        // The waker of a task never changes. CLIENT KILL uses the stored waker to wake this task.
        if !self.has_waker {
            *self.waker.lock() = Some((context.waker().clone(), WakeBatcher::current()));
            self.has_waker = true;
        }
        // Checked before reading: once CLIENT KILL has returned, no further write of the killed client may become
        // visible.
        if self.session.client().is_killed() {
            return Poll::Ready(ConnectionEvent::Closed);
        }
        if self.session.client().is_close_deferred() {
            self.time_slice.end();
            return Poll::Pending;
        }
        self.session.move_messages_to(self.output.queue());
        let polled = loop {
            if let Some(waiter) = self.session.waiter().cloned() {
                match self.poll_blocked(context, &waiter) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => {
                        self.session.client().kill();
                        break Poll::Ready(ConnectionEvent::Closed);
                    }
                    Poll::Pending if self.in_flight.is_some() => {
                        break Poll::Ready(ConnectionEvent::ReturnToOwner);
                    }
                    Poll::Pending => break Poll::Pending,
                }
            }
            match self.poll_requests(context) {
                Poll::Ready(ConnectionEvent::Blocked) => {}
                polled => break polled,
            }
        };
        self.publish_memory();
        let client = self.session.client();
        match polled {
            Poll::Pending => self.time_slice.end(),
            Poll::Ready(_) => self.time_slice.suspend_counting(client),
        }
        if client.is_killed() { Poll::Ready(ConnectionEvent::Closed) } else { polled }
    }

    /// Publishes the memory used by the connection, and evicts clients if the total exceeds `maxmemory-clients`.
    fn publish_memory(&self) {
        let client = self.session.client();
        let spare = self.input_buffer.capacity() - self.input_buffer.len() + self.parser.heap_bytes();
        client.input_bytes.store(self.input_buffer.len(), Ordering::Relaxed);
        client.spare_input_bytes.store(spare, Ordering::Relaxed);
        client.unsent_bytes.store(self.output.len(), Ordering::Relaxed);
        client.output_bytes.store(self.output.memory_bytes(), Ordering::Relaxed);
        if self.server.engine.memory.budget.is_checked_per_command() {
            self.server.engine.clients.update_memory_and_evict(client);
        }
    }

    fn poll_requests(&mut self, context: &mut Context<'_>) -> Poll<ConnectionEvent> {
        loop {
            if self.time_slice.is_over(&self.server.engine, &mut self.session) {
                return if self.in_flight.is_some() {
                    Poll::Ready(ConnectionEvent::ReturnToOwner)
                } else {
                    yield_to_other_tasks(context)
                };
            }
            if std::mem::take(&mut self.has_unexecuted_input)
                && let Some(event) = with_scratch(|scratch| self.run_unfinished_requests(scratch))
            {
                return Poll::Ready(event);
            }
            match self.poll_send(context) {
                Poll::Ready(Err(_)) => return Poll::Ready(ConnectionEvent::Closed),
                Poll::Ready(Ok(())) if self.session.is_closing() => {
                    return Poll::Ready(ConnectionEvent::Closed);
                }
                Poll::Pending if self.session.is_closing() => return Poll::Pending,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if self.has_unexecuted_input {
                continue;
            }
            if let Some(time) = self.throttle_delay() {
                return Poll::Ready(ConnectionEvent::Throttled(time));
            }
            match with_scratch(|scratch| self.poll_read(context, scratch)) {
                Poll::Pending if self.in_flight.is_some() => {
                    return Poll::Ready(ConnectionEvent::ReturnToOwner);
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(ConnectionEvent::Closed),
                Poll::Ready(Ok(Some(event))) => return Poll::Ready(event),
                Poll::Ready(Ok(None)) => {}
            }
        }
    }

    /// Returns the delay before the next read if the client has written and writers are throttled.
    #[inline]
    fn throttle_delay(&mut self) -> Option<Duration> {
        let micros = self.server.replication.write_delay_micros.load(Ordering::Relaxed);
        if micros == 0 || self.session.last_write() == self.throttled_offset {
            return None;
        }
        self.throttled_offset = self.session.last_write();
        Some(Duration::from_micros(micros.into()))
    }

    /// Reads once and executes complete requests. `Ok(None)` means that the caller should poll again.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<io::Result<Option<ConnectionEvent>>> {
        let Some(left) = self.remaining_input_capacity() else {
            self.server.network.stats.query_limit_disconnections.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Ok(Some(ConnectionEvent::Closed)));
        };
        if self.input_buffer.len() > LONG_REQUEST_BYTES {
            return self.poll_read_long_request(context, scratch, left);
        }
        // The read buffer is taken out of the scratch memory, because executing requests needs the scratch memory too.
        let mut read = std::mem::take(&mut scratch.read_buffer);
        let mut buffer = ReadBuf::new(&mut read);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let len = buffer.filled().len();
        let outcome = match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) if len == 0 => Poll::Ready(Ok(Some(ConnectionEvent::Closed))),
            Poll::Ready(Ok(())) => {
                scratch.traffic.count_read(len);
                self.session.client().count_input_bytes(len);
                if self.input_buffer.is_empty() {
                    let (used, event) = self.run_requests(scratch, &mut read[..len]);
                    scratch.batch.release_large_buffers();
                    self.input_buffer.extend(&read[used..len]);
                    Poll::Ready(Ok(event))
                } else {
                    // Only the received bytes are kept, so an incomplete request uses little memory however slowly it
                    // arrives.
                    self.input_buffer.extend(&read[..len]);
                    Poll::Ready(Ok(self.run_buffered_requests(scratch)))
                }
            }
        };
        scratch.read_buffer = read;
        outcome
    }

    /// Returns how many more input bytes may be buffered, taking into account the queued commands of a transaction.
    /// `None` if the input exceeds `client-query-buffer-limit`.
    fn remaining_input_capacity(&self) -> Option<usize> {
        let kept = self.input_buffer.len() + self.session.client().queued_bytes();
        self.server.network.limits.max_query_buffer.load(Ordering::Relaxed).checked_sub(kept)
    }

    /// Reads more of a long request, at most `left` bytes, into the connection's own buffer.
    fn poll_read_long_request(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut Scratch,
        max_bytes: usize,
    ) -> Poll<io::Result<Option<ConnectionEvent>>> {
        let room = match self.parser.missing_argument_bytes(&self.input_buffer) {
            // The buffer doubles, which limits how often a large request is copied.
            0 => self.input_buffer.len().min(MAX_READ_BYTES),
            // The rest is allocated at once after a substantial part has arrived. Untouched pages cost no memory.
            missing if self.input_buffer.len() >= TRUSTED_PREFIX_BYTES => missing,
            missing => missing.min(self.input_buffer.len() * 7),
        };
        let buffer = self.input_buffer.buffer_with_capacity(room.min(max_bytes + 1));
        match pin!(self.stream.read_buf(buffer)).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(Some(ConnectionEvent::Closed))),
            Poll::Ready(Ok(len)) => {
                scratch.traffic.count_read(len);
                self.session.client().count_input_bytes(len);
                Poll::Ready(Ok(self.run_buffered_requests(scratch)))
            }
        }
    }

    /// Continues what earlier polls left unfinished: a blocked command that runs again, or requests in the connection's
    /// own buffer.
    fn run_unfinished_requests(&mut self, scratch: &mut Scratch) -> Option<ConnectionEvent> {
        if let Some(waiter) = self.session.waiter_to_retry().cloned() {
            return self.run_blocked_again(scratch, &waiter);
        }
        if self.input_buffer.is_empty() { None } else { self.run_buffered_requests(scratch) }
    }

    /// Runs a blocked command again after its wait has ended without a reply.
    fn run_blocked_again(&mut self, scratch: &mut Scratch, waiter: &Waiter) -> Option<ConnectionEvent> {
        let now = process::time::now();
        let ends = self.server.engine.scheduling.pauses.ended_count();
        let (mut out, behind) = self.begin_batch_output(scratch);
        let ran = crash::run_guarded(|| {
            let dispatcher = self.server.commands.dispatcher(&self.server.engine);
            dispatcher.retry(&mut scratch.worker, &mut self.session, now, &mut out)
        });
        let Some(status) = ran else {
            let args = Some(waiter.request().args());
            crash::abort_in_command(self.session.client(), &self.server.engine.access.catalogue, args)
        };
        self.has_unexecuted_input = true;
        self.end_batch_output(out, behind, scratch);
        next_step(status, ends, || waiter.request().clone()).and_then(|step| step.event)
    }

    /// Executes the requests in the connection's own buffer and keeps the rest.
    fn run_buffered_requests(&mut self, scratch: &mut Scratch) -> Option<ConnectionEvent> {
        let mut input = std::mem::take(&mut self.input_buffer);
        let (used, event) = self.run_requests(scratch, &mut input);
        scratch.batch.release_large_buffers();
        input.consume(used);
        self.input_buffer = input;
        event
    }

    /// Returns the parser limits for this client.
    fn parse_limits(&self) -> ParseLimits {
        ParseLimits {
            max_bulk_len: self.server.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed),
            is_authenticated: self.session.is_authenticated(),
            allows_inline: true,
            max_requests: MAX_PARSED_REQUESTS,
        }
    }

    /// Replies to malformed input. If an earlier request has changed the limits, the input is parsed again instead.
    fn reply_parse_error(&mut self, error: ProtocolError, out: &mut Vec<u8>) {
        if error.is_unauthenticated() && self.session.is_authenticated() {
            // The client has authenticated since the input was parsed, so the larger limits apply.
            self.parser = Parser::new();
            self.has_unexecuted_input = true;
        } else {
            self.reject_input(error, out);
        }
    }

    /// Parses `buffer` and executes its requests. Returns the number of consumed bytes and the event to handle before
    /// the rest can be executed.
    fn run_requests(&mut self, scratch: &mut Scratch, buffer: &mut [u8]) -> (usize, Option<ConnectionEvent>) {
        scratch.batch.clear();
        let limits = self.parse_limits();
        let parsed = self.parser.parse(buffer, &mut scratch.batch, &limits);
        let now = process::time::now();
        // The count is read before any command is checked, so that a pause that ends meanwhile is not missed.
        let ends = self.server.engine.scheduling.pauses.ended_count();
        let (mut out, behind) = self.begin_batch_output(scratch);
        let ran = crash::run_guarded(|| {
            let (worker, batch) = (&mut scratch.worker, &scratch.batch);
            self.server.commands.dispatcher(&self.server.engine).run(
                worker,
                &mut self.session,
                now,
                PipelinedRequests { buffer, batch, first_pending: 0 },
                &mut out,
            )
        });
        let Some((ran, status)) = ran else {
            let running = scratch.worker.request_index;
            let args = (running < scratch.batch.len()).then(|| scratch.batch.args(running, buffer));
            crash::abort_in_command(self.session.client(), &self.server.engine.access.catalogue, args)
        };
        let stopped = next_step(status, ends, || Request::from(scratch.batch.args(ran, buffer)));
        self.has_unexecuted_input = scratch.batch.len() == MAX_PARSED_REQUESTS;
        if let (Some(error), None) = (parsed.error, &stopped) {
            self.reply_parse_error(error, &mut out);
        }
        self.end_batch_output(out, behind, scratch);
        match stopped {
            None => (parsed.consumed_bytes, None),
            Some(NextStep { consumes_request: consumes, event }) => {
                // The parser has read past the last executed request, so the rest is parsed again later.
                self.parser = Parser::new();
                self.has_unexecuted_input = true;
                let used = scratch.batch.consumed_bytes(ran + usize::from(consumes));
                scratch.batch.restore_inline_requests(used, buffer);
                (used, event)
            }
        }
    }

    /// Returns the buffer for the replies of a batch. It is the connection's own buffer if a mark is returned; the mark
    /// is the position at which the replies start.
    fn begin_batch_output(&mut self, scratch: &mut Scratch) -> (Vec<u8>, Option<OutputMark>) {
        self.session.set_reply_limit(self.reply_limit());
        // If no output is pending and no commit is required, replies are collected in memory that the thread's
        // connections share.
        let point = &self.server.replication.commit_point;
        let shared = self.output.is_empty() && !point.is_required();
        self.commit_state.batch_history = point.history();
        let behind = (!shared).then(|| self.output.mark());
        let out = std::mem::take(if shared { &mut scratch.replies } else { self.output.buffer() });
        (out, behind)
    }

    /// Sends or keeps the replies of a batch, and queues published messages behind them.
    fn end_batch_output(&mut self, mut out: Vec<u8>, mark: Option<OutputMark>, scratch: &mut Scratch) {
        match mark {
            None => self.send_batch(&mut out, scratch),
            Some(mark) => self.store_replies(out, mark),
        }
        // Messages that are too long to be copied between replies are queued.
        self.session.move_messages_to(self.output.queue());
        if self.server.engine.memory.budget.is_checked_per_command() {
            self.publish_memory();
        }
    }

    /// Replies to malformed input and closes the connection, because the start of the next request is unknown.
    fn reject_input(&mut self, error: ProtocolError, out: &mut Vec<u8>) {
        Writer::new(out, self.session.protocol()).error(&format!("ERR {error}"));
        self.session.close_after_reply();
    }

    /// Sends the replies of a batch with one write, and keeps the bytes that the socket does not accept.
    fn send_batch(&mut self, out: &mut Vec<u8>, scratch: &mut Scratch) {
        if !self.check_change_history() || self.session.client().discards_output() {
            out.clear();
        }
        if !out.is_empty() {
            let sent = self.stream.write_now(out);
            scratch.traffic.count_write(sent);
            self.session.client().count_output_bytes(sent);
            if self.output.is_empty() && out.len() - sent > LONG_REPLY_BYTES {
                self.output.restore_buffer(std::mem::take(out));
                self.output.remove_sent(sent);
            } else {
                self.output.buffer().extend_from_slice(&out[sent..]);
                out.clear();
            }
        }
        if out.capacity() > 1024 * 1024 {
            *out = Vec::new();
        }
        scratch.replies = std::mem::take(out);
    }

    /// Keeps the replies of a batch, which start at `mark`, until earlier output is sent and their writes are
    /// committed.
    fn store_replies(&mut self, out: Vec<u8>, mark: OutputMark) {
        self.output.restore_buffer(out);
        if self.session.client().discards_output() {
            self.output.discard_since(mark);
        }
        self.hold_uncommitted_output(mark);
    }

    /// Sends pending output. Returns `Ready` once the socket has accepted everything, including buffered TLS records.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let (point, held_in) =
                (&self.server.replication.commit_point, self.commit_state.held_reply_history);
            match poll_release_output(&mut self.output, point, held_in, self.session.id(), context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(ended)) => {
                    self.session.client().close_for_ended_history();
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, ended)));
                }
                Poll::Pending => {
                    self.check_output_limit()?;
                    return Poll::Pending;
                }
            }
            match Pin::new(&mut self.stream).poll_write(context, self.output.sendable_bytes()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(len)) => {
                    with_scratch(|scratch| scratch.traffic.count_write(len));
                    self.session.client().count_output_bytes(len);
                    self.output.remove_sent(len);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.check_output_limit()?;
                    return Poll::Pending;
                }
            }
        }
        self.session.client().over_soft_limit_since.store(0, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn output_limit(&self) -> &OutputLimit {
        self.server.network.limits.output_limit_for(self.session.client())
    }

    /// Returns the length in bytes that the reply buffer may reach before the hard output limit closes the client.
    fn reply_limit(&self) -> usize {
        match self.output_limit().hard_limit.load(Ordering::Relaxed) {
            0 => usize::MAX,
            hard => self.output.buffer_limit(hard),
        }
    }

    /// Closes the connection if the hard output limit is exceeded. The soft limit is checked by the periodic scan of
    /// all clients ([`crate::housekeeping::cron`]), since a stuck client may never be polled again.
    fn check_output_limit(&mut self) -> io::Result<()> {
        let (waiting, limit, client) =
            (self.output.charged_bytes(), self.output_limit(), self.session.client());
        let (hard, soft) =
            (limit.hard_limit.load(Ordering::Relaxed), limit.soft_limit.load(Ordering::Relaxed));
        let too_much = hard > 0 && waiting > hard;
        if too_much || !self.session.is_authenticated() && self.output.len() > MAX_UNAUTHENTICATED_OUTPUT {
            client.close_for_output_limit();
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let since = &client.over_soft_limit_since;
        if soft == 0 || waiting <= soft {
            since.store(0, Ordering::Relaxed);
        } else if since.load(Ordering::Relaxed) == 0 {
            since.store(process::time::now().0, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// How to continue after a request at which the dispatcher stopped.
struct NextStep {
    /// Whether the request is finished, or will be by handling the event.
    consumes_request: bool,
    /// The event to handle before the next request.
    event: Option<ConnectionEvent>,
}

/// Returns how to continue after this status. `None` if all requests have run or the connection closes. `ends` is the
/// number of pauses that had ended before the requests were checked.
fn next_step(
    status: DispatchStatus,
    ended_count: u64,
    request: impl FnOnce() -> Request,
) -> Option<NextStep> {
    let (consumes, event) = match status {
        DispatchStatus::Done | DispatchStatus::Close => return None,
        DispatchStatus::TimeSliceOver => (false, None),
        DispatchStatus::Paused => (false, Some(ConnectionEvent::Paused(ended_count))),
        DispatchStatus::Blocked => (true, Some(ConnectionEvent::Blocked)),
        DispatchStatus::Offload(reason) => (false, Some(ConnectionEvent::Offload(reason))),
        DispatchStatus::Node(command) => (true, Some(ConnectionEvent::RunNodeCommand(command, request()))),
    };
    Some(NextStep { consumes_request: consumes, event })
}

/// Waits until the client is killed. CLIENT KILL wakes the task.
async fn wait_until_killed(client: &Client) {
    poll_fn(|_| if client.is_killed() { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Sends pending output, and returns only when the socket fails.
async fn send_all_output(
    stream: &Stream,
    output: &mut Output,
    point: &CommitPoint,
    history: HistoryNumber,
    client: &Client,
) {
    while !output.is_empty() {
        if poll_fn(|context| poll_release_output(output, point, history, client.id, context)).await.is_err() {
            return client.close_for_ended_history();
        }
        match stream.send(output.sendable_bytes()).await {
            Ok(len) => {
                with_scratch(|scratch| scratch.traffic.count_write(len));
                client.count_output_bytes(len);
                output.remove_sent(len);
                client.unsent_bytes.store(output.len(), Ordering::Relaxed);
                client.output_bytes.store(output.memory_bytes(), Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    std::future::pending::<()>().await;
}

/// Returns `Ready` when some pending bytes may be sent. Output that waits for a commit is released once the log is
/// committed up to the output's offset in the history `held_in`.
fn poll_release_output(
    output: &mut Output,
    point: &CommitPoint,
    history: HistoryNumber,
    client: u64,
    context: &Context<'_>,
) -> Poll<Result<(), HistoryEnded>> {
    while output.sendable_bytes().is_empty()
        && let Some(offset) = output.first_held_offset()
    {
        match ready!(point.poll_reached(HistoryOffset { history, offset }, client, context)) {
            Ok(committed) => output.release_until(committed),
            Err(ended) => return Poll::Ready(Err(ended)),
        }
    }
    Poll::Ready(Ok(()))
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stream.send_close_notify();
        if self.output.first_held_offset().is_some() {
            self.server.replication.commit_point.remove_waiter(self.session.id());
        }
        self.server.engine.disconnect(&mut self.session);
        self.server.network.client_count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
