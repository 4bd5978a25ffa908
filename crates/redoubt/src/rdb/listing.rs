//! Prints one line per key.

use std::io::{self, Write};

use anyhow::Result;
use clock::Millis;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::keys::KeyInfo;
use super::{RdbFormat, escape_key};

/// The columns of the memory report of redis-rdb-tools, which other tools read.
const CSV_COLUMNS: [&str; 8] =
    ["database", "type", "key", "size_in_bytes", "encoding", "num_elements", "len_largest_element", "expiry"];

/// A key in JSON output.
#[derive(Debug, Serialize)]
struct ListingRow<'a> {
    db: u16,
    key: String,
    /// The key in hexadecimal. `None` if it is valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    r#type: &'a str,
    encoding: &'a str,
    elements: u64,
    largest_element: u64,
    size: u64,
    /// The expiry time in Unix milliseconds; `None` if the key does not expire.
    expires_at: Option<i64>,
    /// The time until the key expires, in milliseconds. It is negative if the key has expired.
    ttl: Option<i64>,
}

/// Prints keys in one of the formats.
pub(super) enum KeyListing<W: Write> {
    Text(W, Millis),
    Json(W, Millis),
    Csv(Box<csv::Writer<W>>),
}

impl<W: Write> KeyListing<W> {
    pub(super) fn new(format: RdbFormat, mut out: W) -> io::Result<Self> {
        let now = now_millis();
        Ok(match format {
            RdbFormat::Text => {
                writeln!(
                    out,
                    "{:>3} {:<6} {:<10} {:>10} {:>12} {:>12}  key",
                    "db", "type", "encoding", "elements", "bytes", "ttl"
                )?;
                Self::Text(out, now)
            }
            RdbFormat::Json => Self::Json(out, now),
            RdbFormat::Csv => {
                let mut writer = csv::Writer::from_writer(out);
                writer.write_record(CSV_COLUMNS)?;
                Self::Csv(Box::new(writer))
            }
        })
    }

    pub(super) fn write_key(&mut self, key: &KeyInfo) -> Result<()> {
        let KeyInfo { db, kind, encoding, elements, memory_bytes: size, expiry, .. } = key;
        match self {
            Self::Text(out, now) => writeln!(
                out,
                "{db:>3} {:<6} {encoding:<10} {elements:>10} {size:>12} {:>12}  {}",
                kind.name(),
                format_time_left(*expiry, *now),
                escape_key(&key.key)
            )?,
            Self::Json(out, now) => {
                serde_json::to_writer(&mut *out, &listing_row(key, *now)).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            Self::Csv(writer) => {
                let (db, size, elements, longest) =
                    (db.to_string(), size.to_string(), elements.to_string(), key.longest_element.to_string());
                let (text, expiry) = (escape_key(&key.key), expiry.map(format_date).unwrap_or_default());
                writer
                    .write_record([&db, kind.name(), &text, &size, encoding, &elements, &longest, &expiry])
                    .map_err(io::Error::from)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Text(mut out, _) | Self::Json(mut out, _) => out.flush(),
            Self::Csv(mut writer) => writer.flush(),
        }
    }
}

fn listing_row(key: &KeyInfo, now: Millis) -> ListingRow<'_> {
    let text = std::str::from_utf8(&key.key);
    let hex = || key.key.iter().map(|byte| format!("{byte:02x}")).collect();
    ListingRow {
        db: key.db,
        key: text.map_or_else(|_| escape_key(&key.key), str::to_owned),
        key_hex: text.is_err().then(hex),
        r#type: key.kind.name(),
        encoding: key.encoding,
        elements: key.elements,
        largest_element: key.longest_element,
        size: key.memory_bytes,
        expires_at: key.expiry.map(|expiry| expiry.0),
        ttl: key.expiry.map(|expiry| expiry.0.saturating_sub(now.0)),
    }
}

pub(super) fn now_millis() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn format_time_left(expiry: Option<Millis>, now: Millis) -> String {
    match expiry {
        None => "-".to_owned(),
        Some(expiry) if expiry <= now => "expired".to_owned(),
        Some(expiry) => format!("{}s", (expiry.0 - now.0) / 1000),
    }
}

/// Formats a time in RFC 3339, or as milliseconds if it is out of range.
fn format_date(at: Millis) -> String {
    let date = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000_000).ok();
    date.and_then(|date| date.format(&Rfc3339).ok()).unwrap_or_else(|| at.0.to_string())
}

#[cfg(test)]
mod tests {
    use keyspace::Kind;

    use super::*;

    fn test_key() -> KeyInfo {
        KeyInfo {
            db: 3,
            key: b"a,\"b\xff".to_vec(),
            kind: Kind::Hash,
            encoding: "listpack",
            elements: 2,
            longest_element: 5,
            memory_bytes: 90,
            expiry: Some(Millis(1_700_000_000_123)),
        }
    }

    fn list_to_string(format: RdbFormat) -> String {
        let mut out = Vec::new();
        let mut listing = KeyListing::new(format, &mut out).unwrap();
        listing.write_key(&test_key()).unwrap();
        listing.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn key_is_printed_in_each_format() {
        let text = list_to_string(RdbFormat::Text);
        assert!(
            text.ends_with("  3 hash   listpack            2           90      expired  a,\"b\\xff\n"),
            "{text}"
        );
        let csv = list_to_string(RdbFormat::Csv);
        assert_eq!(csv.lines().next(), Some(CSV_COLUMNS.join(",").as_str()));
        let line = "3,hash,\"a,\"\"b\\xff\",90,listpack,2,5,2023-11-14T22:13:20.123Z";
        assert_eq!(csv.lines().nth(1), Some(line));
        let object: serde_json::Value = serde_json::from_str(&list_to_string(RdbFormat::Json)).unwrap();
        assert_eq!((&object["key"], &object["key_hex"]), (&"a,\"b\\xff".into(), &"612c2262ff".into()));
        assert_eq!((&object["type"], &object["expires_at"]), (&"hash".into(), &1_700_000_000_123_i64.into()));
    }
}
