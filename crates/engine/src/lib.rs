//! The command engine of a server, without sockets, threads or a clock.
//!
//! [`Dispatcher::run`] takes the requests of one read, finds each command in the [`Command`] table, prefetches its
//! data, locks the slots of its keys, checks that it may run here, runs its handler, and appends its effects to the log
//! while the slots are still locked. A command that needs a socket, a file, time or another node's reply is returned to
//! the client's connection as a [`NodeCommand`].
//!
//! There are three layers: the state shared by connections ([`Engine`]), the command interface ([`Command`],
//! [`Context`], [`CommandSet`]), and command dispatch ([`Dispatcher`]). The lowest layer knows commands only by number.
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
mod histogram;
mod hot_keys;
mod keys;
mod latency;
mod lazy_free;
mod log_progress;
mod long_commands;
pub mod migration;
mod monitors;
mod notifications;
mod outcome;
mod pause;
mod pubsub;
mod random;
mod sampling;
mod scripting;
mod session;
mod settings;
mod shell_commands;
mod slot_costs;
mod slot_waits;
mod stats;
mod tracking;
mod transaction;
mod undeclared_keys;
mod waiting;
mod watch;

pub use access::AccessDenied;
pub use budget::{AllocatorStats, Budget, ThreadAllocations};
pub use clients::{
    ChannelKind, Client, ClientFlags, ClientKind, ClientNames, ClientTracking, Clients, ConnectionInfo,
    TrackingMode, UnblockReason, WakeCallback,
};
pub use command::{
    Categories, ChannelArguments, Command, CommandRunner, CommandSet, Context, DatabaseAccess, EstimateInput,
    Flags, Group, LockScope, LogRole, MAX_KEYS_LOCKED_TOGETHER, PinnedValues, RegisteredCommand, Registry,
    RenameError, Shell,
};
pub use command_log::{CommandLog, CommandLogEntry, CommandLogs};
pub use debugging::DebuggedScript;
pub use dispatch::{DispatchStatus, Dispatcher, ExecutedCommand, PipelinedRequests, WaitEnd};
pub use effects::{AofEffects, EffectLog, NoLog};
pub use engine::{
    AccessControl, ClientNotifications, CommandFailure, CommandScheduling, Diagnostics, Engine,
    MemoryManagement, SharedScripting, TopologyChange, Worker,
};
pub use error::{CommandError, quote, truncate_at_nul, wrong_subcommand_arguments};
pub use eviction::{EvictionOrder, EvictionRule, MemoryState};
pub use histogram::Distribution;
pub use hot_keys::{
    HotKeyWindow, HotKeyWindowSettings, HotKeys, HotKeysError, HotKeysReport, HotKeysRequest, KeyCost,
};
pub use keys::{BeginSearch, FindKeys, KeyFlags, KeySpec, ParseKeys, RequestKeys};
pub use latency::{LatencyEvent, LatencyMonitor};
pub use lazy_free::LazyFreeQueue;
pub use migration::{CapturedKey, ReleaseResult, RemainingKeys};
pub use monitors::Monitors;
pub use notifications::EventClass;
pub use outcome::{CommandOutcome, OffloadReason};
pub use pause::{PauseMode, PausePurpose, Pauses};
pub use pubsub::{ClusterBus, PubSub};
pub use random::Random;
pub use sampling::KeySample;
pub use scripting::{Runnable, ScriptCall, ScriptHooks, parse_sha1};
pub use session::{BackgroundMode, CommandOrigin, DebugMode, ReplySuppression, Session};
pub use settings::{
    AtomicEvictionSettings, AtomicListpackBounds, ClientPermission, DatasetState, DebugSwitches,
    EvictionSettings, InputCheckSettings, LazyFreeReason, LazyFreeSettings, Measurements, NodeFlags,
    PermissionSettings, RoutingSettings, ScriptSettings, SentinelState, Settings, ValueLimits,
};
pub use shell_commands::{AclCommand, ClusterCommand, DebugCommand, NodeCommand, ShellCommand};
pub use slot_costs::SlotCost;
pub use slot_waits::SlotWaits;
pub use stats::{CommandStats, WorkerStats};
pub use tracking::TrackingTable;
pub use undeclared_keys::UndeclaredKeys;
pub use waiting::{KeyWait, Waiter};
