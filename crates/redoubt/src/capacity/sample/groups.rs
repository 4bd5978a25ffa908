//! Groups keys by pattern and collects the biggest and hottest keys.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::quantity::format_bytes;
use super::savings::{self, MemorySaving, PatternStats};
use crate::rdb::escape_key;
use crate::rdb::prefixes::PatternSums;

/// Maximum number of patterns. Keys with further patterns are counted under [`OTHER_PATTERNS`].
const MAX_PATTERNS: usize = 10_000;
const OTHER_PATTERNS: &str = "(others)";
/// Maximum length of the list of big keys, and of the list of hot keys.
const MAX_RANKED_KEYS: usize = 100;
/// Default maximum number of elements of a listpack, by type.
const LISTPACK_LIMITS: [(&str, u64); 3] = [("hash", 512), ("zset", 128), ("set", 128)];

/// Number of keys and of bytes per pattern.
pub(super) type PatternTotals = BTreeMap<String, (u64, u64)>;

#[derive(Debug)]
pub(super) struct SampledKey<'a> {
    pub(super) key: &'a [u8],
    pub(super) kind: &'a str,
    pub(super) encoding: &'a str,
    pub(super) elements: u64,
    pub(super) bytes: u64,
    /// Remaining time to live in milliseconds; `None` if the key does not expire.
    pub(super) ttl: Option<u64>,
    /// Result of OBJECT FREQ; `None` unless an LFU policy is used.
    pub(super) frequency: Option<u64>,
    /// Length of a string value in bytes; `None` for other types.
    pub(super) string_bytes: Option<u64>,
    /// Length in bytes of one sampled field name of a hash; `None` for other types.
    pub(super) field_name_bytes: Option<u64>,
}

/// Statistics of the keys of one pattern.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct PatternGroup {
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
    /// Number of collections with up to a quarter more elements than the listpack limit.
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

impl PatternGroup {
    fn estimate_savings(&self, pattern: &str, separator: &str) -> Vec<MemorySaving> {
        savings::find_savings(PatternStats {
            pattern,
            separator,
            keys: self.keys,
            key_bytes: self.key_bytes,
            string_bytes: self.string_bytes,
            strings: self.strings,
            fields: self.fields,
            sampled_fields: self.fields_seen,
            sampled_field_bytes: self.field_bytes_seen,
            expiring: self.expiring,
        })
    }
}

/// An entry in the list of big or hot keys.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct RankedKey {
    by: u64,
    key: String,
    kind: String,
}

/// All groups of a scan.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KeyGroups {
    groups: BTreeMap<String, PatternGroup>,
    big: Vec<RankedKey>,
    hot: Vec<RankedKey>,
    /// Number of scanned masters; 0 outside of cluster mode.
    #[serde(default)]
    pub(super) masters: u64,
    #[serde(default)]
    pub(super) separator: String,
}

fn insert_ranked(list: &mut Vec<RankedKey>, rank: u64, sampled_key: &SampledKey<'_>) {
    if list.len() == MAX_RANKED_KEYS && list.last().is_some_and(|least| least.by >= rank) {
        return;
    }
    let ranked = RankedKey { by: rank, key: escape_key(sampled_key.key), kind: sampled_key.kind.to_owned() };
    let at = list.partition_point(|other| other.by >= rank);
    list.insert(at, ranked);
    list.truncate(MAX_RANKED_KEYS);
}

impl KeyGroups {
    pub(super) fn add_key(&mut self, separator: &[u8], sampled_key: &SampledKey<'_>) {
        let mut pattern = escape_key(&PatternSums::new(separator).pattern_of_key(sampled_key.key));
        if self.groups.len() >= MAX_PATTERNS && !self.groups.contains_key(&pattern) {
            pattern = OTHER_PATTERNS.to_owned();
        }
        let group = self.groups.entry(pattern).or_default();
        group.keys += 1;
        group.bytes += sampled_key.bytes;
        group.largest = group.largest.max(sampled_key.bytes);
        group.elements += sampled_key.elements;
        group.key_bytes += sampled_key.key.len() as u64;
        if let Some(length) = sampled_key.string_bytes {
            group.strings += 1;
            group.string_bytes += length;
        }
        if let Some(field) = sampled_key.field_name_bytes {
            group.fields += sampled_key.elements;
            group.fields_seen += 1;
            group.field_bytes_seen += field;
        }
        *group.encodings.entry(format!("{}, {}", sampled_key.kind, sampled_key.encoding)).or_default() += 1;
        if let Some(ttl) = sampled_key.ttl {
            group.expiring += 1;
            group.shortest_ttl = Some(group.shortest_ttl.map_or(ttl, |least| least.min(ttl)));
            group.longest_ttl = Some(group.longest_ttl.map_or(ttl, |most| most.max(ttl)));
        }
        let is_structure = matches!(sampled_key.encoding, "hashtable" | "skiplist");
        let past = |most: u64| (most + 1..most + most / 4).contains(&sampled_key.elements);
        if is_structure && LISTPACK_LIMITS.iter().any(|(kind, most)| *kind == sampled_key.kind && past(*most))
        {
            group.just_past += 1;
        }
        insert_ranked(&mut self.big, sampled_key.bytes, sampled_key);
        if let Some(frequency) = sampled_key.frequency {
            insert_ranked(&mut self.hot, frequency, sampled_key);
        }
    }

