//! Formats slot migrations for a terminal: slots, peer, state, progress, speed and remaining time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use redis::Value;
use serde_json::Number;

use super::replace_control_characters;

/// The fields of one migration, as in the reply of CLUSTER GETSLOTMIGRATIONS.
pub(super) type MigrationFields = BTreeMap<String, Value>;

/// Width of the progress bar in columns.
const BAR_COLUMNS: u64 = 20;

/// Formats all migrations in the given order.
pub(super) fn format_migrations(migrations: &[MigrationFields]) -> String {
    if migrations.is_empty() {
        return "No slot migrations since the node started.\n".to_owned();
    }
    migrations.iter().map(format_migration).collect()
}

/// Formats all migrations as JSON.
pub(super) fn migrations_to_json(migrations: &[MigrationFields]) -> String {
    let value = |value: &Value| match value {
        Value::Int(number) => serde_json::Value::Number(Number::from(*number)),
        other => serde_json::Value::String(redis::from_redis_value_ref(other).unwrap_or_default()),
    };
    let object =
        |one: &MigrationFields| one.iter().map(|(name, field)| (name.clone(), value(field))).collect();
    serde_json::Value::Array(migrations.iter().map(|one| serde_json::Value::Object(object(one))).collect())
        .to_string()
}

fn format_migration(fields: &MigrationFields) -> String {
    let text = |name: &str| {
        let text = fields.get(name).and_then(|value| redis::from_redis_value_ref::<String>(value).ok());
        replace_control_characters(&text.unwrap_or_default())
    };
    let number = |name: &str| match fields.get(name) {
        Some(Value::Int(number)) => u64::try_from(*number).ok(),
        _ => None,
    };
    let short = |id: String| id.get(..8).unwrap_or_default().to_owned();
    let other = match text("operation").as_str() {
        "EXPORT" => format!("to {}", short(text("target_node"))),
        // A replica does not know the source of its master's import.
        _ if text("source_node").is_empty() => "from another node".to_owned(),
        _ => format!("from {}", short(text("source_node"))),
    };
    let mut drawn =
        format!("{} slots {} {other}: {}", short(text("name")), text("slot_ranges"), text("state"));
    let why = text("message");
    if !why.is_empty() {
        drawn = format!("{drawn} ({why})");
    }
    let (keys, bytes) = (number("keys_moved"), number("bytes_moved").unwrap_or(0));
    let speed = format_bytes(number("bytes_per_sec").unwrap_or(0));
    let keys = match (keys, number("keys_total")) {
        (Some(keys), Some(all)) => {
            let done = (keys.min(all) * BAR_COLUMNS).checked_div(all).unwrap_or(BAR_COLUMNS);
            let bar: String = (0..BAR_COLUMNS).map(|column| if column < done { '#' } else { '.' }).collect();
            drawn = format!("{drawn}\n  |{bar}|");
            format!("{keys} of {all} keys, ")
        }
        (keys, _) => {
            drawn.push_str("\n ");
            keys.map(|keys| format!("{keys} keys, ")).unwrap_or_default()
        }
    };
    // Writing into a string does not fail.
    let _ = write!(drawn, " {keys}{} at {speed}/s", format_bytes(bytes));
    match number("left_ms") {
        Some(left @ 1..) => drawn + &format!(", {}.{} s left\n", left / 1000, left % 1000 / 100),
        _ => drawn + "\n",
    }
}

fn format_bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration_fields(words: &[(&str, &str)], numbers: &[(&str, i64)]) -> MigrationFields {
        let words = words
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Value::BulkString(text.as_bytes().to_vec())));
        let numbers = numbers.iter().map(|(name, number)| ((*name).to_owned(), Value::Int(*number)));
        words.chain(numbers).collect()
    }

    #[test]
    fn migration_shows_progress_and_omits_unknown_fields() {
        let words = [
            ("name", "0123456789abcdef"),
            ("operation", "EXPORT"),
            ("slot_ranges", "0-10 12-12"),
            ("target_node", "fedcba9876543210"),
            ("state", "snapshotting"),
            ("message", ""),
        ];
        let numbers = [
            ("keys_total", 400),
            ("keys_moved", 100),
            ("bytes_moved", 25_000),
            ("bytes_per_sec", 900),
            ("left_ms", 1250),
        ];
        let expected = "01234567 slots 0-10 12-12 to fedcba98: snapshotting\n  \
                        |#####...............| 100 of 400 keys, 25 kB at 900 bytes/s, 1.2 s left\n";
        assert_eq!(format_migrations(&[migration_fields(&words, &numbers)]), expected);
        let words = [
            ("name", "0123456789abcdef"),
            ("slot_ranges", "1-1"),
            ("state", "failed"),
            ("message", "no\x1b"),
        ];
        let numbers = [("keys_total", -1), ("keys_moved", 7), ("left_ms", 0)];
        let told = format_migrations(&[migration_fields(&words, &numbers)]);
        assert_eq!(
            told,
            "01234567 slots 1-1 from another node: failed (no?)\n  7 keys, 0 bytes at 0 bytes/s\n"
        );
        assert_eq!(
            migrations_to_json(&[migration_fields(&[("a", "b")], &[("c", 1)])]),
            r#"[{"a":"b","c":1}]"#
        );
        assert!(format_migrations(&[]).starts_with("No slot migrations"));
    }
}
