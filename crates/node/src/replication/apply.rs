//! Applies the master's stream ([`IncomingStream`]): executes the commands with the master's rights, and logs their
//! bytes under the same lock.

use std::sync::Arc;

use config::keys;
use engine::{CommandFailure, CommandOrigin, ConnectionInfo, DispatchStatus, PipelinedRequests, Session};
use migration::ControlCommand;
use net::scratch::with_scratch;
use replication::{IncomingStream, StreamBatch, StreamEpoch, StreamSupersededError};
use resp::{Args, ProtocolError};

use super::Replication;

/// The client id of the stream's session. A real client must not have this id, since it would count as the author of
/// the master's changes.
const STREAM_SESSION_ID: u64 = 0;

/// The result of applying a batch of the stream.
#[derive(Debug, Default)]
pub(super) struct AppliedBatch {
    /// The number of bytes of complete commands.
    pub(super) byte_count: u64,
    pub(super) command_count: usize,
    /// Whether the master requested an acknowledgement.
    pub(super) is_ack_requested: bool,
}

/// Why a batch was not applied or was applied only in part.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error("{0}")]
    InvalidStream(#[from] ProtocolError),
    #[error("{0}")]
    StreamEnded(#[from] StreamSupersededError),
}

#[derive(Debug)]
pub(super) struct StreamApplier {
    replication: Arc<Replication>,
    stream: StreamEpoch,
    session: Session,
    incoming: IncomingStream,
}

impl StreamApplier {
    pub(super) fn new(replication: Arc<Replication>, stream_epoch: StreamEpoch) -> Self {
        let mut session = Session::new(STREAM_SESSION_ID, CommandOrigin::Master, true);
        session.select(replication.applied_stream.selected_db());
        Self { replication, stream: stream_epoch, session, incoming: IncomingStream::default() }
    }

    /// Prepares for a new connection. After a reconnect the stream continues at a command boundary outside of a
    /// transaction, with the same selected database.
    pub(super) fn on_reconnect(&mut self, link: ConnectionInfo) {
        self.reset_parser();
        self.session.set_connection_info(link);
    }

    fn reset_parser(&mut self) {
        self.incoming.discard_partial();
        self.replication.engine.discard_transaction(&mut self.session);
    }

    /// Prepares for the stream that follows a snapshot. The snapshot names the database in which the stream starts.
    pub(super) fn reset_after_snapshot(&mut self) {
        self.reset_parser();
        self.session.select(self.replication.applied_stream.selected_db());
    }

    /// Applies received bytes unless another stream has replaced this one. The check is made under the lock that covers
    /// both the effects and the log.
    pub(super) fn apply(&mut self, bytes: Vec<u8>) -> Result<AppliedBatch, ApplyError> {
        let piece = self.incoming.add_bytes(bytes);
        let mut applied = AppliedBatch { command_count: piece.batch.len(), ..AppliedBatch::default() };
        if !piece.bytes.is_empty() {
            let replication = self.replication.clone();
            let _apply_guard = replication.applied_stream.apply_lock.lock();
            let _stream_turn = replication.stream_lock.lock();
            if !replication.log.lock().authority().accepts_stream(self.stream) {
                return Err(StreamSupersededError.into());
            }
            self.execute_batch(&piece, &mut applied);
            replication.applied_stream.select_db(self.session.db());
            let append = |bytes: &[u8]| replication.log.append_stream(self.stream, bytes);
            applied.byte_count = self.incoming.append_executed(&piece, self.session.in_transaction(), append);
        }
        match piece.error {
            Some(error) => Err(error.into()),
            None => Ok(applied),
        }
    }

    fn execute_batch(&mut self, stream_batch: &StreamBatch, applied_batch: &mut AppliedBatch) {
        let StreamBatch { bytes: input, batch, .. } = stream_batch;
        let now = process::time::now();
        let mut next = 0;
        let mut replies = Vec::new();
        while next < batch.len() {
            let ((after, flow), failures) = with_scratch(|scratch| {
                let Replication { engine, commands, .. } = &*self.replication;
                let ran = commands.dispatcher(engine).run(
                    &mut scratch.worker,
                    &mut self.session,
                    now,
                    PipelinedRequests { buffer: input, batch, first_pending: next },
                    &mut replies,
                );
                (ran, scratch.worker.take_failures())
            });
            next = after;
            for failure in failures {
                let name = batch.args(failure.request_index, input).get(0).map(String::from_utf8_lossy);
                if !log_failure(&failure, &name.unwrap_or_default()) {
                    self.replication.count_unapplied_commands(1);
                }
            }
            if matches!(flow, DispatchStatus::Node(_) | DispatchStatus::Paused) {
                self.run_control_command(batch.args(next, input), applied_batch);
                next += 1;
            }
            replies.clear();
        }
    }

    /// Executes a command that is not meant for the engine, such as REPLCONF GETACK.
    fn run_control_command(&self, args: Args<'_>, applied_batch: &mut AppliedBatch) {
        let Replication { engine, cluster_stream, .. } = &*self.replication;
        match ControlCommand::decode(args) {
            Ok(Some(ControlCommand::AckRequested)) => applied_batch.is_ack_requested = true,
            Ok(Some(ControlCommand::SetSlot(slot, change))) => cluster_stream.on_set_slot(slot, change),
            Ok(Some(ControlCommand::TakeOver(replica))) => cluster_stream.on_take_over(engine, replica),
            Ok(Some(ControlCommand::SyncSlots(command))) => {
                self.replication.applied_stream.imports.apply_command(engine, &command);
                let most = self.replication.config.get(keys::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN);
                self.replication.master_imports.record_change(command, process::time::now(), most);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!("Ignored a command of the master: {error}"),
        }
    }
}

/// Logs that a command failed. Returns whether the data still equals the master's.
fn log_failure(failure: &CommandFailure, name: &str) -> bool {
    let error = failure.error.escape_debug();
    if failure.is_harmless {
        tracing::warn!("Passed over a command of the master: {error}");
    } else {
        tracing::error!(
            "== CRITICAL == This replica cannot do what its master did, their data differs: '{error}' after processing \
             the command '{}'",
            name.escape_debug()
        );
    }
    failure.is_harmless
}

#[cfg(test)]
mod tests {
    use clock::Millis;
    use config::Config;
    use engine::{CommandSet, Engine};
    use keyspace::Keyspace;

    use resp::{Batch, ParseLimits, Parser};

    use super::*;
    use durability::stream::{EngineLogHandle, SharedLog};
    use net::context::NetworkContext;
    use net::scratch::install_scratch;

    fn test_commands() -> CommandSet {
        CommandSet::new(::commands::server_registry())
    }

    fn run_line(engine: &Engine, session: &mut Session, line: &str) {
        let (mut input, mut batch, mut out) =
            (format!("{line}\r\n").into_bytes(), Batch::default(), Vec::new());
        Parser::new().parse(
            &mut input,
            &mut batch,
            &ParseLimits { is_authenticated: true, ..ParseLimits::default() },
        );
        with_scratch(|scratch| {
            test_commands().dispatcher(engine).run(
                &mut scratch.worker,
                session,
                Millis(1),
                PipelinedRequests { buffer: &input, batch: &batch, first_pending: 0 },
                &mut out,
            )
        });
        assert!(!out.starts_with(b"-"), "{line}: {}", out.escape_ascii());
    }

    /// Creates a replicating node without sockets.
    fn create_test_replica() -> (Arc<Engine>, Arc<Replication>, Arc<SharedLog>) {
        let config = Arc::new(Config::default());
        let log = SharedLog::new(1 << 20);
        let engine = Engine::new(
            ::commands::server_registry().catalogue(),
            Keyspace::new(7, 1),
            None,
            Box::new(EngineLogHandle(log.clone())),
        );
        let engine = Arc::new(engine);
        let network = NetworkContext::new(config.clone(), engine.clone());
        install_scratch(&engine, &network);
        let replication = Arc::new(Replication::new(
            engine.clone(),
            Arc::new(test_commands()),
            config,
            &network,
            log.clone(),
        ));
        (engine, replication, log)
    }

    #[test]
    fn monitor_on_a_replica_shows_the_masters_stream() {
        let (engine, replication, log) = create_test_replica();
        let client = engine.clients.connect(ConnectionInfo::default(), Millis(1), Box::new(|| {}));
        let mut monitor = Session::for_client(client, CommandOrigin::Client, true);
        run_line(&engine, &mut monitor, "MONITOR");
        let stream = log.lock().demote();
        log.lock().accept_stream(stream).unwrap();
        let mut applier = StreamApplier::new(replication, stream);
        applier.on_reconnect(ConnectionInfo {
            address: "10.0.0.1:6379".to_owned(),
            ..ConnectionInfo::default()
        });
        applier
            .apply(b"SELECT 0\r\nMULTI\r\nSET k v\r\nEXEC\r\nREPLCONF GETACK *\r\nPING\r\n".to_vec())
            .unwrap();
        let mut shown = Vec::new();
        monitor.take_messages(&mut shown);
        let shown = String::from_utf8(shown).unwrap();
        let lines: Vec<&str> =
            shown.lines().filter_map(|line| line.split_once(' ')).map(|(_, it)| it).collect();
        let from = |command: &str| format!("[0 10.0.0.1:6379] {command}");
        let expected =
            ["\"SELECT\" \"0\"", "\"MULTI\"", "\"SET\" \"k\" \"v\"", "\"EXEC\"", "\"PING\""].map(from);
        assert_eq!(lines, expected);
    }

    /// Regression test: an attacker who made a replica follow a rogue server could create users there and disconnect
    /// all clients.
    #[test]
    fn administrative_commands_in_the_stream_are_skipped() {
        let (engine, replication, log) = create_test_replica();
        let stream = log.lock().demote();
        log.lock().accept_stream(stream).unwrap();
        let mut applier = StreamApplier::new(replication.clone(), stream);
        let bytes = b"SET k 1\r\nACL SETUSER me on nopass +@all\r\nSHUTDOWN NOSAVE\r\nINCR k\r\nREPLCONF GETACK *\r\n";
        let applied = applier.apply(bytes.to_vec()).unwrap();
        assert_eq!((applied.byte_count, applied.is_ack_requested), (bytes.len() as u64, true));
        assert_eq!((engine.access.users.read().iter().count(), replication.unapplied_commands()), (1, 0));
        applier.apply(b"RPUSH k x\r\n".to_vec()).unwrap();
        assert_eq!(replication.unapplied_commands(), 1, "it is a string");
        applier.apply(b"MULTI\r\nRPUSH k x\r\nINCR k\r\nEXEC\r\n".to_vec()).unwrap();
        assert_eq!(replication.unapplied_commands(), 2, "one of the transaction");
    }

    #[test]
    fn tracking_client_with_noloop_receives_changes_of_the_master() {
        let (engine, replication, log) = create_test_replica();
        let client = engine.clients.connect(ConnectionInfo::default(), Millis(1), Box::new(|| {}));
        let mut reader = Session::for_client(client, CommandOrigin::Client, true);
        for line in ["HELLO 3", "CLIENT TRACKING ON NOLOOP", "GET k"] {
            run_line(&engine, &mut reader, line);
        }
        let stream = log.lock().demote();
        log.lock().accept_stream(stream).unwrap();
        StreamApplier::new(replication, stream).apply(b"SET k v\r\n".to_vec()).unwrap();
        let mut told = Vec::new();
        reader.take_messages(&mut told);
        assert!(told.windows(10).any(|word| word == b"invalidate"), "{}", told.escape_ascii());
    }
}
