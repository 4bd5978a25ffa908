//! Groups keys by pattern and collects the biggest and hottest keys.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::quantity::bytes;
use super::what_ifs::{self, PatternStats, WhatIf};
use crate::rdb::prefixes::Prefixes;
use crate::rdb::readable;

/// Maximum number of patterns; keys of further patterns count for [`OTHERS`].
const MAX_PATTERNS: usize = 10_000;
const OTHERS: &str = "(others)";
/// Maximum number of big keys and of hot keys.
const MAX_RANKED: usize = 100;
/// Default maximum number of elements of a listpack.
const THRESHOLDS: [(&str, u64); 3] = [("hash", 512), ("zset", 128), ("set", 128)];

/// Keys and bytes per pattern.
pub(super) type Sums = BTreeMap<String, (u64, u64)>;

/// A sampled key.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) key: &'a [u8],
    pub(super) kind: &'a str,
    pub(super) encoding: &'a str,
    pub(super) elements: u64,
    pub(super) bytes: u64,
    /// Remaining TTL in milliseconds.
    pub(super) ttl: Option<u64>,
    /// Result of OBJECT FREQ.
    pub(super) frequency: Option<u64>,
    /// Length of a string value.
    pub(super) length: Option<u64>,
    /// Length of one field name of a hash.
    pub(super) field: Option<u64>,
}

/// Statistics of the keys of one pattern.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Group {
    keys: u64,
    bytes: u64,
    largest: u64,
    elements: u64,
    expiring: u64,
    /// Range of the remaining TTLs in milliseconds.
    shortest_ttl: Option<u64>,
    longest_ttl: Option<u64>,
    /// Number of keys per type and encoding.
    encodings: BTreeMap<String, u64>,
    /// Collections with up to a quarter more elements than the listpack limit.
    just_past: u64,
    #[serde(default)]
    key_bytes: u64,
    #[serde(default)]
    strings: u64,
    #[serde(default)]
    string_bytes: u64,
    #[serde(default)]
    fields: u64,
    #[serde(default)]
    fields_seen: u64,
    #[serde(default)]
    field_bytes_seen: u64,
}

impl Group {
    fn what_ifs(&self, pattern: &str, separator: &str) -> Vec<WhatIf> {
        what_ifs::of(PatternStats {
            pattern,
            separator,
            keys: self.keys,
            key_bytes: self.key_bytes,
            string_bytes: self.string_bytes,
            strings: self.strings,
            fields: self.fields,
            fields_seen: self.fields_seen,
            field_bytes_seen: self.field_bytes_seen,
            expiring: self.expiring,
        })
    }
}

/// A big or hot key.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct RankedKey {
    by: u64,
    key: String,
    kind: String,
}

/// All groups of a scan.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Groups {
    groups: BTreeMap<String, Group>,
    big: Vec<RankedKey>,
    hot: Vec<RankedKey>,
    /// Number of scanned masters; 0 without cluster mode.
    #[serde(default)]
    pub(super) masters: u64,
    #[serde(default)]
    pub(super) separator: String,
}

fn insert_ranked(list: &mut Vec<RankedKey>, by: u64, seen: &Seen<'_>) {
    if list.len() == MAX_RANKED && list.last().is_some_and(|least| least.by >= by) {
        return;
    }
    let ranked = RankedKey { by, key: readable(seen.key), kind: seen.kind.to_owned() };
    let at = list.partition_point(|other| other.by >= by);
    list.insert(at, ranked);
    list.truncate(MAX_RANKED);
}

impl Groups {
    pub(super) fn add(&mut self, separator: &[u8], seen: &Seen<'_>) {
        let mut pattern = readable(&Prefixes::new(separator).pattern(seen.key));
        if self.groups.len() >= MAX_PATTERNS && !self.groups.contains_key(&pattern) {
            pattern = OTHERS.to_owned();
        }
        let group = self.groups.entry(pattern).or_default();
        group.keys += 1;
        group.bytes += seen.bytes;
        group.largest = group.largest.max(seen.bytes);
        group.elements += seen.elements;
        group.key_bytes += seen.key.len() as u64;
        if let Some(length) = seen.length {
            group.strings += 1;
            group.string_bytes += length;
        }
        if let Some(field) = seen.field {
            group.fields += seen.elements;
            group.fields_seen += 1;
            group.field_bytes_seen += field;
        }
        *group.encodings.entry(format!("{}, {}", seen.kind, seen.encoding)).or_default() += 1;
        if let Some(ttl) = seen.ttl {
            group.expiring += 1;
            group.shortest_ttl = Some(group.shortest_ttl.map_or(ttl, |least| least.min(ttl)));
            group.longest_ttl = Some(group.longest_ttl.map_or(ttl, |most| most.max(ttl)));
        }
        let is_structure = matches!(seen.encoding, "hashtable" | "skiplist");
        let past = |most: u64| (most + 1..most + most / 4).contains(&seen.elements);
        if is_structure && THRESHOLDS.iter().any(|(kind, most)| *kind == seen.kind && past(*most)) {
            group.just_past += 1;
        }
        insert_ranked(&mut self.big, seen.bytes, seen);
        if let Some(frequency) = seen.frequency {
            insert_ranked(&mut self.hot, frequency, seen);
        }
    }

    /// Number of sampled keys.
    pub(super) fn keys(&self) -> u64 {
        self.groups.values().map(|group| group.keys).sum()
    }

    /// Bytes per master now and with one more master, for a cluster.
    fn shards(&self) -> Option<(u64, u64)> {
        let total: u64 = self.groups.values().map(|group| group.bytes).sum();
        (self.masters > 0).then(|| (total / self.masters, total / (self.masters + 1)))
    }

