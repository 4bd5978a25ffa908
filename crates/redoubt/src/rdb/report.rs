//! The memory report: sums by type, encoding and prefix, and the biggest keys.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, Write};

use serde_json::json;

use super::keys::KeyInfo;
use super::prefixes::{KeySums, PatternSums};
use super::{RdbFormat, escape_key};
use capacity::estimate;

/// A key that may be among the biggest. Keys are ordered by size first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BigKey {
    size: u64,
    key: Vec<u8>,
    db: u16,
    kind: &'static str,
    encoding: &'static str,
    elements: u64,
    expires: bool,
}

#[derive(Debug)]
pub(super) struct MemoryReport {
    max_listed: usize,
    total_sums: KeySums,
    /// Sums by type and encoding.
    sums_by_kind: BTreeMap<(&'static str, &'static str), KeySums>,
    pattern_sums: PatternSums,
    /// A min-heap, so that a bigger key replaces the smallest one.
    biggest_keys: BinaryHeap<Reverse<BigKey>>,
}

impl MemoryReport {
    pub(super) fn new(top: usize, separator: &[u8]) -> Self {
        let (kinds, biggest) = (BTreeMap::new(), BinaryHeap::new());
        Self {
            max_listed: top,
            total_sums: KeySums::default(),
            sums_by_kind: kinds,
            pattern_sums: PatternSums::new(separator),
            biggest_keys: biggest,
        }
    }

    pub(super) fn add_key(&mut self, info: &KeyInfo) {
        let expiring = u64::from(info.expiry.is_some());
        let sum = KeySums {
            key_count: 1,
            element_count: info.elements,
            bytes: info.memory_bytes,
            expiring_keys: expiring,
        };
        self.total_sums.add(sum);
        self.sums_by_kind.entry((info.kind.name(), info.encoding)).or_default().add(sum);
        self.pattern_sums.add(&info.key, sum);
        let is_among = self.biggest_keys.peek().is_none_or(|Reverse(least)| info.memory_bytes > least.size);
        if self.biggest_keys.len() < self.max_listed || is_among {
            self.biggest_keys.push(Reverse(BigKey {
                size: info.memory_bytes,
                key: info.key.clone(),
                db: info.db,
                kind: info.kind.name(),
                encoding: info.encoding,
                elements: info.elements,
                expires: info.expiry.is_some(),
            }));
        }
        while self.biggest_keys.len() > self.max_listed {
            self.biggest_keys.pop();
        }
    }

    pub(super) fn print(self, format: RdbFormat, out: &mut impl Write) -> io::Result<()> {
        let tables = estimate::slot_overhead_bytes(self.total_sums.key_count);
        match format {
            RdbFormat::Text => self.print_text(tables, out),
            RdbFormat::Json => self.print_json(tables, out),
            RdbFormat::Csv => self.print_csv(tables, out),
        }
    }

    fn print_text(self, table_bytes: u64, out: &mut impl Write) -> io::Result<()> {
        let all = self.total_sums;
        let KeySums { key_count: keys, element_count: elements, bytes, expiring_keys: expiring } = all;
        writeln!(out, "{keys} keys, {expiring} with a TTL, {elements} elements")?;
        writeln!(
            out,
            "about {} bytes in memory, including {table_bytes} bytes for the slot tables",
            bytes + table_bytes
        )?;
        let head = |out: &mut dyn Write, name: &str| {
            writeln!(out, "\n{:>12} {:>6} {:>12} {:>12}  {name}", "bytes", "%", "keys", "elements")
        };
        let line = |out: &mut dyn Write, sum: &KeySums, name: &str| {
            let share = sum.bytes as f64 * 100.0 / bytes.max(1) as f64;
            writeln!(
                out,
                "{:>12} {share:>6.1} {:>12} {:>12}  {name}",
                sum.bytes, sum.key_count, sum.element_count
            )
        };
        head(out, "type, encoding")?;
        for ((kind, encoding), sum) in &self.sums_by_kind {
            line(out, sum, &format!("{kind}, {encoding}"))?;
        }
        head(out, "prefix")?;
        for (pattern, sum) in self.pattern_sums.largest_patterns(self.max_listed) {
            line(out, &sum, &escape_key(pattern))?;
        }
        writeln!(
            out,
            "\n{:>12} {:>12} {:<6} {:<10} {:>3}  biggest keys",
            "bytes", "elements", "type", "encoding", "db"
        )?;
        for BigKey { size, key, db, kind, encoding, elements, .. } in
            sort_by_descending_size(self.biggest_keys)
        {
            writeln!(
                out,
                "{size:>12} {elements:>12} {kind:<6} {encoding:<10} {db:>3}  {}",
                escape_key(&key)
            )?;
        }
        Ok(())
    }

