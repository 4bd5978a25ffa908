//! Following a master: carries out what the replica's machine decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{ClientFlags, Engine, Gate};
use parking_lot::Mutex;
use replication::replica::{Action, Input};
use replication::{Generation, Position, Replica};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Replication;
use super::apply::{Applier, ApplyError};
use super::intake::Intake;
use super::serve::Event;
use super::{MasterAddress, peer};
use crate::durability::Durability;
use crate::net::dialer::Dialer;
use crate::net::transport::Stream;

/// How much of the master's stream is read at once.
const READ_SIZE: usize = 64 * 1024;

/// While nothing may be applied since the server stops, how often it is looked whether it goes on after all.
const LOOK: Duration = Duration::from_millis(20);

/// Follows `master` until it is aborted, which it can be wherever it waits.
pub(super) async fn run(
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    master: MasterAddress,
    machine: Arc<Mutex<Replica>>,
    stream: Generation,
) {
    tracing::info!("Connecting to MASTER {}:{}", master.host, master.port);
    // A load that an earlier master's follower began ends first: until then nobody knows what the data is.
    let loading = replication.loading.clone();
    drop(loading.lock().await);
    // Every write that was admitted while this node was a master is in the log after this.
    replication.engine.drain();
    replication.engine.unblock_all();
    // Another change of role has come meanwhile: this task is about to be aborted.
    let Ok(position) = replication.log.lock().follow(stream) else { return };
    machine.lock().start_from(position);
    let applier = Applier::new(replication.clone(), stream);
    let mut follower =
        Follower { replication, durability, master, machine, stream, applier, link: None, snapshot: None };
    let mut inputs = vec![Input::Deadline];
    loop {
        while let Some(input) = inputs.pop() {
            inputs.extend(follower.give(input).await);
        }
        inputs.push(follower.next_input().await);
    }
}

struct Follower {
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    master: MasterAddress,
    machine: Arc<Mutex<Replica>>,
    stream: Generation,
    applier: Applier,
    link: Option<MasterLink>,
    /// Where a snapshot goes.
    snapshot: Option<Intake>,
}

/// The connection to the master, which CLIENT LIST shows for as long as it lives.
struct MasterLink {
    engine: Arc<Engine>,
    stream: Stream,
    seen: peer::Seen,
}

impl MasterLink {
    fn new(engine: &Arc<Engine>, stream: Stream) -> std::io::Result<Self> {
        let seen = peer::register(engine, stream.link()?, ClientFlags::MASTER);
        Ok(Self { engine: engine.clone(), stream, seen })
    }
}

impl Drop for MasterLink {
    fn drop(&mut self) {
        self.engine.clients.disconnect(self.seen.client.id);
    }
}

impl Follower {
    /// Waits for the next thing to happen.
    async fn next_input(&mut self) -> Input {
        // What is read now could not be applied.
        while !self.replication.log.lock().authority().applies(self.stream) {
            tokio::time::sleep(LOOK).await;
        }
        if self.cannot_keep_what_comes() {
            if self.link.is_some() {
                tracing::warn!("Leaving the master: what it sends cannot be written to the disk");
                self.link = None;
                self.snapshot = None;
                return Input::Closed;
            }
            while self.cannot_keep_what_comes() {
                tokio::time::sleep(LOOK).await;
            }
        }
        let deadline = self.machine.lock().next_deadline();
        let now = crate::process::time::instant();
        let wait = deadline.map_or(Duration::from_secs(1), |deadline| deadline.since(now));
        let Some(MasterLink { stream, seen, .. }) = &mut self.link else {
            tokio::time::sleep(wait).await;
            return Input::Deadline;
        };
        let mut bytes = Vec::with_capacity(READ_SIZE);
        tokio::select! {
            read = stream.read_buf(&mut bytes) => match read {
                Ok(0) | Err(_) => {
                    tracing::warn!("Connection with master lost.");
                    self.link = None;
                    Input::Closed
                }
                Ok(len) => {
                    let counted = &self.replication.stats.input_bytes;
                    counted.fetch_add(len as u64, Ordering::Relaxed);
                    Input::Received(bytes)
                }
            },
            () = seen.killed() => {
                tracing::warn!("Connection with master closed by a client.");
                self.link = None;
                Input::Closed
            }
            () = tokio::time::sleep(wait) => Input::Deadline,
        }
    }

    /// Whether the disk takes nothing, and a replica is not to go on without (`replica-ignore-disk-write-errors`).
    fn cannot_keep_what_comes(&self) -> bool {
        let failed = Gate::MISCONF.union(Gate::AOF_FAILED);
        self.replication.engine.settings.gate().intersects(failed)
            && !self.replication.config.switch("replica-ignore-disk-write-errors")
    }

    /// Hands `input` to the machine and does what it says; returns what came of that.
    async fn give(&mut self, input: Input) -> Vec<Input> {
        if input == Input::Closed {
            // Who loads it is told that no more comes.
            self.snapshot = None;
        }
        let mut actions = Vec::new();
        {
            let mut machine = self.machine.lock();
            machine.note_synced(self.durability.append_only.synced());
            machine.handle(crate::process::time::instant(), input, &mut actions);
        }
        let mut inputs = Vec::new();
        for action in actions {
            inputs.extend(self.act(action).await);
        }
        self.replication.update_gates();
        // The last is given first.
        inputs.reverse();
        inputs
    }

