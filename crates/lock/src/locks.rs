//! The entry point: connections to the servers, and constructors for all kinds of locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::TlsCertificates;

use crate::claim::{BackgroundTasks, LockClaim, LockKind, LockServer};
use crate::latch::Latch;
use crate::link::ServerLink;
use crate::names::LockNames;
use crate::wakeups::Wakeups;
use crate::{Error, Guard, Lock, Options, ReadWriteLock, Semaphore, Server};

/// Timeout of a request if the caller does not set another one.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The locks on one server, Sentinel group or cluster. Cheap to clone; all clones share two connections, and a third
/// one for Pub/Sub.
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
    node: Arc<LockServer>,
    identity: Arc<ProcessIdentity>,
    options: Options,
}

/// The identity of this process, from which the names of lock owners are derived.
#[derive(Debug)]
pub(crate) struct ProcessIdentity {
    uuid: String,
    next_owner_number: AtomicU64,
}

impl ProcessIdentity {
    fn new() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| redis::RedisError::from(std::io::Error::other(error)))?;
        // Mark the bytes as a UUID of version 4, variant 1.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        Ok(Self { uuid, next_owner_number: AtomicU64::new(1) })
    }

    pub(crate) fn next_owner(&self) -> String {
        format!("{}:{}", self.uuid, self.next_owner_number.fetch_add(1, Ordering::Relaxed))
    }
}

impl Locks {
    /// Connects to the servers at this address; see [`Server`] for the formats.
    ///
    /// # Errors
    /// The address is malformed. An unreachable server is not an error here: requests will try again.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect(address: &str) -> Result<Self, Error> {
        Self::connect_to(&address.parse()?, REQUEST_TIMEOUT).await
    }

    /// Like [`Self::connect`], with a timeout for each request.
    ///
    /// # Errors
    /// The `redis` crate rejects the address.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect_to(server: &Server, timeout: Duration) -> Result<Self, Error> {
        Self::connect_with_tls(server, timeout, None).await
    }

    /// Like [`Self::connect_to`], but with certificates for TLS connections: trust anchors that replace those of the
    /// system, and a client certificate.
    ///
    /// # Errors
    /// The `redis` crate rejects the address or the certificates.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    // This function is asynchronous to ensure that it is called within a runtime.
    #[allow(clippy::unused_async)]
    pub async fn connect_with_tls(
        server: &Server,
        timeout: Duration,
        certificates: Option<&TlsCertificates>,
    ) -> Result<Self, Error> {
        // If this fails, the application has already installed a crypto provider, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let link = Arc::new(ServerLink::new(server, certificates, timeout)?);
        let node = LockServer {
            address: format!("{server:?}"),
            wakeups: Wakeups::new(link.clone()),
            link,
            confirming_link: ServerLink::new(server, certificates, timeout)?,
            is_cluster: server.is_cluster(),
            background_tasks: BackgroundTasks::new(),
        };
        Ok(Self {
            node: Arc::new(node),
            identity: Arc::new(ProcessIdentity::new()?),
            options: Options::default(),
        })
    }

    /// Returns locks on the same connections with other options. The options apply to everything created from the
    /// result.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { options, ..self.clone() }
    }

    /// Creates an exclusive lock with this name. Waiters get it in any order.
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.clone(), name, false)
    }

    /// Creates an exclusive lock with this name, granted first come, first served among owners that use this method.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> Lock {
        Lock::new(self.clone(), name, true)
    }

    /// Creates a read-write lock with this name.
    #[must_use]
    pub fn read_write(&self, name: &str) -> ReadWriteLock {
        ReadWriteLock::new(self.clone(), name)
    }

    /// Creates a semaphore with this name and at most `limit` permits.
    #[must_use]
    pub fn semaphore(&self, name: &str, limit: u32) -> Semaphore {
        Semaphore::new(self.clone(), name, limit)
    }

    /// Creates a handle on the count-down latch with this name.
    #[must_use]
    pub fn latch(&self, name: &str) -> Latch {
        Latch::new(self.clone(), name)
    }

    /// Waits until the locks of all guards that were dropped so far are released. Call this before the runtime ends.
    /// Otherwise a lock may remain until its lease expires.
    pub async fn wait_for_releases(&self) {
        self.node.background_tasks.wait_for_releases().await;
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn node(&self) -> &Arc<LockServer> {
        &self.node
    }

    pub(crate) fn next_owner(&self) -> String {
        self.identity.next_owner()
    }

    pub(crate) fn create_claim(
        &self,
        kind: &'static LockKind,
        name: &str,
        limit: Option<u32>,
    ) -> Result<LockClaim, Error> {
        Ok(LockClaim {
            servers: vec![self.node.clone()],
            quorum: 1,
            kind,
            names: LockNames::new(name)?,
            owner: self.next_owner(),
            lease: self.options.lease,
            required_replicas: self.options.replicas,
            permit_limit: limit,
        })
    }

    /// Acquires the lock, and waits as long as the options say.
    pub(crate) async fn acquire(&self, claim: LockClaim) -> Result<Guard, Error> {
        crate::acquire::acquire(claim, &self.options, self.options.wait).await
    }

    /// Makes one attempt to acquire the lock. `None` if another owner holds it.
    pub(crate) async fn try_acquire(&self, claim: LockClaim) -> Result<Option<Guard>, Error> {
        match crate::acquire::acquire(claim, &self.options, Duration::ZERO).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::TimedOut(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
