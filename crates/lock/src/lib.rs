//! Locks that several processes on several machines share, kept on a server that speaks Redis's protocol: Redoubt,
//! Redis or Valkey; standalone, behind sentinels or a cluster.
//!
//! ```no_run
//! use redoubt_lock::{Locks, Options};
//!
//! # async fn example() -> Result<(), redoubt_lock::Error> {
//! let locks = Locks::connect("redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster").await?;
//! let guard = locks.lock("orders").acquire().await?;
//! write_with(guard.token()); // the resource refuses smaller tokens than it has seen
//! guard.release().await?;
//! # Ok(())
//! # }
//! # fn write_with(_token: u64) {}
//! ```
//!
//! | | |
//! | --- | --- |
//! | [`Locks::lock`] | one holder; as Redisson's |
//! | [`Locks::fair_lock`] | one holder, first come, first served |
//! | [`Locks::read_write`] | many readers or one writer |
//! | [`Locks::semaphore`] | at most so many holders |
//! | [`Locks::latch`] | waiting for so many events |
//! | [`MultiLock`] | several locks at once |
//! | [`Redlock`] | a lock on the majority of independent masters |
//!
//! # What holds
//!
//! - While [`Guard::is_held`] says so, the server that granted the lock gives it to no other owner, as long as clocks
//!   run at the same speed within a hundredth.
//! - A failover can forget an acquisition that was not replicated yet; then two may hold. [`Options::replicas`] makes
//!   an acquisition, and each renewal, count only once so many replicas have it.
//! - A holder that is paused (swapped out, stopped, a long collection of garbage) cannot know that its lease ended
//!   until it runs again. Only the resource can refuse it: by its fencing token.
//!
//! # Fencing tokens
//!
//! [`Guard::token`] only grows from one acquisition of a name to the next: it is the larger of the last one plus one and
//! the server's clock in microseconds. The last one is kept beside the lock and replicated with it, so across a failover
//! tokens grow if the new master has it, and otherwise if its clock is not behind the old one's by more than what
//! passed since the last acquisition (a failover takes longer than clocks of synchronised machines differ). The counter
//! expires a day after its last use, from where on the clock alone is relied on.
//!
//! # How it is built
//!
//! The decisions are made in `life`, a machine without clock or connection, and in the scripts, each in a file of its
//! own. Around them `claim` asks one server or a majority, `acquire` waits, `guard` keeps.
#![forbid(unsafe_code)]

/// The example of the page that registries show compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod acquire;
mod claim;
mod ear;
mod error;
mod guard;
mod latch;
mod life;
mod link;
mod lock;
mod locks;
mod multi;
mod names;
mod options;
mod read_write;
mod redlock;
mod script;
mod semaphore;
mod server;
mod wakeups;

pub use error::{Error, Loss};
pub use guard::Guard;
pub use latch::Latch;
pub use lock::Lock;
pub use locks::{Locks, TIMEOUT};
pub use multi::{MultiGuard, MultiLock};
pub use options::Options;
pub use read_write::ReadWriteLock;
pub use redlock::Redlock;
pub use semaphore::Semaphore;
pub use server::Server;
