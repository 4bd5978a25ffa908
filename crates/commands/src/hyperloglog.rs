//! PFADD, PFCOUNT and PFMERGE: cardinality estimates by HyperLogLog ([`crate::sketch`]).

mod debug;

use std::sync::atomic::Ordering;

use engine::{
    Command, CommandError, CommandOrigin, Context, EventClass, Flags, KeyFlags, KeySpec, NodeFlags,
};
use keyspace::{EncodingHint, EntryRef, Key, PackedValue, StringRef};
use smallvec::SmallVec;

use super::rows::*;
use crate::sketch::{self, Observation, Registers, Sketch, SketchError};

family!(hyperloglog, Hyperloglog, HYPERLOGLOG);

/// PFCOUNT reads the key, but may also write its estimate into the cache of the sketch.
const PFCOUNT_KEY_FLAGS: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS);
const PFMERGE_KEYS: &[KeySpec] = &[
    KeySpec::single_key(1, PFCOUNT_KEY_FLAGS.union(KeyFlags::INSERT)),
    KeySpec::key_range(2, -1, 1, key::READ),
];

pub(super) const COMMANDS: &[Command] = &[
    hyperloglog("pfadd", "2.8.9", -2, WRITE_DENYOOM_FAST, INSERT_KEY, "Adds elements to a HyperLogLog.")
        .run(pfadd),
    hyperloglog(
        "pfcount",
        "2.8.9",
        -2,
        READ.union(Flags::MAY_REPLICATE),
        &[KeySpec::key_range(1, -1, 1, PFCOUNT_KEY_FLAGS)],
        "Estimates the number of distinct elements in the union of HyperLogLogs.",
    )
    .run(pfcount),
    hyperloglog(
        "pfdebug",
        "2.8.9",
        3,
        WRITE_DENYOOM.union(Flags::ADMIN),
        &[KeySpec::single_key(2, PFCOUNT_KEY_FLAGS)],
        "Shows the internals of a HyperLogLog.",
    )
    .run(debug::pfdebug),
    hyperloglog(
        "pfmerge",
        "2.8.9",
        -2,
        WRITE_DENYOOM,
        PFMERGE_KEYS,
        "Stores the union of several HyperLogLogs.",
    )
    .run(pfmerge),
    hyperloglog("pfselftest", "2.8.9", 1, Flags::ADMIN, &[], "Runs a self-test of the HyperLogLog code.")
        .run(debug::pfselftest),
];

impl From<SketchError> for CommandError {
    fn from(error: SketchError) -> Self {
        Self::text(match error {
            SketchError::NotASketch => "WRONGTYPE Key is not a valid HyperLogLog string value.",
            SketchError::Corrupt => "INVALIDOBJ Corrupted HLL object detected",
        })
    }
}

/// The sketch in the entry `entry_ref`.
fn sketch_at<'c>(
    context: &'c Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
) -> Result<Sketch<'c>, CommandError> {
    Ok(Sketch::from_bytes(context.string_value(key, entry_ref)?.bytes)?)
}

/// Stores a sketch under `key`. An existing key keeps its expiry.
fn store_sketch(context: &mut Context<'_>, key: &Key<'_>, found: Option<EntryRef>, bytes: &[u8]) {
    match found {
        None => context.put(key, None, PackedValue::string_with_hint(bytes, EncodingHint::Raw), None),
        Some(place) => {
            let (_, into) = context.table(key).edit_string(place, key, bytes.len(), EncodingHint::Raw);
            into.copy_from_slice(bytes);
            context.report_modified(key);
        }
    }
}

/// Maximum size in bytes of a sparse sketch (`hll-sparse-max-bytes`).
fn max_sparse_bytes(context: &Context<'_>) -> usize {
    context.engine.settings.value_limits.hll_sparse_max_bytes.load(Ordering::Relaxed)
}

/// Handles `PFADD key [element ...]`.
fn pfadd(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find_typed::<StringRef<'_>>(&key)?;
    let seen: SmallVec<[Observation; 8]> =
        context.args.skip(2).iter().map(Observation::from_element).collect();
    let changed = match found {
        Some(place) if sketch_at(context, &key, place)?.is_dense() => {
            let dense = sketch_at(context, &key, place)?;
            let changes = seen.iter().any(|seen| dense.would_raise_dense_register(*seen));
            if changes {
                let mut raised = 0;
                let len = context.string_value(&key, place)?.bytes.len();
                let (_, bytes) = context.table(&key).edit_string(place, &key, len, EncodingHint::Raw);
                for seen in &seen {
                    raised += usize::from(sketch::observe_dense(bytes, *seen));
                }
                context.report_changes(&key, raised);
            }
            changes
        }
        found => observe_sparse(context, &key, found, &seen)?,
    };
    if changed {
        context.notify(EventClass::STRING, "pfadd", &key);
    }
    context.reply.integer(i64::from(changed));
    Ok(())
}