    /// Number of sampled keys.
    pub(super) fn key_count(&self) -> u64 {
        self.groups.values().map(|group| group.keys).sum()
    }

    /// Returns the bytes per master now and with one more master. `None` outside of cluster mode.
    fn bytes_per_master(&self) -> Option<(u64, u64)> {
        let total: u64 = self.groups.values().map(|group| group.bytes).sum();
        (self.masters > 0).then(|| (total / self.masters, total / (self.masters + 1)))
    }

    pub(super) fn pattern_sums(&self) -> PatternTotals {
        self.groups.iter().map(|(name, group)| (name.clone(), (group.keys, group.bytes))).collect()
    }

    /// Returns the `top` groups with the most bytes, largest first.
    fn largest_groups(&self, top: usize) -> Vec<(&String, &PatternGroup)> {
        let mut all: Vec<_> = self.groups.iter().collect();
        all.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
        all.truncate(top);
        all
    }

    pub(super) fn to_json(&self, previous_totals: Option<&PatternTotals>, top: usize) -> serde_json::Value {
        let groups = self.largest_groups(top).into_iter().map(|(name, group)| {
            let mut object = serde_json::to_value(group).unwrap_or_default();
            object["pattern"] = name.as_str().into();
            object["what_ifs"] = json!(group.estimate_savings(name, &self.separator));
            object["mean"] = (group.bytes / group.keys.max(1)).into();
            if let Some((keys, bytes)) = previous_totals.and_then(|before| before.get(name)) {
                object["before"] = json!({"keys": keys, "bytes": bytes});
            }
            object
        });
        json!({
            "keys": self.key_count(),
            "bytes": self.groups.values().map(|group| group.bytes).sum::<u64>(),
            "groups": groups.collect::<Vec<_>>(),
            "shards": self.bytes_per_master().map(|(now, then)| json!({"now": now, "one_more": then})),
            "big": &self.big[..top.min(self.big.len())],
            "hot": &self.hot[..top.min(self.hot.len())],
        })
    }

    pub(super) fn write_report(
        &self,
        previous_totals: Option<&PatternTotals>,
        top: usize,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let total: u64 = self.groups.values().map(|group| group.bytes).sum();
        writeln!(out, "{} keys, {}", self.key_count(), format_bytes(total as f64))?;
        writeln!(
            out,
            "\n{:>10} {:>10} {:>8} {:>10} {:>8}  pattern",
            "keys", "bytes", "mean", "largest", "TTL %"
        )?;
        for (name, group) in self.largest_groups(top) {
            let (keys, held) = (group.keys, format_bytes(group.bytes as f64));
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
            for MemorySaving { change, saves } in group.estimate_savings(name, &self.separator) {
                writeln!(out, "{:>51}  would save up to {}: {change}", "", format_bytes(saves as f64))?;
            }
            if let Some((keys, was)) = previous_totals.and_then(|before| before.get(name)) {
                let grown = group.bytes as f64 - *was as f64;
                writeln!(out, "{:>51}  previously {keys} keys, {grown:+.0} bytes since then", "")?;
            }
        }
        if let Some((now, then)) = self.bytes_per_master() {
            let (now, then) = (format_bytes(now as f64), format_bytes(then as f64));
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

    fn add_sample_key(groups: &mut KeyGroups, key: &str, elements: u64, bytes: u64, ttl: Option<u64>) {
        let (kind, encoding) = ("hash", if elements > 512 { "hashtable" } else { "listpack" });
        groups.add_key(
            b":",
            &SampledKey {
                key: key.as_bytes(),
                kind,
                encoding,
                elements,
                bytes,
                ttl,
                frequency: None,
                string_bytes: None,
                field_name_bytes: None,
            },
        );
    }

    #[test]
    fn keys_are_grouped_by_pattern_and_biggest_are_listed() {
        let mut groups = KeyGroups::default();
        for number in 0..1000 {
            add_sample_key(&mut groups, &format!("user:{number}:profile"), 11, 400, None);
            add_sample_key(&mut groups, &format!("session:{number}"), 3, 100, Some(number * 1000));
        }
        add_sample_key(&mut groups, "user:7000:profile", 520, 50_000, None);
        let before = PatternTotals::from([("user:*:profile".to_owned(), (900, 400_000))]);
        let report = groups.to_json(Some(&before), 10);
        let users = &report["groups"][0];
        assert_eq!((&users["pattern"], &users["keys"]), (&"user:*:profile".into(), &1001.into()));
        assert_eq!((&users["just_past"], &users["before"]["keys"]), (&1.into(), &900.into()));
        let sessions = &report["groups"][1];
        assert_eq!((&sessions["expiring"], &sessions["longest_ttl"]), (&1000.into(), &999_000.into()));
        assert_eq!(report["big"][0]["key"], "user:7000:profile");
    }

    #[test]
    fn number_of_patterns_is_bounded_and_all_keys_count() {
        let mut groups = KeyGroups::default();
        let letters = |number: u32| -> String {
            (0..4).map(|at| char::from(b'g' + ((number >> (at * 4)) & 15) as u8)).collect()
        };
        (0..12_000).for_each(|number| add_sample_key(&mut groups, &letters(number), 1, 10, None));
        assert!(groups.groups.len() <= MAX_PATTERNS + 1 && groups.key_count() == 12_000);
    }
}
