//! MIGRATE: performs the actions of [`engine::migration::Migration`].
//!
//! Each key is dumped, restored at the target, and deleted here unless it has changed meanwhile. Other clients are
//! served concurrently. In cluster mode the target gets RESTORE-ASKING, because it is still importing the slot.

mod target;

use std::time::Duration;

use config::keys;
use engine::migration::{MigrateArgs, MigrateError, MigrateStep, MigrateStepResult, Migration};
use engine::{CapturedKey, ReleaseResult};
use net::dialer::Dialer;
use net::pauses::PauseGate;
use net::scratch::with_scratch;
use persistence::Dialect;
use process::time;
use resp::Args;
use slot_routing::{ReplOffset, Slot};

use crate::connection::Connection;
use crate::server::Server;

use target::TargetConnection;

/// Executes MIGRATE and writes the reply.
pub(super) async fn run_migrate(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let order = match MigrateArgs::parse(args) {
        Ok(order) => order,
        Err(text) => return connection.reply().error(text),
    };
    let mut source = MigrateSource::new(&server, connection.session.db(), order);
    let result = source.migrate_keys().await;
    if let Some(end) = source.last_delete_offset {
        connection.session.record_write(end, true);
    }
    match result {
        Ok(text) => connection.reply().simple(text),
        Err(failure) => connection.reply().error(&failure.to_string()),
    }
}

/// The state of one MIGRATE command: its arguments, the paused slots and the connection to the target.
struct MigrateSource<'a> {
    server: &'a Server,
    db: u16,
    request: MigrateArgs,
    dialer: Dialer,
    target: Option<TargetConnection>,
    paused_slots: PausedSlots<'a>,
    /// The log offset after the deletion of the last migrated key. `None` if no key was deleted.
    last_delete_offset: Option<ReplOffset>,
}

impl<'a> MigrateSource<'a> {
    fn new(server: &'a Server, db: u16, request: MigrateArgs) -> Self {
        let dialer = Dialer::with_link_tls(&server.config, &server.network.tls, keys::TLS_CLUSTER);
        let held = PausedSlots { pause_gate: &server.pause_gate, slots: Vec::new() };
        Self { server, db, request, dialer, target: None, paused_slots: held, last_delete_offset: None }
    }

    async fn migrate_keys(&mut self) -> Result<&'static str, MigrateError> {
        let engine = &self.server.engine;
        engine.check_migratable(&self.request.keys).map_err(MigrateError::NotServed)?;
        let asking = engine.topology.is_some();
        let (mut machine, mut step) = Migration::new(time::monotonic_now(), self.request.clone(), asking);
        loop {
            let left = machine.deadline().since(time::monotonic_now());
            let outcome = match step {
                MigrateStep::Reply { result, keep_connection: keep_link } => {
                    if let Some(target) = self.target.take().filter(|_| keep_link) {
                        target.return_to_pool(&self.server.migration_targets, &self.request.destination);
                    }
                    return result;
                }
                MigrateStep::Capture { pause_slots: hold, keys } => self.capture_keys(&hold, &keys),
                MigrateStep::Release { key, captured } => self.delete_key(key, &captured),
                MigrateStep::Connect { force_new: anew } => {
                    with_time_left(left, self.connect_target(anew)).await
                }
                MigrateStep::Send(bytes) => with_time_left(left, self.send_to_target(&bytes)).await,
                MigrateStep::Read => with_time_left(left, self.read_from_target()).await,
                MigrateStep::AwaitUnpause => {
                    with_time_left(left, async {
                        self.server.pause_gate.wait_until_unpaused().await;
                        MigrateStepResult::Unpaused
                    })
                    .await
                }
            };
            step = machine.handle(time::now(), outcome);
        }
    }

    fn capture_keys(&mut self, slots: &[Slot], keys: &[(usize, Dialect)]) -> MigrateStepResult {
        self.paused_slots.pause_slots(slots);
        let now = time::now();
        let engine = &self.server.engine;
        let capture = |(key, dialect): &(usize, Dialect)| {
            engine.capture_key(self.db, &self.request.keys[*key], now, *dialect)
        };
        MigrateStepResult::Captured(keys.iter().map(capture).collect())
    }

    fn delete_key(&mut self, key: usize, captured_key: &CapturedKey) -> MigrateStepResult {
        let (engine, key) = (&self.server.engine, &self.request.keys[key]);
        let outcome = with_scratch(|scratch| {
            engine.release_key(&scratch.worker, self.db, key, time::now(), captured_key)
        });
        if let Ok(ReleaseResult::Deleted(end)) = outcome {
            self.last_delete_offset = end.or(self.last_delete_offset);
        }
        MigrateStepResult::Released(outcome)
    }

    async fn connect_target(&mut self, is_reconnect: bool) -> MigrateStepResult {
        let (destination, timeout) = (&self.request.destination, self.request.timeout);
        let target = match is_reconnect {
            true => TargetConnection::connect(&self.dialer, destination, timeout).await,
            false => {
                TargetConnection::acquire(&self.server.migration_targets, &self.dialer, destination, timeout)
                    .await
            }
        };
        match target {
            Ok(target) => {
                let (kept, to_self) =
                    (target.is_from_pool(), target.is_this_server(&self.server.network.listeners));
                self.target = Some(target);
                MigrateStepResult::Connected { is_reused: kept, is_own_server: to_self }
            }
            Err(failure) => MigrateStepResult::ConnectFailed(failure),
        }
    }

    async fn send_to_target(&mut self, bytes: &[u8]) -> MigrateStepResult {
        let sent = match &mut self.target {
            Some(target) => target.write(bytes).await.is_ok(),
            None => false,
        };
        if sent { MigrateStepResult::Sent } else { MigrateStepResult::SendFailed }
    }

    async fn read_from_target(&mut self) -> MigrateStepResult {
        let answer = match &mut self.target {
            Some(target) => target.read_reply().await.ok(),
            None => None,
        };
        answer.map_or(MigrateStepResult::ReadFailed, MigrateStepResult::Replied)
    }
}

/// Waits for the result of a step, at most for the time that remains of the command's timeout.
async fn with_time_left(
    time_left: Duration,
    step: impl Future<Output = MigrateStepResult>,
) -> MigrateStepResult {
    tokio::time::timeout(time_left, step).await.unwrap_or(MigrateStepResult::Deadline)
}

/// Slots with paused writes. The writes resume on drop.
struct PausedSlots<'a> {
    pause_gate: &'a PauseGate,
    slots: Vec<Slot>,
}

impl PausedSlots<'_> {
    fn pause_slots(&mut self, slots: &[Slot]) {
        for slot in slots {
            if !self.slots.contains(slot) && self.pause_gate.pause_slot_writes(*slot) {
                self.slots.push(*slot);
            }
        }
    }
}

impl Drop for PausedSlots<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| self.pause_gate.resume_slot_writes(*slot));
    }
}
