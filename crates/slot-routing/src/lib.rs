//! Maps keys to hash slots and slots to nodes, and decides between serving and redirecting a command.
//!
//! A key hashes to one of 16384 slots: CRC16 of the key, or of its hash tag, modulo 16384 ([`Slot::of_key`]). The other
//! crates of a node see the cluster only as an immutable [`Topology`]. [`route`] combines a slot's [`Ownership`] with
//! the state of the client into a [`RouteDecision`].
#![forbid(unsafe_code)]

mod crc16;
mod ids;
mod route;
mod slot;
mod slot_change;
mod slot_set;
mod slots_to_empty;
mod tags;
mod topology;

pub use ids::{Epoch, NodeId, ParseNodeIdError, RedisId, ReplOffset};
pub use route::{Ownership, Redirect, RouteDecision, RouteRequest, route};
pub use slot::{SLOT_COUNT, Slot, hash_tag};
pub use slot_change::SlotChange;
pub use slot_set::SlotSet;
pub use slots_to_empty::{SlotsToEmpty, is_owned_elsewhere};
pub use topology::{ClientEndpoint, ClientTransport, Endpoint, EndpointType, Member, Role, Topology};
