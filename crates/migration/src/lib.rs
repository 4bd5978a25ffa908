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
//! Between our nodes a migration survives a broken link. The source first asks for support (`RESUMABLE`, which Valkey
//! answers with an error), and adds the word to `ESTABLISH`. The target's ACKs then report how many bytes it has
//! applied, and the source retains the rest ([`Window`]). After reconnecting, the source sends `RESUME NAME name`,
//! learns how much was applied, and sends the rest again. A side that gives up sends `FINISH`, so that the other does
//! not wait.
//!
//! Invariant: the source accepts no write to a slot between `PAUSED` and the claim. It can hold writes only for a
//! limited time, because the target may be gone. The target therefore claims the slots only within
//! [`import::CLAIM_WITHIN`] of its request, which is well before the source stops holding writes
//! ([`export::HOLD_FOR`]), whenever the request arrived.
#![forbid(unsafe_code)]

pub mod export;
mod from_target;
pub mod import;
mod job;
mod message;
mod order;
mod progress;
pub mod pull;
mod window;

pub use export::Export;
pub use from_target::{FromTarget, NoSense, Said};
pub use import::Import;
pub use job::{Job, JobName, Jobs, Operation};
pub use message::{
    Establish, Finish, Message, RESUMABLE, ack_applied, ask_resumable, finish, parse_establish, parse_finish,
    parse_request, parse_resume, request, resume,
};
pub use order::{Order, OrderError, OrderPart, parse_orders, parse_slots};
pub use progress::Progress;
pub use pull::Pull;
pub use window::Window;

use std::time::Duration;

/// Interval of ACK messages, as in Valkey.
pub const ACK_PERIOD: Duration = Duration::from_secs(1);

/// A migration fails if its broken link is not replaced within this time.
pub const RESUME_WITHIN: Duration = Duration::from_secs(5);
