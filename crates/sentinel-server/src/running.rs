//! The event loop: passes events to the state machine and executes the resulting actions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use config::{Config, ReplaceMethod, keys};
use driver::Driver;
use engine::{CommandOrigin, Engine, NodeFlags, Session};
use net::dialer::Dialer;
use net::listener;
use net::tls::{Tls, TlsPeers};
use net::transport::SocketOptions;
use process::{alarm, daemon};
use sentinel::{
    ClientCommand, ClientId, EventLevel, FileWrite, JobId, LinkId, RejectedScript, SavedJournal,
    ScriptOutcome, Sentinel, SentinelAction, SentinelInput,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::ServerEvent;
use super::access;
use super::client::Client;
use super::commands::{self, CommandReply};
use super::connection::{self, AcceptConfig};
use super::files::Files;
use super::links::LinkHandle;
use super::scripts;
use super::server_state::{ProcessParts, ServerState, time_since};
use super::traffic::Traffic;

/// Maximum number of events in a batch. The actions of a batch are executed together, with one or two syncs.
const MAX_BATCH_EVENTS: usize = 256;
/// Capacity of the event queue. Senders wait while it is full.
const EVENT_QUEUE_CAPACITY: usize = 4096;

/// Runs a sentinel until it is stopped by a signal or SHUTDOWN.
pub(super) async fn run(
    config: Config,
    own: sentinel::SentinelConfig,
    files: Files,
    journal: SavedJournal,
    engine: Engine,
    seed: u64,
) -> Result<()> {
    let (events, queue) = channel(EVENT_QUEUE_CAPACITY);
    let names_default = own.users.iter().any(|line| line[0] == acl::DEFAULT_USER_NAME);
    let engine = Arc::new(engine);
    daemon::ignore_hangups()?;
    alarm::log_threads_on_sigalrm()?;
    let tls = Arc::new(Tls::default());
    tls.load(&config).map_err(|reason| anyhow!("Failed to configure TLS: {reason}"))?;
    let traffic = Arc::new(Traffic::default());
    listen(&config, &tls, own.global.port, &engine, &traffic, &events).await?;
    let mut own = own;
    if config.get(keys::TLS_REPLICATION) && config.get(keys::TLS_PORT) != 0 {
        // Other sentinels use TLS as well, so the TLS port is announced.
        own.global.port = config.get(keys::TLS_PORT);
    }
    let began = std::time::Instant::now();
    let mut out = Vec::new();
    let sentinel = Sentinel::new(time_since(began), own, journal, seed, &mut out);
    let process =
        ProcessParts { config, tls, files, engine, names_default, events, traffic, started_at: began };
    let mut state = ServerState::new(sentinel, process);
    state.save_first_config(&mut out)?;
    state.execute_actions(out);
    tracing::info!("Server initialized");
    tracing::info!("Ready to accept connections tcp");
    let (sigterm, sigint) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    daemon::notify_ready(&state.config);
    state.run_event_loop(queue, sigterm, sigint).await?;
    tracing::warn!("User requested shutdown...");
    daemon::notify_stopping(&state.config);
    tracing::warn!("Sentinel is now ready to exit, bye bye...");
    Ok(())
}

/// Opens the listening sockets for clients and other sentinels.
async fn listen(
    config: &Config,
    tls: &Arc<Tls>,
    port: u16,
    engine: &Arc<Engine>,
    traffic: &Arc<Traffic>,
    events: &Sender<ServerEvent>,
) -> Result<()> {
    let accept_config = AcceptConfig {
        protected: config.get(keys::PROTECTED_MODE),
        max_clients: config.get(keys::MAXCLIENTS),
        options: SocketOptions::new(config),
        engine: engine.clone(),
        traffic: traffic.clone(),
    };
    let ids = Arc::new(AtomicUsize::new(1));
    let backlog = config.get(keys::TCP_BACKLOG);
    let (bind, tls_port) = (config.get(keys::BIND), config.get(keys::TLS_PORT));
    listener::wait_until_ports_are_free(&bind, &[port, tls_port]).await;
    let mut listeners = if port == 0 { Vec::new() } else { listener::bind(&bind, port, backlog)? };
    if tls_port != 0 {
        let bound = listener::bind(&bind, tls_port, backlog)?;
        listeners.extend(bound.into_iter().map(|listener| listener.with_tls(tls, TlsPeers::Clients)));
    }
    for listener in listeners {
        tokio::spawn(connection::accept(listener, accept_config.clone(), ids.clone(), events.clone()));
    }
    Ok(())
}

impl ServerState {
    /// Performs the first write. Fails if a new run id could not be saved, because such an id must not be used.
    fn save_first_config(&mut self, out: &mut Vec<SentinelAction>) -> Result<()> {
        let first = out.iter().position(|action| matches!(action, SentinelAction::Write(_)));
        let first = first.map(|at| out.remove(at));
        let Some(SentinelAction::Write(FileWrite::Config(text))) = first else { return Ok(()) };
        let path = self.files.config_path().display();
        let written = self.files.write_config(&text);
        let replaced = written.map_err(|error| {
            anyhow::anyhow!("Sentinel config file {path} is not writable: {error}. Exiting...")
        })?;
        if replaced == ReplaceMethod::InPlace {
            tracing::warn!(
                "Sentinel config file {path} cannot be replaced by a rename (it is a mount point, or its folder is \
                 read-only): it is written in place"
            );
        }
        let journal_bytes = self.files.journal_bytes();
        self.sentinel.handle(self.now(), SentinelInput::Written { journal_bytes }, out);
        Ok(())
    }

    /// Processes events and executes actions until the process stops.
    async fn run_event_loop(
        &mut self,
        mut queue: Receiver<ServerEvent>,
        mut term: Signal,
        mut int: Signal,
    ) -> Result<()> {
        let mut batch = Vec::new();
        while !self.ends {
            if std::mem::take(&mut self.was_blocked_by_disk) {
                // Events that arrived while the thread was blocked are processed before a peer is considered silent.
                tokio::task::yield_now().await;
            }
            let due = self.sentinel.next_deadline();
            let wait = due.map_or(Duration::from_secs(1), |due| due.since(self.now()));
            let wait = self.remaining_pause().map_or(wait, |until| until.min(wait));
            tokio::select! {
                biased;
                _ = term.recv() => {
                    tracing::warn!("Received SIGTERM scheduling shutdown...");
                    return Ok(());
                }
                _ = int.recv() => {
                    tracing::warn!("Received SIGINT scheduling shutdown...");
                    return Ok(());
                }
                _ = queue.recv_many(&mut batch, MAX_BATCH_EVENTS) => {}
                () = tokio::time::sleep(wait) => {}
            }
            let bytes =
                [&self.traffic.input, &self.traffic.output].map(|count| count.load(Ordering::Relaxed));
            self.recent_rates.update(std::time::Instant::now(), [self.commands, bytes[0], bytes[1]]);
            let mut out = Vec::new();
            for event in batch.drain(..) {
                self.handle_event(event, &mut out);
            }
            self.execute_deferred(&mut out);
            let now = self.now();
            if self.sentinel.next_deadline().is_some_and(|due| due <= now) {
                self.sentinel.handle(now, SentinelInput::Deadline, &mut out);
            }
            self.execute_actions(out);
            for done in self.flush_waiters.drain(..) {
                // An error means that the requesting task has ended.
                let _ = done.send(());
            }
        }
        Ok(())
    }

    fn is_current(&self, link: LinkId, connection_number: u64) -> bool {
        self.links.get(&link).is_some_and(|handle| handle.connection_number == connection_number)
    }

    fn handle_event(&mut self, event: ServerEvent, out: &mut Vec<SentinelAction>) {
        let input = match event {
            ServerEvent::LinkUp { link, connection_number, local_ip }
                if self.is_current(link, connection_number) =>
            {
                SentinelInput::Connected { link, local_ip }
            }
            ServerEvent::LinkReply { link, connection_number, value }
                if self.is_current(link, connection_number) =>
            {
                SentinelInput::Reply { link, value }
            }
            ServerEvent::LinkFailed { link, connection_number, refused }
                if self.is_current(link, connection_number) =>
            {
                self.links.remove(&link);
                SentinelInput::ConnectFailed { link, refused }
            }
            ServerEvent::LinkDown { link, connection_number } if self.is_current(link, connection_number) => {
                self.links.remove(&link);
                SentinelInput::Disconnected { link }
            }
            ServerEvent::LinkUp { .. }
            | ServerEvent::LinkReply { .. }
            | ServerEvent::LinkFailed { .. }
            | ServerEvent::LinkDown { .. } => {
                return;
            }
            ServerEvent::ClientOpened(accepted) => {
                self.connections += 1;
                let open = accepted.is_authenticated.load(Ordering::Relaxed);
                let client =
                    self.engine.clients.connect(accepted.link.clone(), process::time::now(), Box::new(|| {}));
                let session = Session::for_client(client, CommandOrigin::Client, open);
                self.clients.insert(accepted.client, Client::new(accepted, session));
                return;
            }
            ServerEvent::ClientClosed { client } => {
                self.remove_client(client, out);
                return;
            }
            ServerEvent::Flush(done) => {
                self.flush_waiters.push(done);
                return;
            }
            ServerEvent::ClientRequest { client, args } => return self.on_request(client, args, out),
            ServerEvent::Resolved { host, ip } => SentinelInput::Resolved { host, ip },
            ServerEvent::ScriptDone { job, outcome } => {
                self.scripts.remove(&job);
                SentinelInput::ScriptDone { job, outcome }
            }
        };
        self.sentinel.handle(self.now(), input, out);
    }

    fn remove_client(&mut self, id: u64, out: &mut Vec<SentinelAction>) {
        if let Some(client) = self.clients.remove(&id) {
            self.engine.clients.disconnect(client.session.id());
        }
        self.sentinel.handle(self.now(), SentinelInput::ClientClosed { client: ClientId(id) }, out);
    }

    fn on_request(&mut self, id: u64, args: Vec<Vec<u8>>, out: &mut Vec<SentinelAction>) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        let stays = match () {
            () if args.is_empty() || client.session.is_closing() => true,
            () if client.has_deferred() => client.defer(args),
            () => self.execute_request(id, &mut client, args, out),
        };
        self.clients.insert(id, client);
        if !stays {
            self.remove_client(id, out);
        }
        self.close_killed(out);
        if std::mem::take(&mut self.users_changed) {
            let required = self.config.get(keys::REQUIREPASS).unwrap_or_default();
            let lines = access::user_lines(&self.engine, &required, self.names_default);
            self.sentinel.handle(self.now(), SentinelInput::UsersChanged { lines }, out);
        }
    }

    /// Executes or defers a request. Returns false if the client has exceeded the limit for deferred requests.
    fn execute_request(
        &mut self,
        id: u64,
        client: &mut Client,
        args: Vec<Vec<u8>>,
        out: &mut Vec<SentinelAction>,
    ) -> bool {
        let muted = client.begin_muted();
        match commands::execute(self, client, &args) {
            CommandReply::Reply(bytes) if !muted => self.sentinel.send_reply(ClientId(id), bytes, out),
            CommandReply::Reply(_) => {}
            CommandReply::Engine(bytes) if bytes.is_empty() => {}
            CommandReply::Engine(bytes) => self.sentinel.send_reply(ClientId(id), bytes, out),
            CommandReply::FromMachine => self.pass_to_machine((!muted).then_some(id), client, args, out),
            CommandReply::RetryAfterPause => {
                client.unmute();
                return client.defer(args);
            }
            CommandReply::Shutdown => self.ends = true,
        }
        client.end_muted();
        self.commands += 1;
        if client.session.is_closing() {
            self.sentinel.close_client(ClientId(id), out);
        }
        true
    }

    /// Passes a command to the state machine. `id` is the client that gets the reply; `None` if no reply is needed.
    fn pass_to_machine(
        &mut self,
        id: Option<u64>,
        client: &Client,
        args: Vec<Vec<u8>>,
        out: &mut Vec<SentinelAction>,
    ) {
        let scripts = self.sentinel.scripts_to_set(&args);
        let rejected_script = scripts.iter().find_map(|(at, option, path)| {
            let error = scripts::rejection_reason(option, path)?.to_owned();
            Some(RejectedScript { option_index: *at, error })
        });
        let (protocol, client) = (client.session.protocol(), id.map(ClientId));
        let command = SentinelInput::Command(ClientCommand { client, protocol, args, rejected_script });
        self.sentinel.handle(self.now(), command, out);
    }

    /// Closes connections that CLIENT KILL has marked.
    fn close_killed(&mut self, out: &mut Vec<SentinelAction>) {
        let killed = |(&id, client): (&u64, &Client)| client.session.client().is_killed().then_some(id);
        let gone: Vec<u64> = self.clients.iter().filter_map(killed).collect();
        gone.into_iter().for_each(|id| self.remove_client(id, out));
    }

    /// Returns the time until the current pause ends; `None` if there is no pause.
    fn remaining_pause(&self) -> Option<Duration> {
        let (_, until) = self.engine.scheduling.pauses.strictest_pause()?;
        Some(Duration::from_millis(u64::try_from(until.0 - process::time::now().0).unwrap_or(0)))
    }

    /// Executes the deferred requests after the end of a pause.
    fn execute_deferred(&mut self, out: &mut Vec<SentinelAction>) {
        self.engine.scheduling.pauses.end_expired(&self.engine.settings, process::time::now());
        let all = self.engine.settings.node_flags().contains(NodeFlags::ALL_PAUSED);
        let waiting = |(&id, client): (&u64, &Client)| client.has_deferred().then_some(id);
        let waiting: Vec<u64> = self.clients.iter().filter_map(waiting).filter(|_| !all).collect();
        for id in waiting {
            let requests = self.clients.get_mut(&id).map(Client::take_deferred).unwrap_or_default();
            for args in requests {
                self.on_request(id, args, out);
            }
        }
    }

    fn execute_actions(&mut self, actions: Vec<SentinelAction>) {
        let mut actions: VecDeque<SentinelAction> = actions.into();
        while let Some(action) = actions.pop_front() {
            let mut more = Vec::new();
            self.perform_action(action, &mut more);
            actions.extend(more);
        }
    }

    /// Performs a write. Returns its result as an event for the state machine.
    fn write(&mut self, write: &FileWrite) -> SentinelInput {
        self.was_blocked_by_disk = true;
        match (self.files.write(write), write) {
            (Ok(()), FileWrite::Config(_)) => tracing::info!("Sentinel new configuration saved on disk"),
            (Ok(()), FileWrite::AppendJournal(_) | FileWrite::ReplaceJournal(_)) => {}
            (Err(error), FileWrite::Config(_)) => {
                tracing::warn!(
                    "WARNING: Sentinel was not able to save the new configuration on disk!!!: {error}"
                );
                return SentinelInput::WriteFailed;
            }
            (Err(error), FileWrite::AppendJournal(_)) => {
                tracing::warn!("the journal cannot be appended to: {error}; it is replaced");
                return SentinelInput::WriteFailed;
            }
            (Err(error), FileWrite::ReplaceJournal(_)) => {
                tracing::error!("the journal cannot be written: {error}; votes are held back");
                return SentinelInput::WriteFailed;
            }
        }
        SentinelInput::Written { journal_bytes: self.files.journal_bytes() }
    }

    /// Performs an action. Further actions that result from it are appended to `out`.
    fn perform_action(&mut self, action: SentinelAction, out: &mut Vec<SentinelAction>) {
        match action {
            SentinelAction::Write(write) => {
                let result = self.write(&write);
                self.sentinel.handle(self.now(), result, out);
            }
            SentinelAction::Connect { link, addr, .. } => {
                self.connection_count += 1;
                let dialer = Dialer::with_link_tls(&self.config, &self.tls, keys::TLS_REPLICATION);
                let handle = LinkHandle::open(link, self.connection_count, addr, dialer, self.events.clone());
                self.links.insert(link, handle);
            }
            SentinelAction::Close(link) => drop(self.links.remove(&link)),
            SentinelAction::Send { link, request } => {
                if let Some(handle) = self.links.get(&link) {
                    handle.send(&request);
                }
            }
            SentinelAction::Reply { client, reply } => {
                self.traffic.errors.fetch_add(u64::from(reply.starts_with(b"-")), Ordering::Relaxed);
                self.push_to_client(client, reply);
            }
            // An empty reply closes the connection.
            SentinelAction::CloseClient(client) => self.push_to_client(client, Vec::new()),
            SentinelAction::Publish { channel, payload } => {
                self.clients.retain(|_, client| client.deliver(&channel, &payload));
            }
            SentinelAction::Log { level, text } => match level {
                EventLevel::Debug => tracing::trace!("{text}"),
                EventLevel::Verbose => tracing::debug!("{text}"),
                EventLevel::Notice => tracing::info!("{text}"),
                EventLevel::Warning => tracing::warn!("{text}"),
            },
            SentinelAction::Resolve { host } => self.resolve(host),
            SentinelAction::RunScript { job, argv } => {
                self.scripts.insert(job, scripts::run(job, &argv, self.events.clone()));
            }
            SentinelAction::KillScript(job) => self.kill_script(job),
            SentinelAction::SetLogLevel(level) => process::log::set_level(level),
            SentinelAction::Crash => {
                tracing::warn!("simulated failure: exiting");
                self.ends = true;
            }
        }
    }

    fn push_to_client(&mut self, client: ClientId, reply: Vec<u8>) {
        let gone = self.clients.get(&client.0).is_some_and(|client| !client.output.push(reply));
        if gone {
            self.clients.remove(&client.0);
        }
    }

    fn kill_script(&mut self, job: JobId) {
        let Some(task) = self.scripts.remove(&job) else { return };
        task.abort();
        let events = self.events.clone();
        tokio::spawn(async move {
            let _ = events.send(ServerEvent::ScriptDone { job, outcome: ScriptOutcome::Died }).await;
        });
    }

    fn resolve(&self, host: String) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await;
            match found.map(|mut found| found.next()) {
                Ok(Some(addr)) => {
                    let ip = addr.ip().to_string();
                    let _ = events.send(ServerEvent::Resolved { host, ip }).await;
                }
                _ => tracing::warn!("Failed to resolve hostname '{host}'"),
            }
        });
    }
}

#[cfg(test)]
mod tests;
