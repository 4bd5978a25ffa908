//! Reads the data sets to plan for from a YAML description or from sample records.
//!
//! A record (a JSON object per line, or a CSV row) becomes a hash of its columns. The length of its key is that of the first
//! column, unless `--key-bytes` is given.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use ::capacity::KeyGroup;
use anyhow::{Context as _, Result, bail};
use keyspace::Kind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::quantity::Quantity;

/// Maximum size of a YAML file in bytes.
const MAX_YAML_BYTES: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataDescription {
    data: Vec<DataSetDescription>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataSetDescription {
    name: String,
    #[serde(deserialize_with = "deserialize_kind")]
    r#type: Kind,
    keys: Quantity,
    #[serde(alias = "fields", default)]
    elements: Option<Quantity>,
    key_bytes: u64,
    #[serde(default)]
    field_bytes: u64,
    value_bytes: u64,
    #[serde(default)]
    longest_bytes: Option<u64>,
    #[serde(default)]
    ttl: bool,
    #[serde(default)]
    integers: bool,
}

/// Accepts the names of TYPE, and `sortedset` or `sorted-set` for `zset`.
fn deserialize_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    let name = String::deserialize(deserializer)?;
    let short = if ["sortedset", "sorted-set"].contains(&name.as_str()) { "zset" } else { &name };
    Kind::from_name(short).ok_or_else(|| {
        let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        D::Error::custom(format!("unknown type `{name}`, expected one of {}", known.join(", ")))
    })
}

impl From<DataSetDescription> for KeyGroup {
    fn from(item: DataSetDescription) -> Self {
        Self {
            name: item.name,
            kind: item.r#type,
            keys: item.keys.0,
            elements: item.elements.map_or(1, |elements| elements.0.max(1)),
            key_bytes: item.key_bytes,
            field_bytes: item.field_bytes,
            value_bytes: item.value_bytes,
            longest_value_bytes: item.longest_bytes,
            expires: item.ttl,
            values_are_integers: item.integers,
        }
    }
}

/// Command-line options that override or complete the values derived from sample records.
#[derive(Debug, Clone, Copy)]
pub(super) struct DataSetOverrides {
    pub(super) keys: Option<u64>,
    pub(super) key_bytes: Option<u64>,
    pub(super) expires: bool,
}

/// Reads a file in the format of its extension.
pub(super) fn read_data_sets(path: &Path, overrides: DataSetOverrides) -> Result<Vec<KeyGroup>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("Cannot open file {shown}"))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match path.extension().and_then(|end| end.to_str()) {
        Some("yaml" | "yml") => {
            if file.metadata()?.len() > MAX_YAML_BYTES {
                bail!("{shown} is too long");
            }
            let text = std::io::read_to_string(file).with_context(|| format!("Cannot read {shown}"))?;
            let read: DataDescription = serde_saphyr::from_str(&text)
                .with_context(|| format!("{shown} is not a data description"))?;
            Ok(read.data.into_iter().map(KeyGroup::from).collect())
        }
        Some("jsonl" | "ndjson" | "json") => {
            sum_json_lines(file).and_then(|sums| sums.into_key_groups(name, overrides))
        }
        Some("csv") => sum_csv_rows(file).and_then(|sums| sums.into_key_groups(name, overrides)),
        _ => bail!("{shown} is neither .yaml, .jsonl nor .csv"),
    }
    .with_context(|| format!("Cannot plan from {shown}"))
}

/// Sums over all sample records, from which means are computed.
#[derive(Debug, Default)]
struct RecordSums {
    record_count: u64,
    first_column_bytes: u64,
    field_count: u64,
    name_bytes: u64,
    value_bytes: u64,
    longest_value_bytes: u64,
}

impl RecordSums {
    fn add_column(&mut self, name_bytes: usize, value_bytes: usize, is_first: bool) {
        if is_first {
            self.record_count += 1;
            self.first_column_bytes += value_bytes as u64;
        }
        self.field_count += 1;
        self.name_bytes += name_bytes as u64;
        self.value_bytes += value_bytes as u64;
    }

