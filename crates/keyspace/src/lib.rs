//! The data store: 16384 slots, each with its own lock and one table per database.
//!
//! A caller hashes a key once ([`Keyspace::key`]), locks the slots that its command touches ([`Keyspace::lock`],
//! [`Keyspace::lock_many`]) and uses a slot's [`Table`] through [`EntryRef`]s: a lookup returns an `EntryRef`, and
//! further calls on that entry need no second lookup.
//!
//! The crate reads no clock. Callers pass the current time to the functions that check expiry, and decide what to do
//! with expired entries (a master deletes them, a replica hides them).
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

pub use entries::{EntryRef, KeyLookup};
pub use fields::{Field, FieldsPart, ReplacedField};
pub use global_lock::GlobalLock;
pub use key::Key;
pub use keyspace::{DatabaseSize, Keyspace};
pub use kind::{
    ElementUniqueness, EncodingHint, EncodingLimits, Kind, ListLimit, ListpackBounds, SetBounds,
    StreamNodeBounds,
};
pub use list::{ItemDigits, ListEnd, ListItem, ListPart, ListRun};
pub use locked_slots::LockedSlots;
pub use memory::{PoolUsage, pool_usage, pool_used_bytes, prepare_chunk, purge_pool, with_wide_vectors};
pub use overflow::snapshot_only_bytes;
pub use packed::{PackedBuilder, PackedValue, ValueSummary};
pub use pages::{FillLevel, limit_pages, slot_capacity, was_ever_crowded};
pub use prefetched::PrefetchedSlot;
pub use set::{Digits, SetBuilder, SetMember};
pub use slot::{RemovedKeys, SlotData, SlotGuard};
pub use snapshot::{PreparedSnapshot, Snapshot, SnapshotEntry};
pub use sorted_set::{OrderBoundary, PinnedMembers, RankRange, ScoredMember, SortedSetPart};
pub use stream::{
    Consumer, Group, IdempotenceBounds, IdempotenceTotals, PendingEntry, Producers, Stream, StreamCursor,
    StreamEntry, StreamHead, StreamId, StreamPart, StreamPiece, StreamTrim, TrimPrecision, check_node,
    node_entries,
};
pub use table::{DetachedValue, NewEntry, RemovedValue, ScanItem, Table};
pub use usage::{LfuSettings, Usage};
// Re-export the kinds and their read-only views.
pub use value::*;
