//! The decisions of a server, without sockets, threads or a clock.
//!
//! [`Engine::run`] takes the requests of one read, finds each command in the [`Command`] table, touches
//! ahead what they will need, locks the slots that a command names, checks that it may run here, runs
//! its handler and appends its effects to the log while the slots are still locked. What needs a socket,
//! a file, time to pass or another node's answer comes back as a [`NodeCommand`] for the shell.
#![forbid(unsafe_code)]

mod access;
mod budget;
mod clients;
mod command;
mod command_log;
mod counter;
mod debugging;
mod dispatch;
mod effects;
mod engine;
mod error;
mod eviction;
mod expiry;
mod histogram;
mod keys;
mod latency;
mod lazy_free;
mod lookup;
mod migration;
mod monitors;
mod notifications;
mod pause;
mod pubsub;
mod random;
mod revocation;
mod sampling;
mod scripting;
mod session;
mod settings;
mod shell;
mod stats;
mod tracking;
mod transaction;
mod waiting;
mod watch;

// It lies where only the dispatcher reaches what handlers must not.
use dispatch::context;

pub use access::Denied;
pub use budget::Budget;
pub use clients::{Client, ClientFlags, ClientKind, Clients, Link, Names, Unblock, Wake};
pub use command::{
    AclCommand, Categories, Channels, ClusterCommand, Command, Databases, DebugCommand, Flags, Group,
    NodeCommand, Reach, Run, ShellCommand,
};
pub use command_log::{CommandLog, CommandLogs, Entry as CommandLogEntry};
pub use debugging::{DebugMode, DebuggedScript};
pub use dispatch::context::Context;
pub use dispatch::{Flow, Ran, Requests, Resumed};
pub use effects::{EffectLog, NoLog};
pub use engine::{Engine, Worker};
pub use error::{CommandError, NO_EFFECT, misused, quoted, until_nul};
pub use eviction::{Order, Policy, Room};
pub use histogram::Distribution;
pub use keys::{Begin, Find, KeyFlags, KeySpec};
pub use latency::{Event as LatencyEvent, LatencyMonitor};
pub use lazy_free::LazyFreeQueue;
pub use lookup::{Registered, Registry, RenameError};
pub use migration::{CapturedKey, Left, Release};
pub use monitors::Monitors;
pub use notifications::Class;
pub use pause::{PauseMode, PausePurpose, Pauses};
pub use pubsub::{Bus, ChannelKind, PubSub};
pub use random::Random;
pub use sampling::KeySample;
pub use scripting::{Runnable, ScriptCall, ScriptHooks, sha_of};
pub use session::{Mute, Origin, Session};
pub use settings::{Evicting, Gate, Lazy, Permission, Settings, Watched};
pub use shell::Shell;
pub use stats::{CommandStats, WorkerStats};
pub use tracking::{Mode as TrackingMode, Tracking, TrackingTable};
pub use waiting::{Outcome, Wait, Waiter};