    pub(super) fn sums(&self) -> Sums {
        self.groups.iter().map(|(name, group)| (name.clone(), (group.keys, group.bytes))).collect()
    }

    /// Groups ordered by bytes, largest first.
    fn biggest(&self, top: usize) -> Vec<(&String, &Group)> {
        let mut all: Vec<_> = self.groups.iter().collect();
        all.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
        all.truncate(top);
        all
    }

    pub(super) fn report(&self, before: Option<&Sums>, top: usize) -> serde_json::Value {
        let groups = self.biggest(top).into_iter().map(|(name, group)| {
            let mut object = serde_json::to_value(group).unwrap_or_default();
            object["pattern"] = name.as_str().into();
            object["what_ifs"] = json!(group.what_ifs(name, &self.separator));
            object["mean"] = (group.bytes / group.keys.max(1)).into();
            if let Some((keys, bytes)) = before.and_then(|before| before.get(name)) {
                object["before"] = json!({"keys": keys, "bytes": bytes});
            }
            object
        });
        json!({
            "keys": self.keys(),
            "bytes": self.groups.values().map(|group| group.bytes).sum::<u64>(),
            "groups": groups.collect::<Vec<_>>(),
            "shards": self.shards().map(|(now, then)| json!({"now": now, "one_more": then})),
            "big": &self.big[..top.min(self.big.len())],
            "hot": &self.hot[..top.min(self.hot.len())],
        })
    }

    pub(super) fn show(&self, before: Option<&Sums>, top: usize, out: &mut impl Write) -> io::Result<()> {
        let total: u64 = self.groups.values().map(|group| group.bytes).sum();
        writeln!(out, "{} keys, {}", self.keys(), bytes(total as f64))?;
        writeln!(
            out,
            "\n{:>10} {:>10} {:>8} {:>10} {:>8}  pattern",
            "keys", "bytes", "mean", "largest", "TTL %"
        )?;
        for (name, group) in self.biggest(top) {
            let (keys, held) = (group.keys, bytes(group.bytes as f64));
            let share = group.expiring * 100 / keys.max(1);
            writeln!(
                out,
                "{keys:>10} {held:>10} {:>8} {:>10} {share:>8}  {name}",
                group.bytes / keys.max(1),
                group.largest
            )?;
            for (encoding, count) in &group.encodings {
                writeln!(out, "{:>51}  {count} {encoding}", "")?;
            }
            if let (Some(least), Some(most)) = (group.shortest_ttl, group.longest_ttl) {
                writeln!(out, "{:>51}  TTL {} to {} s", "", least / 1000, most / 1000)?;
            }
            if group.just_past > 0 {
                writeln!(out, "{:>51}  {} keys just above the listpack limits", "", group.just_past)?;
            }
            for WhatIf { change, saves } in group.what_ifs(name, &self.separator) {
                writeln!(out, "{:>51}  would save up to {}: {change}", "", bytes(saves as f64))?;
            }
            if let Some((keys, was)) = before.and_then(|before| before.get(name)) {
                let grown = group.bytes as f64 - *was as f64;
                writeln!(out, "{:>51}  previously {keys} keys, {grown:+.0} bytes since then", "")?;
            }
        }
        if let Some((now, then)) = self.shards() {
            let (now, then) = (bytes(now as f64), bytes(then as f64));
            writeln!(out, "\n{now} per master, {then} with one more master")?;
        }
        for (title, list) in [("biggest keys, bytes", &self.big), ("hottest keys, OBJECT FREQ", &self.hot)] {
            if !list.is_empty() {
                writeln!(out, "\n{title}")?;
            }
            for ranked in list.iter().take(top) {
                writeln!(out, "{:>12} {:<6} {}", ranked.by, ranked.kind, ranked.key)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(groups: &mut Groups, key: &str, elements: u64, bytes: u64, ttl: Option<u64>) {
        let (kind, encoding) = ("hash", if elements > 512 { "hashtable" } else { "listpack" });
        groups.add(
            b":",
            &Seen {
                key: key.as_bytes(),
                kind,
                encoding,
                elements,
                bytes,
                ttl,
                frequency: None,
                length: None,
                field: None,
            },
        );
    }

    #[test]
    fn keys_are_grouped_by_pattern_and_biggest_are_listed() {
        let mut groups = Groups::default();
        for number in 0..1000 {
            add(&mut groups, &format!("user:{number}:profile"), 11, 400, None);
            add(&mut groups, &format!("session:{number}"), 3, 100, Some(number * 1000));
        }
        add(&mut groups, "user:7000:profile", 520, 50_000, None);
        let before = Sums::from([("user:*:profile".to_owned(), (900, 400_000))]);
        let report = groups.report(Some(&before), 10);
        let users = &report["groups"][0];
        assert_eq!((&users["pattern"], &users["keys"]), (&"user:*:profile".into(), &1001.into()));
        assert_eq!((&users["just_past"], &users["before"]["keys"]), (&1.into(), &900.into()));
        let sessions = &report["groups"][1];
        assert_eq!((&sessions["expiring"], &sessions["longest_ttl"]), (&1000.into(), &999_000.into()));
        assert_eq!(report["big"][0]["key"], "user:7000:profile");
    }

    #[test]
    fn number_of_patterns_is_bounded_and_all_keys_count() {
        let mut groups = Groups::default();
        let letters = |number: u32| -> String {
            (0..4).map(|at| char::from(b'g' + ((number >> (at * 4)) & 15) as u8)).collect()
        };
        (0..12_000).for_each(|number| add(&mut groups, &letters(number), 1, 10, None));
        assert!(groups.groups.len() <= MAX_PATTERNS + 1 && groups.keys() == 12_000);
    }
}
