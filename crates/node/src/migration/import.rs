//! The target side of a migration job.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use config::keys;
use durability::stream::imports;
use engine::{CommandOrigin, DispatchStatus, PipelinedRequests, RemainingKeys, Session, Worker};
use gossip::OperatorCommand;
use migration::import::{CLAIM_TIMEOUT, ImportAction, ImportConditions, ImportEvent, is_allowed_in_import};
use migration::{ControlCommand, Establish, Finish, Import, Message, SyncSlots};
use net::detached_connection::DetachedConnection;
use net::scratch::with_scratch;
use net::transport::Stream;
use process::time;
use resp::{Args, Batch, ParseLimits, Parser, Value, parse_value};
use slot_routing::SlotSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

use super::{Migrations, serves, topology};

/// The id of the session, which no client has.
const NO_CLIENT: u64 = 0;
/// The maximum number of requests executed before the connection is read again.
const MOST_PARSED: usize = 1024;
const READ: usize = 64 * 1024;
/// The source is told the applied offset after this many bytes, so that it can discard them.
const TELL: u64 = 256 * 1024;
/// How long a claim waits until the replicas have the received data.
const REPLICAS_WITHIN: Duration = Duration::from_millis(500);
/// How often a claim checks whether DEBUG still prevents it.
const PREVENTED_PERIOD: Duration = Duration::from_millis(50);

/// Runs the job to its end.
pub(super) async fn run(
    migrations: Arc<Migrations>,
    import: Establish,
    connection: DetachedConnection,
    resumes: mpsc::UnboundedReceiver<DetachedConnection>,
) {
    let name = import.name;
    let outcome = match Target::open(&migrations, import.clone(), connection, resumes).await {
        Ok(target) => target.run().await,
        Err(error) => Err(error.to_string()),
    };
    drop_keys(&migrations, &import, &outcome).await;
    match outcome {
        Ok(()) => {
            let keys = migrations.keys_in(&import.slots());
            migrations.note(&name, |job| job.progress.keys = Some(keys));
            migrations.end(&name, "success", "");
        }
        Err(why) => migrations.end(&name, "failed", &why),
    }
}

/// Ends an import on this node and its replicas: received keys become visible, or are deleted if the import failed.
pub(super) async fn drop_keys(migrations: &Migrations, import: &Establish, outcome: &Result<(), String>) {
    if outcome.is_err() {
        for slot in import.slots().iter() {
            loop {
                match migrations.engine.delete_imported_keys(slot) {
                    RemainingKeys::None => break,
                    // Other tasks run on this thread too.
                    RemainingKeys::MaybeMore => tokio::task::yield_now().await,
                    RemainingKeys::Paused => migrations.pauses.wait_until_unpaused().await,
                }
            }
        }
    }
    migrations.replication.replicate_import(&imports::encode_end(&migrations.engine, import, outcome));
    migrations.replication.applied_stream.imports.end_import(&migrations.engine, &import.name);
    migrations.replication.master_imports.record_end(&import.name, outcome.clone(), time::now());
}

struct Target<'a> {
    migrations: &'a Arc<Migrations>,
    import: Establish,
    slots: SlotSet,
    machine: Import,
    inputs: VecDeque<ImportEvent>,
    link: Option<(ReadHalf<Stream>, WriteHalf<Stream>)>,
    session: Session,
    parser: Parser,
    received: Vec<u8>,
    /// New connections of the source.
    resumes: mpsc::UnboundedReceiver<DetachedConnection>,
    cancelled: Arc<Notify>,
    /// The number of applied bytes, and the number that the source knows of.
    applied: u64,
    told: u64,
    /// The number of FLUSHALL and FLUSHDB when the import started.
    clears: u64,
}

enum ImportWakeup {
    Link(io::Result<usize>),
    Resumed(Option<DetachedConnection>),
    Cancel,
    Deadline,
    Rerouted,
}

