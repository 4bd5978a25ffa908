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
use net::wake_batches::WakeBatches;
use net::worker_pool::InFlightCount;
use parking_lot::Mutex;
use process::crash;
use resp::{ParseLimits, Parser, ProtocolError, Request, Writer};
use slot_routing::ReplOffset;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use self::input::Input;
use self::turn::{Turn, give_way};
use crate::replication::SessionProfile;
use crate::server::Server;

/// From this many bytes on, an incomplete request doubles its buffer with each read, by at most `MAX_READ`.
const LONG_REQUEST: usize = 64 * 1024;
const MAX_READ: usize = 16 * 1024 * 1024;
/// Once a client has sent this many bytes of a long argument, memory for the whole argument is allocated.
const TRUSTED_PREFIX: usize = 512 * 1024;

/// A reply longer than this is not copied to another buffer if later replies of its batch must wait.
const LONG_REPLY: usize = 64 * 1024;

/// The maximum number of requests parsed at once. Requests that do not fit into the time slice are parsed again in the
/// next one.
const MAX_PARSED_REQUESTS: usize = 1024;

/// The maximum number of pending output bytes for an unauthenticated client, as in Redis.
const MAX_UNAUTHENTICATED_OUTPUT: usize = 1024;

/// The waker of a connection's task, and the wake batch of the thread that runs the task.
type SharedWaker = Mutex<Option<(Waker, Arc<WakeBatches>)>>;

/// A client connection, with everything that is kept while it is idle.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) server: Arc<Server>,
    pub(crate) session: Session,
    stream: Stream,
    parser: Parser,
    /// Received bytes that are not executed yet.
    input: Input,
    turn: Turn,
    /// Replies that are not sent yet.
    pub(crate) output: Output,
    commit: CommitState,
    /// Wakes the task of this connection. `None` until the task first runs.
    waker: Arc<SharedWaker>,
    has_waker: bool,
    /// The properties that a replica announced by REPLCONF. `None` for most clients.
    pub(crate) profile: SessionProfile,
    /// Whether `input` may contain complete requests to execute before reading more.
    unrun: bool,
    /// The log offset of the last write for which the client was throttled.
    slowed_after: ReplOffset,
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
    begun_in: HistoryNumber,
    /// [`Session::change_count`] when the changes were last checked.
    change_count: u64,
    /// The replication history of the client's last change.
    changed_in: HistoryNumber,
    /// The replication history of the held replies, if there are any.
    held_in: HistoryNumber,
}

/// Why a poll of the connection ended.
pub(crate) enum Event {
    Closed,
    Node(NodeCommand, Request),
    /// The command must wait until a pause ends. The value is the number of ended pauses when the wait began.
    Paused(u64),
    /// The command is blocked on keys. Later polls continue the wait.
    Blocked,
    /// The next command must run on a background worker, for this reason.
    Offload(OffloadReason),
    /// The slow command has run, and the connection can leave its background worker.
    Return,
    /// The client has written, and its next request is delayed for this long.
    Slowed(Duration),
}

/// Executes a command of the node for a connection, and writes its reply.
pub(crate) type RunInShell =
    for<'a> fn(&'a mut Connection, NodeCommand, &'a Request) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The result of a wait during which the client may disconnect.
pub(crate) enum Waited<T> {
    Done(T),
    /// CLIENT UNBLOCK or a role change ended the wait.
    Unblocked(UnblockReason),
    /// The client has disconnected. The rest of its input is not executed.
    Gone,
}

impl Connection {
    pub(crate) fn new(server: Arc<Server>, stream: Stream, owner: usize) -> io::Result<Self> {
        let link = stream.link()?;
        let authenticated = server.engine.is_default_user_open();
        let waker = Arc::<SharedWaker>::default();
        let wake = waker.clone();
        let wake = move || {
            if let Some((waker, turns)) = &*wake.lock() {
                turns.wake(waker);
            }
        };
        let client = server.engine.clients.connect(link, process::time::now(), Box::new(wake));
        let mut session = Session::of(client, CommandOrigin::Client, authenticated);
        let names = stream.peer_names(server.config.get(keys::TLS_AUTH_CLIENTS_USER));
        server.engine.log_in_by_certificate(&mut session, process::time::now(), &names);
        if server.config.get(keys::LONG_COMMAND_THREADS) > 0 {
            session.set_background(BackgroundMode::Offloadable);
        }
        Ok(Self {
            server,
            session,
            stream,
            parser: Parser::new(),
            input: Input::default(),
            turn: Turn::default(),
            output: Output::default(),
            commit: CommitState::default(),
            waker,
            has_waker: false,
            profile: None,
            unrun: false,
            slowed_after: ReplOffset(0),
            owner,
            in_flight: None,
            deadline: None,
        })
    }

