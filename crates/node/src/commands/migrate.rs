//! MIGRATE: performs the actions of [`engine::migration::Migration`].
//!
//! Each key is dumped, restored at the target, and deleted here unless it has changed meanwhile. Other clients are
//! served concurrently. In cluster mode RESTORE-ASKING is used, because the slot is still being imported by the target.

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

use target::Target;

/// Executes MIGRATE and writes the reply.
pub(super) async fn migrate(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let order = match MigrateArgs::parse(args) {
        Ok(order) => order,
        Err(text) => return connection.reply().error(text),
    };
    let mut source = Source::new(&server, connection.session.db, order);
    let result = source.run().await;
    if let Some(end) = source.released {
        connection.session.last_write = end;
        connection.session.last_change = end;
    }
    match result {
        Ok(text) => connection.reply().simple(text),
        Err(failure) => connection.reply().error(&failure.to_string()),
    }
}

/// The source of the keys and its connection to the target.
struct Source<'a> {
    server: &'a Server,
    db: u16,
    order: MigrateArgs,
    dialer: Dialer,
    target: Option<Target>,
    held: HeldSlots<'a>,
    /// The end of the last deleted key in the log.
    released: Option<ReplOffset>,
}

impl<'a> Source<'a> {
    fn new(server: &'a Server, db: u16, order: MigrateArgs) -> Self {
        let dialer = Dialer::for_links(&server.config, &server.network.tls, keys::TLS_CLUSTER);
        let held = HeldSlots { pauses: &server.pauses, slots: Vec::new() };
        Self { server, db, order, dialer, target: None, held, released: None }
    }

    async fn run(&mut self) -> Result<&'static str, MigrateError> {
        let engine = &self.server.engine;
        engine.check_migratable(&self.order.keys).map_err(MigrateError::NotServed)?;
        let asking = engine.topology.is_some();
        let (mut machine, mut step) = Migration::new(time::instant(), self.order.clone(), asking);
        loop {
            let left = machine.deadline().since(time::instant());
            let outcome = match step {
                MigrateStep::Reply { result, keep_link } => {
                    if let Some(target) = self.target.take().filter(|_| keep_link) {
                        target.keep(&self.server.migration_targets, &self.order.destination);
                    }
                    return result;
                }
                MigrateStep::Capture { hold, keys } => self.capture(&hold, &keys),
                MigrateStep::Release { key, captured } => self.release(key, &captured),
                MigrateStep::Connect { anew } => timely(left, self.link(anew)).await,
                MigrateStep::Send(bytes) => timely(left, self.send(&bytes)).await,
                MigrateStep::Read => timely(left, self.read()).await,
                MigrateStep::AwaitUnpause => {
                    timely(left, async {
                        self.server.pauses.wait_until_unpaused().await;
                        MigrateStepResult::Unpaused
                    })
                    .await
                }
            };
            step = machine.handle(time::now(), outcome);
        }
    }

    fn capture(&mut self, hold: &[Slot], keys: &[(usize, Dialect)]) -> MigrateStepResult {
        self.held.hold(hold);
        let now = time::now();
        let engine = &self.server.engine;
        let capture = |(key, dialect): &(usize, Dialect)| {
            engine.capture(self.db, &self.order.keys[*key], now, *dialect)
        };
        MigrateStepResult::Captured(keys.iter().map(capture).collect())
    }

    fn release(&mut self, key: usize, captured: &CapturedKey) -> MigrateStepResult {
        let (engine, key) = (&self.server.engine, &self.order.keys[key]);
        let outcome =
            with_scratch(|scratch| engine.release(&scratch.worker, self.db, key, time::now(), captured));
        if let Ok(ReleaseResult::Deleted(end)) = outcome {
            self.released = end.or(self.released);
        }
        MigrateStepResult::Released(outcome)
    }

    async fn link(&mut self, anew: bool) -> MigrateStepResult {
        let (destination, timeout) = (&self.order.destination, self.order.timeout);
        let target = match anew {
            true => Target::connect(&self.dialer, destination, timeout).await,
            false => Target::reach(&self.server.migration_targets, &self.dialer, destination, timeout).await,
        };
        match target {
            Ok(target) => {
                let (kept, to_self) = (target.is_kept(), target.is_at(&self.server.network.listeners));
                self.target = Some(target);
                MigrateStepResult::Connected { kept, to_self }
            }
            Err(failure) => MigrateStepResult::ConnectFailed(failure),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> MigrateStepResult {
        let sent = match &mut self.target {
            Some(target) => target.write(bytes).await.is_ok(),
            None => false,
        };
        if sent { MigrateStepResult::Sent } else { MigrateStepResult::SendFailed }
    }

    async fn read(&mut self) -> MigrateStepResult {
        let answer = match &mut self.target {
            Some(target) => target.read().await.ok(),
            None => None,
        };
        answer.map_or(MigrateStepResult::ReadFailed, MigrateStepResult::Replied)
    }
}

/// Waits for the result of a step within the remaining time.
async fn timely(left: Duration, outcome: impl Future<Output = MigrateStepResult>) -> MigrateStepResult {
    tokio::time::timeout(left, outcome).await.unwrap_or(MigrateStepResult::Deadline)
}

/// Slots whose writes are paused while this value exists.
struct HeldSlots<'a> {
    pauses: &'a PauseGate,
    slots: Vec<Slot>,
}

impl HeldSlots<'_> {
    fn hold(&mut self, slots: &[Slot]) {
        for slot in slots {
            if !self.slots.contains(slot) && self.pauses.hold_slot(*slot) {
                self.slots.push(*slot);
            }
        }
    }
}

impl Drop for HeldSlots<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| self.pauses.free_slot(*slot));
    }
}