    fn print_json(self, table_bytes: u64, out: &mut impl Write) -> io::Result<()> {
        let sum = |sum: &KeySums| json!({"keys": sum.key_count, "elements": sum.element_count, "bytes": sum.bytes, "expiring": sum.expiring_keys});
        let named = |name: serde_json::Value, mut object: serde_json::Value| {
            object["name"] = name;
            object
        };
        let types = self.sums_by_kind.iter().map(|((kind, encoding), of)| {
            let mut object = sum(of);
            (object["type"], object["encoding"]) = ((*kind).into(), (*encoding).into());
            object
        });
        let prefixes = self.pattern_sums.largest_patterns(self.max_listed);
        let prefixes = prefixes.iter().map(|(name, of)| named(escape_key(name).into(), sum(of)));
        let object = json!({
            "total": sum(&KeySums { bytes: self.total_sums.bytes + table_bytes, ..self.total_sums }),
            "tables": table_bytes,
            "types": types.collect::<Vec<_>>(),
            "prefixes": prefixes.collect::<Vec<_>>(),
            "biggest": sort_by_descending_size(self.biggest_keys).iter().map(|big| json!({
                "db": big.db, "key": escape_key(&big.key), "type": big.kind, "encoding": big.encoding,
                "elements": big.elements, "size": big.size,
            })).collect::<Vec<_>>(),
        });
        serde_json::to_writer_pretty(&mut *out, &object)?;
        writeln!(out)
    }

    fn print_csv(self, table_bytes: u64, out: &mut impl Write) -> io::Result<()> {
        let mut rows = vec![(
            "total",
            String::new(),
            KeySums { bytes: self.total_sums.bytes + table_bytes, ..self.total_sums },
        )];
        rows.push(("tables", String::new(), KeySums { bytes: table_bytes, ..KeySums::default() }));
        rows.extend(
            self.sums_by_kind.iter().map(|((kind, of), sum)| ("type", format!("{kind}, {of}"), *sum)),
        );
        let prefixes = self.pattern_sums.largest_patterns(self.max_listed).into_iter();
        rows.extend(prefixes.map(|(name, sum)| ("prefix", escape_key(name), sum)));
        rows.extend(sort_by_descending_size(self.biggest_keys).iter().map(|big| {
            let expiring = u64::from(big.expires);
            (
                "key",
                escape_key(&big.key),
                KeySums {
                    key_count: 1,
                    element_count: big.elements,
                    bytes: big.size,
                    expiring_keys: expiring,
                },
            )
        }));
        let mut writer = csv::Writer::from_writer(out);
        writer.write_record(["section", "name", "bytes", "keys", "elements", "expiring"])?;
        for (section, name, sum) in rows {
            let figures = [sum.bytes, sum.key_count, sum.element_count, sum.expiring_keys]
                .map(|figure| figure.to_string());
            let [bytes, keys, elements, expiring] = &figures;
            writer.write_record([section, &name, bytes, keys, elements, expiring])?;
        }
        writer.flush()
    }
}

/// Returns the keys by size, largest first.
fn sort_by_descending_size(biggest_keys: BinaryHeap<Reverse<BigKey>>) -> Vec<BigKey> {
    biggest_keys.into_sorted_vec().into_iter().map(|Reverse(big)| big).collect()
}