    /// Handles the event that ended a poll. Commands of the node are executed by `run`. Returns whether to continue
    /// serving the client.
    pub(crate) async fn attend(&mut self, event: Event, run: RunInShell) -> bool {
        let client = self.session.client().clone();
        match event {
            Event::Closed => return false,
            // Another client may have killed this one after it sent the request.
            Event::Node(..) if client.is_killed() => return false,
            Event::Node(command, request) => tokio::select! {
                biased;
                // The future is boxed, so that the state of a node command does not enlarge every idle connection.
                () = Box::pin(self.run_in_shell(command, &request, run)) => {}
                () = killed(&client) => return false,
            },
            Event::Paused(ends) => {
                Box::pin(self.wait_for_unpause(ends)).await;
            }
            // The callers handle these events: the connection moves to another thread or stays in its slot.
            Event::Offload(_) | Event::Return | Event::Blocked => {}
            Event::Slowed(time) => {
                Box::pin(self.wait(tokio::time::sleep(time))).await;
            }
        }
        self.unrun = true;
        !client.is_killed()
    }

    /// Stops serving the client.
    pub(crate) fn end(&self) {
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
        self.restart_turn();
    }

    /// Lets the next poll run the pending requests again, in a new time slice, since the current one may be nearly used
    /// up.
    pub(crate) fn restart_turn(&mut self) {
        self.unrun = true;
        self.turn.end();
    }

