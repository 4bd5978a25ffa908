//! Distributed locks on a server that speaks the Redis protocol: Redoubt, Redis or Valkey, either standalone, behind
//! Sentinel or as a cluster.
//!
//! ```no_run
//! use redoubt_lock::{Locks, Options};
//!
//! # async fn example() -> Result<(), redoubt_lock::Error> {
//! let locks = Locks::connect("redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster").await?;
//! let guard = locks.lock("orders").acquire().await?;
//! write_with(guard.token()); // the resource rejects smaller tokens than it has seen
//! guard.release().await?;
//! # Ok(())
//! # }
//! # fn write_with(_token: u64) {}
//! ```
//!
//! | | |
//! | --- | --- |
//! | [`Locks::lock`] | exclusive lock, compatible with Redisson |
//! | [`Locks::fair_lock`] | exclusive lock, granted first come, first served |
//! | [`Locks::read_write`] | many readers or one writer |
//! | [`Locks::semaphore`] | a limited number of holders |
//! | [`Locks::latch`] | count-down latch |
//! | [`MultiLock`] | several locks at once |
//! | [`Redlock`] | lock on a majority of independent masters |
//!
//! # Guarantees
//!
//! - While [`Guard::is_held`] is true, the server that granted the lock grants it to no other owner, provided that
//!   clock speeds differ by at most one percent.
//! - A failover can lose an acquisition that was not replicated yet, so that two owners hold the lock. With
//!   [`Options::replicas`] an acquisition or renewal only counts once that many replicas have it.
//! - A paused holder (swapped out, stopped, in a long garbage collection) cannot know that its lease has ended until it
//!   resumes. Only the resource can reject it, by its fencing token.
//!
//! # Fencing tokens
//!
//! [`Guard::token`] increases with each acquisition of a name: it is the maximum of the last token plus one and the
//! server's clock in microseconds. The last token is stored beside the lock and replicated with it. After a failover
//! tokens still increase if the new master has the last token, or else if its clock lags by less than the time since
//! the last acquisition (a failover takes longer than the clocks of synchronized machines differ). The counter expires
//! a day after its last use; from then on only the clock matters.
//!
//! # Design
//!
//! Decisions are made in `lease`, a state machine without I/O, and in Lua scripts, one per file. Module `claim` sends
//! requests to one server or a majority, `acquire` waits for the lock, and `guard` keeps it.
#![forbid(unsafe_code)]

/// Compiles the code of the README, which package registries show, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod acquire;
mod claim;
mod error;
mod guard;
mod latch;
mod lease;
mod link;
mod lock;
mod locks;
mod multi;
mod names;
mod options;
mod pubsub;
mod read_write;
mod redlock;
mod script;
mod semaphore;
mod server;
mod wakeups;

pub use error::{Error, LossReason};
pub use guard::Guard;
pub use latch::Latch;
pub use lock::Lock;
pub use locks::{Locks, REQUEST_TIMEOUT};
pub use multi::{MultiGuard, MultiLock};
pub use options::Options;
pub use read_write::ReadWriteLock;
pub use redlock::Redlock;
pub use semaphore::Semaphore;
pub use server::Server;
