//! Slots that move from one node to another in one piece (CLUSTER MIGRATESLOTS), as a machine on either side.
//!
//! The source connects to the target and names the slots. It sends what they hold, as commands, and behind that
//! every change of them, while its clients go on writing. When the target has nearly everything it asks for a pause: the
//! source holds the writes to these slots, sends the rest, and says so. The target asks for the slots; the source grants
//! them, and the target claims them under a new epoch, which the source hears over the bus. Until that claim the source
//! serves the slots and the target shows nothing of them; after it the target does. There is no moment at which a slot
//! is served in parts by both, so clients see neither ASK nor TRYAGAIN.
//!
//! | source | target |
//! | --- | --- |
//! | `ESTABLISH SOURCE id NAME name SLOTSRANGE ...` | `+OK` |
//! | the snapshot, `SNAPSHOT-EOF` | |
//! | the changes | `REQUEST-PAUSE` |
//! | the last changes, `PAUSED` | `REQUEST-FAILOVER` |
//! | `FAILOVER-GRANTED` | (claims the slots, on the bus) |
//!
//! Either side says `ACK` once a second. The words are those of Valkey 9.1 (`CLUSTER SYNCSLOTS`), so slots move between
//! its nodes and ours.
//!
//! Between nodes of ours a job outlives its link. The source asks first (`RESUMABLE`, which a Valkey answers with an
//! error) and says so in `ESTABLISH`; the target's ACKs then tell how much it has applied, and the source keeps what it
//! has not ([`Window`]). When the link breaks the source makes another, says `RESUME NAME name`, is answered with how
//! much was applied, and sends the rest once more. A side that ends says `FINISH`, so that nobody waits for its return.
//!
//! The invariant: the source takes no write to a slot between `PAUSED` and the claim. It holds them for a bounded
//! time, since the target may be gone; so the target claims only soon after it has asked ([`import::CLAIM_WITHIN`]), which is
//! well within the time for which the source holds ([`export::HOLD_FOR`]), whenever its request came there.
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

/// Each side says that it is there so often, as Valkey's do.
pub const ACK_PERIOD: Duration = Duration::from_secs(1);

/// A job whose link broke has come to nothing if it has no other within this.
pub const RESUME_WITHIN: Duration = Duration::from_secs(5);