    pub(crate) fn leave_background(&mut self) {
        self.session.set_background(BackgroundMode::Offloadable);
        self.session.client().set_in_background(false, process::time::now());
        self.turn.end();
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
    async fn run_in_shell(&mut self, command: NodeCommand, request: &Request, run: RunInShell) {
        if let Some(until) = self.output.last_held_offset()
            && let Waited::Gone = self.wait_for_commit(until).await
        {
            return;
        }
        // The next read reports the same error.
        let _ = poll_fn(|context| Poll::Ready(self.poll_send(context))).await;
        let from = self.output.mark();
        self.commit.begun_in = self.server.replication.commit_point.history();
        run(self, command, request).await;
        self.hold_uncommitted(from);
    }

    /// Checks whether the history of a batch's changes has ended, because this node is becoming a replica. In that case
    /// the changes may be lost: closes the connection and returns false.
    fn check_changes(&mut self) -> bool {
        let (commit, changes) = (&mut self.commit, self.session.change_count());
        if std::mem::replace(&mut commit.change_count, changes) == changes {
            return true;
        }
        commit.changed_in = commit.begun_in;
        let is_kept = commit.begun_in.lasts_until(self.server.replication.commit_point.history());
        if !is_kept {
            self.session.client().close_for_ended_history();
        }
        is_kept
    }

    /// Holds the output from mark `from` on if it may contain the reply to an uncommitted write. Discards it if the
    /// write may be lost.
    fn hold_uncommitted(&mut self, from: OutputMark) {
        if !self.check_changes() {
            return self.output.discard_since(from);
        }
        let point = &self.server.replication.commit_point;
        let (history, until) = (point.history(), self.session.last_change());
        if point.is_required() && self.commit.changed_in == history && until > point.offset() {
            if self.output.first_held_offset().is_none() {
                self.commit.held_in = history;
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
    pub(crate) fn hand_over(&mut self) -> io::Result<DetachedConnection> {
        let addresses = self.stream.addresses()?;
        let address = addresses.map_or_else(|| "unixsocket".to_owned(), |(peer, _)| peer.ip().to_string());
        let socket = self.stream.detach()?;
        self.session.close_after_reply();
        let unsent = self.output.take_all();
        Ok(DetachedConnection { socket, address, input: self.input.take(), unsent })
    }

    /// Waits for `event` and meanwhile sends earlier replies. The wait ends early if the client disconnects. For a wait
    /// that CLIENT UNBLOCK may end, the caller first marks the client as blocked ([`Client::set_blocked`]).
    pub(crate) async fn wait<T>(&mut self, event: impl Future<Output = T>) -> Waited<T> {
        let client = self.session.client().clone();
        client.set_flag(ClientFlags::BLOCKED, true);
        let unblocked = poll_fn(|_| client.take_unblock().map_or(Poll::Pending, Poll::Ready));
        let waited = tokio::select! {
            biased;
            () = killed(&client) => Waited::Gone,
            done = event => Waited::Done(done),
            how = unblocked => Waited::Unblocked(how),
            () = self.stream.closed_by_peer() => Waited::Gone,
            () = send_all(&self.stream, &mut self.output, &self.server.replication.commit_point, self.commit.held_in, &client) => Waited::Gone,
        };
        client.set_blocked(false);
        if matches!(waited, Waited::Gone) {
            client.kill();
        }
        waited
    }

    /// Waits until the log is committed up to the offset `until`.
    async fn wait_for_commit(&mut self, until: ReplOffset) -> Waited<()> {
        let (server, id) = (self.server.clone(), self.session.id());
        let until = HistoryOffset { history: self.commit.held_in, offset: until };
        let committed = poll_fn(|context| server.replication.commit_point.poll_reached(until, id, context));
        match self.wait(committed).await {
            Waited::Done(Ok(committed)) => {
                self.output.release_until(committed);
                Waited::Done(())
            }
            Waited::Done(Err(HistoryEnded)) => {
                self.session.client().close_for_ended_history();
                Waited::Gone
            }
            Waited::Unblocked(how) => Waited::Unblocked(how),
            Waited::Gone => Waited::Gone,
        }
    }

    /// Waits until more than `ends` pauses have ended.
    async fn wait_for_unpause(&mut self, ends: u64) -> Waited<()> {
        let server = self.server.clone();
        self.wait(server.pause_gate.wait_for_end_after(ends)).await
    }

    /// Continues a blocking command, which may have started on another thread, until it has a result, times out or is
    /// unblocked, or the client disconnects. Earlier replies are sent meanwhile.
    fn poll_blocked(&mut self, context: &mut Context<'_>, waiter: &Waiter) -> Poll<io::Result<()>> {
        let client = self.session.client().clone();
        let how = if waiter.is_served() || self.poll_deadline(context, waiter).is_ready() {
            Some(waiter.deadline_reason())
        } else {
            client.take_unblock()
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
        self.end_wait(how);
        self.unrun = true;
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
        while let Some(left) = self.input_left().filter(|left| *left > 0) {
            let most = left.min(scratch.read_buffer.len());
            let mut buffer = ReadBuf::new(&mut scratch.read_buffer[..most]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let read = buffer.filled();
            if read.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            scratch.traffic.count_read(read.len());
            self.session.client().count_input(read.len());
            self.input.extend(read);
        }
        // The buffer is full, so reading continues after the blocked command has ended.
        Poll::Pending
    }

    /// Ends the wait of a blocking command.
    fn end_wait(&mut self, how: UnblockReason) {
        let Server { engine, commands, .. } = &*self.server;
        let (now, mark) = (process::time::now(), self.output.mark());
        let resumed = with_scratch(|scratch| {
            let dispatcher = commands.dispatcher(engine);
            dispatcher.end_wait(&mut scratch.worker, &mut self.session, now, how, self.output.buffer())
        });
        match resumed {
            WaitEnd::Replied => {
                self.keep_reply_from(mark);
                self.session.queue_messages(self.output.queue());
                self.hold_uncommitted(mark);
            }
            // `poll_requests` runs the blocked command again before it executes new input.
            WaitEnd::RunsAgain => {}
        }
    }

    /// Removes the reply that starts at `mark` if the client has disabled replies (CLIENT REPLY).
    pub(crate) fn keep_reply_from(&mut self, mark: OutputMark) {
        if self.session.is_mute() {
            self.output.discard_since(mark);
        }
        self.session.end_suppression();
    }

    /// Serves the client until nothing more can be read or the poll must end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        // The waker of a task never changes. CLIENT KILL uses the stored waker to wake this task.
        if !self.has_waker {
            *self.waker.lock() = Some((context.waker().clone(), WakeBatches::current()));
            self.has_waker = true;
        }
        // Checked before reading: once CLIENT KILL has returned, no further write of the killed client may become
        // visible.
        if self.session.client().is_killed() {
            return Poll::Ready(Event::Closed);
        }
        if self.session.client().is_close_deferred() {
            self.turn.end();
            return Poll::Pending;
        }
        self.session.queue_messages(self.output.queue());
        let polled = loop {
            if let Some(waiter) = self.session.waiter().cloned() {
                match self.poll_blocked(context, &waiter) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => {
                        self.session.client().kill();
                        break Poll::Ready(Event::Closed);
                    }
                    Poll::Pending if self.in_flight.is_some() => break Poll::Ready(Event::Return),
                    Poll::Pending => break Poll::Pending,
                }
            }
            match self.poll_requests(context) {
                Poll::Ready(Event::Blocked) => {}
                polled => break polled,
            }
        };
        self.publish_memory();
        let client = self.session.client();
        match polled {
            Poll::Pending => self.turn.end(),
            Poll::Ready(_) => self.turn.lend(client),
        }
        if client.is_killed() { Poll::Ready(Event::Closed) } else { polled }
    }

    /// Publishes the memory used by the connection, and evicts clients if the total exceeds `maxmemory-clients`.
    fn publish_memory(&self) {
        let client = self.session.client();
        let spare = self.input.capacity() - self.input.len() + self.parser.bytes();
        client.input_bytes.store(self.input.len(), Ordering::Relaxed);
        client.spare_input_bytes.store(spare, Ordering::Relaxed);
        client.unsent_bytes.store(self.output.len(), Ordering::Relaxed);
        client.output_bytes.store(self.output.memory(), Ordering::Relaxed);
        if self.server.engine.budget.is_checked_per_command() {
            self.server.engine.clients.update_memory_and_evict(client);
        }
    }

    fn poll_requests(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            if self.turn.is_over(&self.server.engine, &mut self.session) {
                return if self.in_flight.is_some() { Poll::Ready(Event::Return) } else { give_way(context) };
            }
            if std::mem::take(&mut self.unrun)
                && let Some(event) = with_scratch(|scratch| self.run_unfinished(scratch))
            {
                return Poll::Ready(event);
            }
            match self.poll_send(context) {
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Closed),
                Poll::Ready(Ok(())) if self.session.is_closing() => return Poll::Ready(Event::Closed),
                Poll::Pending if self.session.is_closing() => return Poll::Pending,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if self.unrun {
                continue;
            }
            if let Some(time) = self.slowed_for() {
                return Poll::Ready(Event::Slowed(time));
            }
            match with_scratch(|scratch| self.poll_read(context, scratch)) {
                Poll::Pending if self.in_flight.is_some() => return Poll::Ready(Event::Return),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Closed),
                Poll::Ready(Ok(Some(event))) => return Poll::Ready(event),
                Poll::Ready(Ok(None)) => {}
            }
        }
    }

    /// Returns the delay before the next read if the client has written and writers are throttled.
    #[inline]
    fn slowed_for(&mut self) -> Option<Duration> {
        let micros = self.server.replication.write_delay_micros.load(Ordering::Relaxed);
        if micros == 0 || self.session.last_write() == self.slowed_after {
            return None;
        }
        self.slowed_after = self.session.last_write();
        Some(Duration::from_micros(micros.into()))
    }

    /// Reads once and executes complete requests. `Ok(None)` means that the caller should poll again.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<io::Result<Option<Event>>> {
        let Some(left) = self.input_left() else {
            self.server.network.stats.query_limit_disconnections.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Ok(Some(Event::Closed)));
        };
        if self.input.len() > LONG_REQUEST {
            return self.poll_read_on(context, scratch, left);
        }
        // The read buffer is taken out of the scratch memory, because executing requests needs the scratch memory too.
        let mut read = std::mem::take(&mut scratch.read_buffer);
        let mut buffer = ReadBuf::new(&mut read);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let len = buffer.filled().len();
        let outcome = match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) if len == 0 => Poll::Ready(Ok(Some(Event::Closed))),
            Poll::Ready(Ok(())) => {
                scratch.traffic.count_read(len);
                self.session.client().count_input(len);
                if self.input.is_empty() {
                    let (used, event) = self.run_requests(scratch, &mut read[..len]);
                    scratch.batch.release_large();
                    self.input.extend(&read[used..len]);
                    Poll::Ready(Ok(event))
                } else {
                    // Only the received bytes are kept, so an incomplete request uses little memory however slowly it
                    // arrives.
                    self.input.extend(&read[..len]);
                    Poll::Ready(Ok(self.run_kept(scratch)))
                }
            }
        };
        scratch.read_buffer = read;
        outcome
    }

    /// Returns how many more input bytes may be buffered, taking into account the queued commands of a transaction.
    /// `None` if the input exceeds `client-query-buffer-limit`.
    fn input_left(&self) -> Option<usize> {
        let kept = self.input.len() + self.session.client().queued_bytes();
        self.server.network.limits.query_buffer.load(Ordering::Relaxed).checked_sub(kept)
    }

    /// Reads more of a long request, at most `left` bytes, into the connection's own buffer.
    fn poll_read_on(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut Scratch,
        left: usize,
    ) -> Poll<io::Result<Option<Event>>> {
        let room = match self.parser.missing_argument_bytes(&self.input) {
            // The buffer doubles, which limits how often a large request is copied.
            0 => self.input.len().min(MAX_READ),
            // The rest is allocated at once after a substantial part has arrived. Untouched pages cost no memory.
            missing if self.input.len() >= TRUSTED_PREFIX => missing,
            missing => missing.min(self.input.len() * 7),
        };
        let buffer = self.input.with_room(room.min(left + 1));
        match pin!(self.stream.read_buf(buffer)).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(Some(Event::Closed))),
            Poll::Ready(Ok(len)) => {
                scratch.traffic.count_read(len);
                self.session.client().count_input(len);
                Poll::Ready(Ok(self.run_kept(scratch)))
            }
        }
    }

    /// Continues what earlier polls left unfinished: a blocked command that runs again, or requests in the connection's
    /// own buffer.
    fn run_unfinished(&mut self, scratch: &mut Scratch) -> Option<Event> {
        if let Some(waiter) = self.session.runs_again().cloned() {
            return self.run_blocked_again(scratch, &waiter);
        }
        if self.input.is_empty() { None } else { self.run_kept(scratch) }
    }

    /// Runs a blocked command again after its wait has ended without a reply.
    fn run_blocked_again(&mut self, scratch: &mut Scratch, waiter: &Waiter) -> Option<Event> {
        let now = process::time::now();
        let ends = self.server.engine.pauses.ended_count();
        let (mut out, behind) = self.begin_output(scratch);
        let ran = crash::run_guarded(|| {
            let dispatcher = self.server.commands.dispatcher(&self.server.engine);
            dispatcher.retry(&mut scratch.worker, &mut self.session, now, &mut out)
        });
        let Some(status) = ran else {
            let args = Some(waiter.request().args());
            crash::abort_in_command(self.session.client(), &self.server.engine.catalogue, args)
        };
        self.unrun = true;
        self.end_output(out, behind, scratch);
        next_step(status, ends, || waiter.request().clone()).and_then(|step| step.event)
    }

    /// Executes the requests in the connection's own buffer and keeps the rest.
    fn run_kept(&mut self, scratch: &mut Scratch) -> Option<Event> {
        let mut input = std::mem::take(&mut self.input);
        let (used, event) = self.run_requests(scratch, &mut input);
        scratch.batch.release_large();
        input.consume(used);
        self.input = input;
        event
    }

    /// Returns the parser limits for this client.
    fn limits(&self) -> ParseLimits {
        ParseLimits {
            max_bulk_len: self.server.engine.settings.proto_max_bulk_len.load(Ordering::Relaxed),
            authenticated: self.session.is_authenticated(),
            allows_inline: true,
            requests: MAX_PARSED_REQUESTS,
        }
    }

    /// Replies to malformed input. If an earlier request has changed the limits, the input is parsed again instead.
    fn answer_parse_error(&mut self, error: ProtocolError, out: &mut Vec<u8>) {
        if error.is_unauthenticated() && self.session.is_authenticated() {
            // The client has authenticated since the input was parsed, so the larger limits apply.
            self.parser = Parser::new();
            self.unrun = true;
        } else {
            self.reject_input(error, out);
        }
    }

    /// Parses `buffer` and executes its requests. Returns the number of consumed bytes and the event to handle before
    /// the rest can be executed.
    fn run_requests(&mut self, scratch: &mut Scratch, buffer: &mut [u8]) -> (usize, Option<Event>) {
        scratch.batch.clear();
        let limits = self.limits();
        let parsed = self.parser.parse(buffer, &mut scratch.batch, &limits);
        let now = process::time::now();
        // The count is read before any command is checked, so that a pause that ends meanwhile is not missed.
        let ends = self.server.engine.pauses.ended_count();
        let (mut out, behind) = self.begin_output(scratch);
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
            crash::abort_in_command(self.session.client(), &self.server.engine.catalogue, args)
        };
        let stopped = next_step(status, ends, || Request::from(scratch.batch.args(ran, buffer)));
        self.unrun = scratch.batch.len() == MAX_PARSED_REQUESTS;
        if let (Some(error), None) = (parsed.error, &stopped) {
            self.answer_parse_error(error, &mut out);
        }
        self.end_output(out, behind, scratch);
        match stopped {
            None => (parsed.consumed, None),
            Some(NextStep { consumes, event }) => {
                // The parser has read past the last executed request, so the rest is parsed again later.
                self.parser = Parser::new();
                self.unrun = true;
                let used = scratch.batch.consumed(ran + usize::from(consumes));
                scratch.batch.restore_inline_requests(used, buffer);
                (used, event)
            }
        }
    }

    /// Returns the buffer for the replies of a batch. It is the connection's own buffer if a mark is returned; the mark
    /// is the position at which the replies start.
    fn begin_output(&mut self, scratch: &mut Scratch) -> (Vec<u8>, Option<OutputMark>) {
        self.session.set_reply_limit(self.reply_limit());
        // If no output is pending and no commit is required, replies are collected in memory that the thread's
        // connections share.
        let point = &self.server.replication.commit_point;
        let shared = self.output.is_empty() && !point.is_required();
        self.commit.begun_in = point.history();
        let behind = (!shared).then(|| self.output.mark());
        let out = std::mem::take(if shared { &mut scratch.replies } else { self.output.buffer() });
        (out, behind)
    }

    /// Sends or keeps the replies of a batch, and queues published messages behind them.
    fn end_output(&mut self, mut out: Vec<u8>, behind: Option<OutputMark>, scratch: &mut Scratch) {
        match behind {
            None => self.send_now(&mut out, scratch),
            Some(mark) => self.keep(out, mark),
        }
        // Messages that are too long to be copied between replies are queued.
        self.session.queue_messages(self.output.queue());
        if self.server.engine.budget.is_checked_per_command() {
            self.publish_memory();
        }
    }

    /// Replies to malformed input and closes the connection, because the start of the next request is unknown.
    fn reject_input(&mut self, error: ProtocolError, out: &mut Vec<u8>) {
        Writer::new(out, self.session.protocol()).error(&format!("ERR {error}"));
        self.session.close_after_reply();
    }

    /// Sends the replies of a batch with one write, and keeps the bytes that the socket does not accept.
    fn send_now(&mut self, out: &mut Vec<u8>, scratch: &mut Scratch) {
        if !self.check_changes() || self.session.client().discards_output() {
            out.clear();
        }
        if !out.is_empty() {
            let sent = self.stream.write_now(out);
            scratch.traffic.count_write(sent);
            self.session.client().count_output(sent);
            if self.output.is_empty() && out.len() - sent > LONG_REPLY {
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
    fn keep(&mut self, out: Vec<u8>, mark: OutputMark) {
        self.output.restore_buffer(out);
        if self.session.client().discards_output() {
            self.output.discard_since(mark);
        }
        self.hold_uncommitted(mark);
    }

    /// Sends pending output. Returns `Ready` once the socket has accepted everything, including buffered TLS records.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let (point, held_in) = (&self.server.replication.commit_point, self.commit.held_in);
            match poll_release(&mut self.output, point, held_in, self.session.id(), context) {
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
            match Pin::new(&mut self.stream).poll_write(context, self.output.sendable()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(len)) => {
                    with_scratch(|scratch| scratch.traffic.count_write(len));
                    self.session.client().count_output(len);
                    self.output.remove_sent(len);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.check_output_limit()?;
                    return Poll::Pending;
                }
            }
        }
        self.session.client().over_soft_limit.store(0, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn output_limit(&self) -> &OutputLimit {
        self.server.network.limits.output_limit_for(self.session.client())
    }

    /// Returns the length in bytes that the reply buffer may reach before the hard output limit closes the client.
    fn reply_limit(&self) -> usize {
        match self.output_limit().hard.load(Ordering::Relaxed) {
            0 => usize::MAX,
            hard => self.output.buffer_limit(hard),
        }
    }

    /// Closes the connection if the hard output limit is exceeded. The soft limit is checked by the periodic scan of
    /// all clients ([`crate::housekeeping::cron`]), since a stuck client may never be polled again.
    fn check_output_limit(&mut self) -> io::Result<()> {
        let (waiting, limit, client) =
            (self.output.charged_bytes(), self.output_limit(), self.session.client());
        let (hard, soft) = (limit.hard.load(Ordering::Relaxed), limit.soft.load(Ordering::Relaxed));
        let too_much = hard > 0 && waiting > hard;
        if too_much || !self.session.is_authenticated() && self.output.len() > MAX_UNAUTHENTICATED_OUTPUT {
            client.close_for_output_limit();
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let since = &client.over_soft_limit;
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
    consumes: bool,
    /// The event to handle before the next request.
    event: Option<Event>,
}

/// Returns how to continue after this status. `None` if all requests have run or the connection closes. `ends` is the
/// number of pauses that had ended before the requests were checked.
fn next_step(status: DispatchStatus, ends: u64, request: impl FnOnce() -> Request) -> Option<NextStep> {
    let (consumes, event) = match status {
        DispatchStatus::Done | DispatchStatus::Close => return None,
        DispatchStatus::TimeSliceOver => (false, None),
        DispatchStatus::Paused => (false, Some(Event::Paused(ends))),
        DispatchStatus::Blocked => (true, Some(Event::Blocked)),
        DispatchStatus::Offload(reason) => (false, Some(Event::Offload(reason))),
        DispatchStatus::Node(command) => (true, Some(Event::Node(command, request()))),
    };
    Some(NextStep { consumes, event })
}

/// Waits until the client is killed. CLIENT KILL wakes the task.
async fn killed(client: &Client) {
    poll_fn(|_| if client.is_killed() { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Sends pending output, and returns only when the socket fails.
async fn send_all(
    stream: &Stream,
    output: &mut Output,
    point: &CommitPoint,
    held_in: HistoryNumber,
    client: &Client,
) {
    while !output.is_empty() {
        if poll_fn(|context| poll_release(output, point, held_in, client.id, context)).await.is_err() {
            return client.close_for_ended_history();
        }
        match stream.send(output.sendable()).await {
            Ok(len) => {
                with_scratch(|scratch| scratch.traffic.count_write(len));
                client.count_output(len);
                output.remove_sent(len);
                client.unsent_bytes.store(output.len(), Ordering::Relaxed);
                client.output_bytes.store(output.memory(), Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    std::future::pending::<()>().await;
}

/// Returns `Ready` when some pending bytes may be sent. Output that waits for a commit is released once the log is
/// committed up to the output's offset in the history `held_in`.
fn poll_release(
    output: &mut Output,
    point: &CommitPoint,
    held_in: HistoryNumber,
    client: u64,
    context: &Context<'_>,
) -> Poll<Result<(), HistoryEnded>> {
    while output.sendable().is_empty()
        && let Some(offset) = output.first_held_offset()
    {
        match ready!(point.poll_reached(HistoryOffset { history: held_in, offset }, client, context)) {
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
        self.server.network.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
