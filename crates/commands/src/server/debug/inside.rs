//! DEBUG subcommands that show memory layout.

use std::fmt::Write as _;

use engine::{CommandError, Context};
use keyspace::Value;

use crate::kinds::as_any_value;

/// Number of chain lengths in the histogram, as in Redis.
const HISTOGRAM_LENGTHS: usize = 50;

/// A histogram of the number of keys per slot.
struct SlotHistogram {
    slots_by_length: [u64; HISTOGRAM_LENGTHS],
    key_count: u64,
    longest_chain: u64,
}

impl SlotHistogram {
    fn new() -> Self {
        Self { slots_by_length: [0; HISTOGRAM_LENGTHS], key_count: 0, longest_chain: 0 }
    }

    fn add(&mut self, length: usize) {
        self.slots_by_length[length.min(HISTOGRAM_LENGTHS - 1)] += 1;
        self.key_count += length as u64;
        self.longest_chain = self.longest_chain.max(length as u64);
    }

    /// Formats the histogram like Redis's hash table statistics, with slots as buckets.
    fn format_into(&self, text: &mut String) {
        text.push_str("Hash table 0 stats (main hash table):\n");
        if self.key_count == 0 {
            text.push_str("No stats available for empty dictionaries\n");
            return;
        }
        let buckets: u64 = self.slots_by_length.iter().sum();
        let used = buckets - self.slots_by_length[0];
        let average = self.key_count as f64 / used as f64;
        let _ = write!(
            text,
            " table size: {buckets}\n number of elements: {}\n different slots: {used}\n max chain length: {}\n \
             avg chain length (counted): {average:.2}\n avg chain length (computed): {average:.2}\n Chain length \
             distribution:\n",
            self.key_count, self.longest_chain
        );
        for (length, &count) in self.slots_by_length.iter().enumerate().filter(|(_, count)| **count > 0) {
            let more = if length == HISTOGRAM_LENGTHS - 1 { ">= " } else { "" };
            let percent = count as f64 * 100.0 / buckets as f64;
            let _ = writeln!(text, "   {more}{length}: {count} ({percent:.2}%)");
        }
    }
}

/// Handles `DEBUG HTSTATS dbid`, which shows slots in place of Redis's hash table buckets.
pub(super) fn htstats(context: &mut Context<'_>) -> Result<(), CommandError> {
    let db = context.integer_arg(2)?;
    let db = u16::try_from(db).ok().filter(|db| *db < context.engine.keyspace.database_count());
    let db = db.ok_or(CommandError::text("ERR Out of range database"))?;
    let (mut keys, mut volatile) = (SlotHistogram::new(), SlotHistogram::new());
    context.each_slot(|_, data| {
        let table = data.existing_table(db);
        keys.add(table.map_or(0, |table| table.len()));
        volatile.add(table.map_or(0, |table| table.volatile_len()));
    });
    let mut text = "[Dictionary HT]\n".to_owned();
    keys.format_into(&mut text);
    text.push_str("[Expires HT]\n");
    volatile.format_into(&mut text);
    context.reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

pub(super) fn htstats_key(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let place = context.peek(&key).ok_or(CommandError::NoSuchKey)?;
    let (table, reply) = context.table_and_reply(&key);
    let value = table.value(place);
    let named = matches!(value.encoding(), "hashtable" | "skiplist");
    let len = as_any_value(&value).element_count().filter(|_| named).ok_or(CommandError::text(
        "ERR The value stored at the specified key is not represented using an hash table",
    ))?;
    let bytes = table.entry_bytes(place);
    let text = format!(
        "Hash table 0 stats (main hash table):\n table size: {len}\n number of elements: {len}\n bytes: {bytes}\n"
    );
    reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

/// Handles `DEBUG SDSLEN key`. A key and its string share one entry, without spare capacity or separate allocations. A
/// value stored outside of pages reports its allocation.
pub(super) fn sdslen(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let place = super::find_including_expired(context, &key)?;
    let (table, reply) = context.table_and_reply(&key);
    let Value::String(string) = table.value(place) else {
        return Err(CommandError::text("ERR Not an sds encoded string."));
    };
    let len = string.bytes.len();
    let outside = if len > table.entry_bytes(place) { len } else { 0 };
    reply.simple(&format!(
        "key_sds_len:{} key_sds_avail:0 obj_alloc:0 val_sds_len:{len} val_sds_avail:0 val_alloc:{outside}",
        key.bytes().len()
    ));
    Ok(())
}

/// Handles `DEBUG STRUCTSIZE`. Reports Valkey's sizes, including the trailing blank, because some scripts rely on them.
pub(super) fn structsize(context: &mut Context<'_>) -> Result<(), CommandError> {
    let bits = usize::BITS;
    let sizes =
        format!("bits:{bits} robj:16 dictentry:24 sdshdr5:1 sdshdr8:3 sdshdr16:5 sdshdr32:9 sdshdr64:17 ");
    context.reply.bulk(sizes.as_bytes());
    Ok(())
}