/// Adds elements to a sparse or missing sketch. Returns whether it changed.
fn observe_sparse(
    context: &mut Context<'_>,
    key: &Key<'_>,
    found: Option<EntryRef>,
    observations: &[Observation],
) -> Result<bool, CommandError> {
    let mut bytes = match found {
        Some(place) => context.string_value(key, place)?.bytes.to_vec(),
        None => sketch::empty_sketch(),
    };
    let most = max_sparse_bytes(context);
    let mut changes = u64::from(found.is_none());
    for seen in observations {
        changes += u64::from(sketch::observe(&mut bytes, *seen, most)?);
    }
    match found {
        _ if changes > 0 => {
            sketch::mark_stale(&mut bytes);
            store_sketch(context, key, found, &bytes);
            context.count_changes(changes - 1);
        }
        // Even if no register changes, PFADD counts as an edit in place, after which OBJECT ENCODING reports `raw`.
        Some(place) => {
            let _ = context.table(key).edit_string(place, key, bytes.len(), EncodingHint::Raw);
        }
        None => {}
    }
    Ok(changes > 0)
}

/// Handles `PFCOUNT key [key ...]`. With a single key, the estimate is cached in the sketch.
fn pfcount(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() > 2 {
        let (registers, _) = merge_sketches(context)?;
        context.reply.integer(registers.estimate() as i64);
        return Ok(());
    }
    let key = context.key(1)?;
    let Some(place) = context.read_typed::<StringRef<'_>>(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let sketch = sketch_at(context, &key, place)?;
    let number = match sketch.cached_estimate() {
        Some(number) => number,
        None => {
            let number = sketch.estimate()?;
            cache_estimate(context, &key, place, number);
            number
        }
    };
    context.reply.integer(number as i64);
    Ok(())
}

/// Caches the estimate in the sketch, unless the client's writes are refused at present. After a failure of the
/// append-only file, a write under `appendfsync always` would delay the reply until the file can be written again.
fn cache_estimate(context: &mut Context<'_>, key: &Key<'_>, entry_ref: EntryRef, estimate: u64) {
    let stopped = NodeFlags::NO_OWN_CHANGES.union(NodeFlags::SLOT_WRITES_PAUSED).union(NodeFlags::AOF_FAILED);
    if context.session.origin() == CommandOrigin::Client
        && context.engine.settings.node_flags().intersects(stopped)
    {
        return;
    }
    let len =
        context.table_ref(key).typed_value::<StringRef<'_>>(entry_ref).map_or(0, |string| string.bytes.len());
    let (_, bytes) = context.table(key).edit_string(entry_ref, key, len, EncodingHint::Raw);
    sketch::store_estimate(bytes, estimate);
    context.report_modified(key);
}

/// Merges the sketches from argument 1 on. Returns the union and whether one of them is dense.
fn merge_sketches(context: &mut Context<'_>) -> Result<(Registers, bool), CommandError> {
    let (mut registers, mut dense) = (Registers::default(), false);
    for index in 1..context.args.len() {
        let key = context.key(index)?;
        let Some(place) = context.read_typed::<StringRef<'_>>(&key)? else { continue };
        let sketch = sketch_at(context, &key, place)?;
        dense |= sketch.is_dense();
        registers.merge(sketch)?;
    }
    Ok((registers, dense))
}

/// Handles `PFMERGE destination [source ...]`.
fn pfmerge(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (registers, dense) = merge_sketches(context)?;
    let key = context.key(1)?;
    let found = context.find(&key);
    let mut bytes = match found {
        Some(place) => context.string_value(&key, place)?.bytes.to_vec(),
        None => sketch::empty_sketch(),
    };
    if dense {
        sketch::make_dense(&mut bytes)?;
        sketch::set_registers(&mut bytes, &registers);
    } else {
        let most = max_sparse_bytes(context);
        for seen in registers.observations() {
            sketch::observe(&mut bytes, seen, most)?;
        }
    }
    sketch::mark_stale(&mut bytes);
    store_sketch(context, &key, found, &bytes);
    context.notify(EventClass::STRING, "pfadd", &key);
    context.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests;
