//! Limits on the size and the compact encodings of values.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use config::{Values, keys};
use keyspace::{EncodingLimits, IdempotenceBounds, ListLimit, ListpackBounds, SetBounds, StreamNodeBounds};

/// [`ListpackBounds`] that several threads may read while one changes them.
#[derive(Debug)]
pub struct AtomicListpackBounds {
    max_entries: AtomicUsize,
    max_value_bytes: AtomicUsize,
}

impl AtomicListpackBounds {
    /// Returns the current bounds. The two numbers are read one after the other.
    #[must_use]
    #[inline]
    pub fn load(&self) -> ListpackBounds {
        ListpackBounds {
            max_entries: self.max_entries.load(Ordering::Relaxed),
            max_value_len: self.max_value_bytes.load(Ordering::Relaxed),
        }
    }

    fn store(&self, bounds: ListpackBounds) {
        self.max_entries.store(bounds.max_entries, Ordering::Relaxed);
        self.max_value_bytes.store(bounds.max_value_len, Ordering::Relaxed);
    }
}

impl From<ListpackBounds> for AtomicListpackBounds {
    fn from(bounds: ListpackBounds) -> Self {
        Self {
            max_entries: AtomicUsize::new(bounds.max_entries),
            max_value_bytes: AtomicUsize::new(bounds.max_value_len),
        }
    }
}

/// Limits on values, which handlers read when they create or change a value.
#[derive(Debug)]
pub struct ValueLimits {
    /// Maximum string length in bytes (`proto-max-bulk-len`).
    pub proto_max_bulk_len: AtomicI64,
    /// Maximum size of the `intset` encoding (`set-max-intset-entries`).
    max_intset_entries: AtomicUsize,
    /// Maximum size of the `listpack` encoding of sets.
    listpack_bounds_of_sets: AtomicListpackBounds,
    /// Maximum size of the `listpack` encoding of sorted sets.
    pub listpack_bounds_of_sorted_sets: AtomicListpackBounds,
    /// Maximum size of the `listpack` encoding of hashes.
    pub listpack_bounds_of_hashes: AtomicListpackBounds,
    /// Maximum size of the `listpack` encoding of lists.
    list_limit: AtomicI32,
    /// Maximum size in bytes of the sparse HyperLogLog encoding (`hll-sparse-max-bytes`).
    pub hll_sparse_max_bytes: AtomicUsize,
    /// Maximum size of a stream node: `stream-node-max-bytes` and `stream-node-max-entries`.
    stream_node_bytes: AtomicUsize,
    stream_node_entries: AtomicUsize,
    /// Default retention of producer ids in streams, in seconds and number: `stream-idmp-duration` and
    /// `stream-idmp-maxsize`; XCFGSET overrides them per stream.
    stream_producer_id_seconds: AtomicU64,
    stream_producer_id_limit: AtomicU64,
}

impl Default for ValueLimits {
    fn default() -> Self {
        let EncodingLimits { list, set, sorted_set, hash, stream } = EncodingLimits::default();
        Self {
            proto_max_bulk_len: AtomicI64::new(512 * 1024 * 1024),
            max_intset_entries: set.max_intset_entries.into(),
            listpack_bounds_of_sets: set.listpack.into(),
            listpack_bounds_of_sorted_sets: sorted_set.into(),
            listpack_bounds_of_hashes: hash.into(),
            list_limit: list.0.into(),
            hll_sparse_max_bytes: AtomicUsize::new(3000),
            stream_node_bytes: stream.max_bytes.into(),
            stream_node_entries: stream.max_entries.into(),
            stream_producer_id_seconds: AtomicU64::new(100),
            stream_producer_id_limit: AtomicU64::new(100),
        }
    }
}

