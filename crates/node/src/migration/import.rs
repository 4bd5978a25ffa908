//! The target side of a migration job: performs the actions of [`migration::ImportDriver`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use config::keys;
use driver::Driver;
use durability::stream::{imports, logged_command_decoder};
use engine::{CommandOrigin, DispatchStatus, PipelinedRequests, RemainingKeys, Session};
use gossip::OperatorCommand;
use migration::{
    CLAIM_TIMEOUT, EstablishMessage, ImportConditions, ImportDriver, ImportDriverAction, ImportDriverEvent,
    SourceCommands,
};
use net::detached_connection::DetachedConnection;
use net::scratch::with_scratch;
use net::transport::Stream;
use process::time;
use tokio::sync::mpsc;

use super::{MigrationLink, Migrations, READ_BUFFER_SIZE, wait_until_deadline};

/// The client id of the session that executes received commands. No client has this id.
const NO_CLIENT_ID: u64 = 0;
/// How long to wait for replicas to acknowledge the received data before the slots are claimed.
const REPLICA_ACK_TIMEOUT: Duration = Duration::from_millis(500);
/// How often a delayed claim checks whether DEBUG still prevents it.
const PREVENTED_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the import job to its end.
pub(super) async fn run_import(
    migrations: Arc<Migrations>,
    import: EstablishMessage,
    connection: DetachedConnection,
    resumes: mpsc::UnboundedReceiver<DetachedConnection>,
) {
    let name = import.name;
    let outcome = match ImportTask::open(&migrations, &import, connection).await {
        Ok((target, received)) => target.run(received, resumes).await,
        Err(error) => Err(error.to_string()),
    };
    finish_import(&migrations, &import, &outcome).await;
    match outcome {
        Ok(()) => {
            let keys = migrations.count_keys(&import.slots());
            migrations.update_job(&name, |job| job.progress.transferred_keys = Some(keys));
            migrations.end_job(&name, "success", "");
        }
        Err(why) => migrations.end_job(&name, "failed", &why),
    }
}

/// Ends an import on this node and its replicas. Received keys become visible, or are deleted if the import failed.
pub(super) async fn finish_import(
    migrations: &Migrations,
    import: &EstablishMessage,
    outcome: &Result<(), String>,
) {
    if outcome.is_err() {
        for slot in import.slots().iter() {
            loop {
                match migrations.engine.delete_imported_keys(slot) {
                    RemainingKeys::None => break,
                    // Other migration jobs also run on this thread, so this one yields.
                    RemainingKeys::MaybeMore => tokio::task::yield_now().await,
                    RemainingKeys::Paused => migrations.pause_gate.wait_until_unpaused().await,
                }
            }
        }
    }
    migrations.replication.replicate_import(&imports::encode_end(&migrations.engine, import, outcome));
    migrations.replication.applied_stream.imports.end_import(&migrations.engine, &import.name);
    migrations.replication.master_imports.record_end(&import.name, outcome.clone(), time::now());
}

/// An import job with the session and the connection that it uses.
struct ImportTask<'a> {
    migrations: &'a Arc<Migrations>,
    import: EstablishMessage,
    link: Option<MigrationLink>,
    session: Session,
    /// Number of FLUSHALL and FLUSHDB commands executed before the import started. If this number changes, the import
    /// fails.
    flush_count: u64,
}