    async fn act(&mut self, action: Action) -> Vec<Input> {
        match action {
            Action::Connect => vec![self.connect().await],
            Action::Close(reason) => {
                tracing::warn!("Leaving the master {}:{}: {reason}", self.master.host, self.master.port);
                self.link = None;
                self.snapshot = None;
                vec![]
            }
            Action::Send(bytes) => self.send(&bytes).await.into_iter().collect(),
            Action::BeginTransfer { position, len } => {
                let expected = len;
                let len = len.map_or("to EOF".to_owned(), |len| format!("{len} bytes"));
                tracing::info!(
                    "MASTER <-> REPLICA sync: receiving {len} from master, as of {}",
                    position.offset
                );
                self.begin_transfer(position, expected).await.into_iter().collect()
            }
            Action::Snapshot(bytes) => self.take_in(bytes).await.into_iter().collect(),
            Action::Load { position } => vec![self.load(position).await],
            Action::Resume { id } => {
                self.resume(id);
                vec![]
            }
            Action::Up => {
                tracing::info!("MASTER <-> REPLICA sync: the link is up");
                vec![]
            }
            Action::Stream(bytes) => self.apply(&bytes),
        }
    }

    async fn connect(&mut self) -> Input {
        self.link = None;
        let patience = Duration::from_secs(self.replication.config.integer("repl-timeout") as u64);
        let address = (self.master.host.as_str(), self.master.port);
        let replication = &self.replication;
        let dialer = Dialer::for_links(&replication.config, &replication.tls, "tls-replication");
        let dialed = dialer.dial(address, patience).await;
        match dialed.and_then(|stream| Ok(MasterLink::new(&self.replication.engine, stream)?)) {
            Ok(link) => {
                self.applier.reconnected();
                self.link = Some(link);
                Input::Connected
            }
            Err(error) => {
                tracing::debug!("Error condition on socket for SYNC: {error}");
                Input::ConnectFailed { refused: error.is_refused() }
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Option<Input> {
        let stream = &mut self.link.as_mut()?.stream;
        let patience = Duration::from_secs(self.replication.config.integer("repl-timeout") as u64);
        if matches!(tokio::time::timeout(patience, stream.write_all(bytes)).await, Ok(Ok(()))) {
            return None;
        }
        self.link = None;
        Some(Input::Closed)
    }

    async fn begin_transfer(&mut self, position: Position, len: Option<u64>) -> Option<Input> {
        match Intake::begin(&self.replication, &self.durability, position, len).await {
            Ok(intake) => {
                let replaces = intake.replaces();
                self.snapshot = Some(intake);
                if replaces {
                    self.replication.tell(Event::HistoryReplaced);
                }
                replaces.then_some(Input::Replacing)
            }
            Err(error) => self.give_up(&error),
        }
    }

    async fn take_in(&mut self, bytes: Vec<u8>) -> Option<Input> {
        let error = self.snapshot.as_mut()?.add(bytes).await.err()?;
        self.give_up(&error);
        Some(Input::LoadFailed)
    }

    fn give_up(&mut self, why: &str) -> Option<Input> {
        tracing::warn!("{why}");
        self.link = None;
        self.snapshot = None;
        Some(Input::Closed)
    }

    /// Replaces the data by the snapshot, on a helper thread, and shows life to the master meanwhile.
    async fn load(&mut self, position: Position) -> Input {
        let Some(intake) = self.snapshot.take() else { return Input::LoadFailed };
        self.replication.tell(Event::HistoryReplaced);
        let mut loading = intake.finish(&self.replication, &self.durability, position).await;
        loop {
            let wait =
                self.machine.lock().next_deadline().map(|at| at.since(crate::process::time::instant()));
            tokio::select! {
                loaded = &mut loading => {
                    self.applier.restarted();
                    return if loaded.unwrap_or(false) { Input::Loaded } else { Input::LoadFailed };
                }
                () = tokio::time::sleep(wait.unwrap_or(Duration::from_secs(1))) => {
                    let mut actions = Vec::new();
                    self.machine.lock().handle(crate::process::time::instant(), Input::Deadline, &mut actions);
                    for action in actions {
                        // A link that breaks now is noticed when it is read again.
                        if let Action::Send(bytes) = action {
                            let _ = self.send(&bytes).await;
                        }
                    }
                }
            }
        }
    }

    fn resume(&mut self, id: replication::ReplId) {
        let mut log = self.replication.log.lock();
        if log.position().id != id {
            log.rename(id);
            drop(log);
            self.replication.tell(Event::HistoryReplaced);
        }
        tracing::info!("Successful partial resynchronization with master.");
    }

    fn apply(&mut self, bytes: &[u8]) -> Vec<Input> {
        match self.applier.apply(bytes) {
            Ok(applied) => {
                let mut inputs = vec![Input::Applied { bytes: applied.bytes }];
                if applied.ack_wanted {
                    inputs.push(Input::AckWanted);
                }
                inputs
            }
            Err(ApplyError::Nonsense(error)) => vec![Input::Garbage(error.to_string())],
            Err(ApplyError::Over(over)) => {
                self.give_up(&format!("Not applying more: {over}")).into_iter().collect()
            }
        }
    }
}
