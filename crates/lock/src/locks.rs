//! The handle from which everything else is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::TlsCertificates;

use crate::claim::{Background, Claim, Kind, Node};
use crate::latch::Latch;
use crate::link::Link;
use crate::names::Names;
use crate::wakeups::Wakeups;
use crate::{Error, Guard, Lock, Options, ReadWriteLock, Semaphore, Server};

/// For how long one request may take, unless said otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// The locks on one server, one group that sentinels watch, or one cluster. Cheap to clone; all clones share two
/// connections, and a third that receives the messages of releases.
///
/// ```no_run
/// use std::time::Duration;
/// use redoubt_lock::{Locks, Options};
///
/// # async fn example() -> Result<(), redoubt_lock::Error> {
/// let locks = Locks::connect("redis://127.0.0.1:6379").await?;
/// let guard = locks.lock("orders").acquire().await?;
/// // ... nobody else is here ...
/// guard.release().await?;
///
/// let careful = locks.with(Options::default().lease(Duration::from_secs(10)).replicas(1));
/// let guard = careful.lock("orders").acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Locks {
    node: Arc<Node>,
    identity: Arc<Identity>,
    options: Options,
}

/// The identity of this process; each acquisition is an owner of its own.
#[derive(Debug)]
pub(crate) struct Identity {
    uuid: String,
    next: AtomicU64,
}

impl Identity {
    fn new() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| redis::RedisError::from(std::io::Error::other(error)))?;
        // Version 4, variant 1, as others write theirs.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        Ok(Self { uuid, next: AtomicU64::new(1) })
    }

    pub(crate) fn next_owner(&self) -> String {
        format!("{}:{}", self.uuid, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl Locks {
    /// Reaches the servers at this address; see [`Server`] for its forms.
    ///
    /// # Errors
    /// If the address has no known form. A server that cannot be reached is tried again by whatever needs it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect(address: &str) -> Result<Self, Error> {
        Self::on(&address.parse()?, TIMEOUT).await
    }

    /// The same; no request takes longer than `timeout`.
    ///
    /// # Errors
    /// If the `redis` crate does not take the address.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn on(server: &Server, timeout: Duration) -> Result<Self, Error> {
        Self::secured(server, timeout, None).await
    }

    /// The same, for servers that are spoken to over TLS: what their certificates are checked against, if that is not
    /// what the system trusts, and what a client shows them.
    ///
    /// # Errors
    /// If the `redis` crate does not take the address or the certificates.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    // Asynchronous so that it is called where there is a runtime.
    #[allow(clippy::unused_async)]
    pub async fn secured(
        server: &Server,
        timeout: Duration,
        certificates: Option<&TlsCertificates>,
    ) -> Result<Self, Error> {
        // An error means that the application has chosen another provider already, which then holds.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let link = Arc::new(Link::new(server, certificates, timeout)?);
        let node = Node {
            address: format!("{server:?}"),
            wakeups: Wakeups::new(link.clone()),
            link,
            confirming: Link::new(server, certificates, timeout)?,
            is_cluster: server.is_cluster(),
            background: Background::new(),
        };
        Ok(Self { node: Arc::new(node), identity: Arc::new(Identity::new()?), options: Options::default() })
    }

    /// The same servers, with these options for all that is made from the result.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { options, ..self.clone() }
    }

    /// The lock of this name: one holder at a time, in no order among its waiters.
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.clone(), name, false)
    }

    /// The lock of this name, first come, first served among the owners that ask for it in this way.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> Lock {
        Lock::new(self.clone(), name, true)
    }

    /// The read-write lock of this name.
    #[must_use]
    pub fn read_write(&self, name: &str) -> ReadWriteLock {
        ReadWriteLock::new(self.clone(), name)
    }

    /// The semaphore of this name, of which at most `limit` permits may be out.
    #[must_use]
    pub fn semaphore(&self, name: &str, limit: u32) -> Semaphore {
        Semaphore::new(self.clone(), name, limit)
    }

    /// The count-down latch of this name.
    #[must_use]
    pub fn latch(&self, name: &str) -> Latch {
        Latch::new(self.clone(), name)
    }

    /// Waits until all guards that were dropped so far are released. Before the runtime ends, so that nothing is left
    /// behind until its lease is over.
    pub async fn all_released(&self) {
        self.node.background.all_released().await;
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn next_owner(&self) -> String {
        self.identity.next_owner()
    }

    pub(crate) fn claim(&self, kind: &'static Kind, name: &str, limit: Option<u32>) -> Result<Claim, Error> {
        Ok(Claim {
            nodes: vec![self.node.clone()],
            quorum: 1,
            kind,
            names: Names::new(name)?,
            owner: self.next_owner(),
            lease: self.options.lease,
            replicas: self.options.replicas,
            limit,
        })
    }

    /// Acquires, waiting as the options say.
    pub(crate) async fn acquire(&self, claim: Claim) -> Result<Guard, Error> {
        crate::acquire::acquire(claim, &self.options, self.options.wait).await
    }

    /// Acquires if no other owner has it.
    pub(crate) async fn try_acquire(&self, claim: Claim) -> Result<Option<Guard>, Error> {
        match crate::acquire::acquire(claim, &self.options, Duration::ZERO).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::TimedOut(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