impl<'a> Target<'a> {
    async fn open(
        migrations: &'a Arc<Migrations>,
        import: Establish,
        connection: DetachedConnection,
        resumes: mpsc::UnboundedReceiver<DetachedConnection>,
    ) -> io::Result<Target<'a>> {
        let slots = import.slots();
        // Keys left in these slots would be mistaken for received ones.
        for slot in slots.iter() {
            loop {
                match migrations.engine.delete_unowned_keys(slot) {
                    RemainingKeys::None => break,
                    RemainingKeys::MaybeMore => {}
                    RemainingKeys::Paused => migrations.pauses.wait_until_unpaused().await,
                }
            }
        }
        let cancelled = migrations.ways.lock().get(&import.name).map(|way| way.cancelled.clone());
        migrations.replication.applied_stream.imports.start_import(&migrations.engine, import.clone());
        migrations.replication.replicate_import(&imports::encode_begin(&import));
        let mut link = tokio::io::split(Stream::open(connection.socket)?);
        link.1.write_all(&[&connection.unsent[..], b"+OK\r\n"].concat()).await?;
        Ok(Self {
            clears: migrations.engine.settings.cleared_databases.load(Ordering::Relaxed),
            machine: Import::new(
                time::instant(),
                migrations.config.get(keys::REPL_TIMEOUT),
                import.resumable,
            ),
            session: Session::new(NO_CLIENT, CommandOrigin::Source, true),
            parser: Parser::new(),
            received: connection.input,
            resumes,
            cancelled: cancelled.unwrap_or_default(),
            applied: 0,
            told: 0,
            link: Some(link),
            inputs: VecDeque::new(),
            migrations,
            import,
            slots,
        })
    }

    async fn run(mut self) -> Result<(), String> {
        self.run_received().await;
        loop {
            // No change of the topology is missed from here on.
            let rerouted = self.migrations.rerouted.notified();
            tokio::pin!(rerouted);
            rerouted.as_mut().enable();
            self.inputs.push_back(ImportEvent::Conditions(self.around()));
            if let Some(outcome) = self.handle_all().await {
                self.say_end(&outcome).await;
                return outcome;
            }
            let deadline = self.machine.next_deadline();
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep(at.since(time::instant())).await,
                    None => pending().await,
                }
            };
            let wakeup = tokio::select! {
                () = rerouted => ImportWakeup::Rerouted,
                () = self.cancelled.notified() => ImportWakeup::Cancel,
                resumed = self.resumes.recv(), if self.import.resumable => ImportWakeup::Resumed(resumed),
                read = read(&mut self.link, &mut self.received) => ImportWakeup::Link(read),
                () = timer => ImportWakeup::Deadline,
            };
            match wakeup {
                ImportWakeup::Rerouted => {}
                ImportWakeup::Cancel => self.inputs.push_back(ImportEvent::Cancel),
                ImportWakeup::Resumed(connection) => {
                    if let Some(connection) = connection {
                        self.resume(connection).await;
                    }
                }
                ImportWakeup::Deadline => self.inputs.push_back(ImportEvent::Deadline),
                ImportWakeup::Link(Ok(read)) if read > 0 => {
                    self.migrations.note(&self.import.name, |job| {
                        job.heard = time::now();
                        job.progress.bytes += read as u64;
                    });
                    self.inputs.push_back(ImportEvent::DataApplied);
                    self.run_received().await;
                    self.tell_applied().await;
                    // The socket had no more data.
                    if read < READ {
                        self.inputs.push_back(ImportEvent::CaughtUp);
                    }
                }
                ImportWakeup::Link(_) => {
                    self.link = None;
                    self.inputs.push_back(ImportEvent::Closed);
                }
            }
        }
    }

    fn around(&self) -> ImportConditions {
        let topology = topology(self.migrations).ok();
        let source_serves =
            topology.as_ref().is_some_and(|topology| serves(topology, self.import.source, &self.slots));
        let clears = self.migrations.engine.settings.cleared_databases.load(Ordering::Relaxed);
        ImportConditions { is_master: topology.is_some(), source_serves, flushed: clears != self.clears }
    }

    async fn handle_all(&mut self) -> Option<Result<(), String>> {
        while let Some(input) = self.inputs.pop_front() {
            let mut actions = Vec::new();
            self.machine.handle(time::instant(), input, &mut actions);
            // The end is recorded once its other actions were performed.
            if !matches!(actions.last(), Some(ImportAction::End(_))) {
                self.migrations.note_state(&self.import.name, self.machine.state_name());
            }
            for action in actions {
                match action {
                    ImportAction::End(outcome) => return Some(outcome),
                    ImportAction::Send(message) => self.send(message).await,
                    ImportAction::AwaitReplicas => {
                        let replication = &self.migrations.replication;
                        let (offset, replicas) =
                            (replication.current_offset(), replication.count_acknowledging_replicas());
                        replication.wait_for_replicas(offset, replicas, REPLICAS_WITHIN).await;
                        self.wait_while_prevented().await;
                        self.inputs.push_back(ImportEvent::ReplicasCaughtUp(self.around()));
                    }
                    ImportAction::Claim => self.claim().await,
                }
            }
        }
        None
    }

    /// DEBUG SLOTMIGRATION PREVENT-FAILOVER: delays claiming the slots. After [`CLAIM_TIMEOUT`] the job fails.
    async fn wait_while_prevented(&self) {
        let (began, settings) = (time::instant(), &self.migrations.engine.settings);
        while settings.prevent_migration_failover.load(Ordering::Relaxed)
            && time::instant().since(began) < CLAIM_TIMEOUT
        {
            tokio::time::sleep(PREVENTED_PERIOD).await;
        }
    }

    /// Continues with a new connection of the source, which repeats what was not applied.
    async fn resume(&mut self, connection: DetachedConnection) {
        let Ok(stream) = Stream::open(connection.socket) else { return };
        (self.parser, self.received) = (Parser::new(), connection.input);
        self.link = Some(tokio::io::split(stream));
        self.told = self.applied;
        let answer = format!(":{}\r\n", self.applied);
        self.write(&[&connection.unsent[..], answer.as_bytes()].concat()).await;
        if self.link.is_some() {
            self.inputs.push_back(ImportEvent::Resumed);
        }
    }

    async fn tell_applied(&mut self) {
        if self.import.resumable && self.applied - self.told >= TELL {
            self.send(Message::Ack).await;
        }
    }

    /// Tells a source that would reconnect that the job has ended.
    async fn say_end(&mut self, outcome: &Result<(), String>) {
        if outcome.is_ok() || !self.import.resumable {
            return;
        }
        self.write(&SyncSlots::Finish(Finish::failed(self.import.name)).encoded()).await;
    }

    async fn send(&mut self, message: Message) {
        let command = if message == Message::Ack && self.import.resumable {
            self.told = self.applied;
            SyncSlots::Applied(self.applied)
        } else {
            SyncSlots::Message(message)
        };
        self.write(&command.encoded()).await;
    }

    async fn write(&mut self, wire: &[u8]) {
        let Some((_, writer)) = &mut self.link else { return };
        let timeout = self.migrations.config.get(keys::REPL_TIMEOUT);
        if !matches!(tokio::time::timeout(timeout, writer.write_all(wire)).await, Ok(Ok(()))) {
            self.link = None;
            self.inputs.push_back(ImportEvent::Closed);
        }
    }

    async fn claim(&mut self) {
        let command = OperatorCommand::ClaimSlots { slots: self.slots.clone(), from: self.import.source };
        let claimed = match &self.migrations.cluster {
            Some(cluster) => cluster.execute(command).await,
            None => None,
        };
        self.inputs.push_back(match claimed {
            Some(Ok(_)) => ImportEvent::Claimed,
            Some(Err(error)) => ImportEvent::NotClaimed(error.to_string()),
            None => ImportEvent::NotClaimed("The server stops".to_owned()),
        });
    }

    /// Executes all complete commands.
    async fn run_received(&mut self) {
        let mut input = std::mem::take(&mut self.received);
        let limits = ParseLimits {
            max_bulk_len: i64::from(u32::MAX),
            requests: MOST_PARSED,
            allows_inline: false,
            ..ParseLimits::default()
        };
        loop {
            let mut batch = Batch::default();
            let parsed = self.parser.parse(&mut input, &mut batch, &limits);
            if let Err(why) = self.run_batch(&input, &batch).await {
                self.inputs.push_back(ImportEvent::Failed(why));
                return;
            }
            input.drain(..parsed.consumed);
            self.applied += parsed.consumed as u64;
            if let Some(error) = parsed.error {
                return self.inputs.push_back(ImportEvent::Failed(error.to_string()));
            }
            if batch.len() < MOST_PARSED {
                break;
            }
            self.parser = Parser::new();
            tokio::task::yield_now().await;
        }
        self.received = input;
    }

    async fn run_batch(&mut self, input: &[u8], batch: &Batch) -> Result<(), String> {
        for index in 0..batch.len() {
            self.check(batch.args(index, input))?;
        }
        let (mut next, mut replies) = (0, Vec::new());
        while next < batch.len() {
            let ends = self.migrations.engine.pauses.ended_count();
            let (after, flow, failed) = with_scratch(|scratch| {
                let errors = |worker: &Worker| worker.stats.error_replies.load(Ordering::Relaxed);
                let before = errors(&scratch.worker);
                let requests = PipelinedRequests { buffer: input, batch, first_pending: next };
                let dispatcher = self.migrations.commands.dispatcher(&self.migrations.engine);
                let (after, flow) = dispatcher.run(
                    &mut scratch.worker,
                    &mut self.session,
                    time::now(),
                    requests,
                    &mut replies,
                );
                (after, flow, errors(&scratch.worker) > before)
            });
            if failed {
                return Err(format!("A command of the source failed: {}", first_error(&replies)));
            }
            replies.clear();
            next = after;
            match flow {
                DispatchStatus::Node(_) => {
                    match ControlCommand::decode(batch.args(after, input)) {
                        Ok(Some(ControlCommand::SyncSlots(SyncSlots::Finish(_)))) => {
                            self.inputs.push_back(ImportEvent::EndedByPeer);
                        }
                        Ok(Some(ControlCommand::SyncSlots(SyncSlots::Message(message)))) => {
                            self.inputs.push_back(ImportEvent::Received(message));
                        }
                        // Of no concern to an import.
                        Ok(_) | Err(_) => {}
                    }
                    next += 1;
                }
                DispatchStatus::Paused => self.migrations.pauses.wait_for_end_after(ends).await,
                // The session cannot use background workers (`Background::Unavailable`), so no command is deferred.
                DispatchStatus::Done
                | DispatchStatus::TimeSliceOver
                | DispatchStatus::Blocked
                | DispatchStatus::SlowCommand
                | DispatchStatus::SlotsLocked => {}
                DispatchStatus::Close => return Err("The source sent what ends its connection".to_owned()),
            }
        }
        Ok(())
    }

    fn check(&self, args: Args<'_>) -> Result<(), String> {
        let name = args.get(0).unwrap_or_default();
        let about = self.migrations.commands.key_slots(args).unwrap_or_default();
        if is_allowed_in_import(name, &about, &self.slots) {
            return Ok(());
        }
        let name = String::from_utf8_lossy(name);
        Err(format!("The source sent a command that is not about the slots: {}", name.escape_debug()))
    }
}

fn first_error(replies: &[u8]) -> String {
    let mut rest = replies;
    while let Ok(Some((reply, len))) = parse_value(rest) {
        match reply {
            Value::Error(text) => return text,
            Value::Array(items) => {
                if let Some(Value::Error(text)) =
                    items.into_iter().find(|item| matches!(item, Value::Error(_)))
                {
                    return text;
                }
            }
            _ => {}
        }
        rest = &rest[len..];
    }
    String::new()
}

async fn read(
    link: &mut Option<(ReadHalf<Stream>, WriteHalf<Stream>)>,
    received: &mut Vec<u8>,
) -> io::Result<usize> {
    match link {
        Some((reader, _)) => {
            received.reserve(READ);
            reader.read_buf(received).await
        }
        None => pending().await,
    }
}
