//! Atomic slot migration (CLUSTER MIGRATESLOTS): state machines for the source and the target node.
//!
//! The source connects to the target and names the slots. It sends their contents as commands, followed by all later
//! changes, while its clients continue writing. When the target has nearly caught up, it requests a pause: the source
//! holds writes to these slots, sends the rest, and reports that it has paused. The target then requests the slots, the
//! source grants them, and the target claims them under a new epoch, which the source learns over the cluster bus.
//! Until then only the source serves the slots, and the target hides its copy; afterwards only the target does. At no
//! time do both nodes serve parts of a slot, so clients see neither ASK nor TRYAGAIN.
//!
//! | source | target |
//! | --- | --- |
//! | `ESTABLISH SOURCE id NAME name SLOTSRANGE ...` | `+OK` |
//! | the snapshot, `SNAPSHOT-EOF` | |
//! | the changes | `REQUEST-PAUSE` |
//! | the last changes, `PAUSED` | `REQUEST-FAILOVER` |
//! | `FAILOVER-GRANTED` | (claims the slots, on the bus) |
//!
//! Both sides send `ACK` once per second. The messages are those of Valkey 9.1 (`CLUSTER SYNCSLOTS`), so slots can move
//! between Valkey nodes and ours.
//!
//! Between our nodes a migration survives a broken link. The source first asks for support (`RESUMABLE_KEYWORD`, which Valkey
//! answers with an error), and adds the word to `ESTABLISH`. The target's ACKs then report how many bytes it has
//! applied, and the source retains the rest. After reconnecting, the source sends `RESUME NAME name`,
//! learns how much was applied, and sends the rest again. A side that gives up sends `FINISH`, so that the other does
//! not wait.
//!
//! Invariant: the source accepts no write to a slot between `PAUSED` and the claim. It can hold writes only for a
//! limited time, because the target may be gone. The target therefore claims the slots only within
//! [`CLAIM_TIMEOUT`] of its request, which is well before the source stops holding writes
//! ([`MAX_WRITE_PAUSE`]), whenever the request arrived.
#![forbid(unsafe_code)]

mod control;
mod export;
mod export_driver;
mod filter;
mod import;
mod import_driver;
mod job;
mod logged_command;
mod message;
mod progress;
pub mod pull;
mod slot_move;
mod target_replies;
mod window;

pub use control::{ControlCommand, MalformedControlCommand};
pub use export::{ExportConfig, ExportOutcome, MAX_WRITE_PAUSE};
pub use export_driver::{ExportDriver, ExportDriverAction, ExportDriverEvent, ExportJob};
pub use import::{CLAIM_TIMEOUT, ImportConditions};
pub use import_driver::{ImportDriver, ImportDriverAction, ImportDriverEvent, SourceCommands};
pub use job::{JobDirection, JobName, MigrationJob, MigrationJobs};
pub use logged_command::{LoggedCommandDecoder, LoggedCommandKind};
pub use message::{EstablishMessage, FinishMessage, MigrationMessage, SyncSlotsCommand, SyncSlotsError};
pub use progress::MigrationProgress;
pub use pull::PullDriver;
pub use slot_move::{SlotMove, SlotMoveElement, SlotMoveError, parse_slot_moves, parse_slot_ranges};

use std::time::Duration;

use slot_routing::{NodeId, SlotSet, Topology};

/// Interval of ACK messages, as in Valkey.
pub const ACK_PERIOD: Duration = Duration::from_secs(1);

/// A migration fails if its broken link is not re-established within this time.
pub const RESUME_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether the shard of `node` owns all of these slots.
#[must_use]
pub fn owns_slots(topology: &Topology, node: NodeId, slots: &SlotSet) -> bool {
    let Some(shard) = topology.member(node).map(|member| member.shard) else { return false };
    slots.iter().all(|slot| topology.owner(slot).is_some_and(|owner| owner.shard == shard))
}
