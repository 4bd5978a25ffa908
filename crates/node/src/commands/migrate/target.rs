//! The target of MIGRATE: a connection that returns to the server's [`LinkPool`] after use.

use std::time::Duration;

use engine::migration::{Destination, MigrateError};
use net::dialer::{DialError, Dialer};
use net::link_pool::LinkPool;
use net::listener::Listeners;
use net::transport::Stream;
use resp::{Request, Value, encode_request, parse_value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(super) struct TargetConnection {
    stream: Stream,
    unparsed_input: Vec<u8>,
    is_reused: bool,
}

impl TargetConnection {
    /// Takes a cached connection to the target or opens a new one.
    pub(super) async fn acquire(
        pool: &LinkPool,
        dialer: &Dialer,
        destination: &Destination,
        timeout: Duration,
    ) -> Result<Self, MigrateError> {
        match pool.take_idle(destination).map(Stream::open) {
            Some(Ok(stream)) => Ok(Self { stream, unparsed_input: Vec::new(), is_reused: true }),
            _ => Self::connect(dialer, destination, timeout).await,
        }
    }

    /// Opens a connection, authenticates and selects the database.
    pub(super) async fn connect(
        dialer: &Dialer,
        destination: &Destination,
        timeout: Duration,
    ) -> Result<Self, MigrateError> {
        let address = format!("{}:{}", destination.host, destination.port);
        let stream = dialer.dial(address, timeout).await.map_err(|error| match error {
            DialError::TimedOut => MigrateError::Connecting,
            // Redis reports a refused connection as a write error, because it connects without waiting.
            DialError::Refused | DialError::Failed(_) => MigrateError::Writing,
        })?;
        let mut target = Self { stream, unparsed_input: Vec::new(), is_reused: false };
        if !destination.auth.is_empty() {
            let words = std::iter::once(&b"AUTH"[..]).chain(destination.auth.iter().map(Vec::as_slice));
            target.execute(words.collect()).await?;
        }
        if destination.db != 0 {
            target.execute([b"SELECT", destination.db.to_string().as_bytes()].into_iter().collect()).await?;
        }
        Ok(target)
    }

    /// Returns whether the target is this server. In this case the keys must not be deleted after the transfer.
    pub(super) fn is_this_server(&self, listeners: &Listeners) -> bool {
        matches!(self.stream.addresses(), Ok(Some((peer, local))) if listeners.is_own_address(local, peer))
    }

    /// Caches the connection for later use. It must have no outstanding replies.
    pub(super) fn return_to_pool(mut self, pool: &LinkPool, destination: &Destination) {
        if self.unparsed_input.is_empty()
            && let Ok(socket) = self.stream.detach()
        {
            pool.put_back(destination, socket, process::time::monotonic_now());
        }
    }

    pub(super) fn is_from_pool(&self) -> bool {
        self.is_reused
    }

    async fn execute(&mut self, request: Request) -> Result<(), MigrateError> {
        let mut wire = Vec::new();
        encode_request(&mut wire, request.args().iter());
        self.write(&wire).await?;
        match self.read_reply().await? {
            Value::Error(text) => Err(MigrateError::Refused(text)),
            _ => Ok(()),
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), MigrateError> {
        self.stream.write_all(bytes).await.map_err(|_| MigrateError::Writing)
    }

    pub(super) async fn read_reply(&mut self) -> Result<Value, MigrateError> {
        loop {
            match parse_value(&self.unparsed_input) {
                Ok(Some((value, length))) => {
                    self.unparsed_input.drain(..length);
                    return Ok(value);
                }
                Ok(None) => {}
                Err(_) => return Err(MigrateError::Reading),
            }
            match self.stream.read_buf(&mut self.unparsed_input).await {
                Ok(read) if read > 0 => {}
                Ok(_) | Err(_) => return Err(MigrateError::Reading),
            }
        }
    }
}
