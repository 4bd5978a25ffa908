//! MIGRATE: keys move to another server.
//!
//! Each key is captured, restored at the target, and released here if it has not changed meanwhile; if it has, it is
//! sent again. A key that is written all the time would be sent for ever: after a few tries writes to its slot wait
//! until it has arrived. The timeout is for all of it. A target that cannot read what Redis has added to the format
//! gets the key once more as Valkey writes it. Other clients are served all the while. The target's ASKING form is used
//! in cluster mode, where the slot is on its way and not yet the target's.

mod target;

use std::collections::BTreeSet;
use std::time::Duration;

use clock::Millis;
use config::keys;
use engine::{CapturedKey, CommandError, Release};
use persistence::Dialect;
use resp::{Args, Value, encode_request};
use slot_routing::{ReplOffset, Slot};

use crate::net::connection::Connection;
use crate::net::dialer::Dialer;
use crate::net::pauses::PauseGate;
use crate::net::worker::with_scratch;
use crate::server::Server;

pub(crate) use target::LinkPool;
use target::{Destination, Target};

/// How often keys are sent that have changed meanwhile before writes to their slots wait.
const TRIES: usize = 3;
/// Redis's, for a timeout that is not above zero.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// The answer of a target that does not know the form of a value.
const UNREADABLE: &str = "ERR Bad data format";
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";

/// MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password | AUTH2 user password] [KEYS key ...]
struct Migration {
    destination: Destination,
    keys: Vec<Vec<u8>>,
    timeout: Duration,
    copy: bool,
    replace: bool,
}

impl Migration {
    fn parse(args: Args<'_>) -> Result<Self, &'static str> {
        let text = |index: usize| String::from_utf8_lossy(&args[index]).into_owned();
        let mut migration = Self {
            destination: Destination { host: text(1), port: text(2), db: 0, auth: Vec::new() },
            keys: vec![args[3].to_vec()],
            timeout: DEFAULT_TIMEOUT,
            copy: false,
            replace: false,
        };
        let mut index = 6;
        while index < args.len() {
            let more = args.len() - index - 1;
            let is = |word: &[u8]| args[index].eq_ignore_ascii_case(word);
            if is(b"copy") {
                migration.copy = true;
            } else if is(b"replace") {
                migration.replace = true;
            } else if is(b"auth") || is(b"auth2") {
                let words = if is(b"auth") { 1 } else { 2 };
                if more < words {
                    return Err("ERR syntax error");
                }
                migration.destination.auth =
                    (index + 1..=index + words).map(|at| args[at].to_vec()).collect();
                index += words;
            } else if is(b"keys") {
                if !args[3].is_empty() {
                    return Err(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                    );
                }
                migration.keys = (index + 1..args.len()).map(|at| args[at].to_vec()).collect();
                break;
            } else {
                return Err("ERR syntax error");
            }
            index += 1;
        }
        let millis = resp::parse_i64(&args[5]).ok_or(NOT_INTEGER)?;
        migration.destination.db = resp::parse_i64(&args[4]).ok_or(NOT_INTEGER)?;
        if millis > 0 {
            migration.timeout = Duration::from_millis(millis.unsigned_abs());
        }
        Ok(migration)
    }
}

/// Carries it out and writes the reply.
pub(super) async fn migrate(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let mut source = Source { server: &server, db: connection.session.db, released: None };
    let reply = match Migration::parse(args) {
        Ok(migration) => {
            let run = tokio::time::timeout(migration.timeout, migration.run(&mut source));
            run.await.unwrap_or(Err(Failure::Reading)).map_err(|error| error.to_string())
        }
        Err(text) => Err(text.to_owned()),
    };
    if let Some(end) = source.released {
        connection.session.last_write = end;
    }
    match reply {
        Ok(text) => connection.reply().simple(text),
        Err(text) => connection.reply().error(&text),
    }
}

/// Why keys stay.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Failure {
    #[error("IOERR error or timeout connecting to the client")]
    Connecting,
    #[error("IOERR error or timeout writing to target instance")]
    Writing,
    #[error("IOERR error or timeout reading from target instance")]
    Reading,
    #[error("ERR Target instance replied with error: {0}")]
    Refused(String),
    /// The keys are not this node's to move.
    #[error("{0}")]
    NotOurs(CommandError),
}

/// Where the keys leave.
struct Source<'a> {
    server: &'a Server,
    db: u16,
    /// Where the last key that left ends in the log.
    released: Option<ReplOffset>,
}

impl Source<'_> {
    fn capture(&self, key: &[u8], dialect: Dialect) -> Option<CapturedKey> {
        self.server.engine.capture(self.db, key, crate::process::time::now(), dialect)
    }

    /// Lets go of a key that has arrived, when no pause forbids it.
    async fn release(&self, key: &[u8], captured: &CapturedKey) -> Result<Release, CommandError> {
        loop {
            let now = crate::process::time::now();
            let engine = &self.server.engine;
            let released =
                with_scratch(|scratch| engine.release(&scratch.worker, self.db, key, now, captured));
            if released != Ok(Release::Paused) {
                return released;
            }
            self.server.pauses.over().await;
        }
    }
}

