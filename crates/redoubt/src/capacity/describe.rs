//! KeyGroup from a file: a description of several kinds in YAML, or a sample of records.
//!
//! A record (an object of JSON on a line, a row of CSV) is a hash of its columns. Its key is as long as its first column, or
//! as is said with `--key-bytes`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use ::capacity::KeyGroup;
use anyhow::{Context as _, Result, bail};
use keyspace::Kind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::quantity::Quantity;

/// The longest YAML that is read.
const LONGEST: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    data: Vec<Item>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    name: String,
    #[serde(deserialize_with = "kind")]
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

/// A kind by the name that TYPE gives it, or by its long one.
fn kind<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
    let name = String::deserialize(from)?;
    let short = if ["sortedset", "sorted-set"].contains(&name.as_str()) { "zset" } else { &name };
    Kind::of_name(short).ok_or_else(|| {
        let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        D::Error::custom(format!("unknown type `{name}`, expected one of {}", known.join(", ")))
    })
}

impl From<Item> for KeyGroup {
    fn from(item: Item) -> Self {
        Self {
            name: item.name,
            kind: item.r#type,
            keys: item.keys.0,
            elements: item.elements.map_or(1, |elements| elements.0.max(1)),
            key_bytes: item.key_bytes,
            field_bytes: item.field_bytes,
            value_bytes: item.value_bytes,
            longest_bytes: item.longest_bytes,
            expires: item.ttl,
            integers: item.integers,
        }
    }
}

/// The properties of the data that the file does not have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    pub(super) keys: Option<u64>,
    pub(super) key_bytes: Option<u64>,
    pub(super) expires: bool,
}

/// Reads a file by what its name ends with.
pub(super) fn read(path: &Path, beside: Beside) -> Result<Vec<KeyGroup>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("Cannot open file {shown}"))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match path.extension().and_then(|end| end.to_str()) {
        Some("yaml" | "yml") => {
            if file.metadata()?.len() > LONGEST {
                bail!("{shown} is too long");
            }
            let text = std::io::read_to_string(file).with_context(|| format!("Cannot read {shown}"))?;
            let read: Description = serde_saphyr::from_str(&text)
                .with_context(|| format!("{shown} is not a data description"))?;
            Ok(read.data.into_iter().map(KeyGroup::from).collect())
        }
        Some("jsonl" | "ndjson" | "json") => json_lines(file).and_then(|sums| sums.data(name, beside)),
        Some("csv") => rows(file).and_then(|sums| sums.data(name, beside)),
        _ => bail!("{shown} is neither .yaml, .jsonl nor .csv"),
    }
    .with_context(|| format!("Cannot plan from {shown}"))
}

/// Sums over all records.
#[derive(Debug, Default)]
struct Sums {
    records: u64,
    first: u64,
    fields: u64,
    names: u64,
    values: u64,
    longest: u64,
}

impl Sums {
    fn add(&mut self, name: usize, value: usize, is_first: bool) {
        if is_first {
            self.records += 1;
            self.first += value as u64;
        }
        self.fields += 1;
        self.names += name as u64;
        self.values += value as u64;
    }

    fn data(self, name: String, beside: Beside) -> Result<Vec<KeyGroup>> {
        if self.records == 0 || self.fields == 0 {
            bail!("the file has no records");
        }
        let mean = |sum: u64, of: u64| (sum + of / 2) / of;
        // The longest value of a record, on the average of records.
        let longest = mean(self.longest, self.records);
        Ok(vec![KeyGroup {
            name,
            kind: Kind::Hash,
            keys: beside.keys.unwrap_or(self.records),
            elements: mean(self.fields, self.records).max(1),
            key_bytes: beside.key_bytes.unwrap_or_else(|| mean(self.first, self.records)),
            field_bytes: mean(self.names, self.fields),
            value_bytes: mean(self.values, self.fields),
            longest_bytes: Some(longest),
            expires: beside.expires,
            integers: false,
        }])
    }
}

fn json_lines(file: File) -> Result<Sums> {
    let mut sums = Sums::default();
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
            sums.add(name.len(), len, index == 0);
        }
        sums.longest += longest;
    }
    Ok(sums)
}

fn rows(file: File) -> Result<Sums> {
    let mut reader = csv::Reader::from_reader(BufReader::new(file));
    let names: Vec<usize> = reader.headers()?.iter().map(str::len).collect();
    let mut sums = Sums::default();
    for record in reader.into_byte_records() {
        let record = record?;
        for (index, (value, name)) in record.iter().zip(&names).enumerate() {
            sums.add(*name, value.len(), index == 0);
        }
        sums.longest += record.iter().map(<[u8]>::len).max().unwrap_or(0) as u64;
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const BESIDE: Beside = Beside { keys: None, key_bytes: None, expires: false };

    fn read_text(end: &str, text: &str) -> Result<Vec<KeyGroup>> {
        let mut file = tempfile::Builder::new().suffix(end).tempfile()?;
        file.write_all(text.as_bytes())?;
        read(file.path(), BESIDE)
    }

    #[test]
    fn the_same_records_are_the_same_data_in_either_form() {
        let csv = read_text(".csv", "id,name\n1000,anna\n1001,b\n").unwrap();
        let json =
            read_text(".jsonl", "{\"id\": 1000, \"name\": \"anna\"}\n\n{\"id\": 1001, \"name\": \"b\"}\n")
                .unwrap();
        assert_eq!(
            KeyGroup { name: String::new(), ..csv[0].clone() },
            KeyGroup { name: String::new(), ..json[0].clone() }
        );
        let data = &csv[0];
        assert_eq!((data.keys, data.elements, data.key_bytes, data.field_bytes), (2, 2, 4, 3));
        assert_eq!((data.value_bytes, data.longest_bytes), (3, Some(4)));
    }

    #[test]
    fn a_description_names_several_kinds() {
        let text = "data:\n  - {name: users, type: hash, keys: 700M, fields: 11, key_bytes: 17, field_bytes: 2, \
                    value_bytes: 24}\n  - {name: tokens, type: string, keys: 1000, key_bytes: 30, value_bytes: 64, ttl: true}\n";
        let data = read_text(".yaml", text).unwrap();
        assert_eq!((data[0].keys, data[0].elements, data[0].kind), (700_000_000, 11, Kind::Hash));
        assert!(data[1].expires && data[1].elements_per_key() == 1);
    }

    #[test]
    fn what_is_no_data_is_said_so() {
        for (end, text) in [
            (".yaml", "data: [{name: x}]"),
            (".jsonl", "[1]"),
            (".csv", "a,b\n"),
            (".txt", "x"),
            (".yaml", "- : ["),
        ] {
            assert!(read_text(end, text).is_err(), "{end}");
        }
    }
}
