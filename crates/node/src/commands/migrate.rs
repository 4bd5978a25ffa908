//! MIGRATE: keys move to another server.
//!
//! Each key is captured, restored at the target, and released here if it has not changed meanwhile; if it
//! has, it is sent again. Other clients are served all the while. The target's ASKING form is used in
//! cluster mode, where the slot is on its way and not yet the target's.

use std::time::Duration;

use clock::Millis;
use engine::Captured;
use resp::{Args, Request, Value, encode_request, parse_value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::server::Server;
use crate::worker::with_scratch;

/// Redis's, for a timeout that is not above zero.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";

/// MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password | AUTH2 user password] [KEYS key ...]
struct Migration {
    host: String,
    port: String,
    keys: Vec<Vec<u8>>,
    target_db: i64,
    timeout: Duration,
    copy: bool,
    replace: bool,
    auth: Vec<Vec<u8>>,
}

impl Migration {
    fn parse(args: Args<'_>) -> Result<Self, &'static str> {
        let text = |index: usize| String::from_utf8_lossy(&args[index]).into_owned();
        let mut migration = Self {
            host: text(1),
            port: text(2),
            keys: vec![args[3].to_vec()],
            target_db: 0,
            timeout: DEFAULT_TIMEOUT,
            copy: false,
            replace: false,
            auth: Vec::new(),
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
                migration.auth = (index + 1..=index + words).map(|at| args[at].to_vec()).collect();
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
        migration.target_db = resp::parse_i64(&args[4]).ok_or(NOT_INTEGER)?;
        if millis > 0 {
            migration.timeout = Duration::from_millis(millis.unsigned_abs());
        }
        Ok(migration)
    }
}

/// Carries it out and writes the reply.
pub(super) async fn migrate(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let db = connection.session.db;
    let reply = match Migration::parse(args) {
        Ok(migration) => migration.run(&server, db).await.map_err(|error| error.to_string()),
        Err(text) => Err(text.to_owned()),
    };
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
}

/// A key on its way; `None`: it has gone from here since it was restored there.
type Parcel<'a> = (&'a [u8], Option<Captured>);

impl Migration {
    async fn run(&self, server: &Server, db: u16) -> Result<&'static str, Failure> {
        let now = crate::time::now();
        let mut parcels: Vec<Parcel<'_>> = Vec::new();
        for key in &self.keys {
            if let Some(captured) = server.engine.capture(db, key, now) {
                parcels.push((key, Some(captured)));
            }
        }
        if parcels.is_empty() {
            return Ok("NOKEY");
        }
        let mut target = Target::connect(self).await?;
        let mut replace = self.replace;
        while !parcels.is_empty() {
            parcels = self.send(&mut target, server, db, parcels, replace).await?;
            // What is sent again replaces what was sent before.
            replace = true;
        }
        Ok("OK")
    }

    /// Sends the keys, releases those that arrived, and returns those that changed meanwhile.
    async fn send<'a>(
        &self,
        target: &mut Target,
        server: &Server,
        db: u16,
        parcels: Vec<Parcel<'a>>,
        replace: bool,
    ) -> Result<Vec<Parcel<'a>>, Failure> {
        let asking = server.engine.topology.is_some();
        let mut wire = Vec::new();
        for (key, captured) in &parcels {
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
        let (mut changed, mut refused) = (Vec::new(), None);
        for (key, captured) in parcels {
            if captured.is_none() && asking {
                target.read().await?;
            }
            if let Value::Error(text) = target.read().await? {
                refused.get_or_insert(text);
                continue;
            }
            let Some(captured) = captured.filter(|_| !self.copy) else { continue };
            let now = crate::time::now();
            let released =
                with_scratch(|scratch| server.engine.release(&scratch.worker, db, key, now, &captured));
            if !released {
                changed.push((key, server.engine.capture(db, key, now)));
            }
        }
        match refused {
            Some(text) => Err(Failure::Refused(text)),
            None => Ok(changed),
        }
    }
}

fn restore(wire: &mut Vec<u8>, key: &[u8], captured: &Captured, asking: bool, replace: bool) {
    let name: &[u8] = if asking { b"RESTORE-ASKING" } else { b"RESTORE" };
    let Millis(now) = crate::time::now();
    // 0 would mean that it stays.
    let ttl = captured.expiry.map_or(0, |at| (at.0 - now).max(1)).to_string();
    let mut request = vec![name, key, ttl.as_bytes(), &captured.payload];
    if replace {
        request.push(b"REPLACE");
    }
    encode_request(wire, request);
}

/// The server that the keys go to.
struct Target {
    stream: TcpStream,
    timeout: Duration,
    input: Vec<u8>,
}

impl Target {
    /// Connected, logged in, and in the right database.
    async fn connect(migration: &Migration) -> Result<Self, Failure> {
        let address = format!("{}:{}", migration.host, migration.port);
        let connected = timeout(migration.timeout, TcpStream::connect(address)).await;
        // Redis learns of a refusal when it writes, and says so.
        let stream = connected.map_err(|_| Failure::Connecting)?.map_err(|_| Failure::Writing)?;
        // Without it replies are only a little later.
        let _ = stream.set_nodelay(true);
        let mut target = Self { stream, timeout: migration.timeout, input: Vec::new() };
        if !migration.auth.is_empty() {
            let words = std::iter::once(&b"AUTH"[..]).chain(migration.auth.iter().map(Vec::as_slice));
            target.ask(words.collect()).await?;
        }
        if migration.target_db != 0 {
            target.ask([b"SELECT", migration.target_db.to_string().as_bytes()].into_iter().collect()).await?;
        }
        Ok(target)
    }

    async fn ask(&mut self, request: Request) -> Result<(), Failure> {
        let mut wire = Vec::new();
        encode_request(&mut wire, request.args().iter());
        self.write(&wire).await?;
        match self.read().await? {
            Value::Error(text) => Err(Failure::Refused(text)),
            _ => Ok(()),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match timeout(self.timeout, self.stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Failure::Writing),
        }
    }

    async fn read(&mut self) -> Result<Value, Failure> {
        loop {
            match parse_value(&self.input) {
                Ok(Some((value, length))) => {
                    self.input.drain(..length);
                    return Ok(value);
                }
                Ok(None) => {}
                Err(_) => return Err(Failure::Reading),
            }
            match timeout(self.timeout, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(read)) if read > 0 => {}
                _ => return Err(Failure::Reading),
            }
        }
    }
}
