//! The data store: 16384 slots, each with its own lock and one table per database.
//!
//! A caller hashes a key once ([`Keyspace::key`]), locks the slots that its command touches
//! ([`Keyspace::lock`], [`Keyspace::lock_many`]) and works on a slot's [`Table`] through [`EntryRef`]s: a
//! lookup returns one, and further calls on that entry need no second lookup.
//!
//! The crate reads no clock. Callers pass `now` to decide expiry, and decide what to do with expired entries
//! (a master deletes them, a replica hides them).
mod captured;
mod chunked;
mod entries;
mod entry;
mod fields;
mod global_lock;
mod hash;
mod hashing;
mod index;
mod key;
mod keyspace;
mod kind;
mod large;
mod list;
mod locked_slots;
mod memory;
mod order;
mod overflow;
mod packed;
mod page;
mod pages;
mod prefetched;
mod published;
mod purge;
mod score;
mod set;
mod shared_slots;
mod slot;
mod snapshot;
mod sorted_set;
mod stream;
mod table;
mod tree;
mod usage;
mod value;
mod varint;

pub use entries::{Found, Place};
pub use fields::{Field, FieldsPart, Replaced};
pub use global_lock::ScriptTurn;
pub use key::Key;
pub use keyspace::{Keyspace, Size};
pub use kind::{Bounds, Kind, Limits, ListLimit, Naming, NodeBounds, SetBounds};
pub use list::{ItemDigits, ListEnd, ListItem, ListPart, ListRun};
pub use locked_slots::LockedSlots;
pub use memory::{PoolUse, in_wide_vectors, keep_chunk_ready, pool_taken, pool_use, purge_pool};
pub use overflow::kept_bytes;
pub use packed::{About, Builder, Packed};
pub use pages::{Crowding, any_crowded, bound_pages};
pub use prefetched::Touched;
pub use set::{Digits, Member, NewSet};
pub use slot::{SlotData, SlotGuard, Taken};
pub use snapshot::{ReadyToCut, Snapshot, SnapshotEntry};
pub use sorted_set::{Between, PinnedMembers, Scored, ScoredPart};
pub use stream::{
    Consumer, Cursor, Entry, Exactness, Group, Head, IdempotenceBounds, IdempotenceTotals, Pending, Piece,
    Producers, Stream, StreamId, StreamPart, Trim, check_node, node_entries,
};
pub use table::{Detached, Dropped, NewEntry, ScanItem, Table};
pub use usage::{LfuSettings, Usage};
// The kinds and their read-only views.
pub use value::*;
