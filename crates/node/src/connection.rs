//! One client's connection.
//!
//! The loop: read what is there, parse every complete request, run them, write all the replies with one
//! write. It happens inside one poll; the task only awaits when a command needs the shell. An idle
//! connection holds no buffer: reads go to the thread's scratch memory, and only what is left of an
//! unfinished request is kept.

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
use durability::stream::commit_point::CommitPoint;
use engine::{
    Background, Client, ClientFlags, Flow, Mute, NodeCommand, Origin, Requests, Resumed, Session, Unblock,
    Waiter,
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
use resp::{ParseLimits, Parser, ProtocolError, Request, Writer, encode_request};
use slot_routing::ReplOffset;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use self::input::Input;
use self::turn::{Turn, give_way};
use crate::replication::SessionProfile;
use crate::server::Server;

/// A request that is longer than this gets twice the room each time, up to so much more.
const LONG_REQUEST: usize = 64 * 1024;
const MAX_READ: usize = 16 * 1024 * 1024;
/// A client that has sent so much of a long argument is believed to send the rest.
const BELIEVED: usize = 512 * 1024;

/// The rest of a batch's replies is not copied to wait if it is longer.
const LONG_REPLY: usize = 64 * 1024;

/// So many requests are parsed at once: what a turn does not come to is parsed again in the next one.
const MOST_PARSED: usize = 1024;

/// Bytes that may wait to be sent to a client that has not authenticated (Redis: as many).
const MOST_FOR_STRANGERS: usize = 1024;

/// A task, and the line of its thread.
type SharedWaker = Mutex<Option<(Waker, Arc<WakeBatches>)>>;

/// One client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) server: Arc<Server>,
    pub(crate) session: Session,
    stream: Stream,
    parser: Parser,
    /// Bytes that were read and are not yet parsed or not yet run.
    input: Input,
    turn: Turn,
    /// Bytes that were written and are not yet sent.
    pub(crate) output: Output,
    /// Wakes this connection's task; set when that first runs.
    waker: Arc<SharedWaker>,
    has_waker: bool,
    /// The properties that the connection has declared by REPLCONF.
    pub(crate) profile: SessionProfile,
    /// `input` may hold whole requests: run them before reading on.
    unrun: bool,
    /// The last write for which it was slowed down.
    slowed_after: ReplOffset,
    /// The worker that serves it when nothing keeps that.
    owner: usize,
    /// While it is with a background worker.
    in_flight: Option<InFlightCount>,
    /// When a command that waits for keys gives up.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Why the connection's poll ended.
pub(crate) enum Event {
    Closed,
    Node(NodeCommand, Request),
    /// Its command waits for the end of a pause or of a hold, when more have ended than this.
    Paused(u64),
    /// Its command waits for keys, which it does between its polls.
    Blocked,
    /// Its next command takes long: a background worker goes on with it.
    Long,
    /// Its next command wants what another thread has: the background worker where commands wait goes on with it.
    Held,
    /// It has run what was long, and goes back from the background.
    Return,
    /// It has written, and writers are slowed down.
    Slowed(Duration),
}

/// Carries out a command of the shell for a connection, and writes its reply.
pub(crate) type RunInShell =
    for<'a> fn(&'a mut Connection, NodeCommand, &'a Request) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// How a wait ended.
pub(crate) enum Waited<T> {
    Done(T),
    /// Another client or the server ended it: CLIENT UNBLOCK, a change of role.
    Unblocked(Unblock),
    /// The client has left: nothing of what it sent is run any more.
    Gone,
}

impl Connection {
    pub(crate) fn new(server: Arc<Server>, stream: Stream, owner: usize) -> io::Result<Self> {
        let link = stream.link()?;
        let authenticated = server.engine.is_open();
        let waker = Arc::<SharedWaker>::default();
        let wake = waker.clone();
        let wake = move || {
            if let Some((waker, turns)) = &*wake.lock() {
                turns.wake(waker);
            }
        };
        let client = server.engine.clients.connect(link, process::time::now(), Box::new(wake));
        let mut session = Session::of(client, Origin::Client, authenticated);
        let names = stream.peer_names(server.config.get(keys::TLS_AUTH_CLIENTS_USER));
        server.engine.log_in_by_certificate(&mut session, process::time::now(), &names);
        if server.config.get(keys::LONG_COMMAND_THREADS) > 0 {
            session.background = Background::Elsewhere;
        }
        Ok(Self {
            server,
            session,
            stream,
            parser: Parser::new(),
            input: Input::default(),
            turn: Turn::default(),
            output: Output::default(),
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

    /// Does what the connection's poll ended for, commands of the shell by `run`; says whether the client is still to be
    /// served.
    pub(crate) async fn attend(&mut self, event: Event, run: RunInShell) -> bool {
        let client = self.session.client.clone();
        match event {
            Event::Closed => return false,
            // Another client ended it between its request and this.
            Event::Node(..) if client.is_killed() => return false,
            Event::Node(command, request) => tokio::select! {
                biased;
                // Boxed: what such a command keeps while it waits is not to be every idle connection's size.
                () = Box::pin(self.run_in_shell(command, &request, run)) => {}
                () = killed(&client) => return false,
            },
            Event::Paused(ends) => {
                Box::pin(self.wait_for_unpause(ends)).await;
            }
            // It goes to another thread before this is asked of it, or waits in its slot.
            Event::Long | Event::Held | Event::Return | Event::Blocked => {}
            Event::Slowed(time) => {
                Box::pin(self.wait(tokio::time::sleep(time))).await;
            }
        }
        self.unrun = true;
        !client.is_killed()
    }

    /// The client is served no more.
    pub(crate) fn end(&self) {
        let client = &self.session.client;
        if client.is_overflown() {
            self.server.network.stats.output_limit_disconnections.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("Client id={} closed for overcoming of output buffer limits.", client.id);
        } else if client.is_evicted() {
            let address = &client.link.address;
            tracing::info!("Evicting client: id={} addr={address} tot-mem={}", client.id, client.bytes());
        }
    }

    /// Leaves this thread's event loop; the task that served it so far is woken to find that.
    pub(crate) fn leave_event_loop(&mut self) -> io::Result<Socket> {
        // Its timer is that loop's.
        (self.has_waker, self.deadline) = (false, None);
        if let Some((waker, _)) = self.waker.lock().take() {
            waker.wake();
        }
        self.stream.detach()
    }

    /// It is with a background worker from now on, and runs there what takes long, or waits.
    pub(crate) fn enter_background(&mut self, in_flight: InFlightCount, waits: bool) {
        self.in_flight = Some(in_flight);
        self.session.background = if waits { Background::Waiting } else { Background::Here };
        self.session.client.set_in_background(true, process::time::now());
        self.unrun = true;
        // A new one: the last may be nearly over.
        self.turn.end();
    }

    /// It is so no more.
    pub(crate) fn leave_background(&mut self) {
        self.session.background = Background::Elsewhere;
        self.session.client.set_in_background(false, process::time::now());
        self.turn.end();
        self.in_flight = None;
    }

    /// The worker that serves it when nothing keeps that.
    pub(crate) fn owner(&self) -> usize {
        self.owner
    }

    /// Another worker is its home from now on.
    pub(crate) fn set_owner(&mut self, owner: usize) {
        self.owner = owner;
    }

    /// Comes to the calling thread's event loop.
    pub(crate) fn enter_event_loop(&mut self, socket: Socket) -> io::Result<()> {
        self.stream = Stream::open(socket)?;
        Ok(())
    }

    /// Carries out a command of the shell, when what was answered before is on its way: it may wait for long.
    async fn run_in_shell(&mut self, command: NodeCommand, request: &Request, run: RunInShell) {
        if let Some(until) = self.output.held_to_end()
            && let Waited::Gone = self.wait_for_commit(until).await
        {
            return;
        }
        // An error shows again when the socket is read.
        let _ = poll_fn(|context| Poll::Ready(self.poll_send(context))).await;
        let from = self.output.mark();
        run(self, command, request).await;
        self.hold_uncommitted(from);
    }

    /// Holds what was answered from `from` on if that may be to a write that is not committed.
    fn hold_uncommitted(&mut self, from: OutputMark) {
        let point = &self.server.replication.commit_point;
        if point.is_required() && self.session.last_change > point.offset() {
            self.output.hold(from, self.session.last_change);
        }
    }

    /// The buffer that replies go to.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        self.output.buffer()
    }

    /// Writes a reply.
    pub(crate) fn reply(&mut self) -> Writer<'_> {
        Writer::new(self.output.buffer(), self.session.protocol)
    }

    /// Gives the socket to another owner, with the bytes that were read and not run, and those that were not sent. This
    /// connection ends.
    pub(crate) fn hand_over(&mut self) -> io::Result<DetachedConnection> {
        let addresses = self.stream.addresses()?;
        let address = addresses.map_or_else(|| "unixsocket".to_owned(), |(peer, _)| peer.ip().to_string());
        let socket = self.stream.detach()?;
        self.session.closing = true;
        let unsent = self.output.take();
        Ok(DetachedConnection { socket, address, input: self.input.take(), unsent })
    }

    /// Waits for `event` as long as the client stays. Earlier replies are sent meanwhile. A client that CLIENT UNBLOCK
    /// may wake was marked so before ([`Client::set_blocked`]).
    pub(crate) async fn wait<T>(&mut self, event: impl Future<Output = T>) -> Waited<T> {
        let client = self.session.client.clone();
        client.set_flag(ClientFlags::BLOCKED, true);
        let unblocked = poll_fn(|_| client.take_unblock().map_or(Poll::Pending, Poll::Ready));
        let waited = tokio::select! {
            biased;
            () = killed(&client) => Waited::Gone,
            done = event => Waited::Done(done),
            how = unblocked => Waited::Unblocked(how),
            () = self.stream.closed_by_peer() => Waited::Gone,
            () = send_all(&self.stream, &mut self.output, &self.server.replication.commit_point, &client) => Waited::Gone,
        };
        client.set_blocked(false);
        if matches!(waited, Waited::Gone) {
            client.kill();
        }
        waited
    }

    /// Waits until nothing is held that waits for the log to be committed up to `until`.
    async fn wait_for_commit(&mut self, until: ReplOffset) -> Waited<()> {
        let (server, id) = (self.server.clone(), self.session.id);
        let committed = poll_fn(|context| server.replication.commit_point.poll_reached(until, id, context));
        let waited = self.wait(committed).await;
        self.output.release(server.replication.commit_point.offset());
        waited
    }

    /// Waits until something has ended that may have held the next command back.
    async fn wait_for_unpause(&mut self, ends: u64) -> Waited<()> {
        let server = self.server.clone();
        self.wait(server.pauses.wait_for_end_after(ends)).await
    }

    /// Goes on with the wait of a command that waits for keys, which another thread may have begun: until it is served, its
    /// time is over, something else ends that or the client is gone. Earlier replies are sent meanwhile.
    fn poll_blocked(&mut self, context: &mut Context<'_>, waiter: &Waiter) -> Poll<io::Result<()>> {
        let client = self.session.client.clone();
        let how = if waiter.is_served() || self.poll_deadline(context, waiter).is_ready() {
            Some(waiter.at_end())
        } else {
            client.take_unblock()
        };
        let Some(how) = how else {
            let gone = with_scratch(|scratch| self.poll_read_ahead(context, scratch));
            // As ever, an error of the socket's ends it, and all sent is not the end of the wait.
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
        let Some(until) = waiter.until() else { return Poll::Pending };
        let left = || u64::try_from(until.0.saturating_sub(process::time::now().0)).unwrap_or(0);
        let timer = || Box::pin(tokio::time::sleep(Duration::from_millis(left())));
        self.deadline.get_or_insert_with(timer).as_mut().poll(context)
    }

    /// Reads what a client sends while its command waits, to be run afterwards: that is how it is seen that it has left.
    /// Never `Ok`.
    fn poll_read_ahead(&mut self, context: &mut Context<'_>, scratch: &mut Scratch) -> Poll<io::Result<()>> {
        while let Some(left) = self.input_left().filter(|left| *left > 0) {
            let most = left.min(scratch.read.len());
            let mut buffer = ReadBuf::new(&mut scratch.read[..most]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let read = buffer.filled();
            if read.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            scratch.traffic.count_read(read.len());
            self.session.client.count_input(read.len());
            self.input.extend(read);
        }
        // More than may be kept is read when the command has ended.
        Poll::Pending
    }

    /// Ends the wait of a command that waited for keys.
    fn end_wait(&mut self, how: Unblock) {
        let Server { engine, commands, .. } = &*self.server;
        let (now, mark) = (process::time::now(), self.output.mark());
        let resumed = with_scratch(|scratch| {
            let dispatcher = commands.on(engine);
            dispatcher.end_wait(&mut scratch.worker, &mut self.session, now, how, self.output.buffer())
        });
        match resumed {
            Resumed::Replied => {
                self.keep_reply_from(mark);
                self.session.queue_messages(self.output.queue());
                self.hold_uncommitted(mark);
            }
            Resumed::RunAgain(request) => {
                let mut wire = Vec::new();
                encode_request(&mut wire, request.args().iter());
                self.input.prepend(wire);
            }
        }
    }

    /// Takes back a reply that began at `mark` if the client does not want it (CLIENT REPLY).
    pub(crate) fn keep_reply_from(&mut self, mark: OutputMark) {
        if matches!(self.session.mute, Mute::This | Mute::Everything) {
            self.output.discard_since(mark);
        }
        if self.session.mute == Mute::This {
            self.session.mute = Mute::Nothing;
        }
    }

    /// Serves until nothing more can be read or the shell is needed.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        // A task's waker stays the same; others wake it to tell that they killed it.
        if !self.has_waker {
            *self.waker.lock() = Some((context.waker().clone(), WakeBatches::current()));
            self.has_waker = true;
        }
        // Before anything is read: a client that was told of this one's end is not to see another of its writes.
        if self.session.client.is_killed() {
            return Poll::Ready(Event::Closed);
        }
        self.session.queue_messages(self.output.queue());
        let polled = loop {
            if let Some(waiter) = self.session.waiter() {
                match self.poll_blocked(context, &waiter) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => {
                        self.session.client.kill();
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
        let client = &self.session.client;
        match polled {
            Poll::Pending => self.turn.end(),
            Poll::Ready(_) => self.turn.lend(client),
        }
        if client.is_killed() { Poll::Ready(Event::Closed) } else { polled }
    }

    /// Shows others how much memory the connection takes, and closes clients if all take more than they may.
    fn publish_memory(&self) {
        let client = &self.session.client;
        let spare = self.input.capacity() - self.input.len() + self.parser.bytes();
        client.input_bytes.store(self.input.len(), Ordering::Relaxed);
        client.spare_input_bytes.store(spare, Ordering::Relaxed);
        client.unsent_bytes.store(self.output.len(), Ordering::Relaxed);
        client.output_bytes.store(self.output.memory(), Ordering::Relaxed);
        if self.server.engine.budget.is_watched() {
            self.server.engine.clients.settle(client);
        }
    }

    fn poll_requests(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            if self.turn.is_over(&self.server.engine, &mut self.session) {
                return if self.in_flight.is_some() { Poll::Ready(Event::Return) } else { give_way(context) };
            }
            if std::mem::take(&mut self.unrun)
                && !self.input.is_empty()
                && let Some(event) = with_scratch(|scratch| self.run_kept(scratch))
            {
                return Poll::Ready(event);
            }
            match self.poll_send(context) {
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Closed),
                Poll::Ready(Ok(())) if self.session.closing => return Poll::Ready(Event::Closed),
                Poll::Pending if self.session.closing => return Poll::Pending,
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

    /// How long to wait before more is read, if it has written and writers are slowed down.
    #[inline]
    fn slowed_for(&mut self) -> Option<Duration> {
        let micros = self.server.replication.write_delay.load(Ordering::Relaxed);
        if micros == 0 || self.session.last_write == self.slowed_after {
            return None;
        }
        self.slowed_after = self.session.last_write;
        Some(Duration::from_micros(micros.into()))
    }

    /// Reads once and runs what came. `Ok(None)`: go on.
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
        // The scratch buffer is taken out while requests in it run, since running needs the scratch too.
        let mut read = std::mem::take(&mut scratch.read);
        let mut buffer = ReadBuf::new(&mut read);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let len = buffer.filled().len();
        let outcome = match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) if len == 0 => Poll::Ready(Ok(Some(Event::Closed))),
            Poll::Ready(Ok(())) => {
                scratch.traffic.count_read(len);
                self.session.client.count_input(len);
                if self.input.is_empty() {
                    let (used, event) = self.run_requests(scratch, &mut read[..len]);
                    scratch.batch.release_large();
                    self.input.extend(&read[used..len]);
                    Poll::Ready(Ok(event))
                } else {
                    // An unfinished request takes what was sent of it and little more, however slowly it comes.
                    self.input.extend(&read[..len]);
                    Poll::Ready(Ok(self.run_kept(scratch)))
                }
            }
        };
        scratch.read = read;
        outcome
    }

    /// How many more bytes of its input may be kept, with the commands that it has queued; `None` if it is too much
    /// already (`client-query-buffer-limit`).
    fn input_left(&self) -> Option<usize> {
        let kept = self.input.len() + self.session.client.queued_bytes();
        self.server.network.limits.query_buffer.load(Ordering::Relaxed).checked_sub(kept)
    }

    /// Reads more of a long request into the connection's own buffer, `left` bytes of which are within its limit.
    fn poll_read_on(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut Scratch,
        left: usize,
    ) -> Poll<io::Result<Option<Event>>> {
        let room = match self.parser.missing_argument_bytes(&self.input) {
            // Twice as much each time, so that a large request is copied a few times only.
            0 => self.input.len().min(MAX_READ),
            // All at once, if some of it has really come. Memory that nothing is written to takes none of the machine's.
            missing if self.input.len() >= BELIEVED => missing,
            missing => missing.min(self.input.len() * 7),
        };
        let buffer = self.input.with_room(room.min(left + 1));
        match pin!(self.stream.read_buf(buffer)).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(Some(Event::Closed))),
            Poll::Ready(Ok(len)) => {
                scratch.traffic.count_read(len);
                self.session.client.count_input(len);
                Poll::Ready(Ok(self.run_kept(scratch)))
            }
        }
    }

    /// Runs the requests in the connection's own buffer and keeps the rest.
    fn run_kept(&mut self, scratch: &mut Scratch) -> Option<Event> {
        let mut input = std::mem::take(&mut self.input);
        let (used, event) = self.run_requests(scratch, &mut input);
        scratch.batch.release_large();
        input.consume(used);
        self.input = input;
        event
    }

    /// The bounds of what its client may send now.
    fn limits(&self) -> ParseLimits {
        ParseLimits {
            max_bulk_len: self.server.engine.settings.proto_max_bulk_len.load(Ordering::Relaxed),
            authenticated: self.session.authenticated,
            inline: true,
            requests: MOST_PARSED,
        }
    }

    /// Answers bytes that are no request, unless the limits that they break no longer hold.
    fn answer_parse_error(&mut self, error: ProtocolError, out: &mut Vec<u8>) {
        if error.is_unauthenticated() && self.session.authenticated {
            // It has authenticated with the requests before: the rest is parsed under the limits of now.
            self.parser = Parser::new();
            self.unrun = true;
        } else {
            self.protest(error, out);
        }
    }

    /// Parses `buffer` and runs its requests. Returns how many bytes are done with, and what the shell
    /// must do before the rest can run.
    fn run_requests(&mut self, scratch: &mut Scratch, buffer: &mut [u8]) -> (usize, Option<Event>) {
        scratch.batch.clear();
        let limits = self.limits();
        let parsed = self.parser.parse(buffer, &mut scratch.batch, &limits);
        let now = process::time::now();
        self.session.reply_limit = self.reply_limit();
        // Before any command is asked about.
        let ends = self.server.engine.pauses.ends();
        // With nothing waiting to be sent, and nothing to be waited for, replies are collected in memory that the
        // thread shares.
        let shared = self.output.is_empty() && !self.server.replication.commit_point.is_required();
        let behind = (!shared).then(|| self.output.mark());
        let mut out = std::mem::take(if shared { &mut scratch.out } else { self.output.buffer() });
        let ran = crash::run_guarded(|| {
            let (worker, batch) = (&mut scratch.worker, &scratch.batch);
            self.server.commands.on(&self.server.engine).run(
                worker,
                &mut self.session,
                now,
                Requests { buffer, batch, from: 0 },
                &mut out,
            )
        });
        let Some((ran, flow)) = ran else {
            let running = scratch.worker.running;
            let args = (running < scratch.batch.len()).then(|| scratch.batch.args(running, buffer));
            crash::abort_in_command(&self.session.client, &self.server.engine.catalogue, args)
        };
        // Requests that are done with, and what is to be done before the rest can run.
        let stopped = match flow {
            Flow::Done | Flow::Close => None,
            Flow::TurnOver => Some((ran, None)),
            Flow::Paused => Some((ran, Some(Event::Paused(ends)))),
            Flow::Blocked => Some((ran + 1, Some(Event::Blocked))),
            Flow::Long => Some((ran, Some(Event::Long))),
            Flow::Held => Some((ran, Some(Event::Held))),
            Flow::Node(command) => {
                let request = Request::from(scratch.batch.args(ran, buffer));
                Some((ran + 1, Some(Event::Node(command, request))))
            }
        };
        self.unrun = scratch.batch.len() == MOST_PARSED;
        if let (Some(error), None) = (parsed.error, &stopped) {
            self.answer_parse_error(error, &mut out);
        }
        match behind {
            None => self.send_now(&mut out, scratch),
            Some(mark) => self.keep(out, mark),
        }
        // Those that were too long to be copied between the replies.
        self.session.queue_messages(self.output.queue());
        if self.server.engine.budget.is_watched() {
            self.publish_memory();
        }
        match stopped {
            None => (parsed.consumed, None),
            Some((done, event)) => {
                // The requests behind the last one that was run are parsed again.
                self.parser = Parser::new();
                self.unrun = true;
                let used = scratch.batch.consumed(done);
                scratch.batch.restore_inline_requests(used, buffer);
                (used, event)
            }
        }
    }

    /// Answers bytes that are no request, after which it is unknown where the next request begins.
    fn protest(&mut self, error: ProtocolError, out: &mut Vec<u8>) {
        Writer::new(out, self.session.protocol).error(&format!("ERR {error}"));
        self.session.closing = true;
    }

    /// Sends the replies of a batch with one write; what the socket does not take is kept.
    fn send_now(&mut self, out: &mut Vec<u8>, scratch: &mut Scratch) {
        if self.session.client.is_cut_off() {
            out.clear();
        }
        if !out.is_empty() {
            let sent = self.stream.write_now(out);
            scratch.traffic.count_write(sent);
            self.session.client.count_output(sent);
            if self.output.is_empty() && out.len() - sent > LONG_REPLY {
                self.output.restore_buffer(std::mem::take(out));
                self.output.consume(sent);
            } else {
                self.output.buffer().extend_from_slice(&out[sent..]);
                out.clear();
            }
        }
        if out.capacity() > 1024 * 1024 {
            *out = Vec::new();
        }
        scratch.out = std::mem::take(out);
    }

    /// Keeps the replies of a batch, which begin at `mark`, behind what waits, or until they may be sent.
    fn keep(&mut self, out: Vec<u8>, mark: OutputMark) {
        self.output.restore_buffer(out);
        if self.session.client.is_cut_off() {
            self.output.discard_since(mark);
        }
        self.hold_uncommitted(mark);
    }

    /// Sends what waits to be sent. Ready once the socket has all of it: what is encrypted and not taken waits, too.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            if poll_release(&mut self.output, &self.server.replication.commit_point, self.session.id, context)
                .is_pending()
            {
                self.check_output_limit()?;
                return Poll::Pending;
            }
            match Pin::new(&mut self.stream).poll_write(context, self.output.sendable()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(len)) => {
                    with_scratch(|scratch| scratch.traffic.count_write(len));
                    self.session.client.count_output(len);
                    self.output.consume(len);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.check_output_limit()?;
                    return Poll::Pending;
                }
            }
        }
        self.session.client.over_soft_limit.store(0, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// The limit of what may wait to be sent to this client.
    fn output_limit(&self) -> &OutputLimit {
        self.server.network.limits.output_limit_for(&self.session.client)
    }

    /// How long the buffer of [`Connection::output`] may become.
    fn reply_limit(&self) -> usize {
        match self.output_limit().hard.load(Ordering::Relaxed) {
            0 => usize::MAX,
            hard => self.output.buffer_limit(hard),
        }
    }

    /// A client that does not read its replies is cut off at the hard limit for its class at once, and at the soft one
    /// by the look at all clients ([`crate::housekeeping::cron`]): it may never be heard of again.
    fn check_output_limit(&mut self) -> io::Result<()> {
        let (waiting, limit, client) =
            (self.output.charged_bytes(), self.output_limit(), &self.session.client);
        let (hard, soft) = (limit.hard.load(Ordering::Relaxed), limit.soft.load(Ordering::Relaxed));
        let too_much = hard > 0 && waiting > hard;
        if too_much || !self.session.authenticated && self.output.len() > MOST_FOR_STRANGERS {
            client.overflow();
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

/// Returns when the client is to be gone; the kill wakes the task.
async fn killed(client: &Client) {
    poll_fn(|_| if client.is_killed() { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Sends what waits to be sent, as the socket takes it. Returns when that is no longer possible.
async fn send_all(stream: &Stream, output: &mut Output, point: &CommitPoint, client: &Client) {
    while !output.is_empty() {
        poll_fn(|context| poll_release(output, point, client.id, context)).await;
        match stream.send(output.sendable()).await {
            Ok(len) => {
                with_scratch(|scratch| scratch.traffic.count_write(len));
                client.count_output(len);
                output.consume(len);
                client.unsent_bytes.store(output.len(), Ordering::Relaxed);
                client.output_bytes.store(output.memory(), Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    std::future::pending::<()>().await;
}

/// Ready when some of the waiting bytes may be sent. Held bytes are let go of when the log is committed that far.
fn poll_release(output: &mut Output, point: &CommitPoint, client: u64, context: &Context<'_>) -> Poll<()> {
    while output.sendable().is_empty()
        && let Some(until) = output.held_until()
    {
        ready!(point.poll_reached(until, client, context));
        output.release(point.offset());
    }
    Poll::Ready(())
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stream.send_close_notify();
        if self.output.held_until().is_some() {
            self.server.replication.commit_point.remove_waiter(self.session.id);
        }
        self.server.engine.disconnect(&mut self.session);
        self.server.network.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