/// A key on its way; `None`: it has gone from here since it was restored there.
type Parcel<'a> = (&'a [u8], Option<CapturedKey>);

impl Migration {
    async fn run(&self, source: &mut Source<'_>) -> Result<&'static str, Failure> {
        let server = source.server;
        server.engine.may_migrate(&self.keys).map_err(Failure::NotOurs)?;
        let mut parcels: Vec<Parcel<'_>> = Vec::new();
        for key in &self.keys {
            if let Some(captured) = source.capture(key, Dialect::Redis) {
                parcels.push((key, Some(captured)));
            }
        }
        if parcels.is_empty() {
            return Ok("NOKEY");
        }
        let dialer = Dialer::for_links(&server.config, &server.door.tls, keys::TLS_CLUSTER);
        let mut target =
            Target::reach(&server.migration_targets, &dialer, &self.destination, self.timeout).await?;
        if target.is_at(&server.door.listeners) {
            // In Redis, which serves no client meanwhile, no answer comes.
            return Err(Failure::Reading);
        }
        let mut replace = self.replace;
        let mut held = HeldSlots { pauses: &server.pauses, slots: Vec::new() };
        for tries in 1.. {
            if parcels.is_empty() {
                break;
            }
            if tries > TRIES && held.slots.is_empty() {
                held.hold(&parcels);
                for (key, captured) in &mut parcels {
                    let dialect = captured.as_ref().map_or(Dialect::Redis, |captured| captured.dialect);
                    *captured = source.capture(key, dialect);
                }
            }
            let sent = self.send(source, &mut target, &parcels, replace).await;
            parcels = match sent {
                // A link that was kept open had been closed by the other end: nothing was done there.
                Err(Failure::Writing | Failure::Reading) if target.is_kept() && !target.has_answered() => {
                    target = Target::connect(&dialer, &self.destination, self.timeout).await?;
                    continue;
                }
                sent => sent?,
            };
            // Keys that are sent again replace those that were sent before.
            replace = true;
        }
        target.keep(&server.migration_targets, &self.destination);
        Ok("OK")
    }

    /// Sends the keys, releases those that arrived, and returns those that changed meanwhile.
    async fn send<'a>(
        &self,
        source: &mut Source<'_>,
        target: &mut Target,
        parcels: &[Parcel<'a>],
        replace: bool,
    ) -> Result<Vec<Parcel<'a>>, Failure> {
        let asking = source.server.engine.topology.is_some();
        let mut wire = Vec::new();
        for (key, captured) in parcels {
            match captured {
                Some(captured) => restore(&mut wire, key, captured, asking, replace),
                None => {
                    if asking {
                        encode_request(&mut wire, [&b"ASKING"[..]]);
                    }
                    encode_request(&mut wire, [&b"DEL"[..], key]);
                }
            }
        }
        target.write(&wire).await?;
        let (mut changed, mut failure) = (Vec::new(), None);
        for (key, captured) in parcels {
            if captured.is_none() && asking {
                target.read().await?;
            }
            let dialect = captured.as_ref().map_or(Dialect::Redis, |captured| captured.dialect);
            if let Value::Error(text) = target.read().await? {
                if text == UNREADABLE && dialect == Dialect::Redis {
                    changed.push((*key, source.capture(key, Dialect::Valkey)));
                    continue;
                }
                failure.get_or_insert(Failure::Refused(text));
                continue;
            }
            let Some(captured) = captured.as_ref().filter(|_| !self.copy) else { continue };
            match source.release(key, captured).await {
                Ok(Release::Gone(end)) => source.released = end.or(source.released),
                Ok(_) => changed.push((*key, source.capture(key, dialect))),
                Err(error) => drop(failure.get_or_insert(Failure::NotOurs(error))),
            }
        }
        failure.map_or(Ok(changed), Err)
    }
}

/// Slots whose writes wait for as long as this lives.
struct HeldSlots<'a> {
    pauses: &'a PauseGate,
    slots: Vec<Slot>,
}

impl HeldSlots<'_> {
    fn hold(&mut self, parcels: &[Parcel<'_>]) {
        let slots: BTreeSet<Slot> = parcels.iter().map(|(key, _)| Slot::of_key(key)).collect();
        self.slots = slots.into_iter().filter(|slot| self.pauses.hold_slot(*slot)).collect();
    }
}

impl Drop for HeldSlots<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| self.pauses.free_slot(*slot));
    }
}

fn restore(wire: &mut Vec<u8>, key: &[u8], captured: &CapturedKey, asking: bool, replace: bool) {
    let name: &[u8] = if asking { b"RESTORE-ASKING" } else { b"RESTORE" };
    let Millis(now) = crate::process::time::now();
    // 0 would mean that it stays.
    let ttl = captured.expiry.map_or(0, |at| (at.0 - now).max(1)).to_string();
    let mut request = vec![name, key, ttl.as_bytes(), &captured.payload];
    if replace {
        request.push(b"REPLACE");
    }
    encode_request(wire, request);
}