impl<'a> ImportTask<'a> {
    /// Empties and hides the slots. Also returns the bytes that the source sent after ESTABLISH, if any.
    async fn open(
        migrations: &'a Arc<Migrations>,
        import: &EstablishMessage,
        connection: DetachedConnection,
    ) -> io::Result<(ImportTask<'a>, Vec<u8>)> {
        // Keys left in these slots would be mistaken for received keys.
        for slot in import.slots().iter() {
            loop {
                match migrations.engine.delete_unowned_keys(slot) {
                    RemainingKeys::None => break,
                    RemainingKeys::MaybeMore => {}
                    RemainingKeys::Paused => migrations.pause_gate.wait_until_unpaused().await,
                }
            }
        }
        migrations.replication.applied_stream.imports.start_import(&migrations.engine, import.clone());
        migrations.replication.replicate_import(&imports::encode_begin(import));
        let mut target = Self {
            flush_count: migrations.engine.settings.dataset.cleared_databases.load(Ordering::Relaxed),
            session: Session::new(NO_CLIENT_ID, CommandOrigin::SlotMigrationSource, true),
            link: Some(MigrationLink::new(Stream::open(connection.socket)?)),
            import: import.clone(),
            migrations,
        };
        match target.write(&connection.unsent_replies).await {
            None => Ok((target, connection.unprocessed_input)),
            Some(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    async fn run(
        mut self,
        received: Vec<u8>,
        mut resumes: mpsc::UnboundedReceiver<DetachedConnection>,
    ) -> Result<(), String> {
        let name = self.import.name;
        let cancelled = self.migrations.job_channels.lock().get(&name).map(|way| way.cancel_signal.clone());
        let cancelled = cancelled.unwrap_or_default();
        let timeout = self.migrations.config.get(keys::REPL_TIMEOUT);
        let commands = logged_command_decoder(&self.migrations.commands);
        let (mut driver, mut actions) =
            ImportDriver::new(time::monotonic_now(), self.import.clone(), timeout, commands, received);
        let mut event = None;
        loop {
            // Registered before the topology is read, so that no change is missed.
            let rerouted = self.migrations.topology_changed.notified();
            tokio::pin!(rerouted);
            rerouted.as_mut().enable();
            let conditions = ImportDriverEvent::ConditionsChanged(self.conditions());
            let mut events: Vec<ImportDriverEvent> = event.take().into_iter().chain([conditions]).collect();
            while !events.is_empty() || !actions.is_empty() {
                for event in events.drain(..) {
                    driver.handle(time::monotonic_now(), event, &mut actions);
                }
                if let Some(state) = driver.state_name() {
                    self.migrations.set_job_state(&name, state);
                }
                for action in std::mem::take(&mut actions) {
                    events.extend(match action {
                        ImportDriverAction::End(outcome) => return outcome,
                        other => self.perform_action(other).await,
                    });
                }
            }
            event = tokio::select! {
                () = rerouted => None,
                () = cancelled.notified() => Some(ImportDriverEvent::Cancel),
                resumed = resumes.recv(), if self.import.is_resumable => match resumed {
                    Some(connection) => self.resume(connection).await,
                    None => None,
                },
                read = MigrationLink::read(&mut self.link) => Some(self.on_read(read)),
                () = wait_until_deadline(driver.next_deadline()) => Some(ImportDriverEvent::Deadline),
            };
        }
    }

    /// Performs an action. Returns the resulting event, if any.
    async fn perform_action(&mut self, action: ImportDriverAction) -> Option<ImportDriverEvent> {
        match action {
            ImportDriverAction::Send(bytes) => self.write(&bytes).await,
            ImportDriverAction::ApplyCommands(commands) => {
                Some(ImportDriverEvent::CommandsApplied(self.execute_commands(&commands).await))
            }
            ImportDriverAction::AwaitReplicas => {
                let replication = &self.migrations.replication;
                let (offset, replicas) =
                    (replication.current_offset(), replication.count_acknowledging_replicas());
                replication.wait_for_replicas(offset, replicas, REPLICA_ACK_TIMEOUT).await;
                self.wait_while_prevented().await;
                Some(ImportDriverEvent::ReplicasCaughtUp(self.conditions()))
            }
            ImportDriverAction::ClaimSlots => Some(ImportDriverEvent::ClaimResult(self.claim_slots().await)),
            ImportDriverAction::End(_) => None,
        }
    }

    fn conditions(&self) -> ImportConditions {
        let clears = self.migrations.engine.settings.dataset.cleared_databases.load(Ordering::Relaxed);
        let is_replica = self.migrations.replication.is_replica();
        match &self.migrations.engine.topology {
            Some(topology) => {
                ImportConditions::new(&topology.load(), is_replica, &self.import, clears != self.flush_count)
            }
            None => ImportConditions { is_master: false, source_owns_slots: false, was_flushed: false },
        }
    }

    fn on_read(&mut self, result: io::Result<Vec<u8>>) -> ImportDriverEvent {
        match result {
            Ok(bytes) if !bytes.is_empty() => {
                self.migrations.update_job(&self.import.name, |job| {
                    job.last_heard_at = time::now();
                    job.progress.transferred_bytes += bytes.len() as u64;
                });
                // If the buffer was filled, the socket may have more bytes.
                let more = bytes.len() >= READ_BUFFER_SIZE;
                ImportDriverEvent::Received { bytes, has_more: more }
            }
            Ok(_) | Err(_) => {
                self.link = None;
                ImportDriverEvent::Closed
            }
        }
    }

    /// Delays claiming the slots while DEBUG SLOTMIGRATION PREVENT-FAILOVER is set. After [`CLAIM_TIMEOUT`] the job
    /// fails.
    async fn wait_while_prevented(&self) {
        let (began, settings) = (time::monotonic_now(), &self.migrations.engine.settings);
        while settings.debug.prevent_migration_failover.load(Ordering::Relaxed)
            && time::monotonic_now().since(began) < CLAIM_TIMEOUT
        {
            tokio::time::sleep(PREVENTED_CHECK_INTERVAL).await;
        }
    }

    /// Replaces the broken connection by a new connection that the source has opened.
    async fn resume(&mut self, connection: DetachedConnection) -> Option<ImportDriverEvent> {
        self.link = Some(MigrationLink::new(Stream::open(connection.socket).ok()?));
        let closed = self.write(&connection.unsent_replies).await;
        closed.or(Some(ImportDriverEvent::Resumed(connection.unprocessed_input)))
    }

    /// Sends bytes. Closes the connection if it accepts nothing within the timeout.
    async fn write(&mut self, bytes: &[u8]) -> Option<ImportDriverEvent> {
        let timeout = self.migrations.config.get(keys::REPL_TIMEOUT);
        MigrationLink::write(&mut self.link, bytes, timeout).await.then_some(ImportDriverEvent::Closed)
    }

    async fn claim_slots(&mut self) -> Result<(), String> {
        let command = OperatorCommand::ClaimSlots { slots: self.import.slots(), source: self.import.source };
        let claimed = match &self.migrations.cluster {
            Some(cluster) => cluster.execute(command).await,
            None => None,
        };
        match claimed {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("The server stops".to_owned()),
        }
    }

    /// Executes commands that the source sent. Returns the error of the first command that failed.
    async fn execute_commands(&mut self, commands: &SourceCommands) -> Result<(), String> {
        let SourceCommands { bytes, batch } = commands;
        let (mut next, mut replies) = (0, Vec::new());
        while next < batch.len() {
            let ends = self.migrations.engine.scheduling.pauses.ended_count();
            let ((after, flow), failures) = with_scratch(|scratch| {
                let requests = PipelinedRequests { buffer: bytes, batch, first_pending: next };
                let dispatcher = self.migrations.commands.dispatcher(&self.migrations.engine);
                let ran = dispatcher.run(
                    &mut scratch.worker,
                    &mut self.session,
                    time::now(),
                    requests,
                    &mut replies,
                );
                (ran, scratch.worker.take_failures())
            });
            if let Some(first) = failures.into_iter().next() {
                return Err(first.error);
            }
            replies.clear();
            next = after;
            match flow {
                // The command is a message of the migration protocol, which the driver has decoded.
                DispatchStatus::Node(_) => next += 1,
                DispatchStatus::Paused => self.migrations.pause_gate.wait_for_pause_end_after(ends).await,
                // The session cannot use background workers (`Background::Unavailable`), so no command is deferred.
                DispatchStatus::Done
                | DispatchStatus::TimeSliceOver
                | DispatchStatus::Blocked
                | DispatchStatus::Offload(_) => {}
                DispatchStatus::Close => return Err("it ends the connection".to_owned()),
            }
        }
        // Other migration jobs also run on this thread, so this one yields.
        tokio::task::yield_now().await;
        Ok(())
    }
}