impl ValueLimits {
    pub(super) fn configure(&self, values: &Values) {
        self.proto_max_bulk_len.store(values[keys::PROTO_MAX_BULK_LEN], Ordering::Relaxed);
        self.hll_sparse_max_bytes.store(values[keys::HLL_SPARSE_MAX_BYTES], Ordering::Relaxed);
        self.set_encoding_limits(&encoding_limits(values));
        self.stream_producer_id_seconds.store(values[keys::STREAM_IDMP_DURATION], Ordering::Relaxed);
        self.stream_producer_id_limit.store(values[keys::STREAM_IDMP_MAXSIZE], Ordering::Relaxed);
    }

    /// Returns the maximum size of the `listpack` encoding of lists.
    #[must_use]
    #[inline]
    pub fn list_limit(&self) -> ListLimit {
        ListLimit(self.list_limit.load(Ordering::Relaxed))
    }

    /// Returns the maximum sizes of the `intset` and `listpack` encodings of sets.
    #[must_use]
    #[inline]
    pub fn bounds_of_sets(&self) -> SetBounds {
        let intset = self.max_intset_entries.load(Ordering::Relaxed);
        SetBounds { max_intset_entries: intset, listpack: self.listpack_bounds_of_sets.load() }
    }

    /// Returns the maximum size of a stream node.
    #[must_use]
    pub fn stream_node_bounds(&self) -> StreamNodeBounds {
        StreamNodeBounds {
            max_bytes: self.stream_node_bytes.load(Ordering::Relaxed),
            max_entries: self.stream_node_entries.load(Ordering::Relaxed),
        }
    }

    /// Returns the default retention of producer ids in streams.
    #[must_use]
    pub fn idempotence_bounds(&self) -> IdempotenceBounds {
        IdempotenceBounds {
            duration_secs: self.stream_producer_id_seconds.load(Ordering::Relaxed),
            max_iids: self.stream_producer_id_limit.load(Ordering::Relaxed),
        }
    }

    /// Returns the maximum sizes of all compact encodings.
    #[must_use]
    pub fn encoding_limits(&self) -> EncodingLimits {
        EncodingLimits {
            list: self.list_limit(),
            set: self.bounds_of_sets(),
            sorted_set: self.listpack_bounds_of_sorted_sets.load(),
            hash: self.listpack_bounds_of_hashes.load(),
            stream: self.stream_node_bounds(),
        }
    }

    /// Sets the maximum sizes of all compact encodings.
    pub fn set_encoding_limits(&self, limits: &EncodingLimits) {
        let EncodingLimits { list, set, sorted_set, hash, stream } = *limits;
        self.list_limit.store(list.0, Ordering::Relaxed);
        self.max_intset_entries.store(set.max_intset_entries, Ordering::Relaxed);
        self.listpack_bounds_of_sets.store(set.listpack);
        self.listpack_bounds_of_sorted_sets.store(sorted_set);
        self.listpack_bounds_of_hashes.store(hash);
        self.stream_node_bytes.store(stream.max_bytes, Ordering::Relaxed);
        self.stream_node_entries.store(stream.max_entries, Ordering::Relaxed);
    }
}

/// Returns the maximum sizes of compact encodings.
fn encoding_limits(values: &Values) -> EncodingLimits {
    EncodingLimits {
        list: ListLimit(values[keys::LIST_MAX_LISTPACK_SIZE]),
        set: SetBounds {
            max_intset_entries: values[keys::SET_MAX_INTSET_ENTRIES],
            listpack: ListpackBounds {
                max_entries: values[keys::SET_MAX_LISTPACK_ENTRIES],
                max_value_len: values[keys::SET_MAX_LISTPACK_VALUE],
            },
        },
        sorted_set: ListpackBounds {
            max_entries: values[keys::ZSET_MAX_LISTPACK_ENTRIES],
            max_value_len: values[keys::ZSET_MAX_LISTPACK_VALUE],
        },
        hash: ListpackBounds {
            max_entries: values[keys::HASH_MAX_LISTPACK_ENTRIES],
            max_value_len: values[keys::HASH_MAX_LISTPACK_VALUE],
        },
        stream: StreamNodeBounds {
            max_bytes: values[keys::STREAM_NODE_MAX_BYTES],
            max_entries: values[keys::STREAM_NODE_MAX_ENTRIES],
        },
    }
}