    fn into_key_groups(self, name: String, overrides: DataSetOverrides) -> Result<Vec<KeyGroup>> {
        if self.record_count == 0 || self.field_count == 0 {
            bail!("the file has no records");
        }
        let mean = |sum: u64, of: u64| (sum + of / 2) / of;
        // The sum adds up the longest value of each record, so this is the mean over all records.
        let longest = mean(self.longest_value_bytes, self.record_count);
        Ok(vec![KeyGroup {
            name,
            kind: Kind::Hash,
            keys: overrides.keys.unwrap_or(self.record_count),
            elements: mean(self.field_count, self.record_count).max(1),
            key_bytes: overrides
                .key_bytes
                .unwrap_or_else(|| mean(self.first_column_bytes, self.record_count)),
            field_bytes: mean(self.name_bytes, self.field_count),
            value_bytes: mean(self.value_bytes, self.field_count),
            longest_value_bytes: Some(longest),
            expires: overrides.expires,
            values_are_integers: false,
        }])
    }
}

fn sum_json_lines(file: File) -> Result<RecordSums> {
    let mut sums = RecordSums::default();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let record: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line)
            .with_context(|| format!("line {} is not a JSON object", number + 1))?;
        let mut longest = 0;
        for (index, (name, value)) in record.iter().enumerate() {
            let len = value.as_str().map_or_else(|| value.to_string().len(), str::len);
            longest = longest.max(len as u64);
            sums.add_column(name.len(), len, index == 0);
        }
        sums.longest_value_bytes += longest;
    }
    Ok(sums)
}

fn sum_csv_rows(file: File) -> Result<RecordSums> {
    let mut reader = csv::Reader::from_reader(BufReader::new(file));
    let names: Vec<usize> = reader.headers()?.iter().map(str::len).collect();
    let mut sums = RecordSums::default();
    for record in reader.into_byte_records() {
        let record = record?;
        for (index, (value, name)) in record.iter().zip(&names).enumerate() {
            sums.add_column(*name, value.len(), index == 0);
        }
        sums.longest_value_bytes += record.iter().map(<[u8]>::len).max().unwrap_or(0) as u64;
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const NO_OVERRIDES: DataSetOverrides = DataSetOverrides { keys: None, key_bytes: None, expires: false };

    fn read_from_text(extension: &str, text: &str) -> Result<Vec<KeyGroup>> {
        let mut file = tempfile::Builder::new().suffix(extension).tempfile()?;
        file.write_all(text.as_bytes())?;
        read_data_sets(file.path(), NO_OVERRIDES)
    }

    #[test]
    fn csv_and_json_records_give_the_same_data() {
        let csv = read_from_text(".csv", "id,name\n1000,anna\n1001,b\n").unwrap();
        let json = read_from_text(
            ".jsonl",
            "{\"id\": 1000, \"name\": \"anna\"}\n\n{\"id\": 1001, \"name\": \"b\"}\n",
        )
        .unwrap();
        assert_eq!(
            KeyGroup { name: String::new(), ..csv[0].clone() },
            KeyGroup { name: String::new(), ..json[0].clone() }
        );
        let data = &csv[0];
        assert_eq!((data.keys, data.elements, data.key_bytes, data.field_bytes), (2, 2, 4, 3));
        assert_eq!((data.value_bytes, data.longest_value_bytes), (3, Some(4)));
    }

    #[test]
    fn yaml_description_has_several_data_sets() {
        let text = "data:\n  - {name: users, type: hash, keys: 700M, fields: 11, key_bytes: 17, field_bytes: 2, \
                    value_bytes: 24}\n  - {name: tokens, type: string, keys: 1000, key_bytes: 30, value_bytes: 64, ttl: true}\n";
        let data = read_from_text(".yaml", text).unwrap();
        assert_eq!((data[0].keys, data[0].elements, data[0].kind), (700_000_000, 11, Kind::Hash));
        assert!(data[1].expires && data[1].elements_per_key() == 1);
    }

    #[test]
    fn invalid_files_are_rejected() {
        for (end, text) in [
            (".yaml", "data: [{name: x}]"),
            (".jsonl", "[1]"),
            (".csv", "a,b\n"),
            (".txt", "x"),
            (".yaml", "- : ["),
        ] {
            assert!(read_from_text(end, text).is_err(), "{end}");
        }
    }
}
