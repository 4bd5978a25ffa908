//! Loads files that real servers wrote (scripts/make-rdb-files): the same data from Redis 7.0, Redis 8.0 and Valkey
//! 9.1, with each value type in each encoding of that server.

use keyspace::{DetachedValue, EncodingLimits, Key, Keyspace, Kind, StreamId, Table};

use super::*;

const SERVER_FILES: [&str; 4] = ["redis-7.0", "redis-8.0", "redis-8.6", "valkey-9.1"];

/// Returns the contents of a file: one line per library and key, in order.
fn format_file(server: &str, name: &str) -> Option<Vec<String>> {
    let path = format!("{}/testdata/{server}-{name}.rdb", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).ok()?;
    let mut loader = RdbLoader::new(file.as_slice(), ReadLimits::default()).unwrap();
    let keyspace = Keyspace::new(1, 16);
    let mut lines = Vec::new();
    while let Some(item) = loader.next_item().unwrap() {
        let entry = match item {
            RdbItem::Entry(entry) => entry,
            RdbItem::Function(code) => {
                let first = code.split(|byte| *byte == b'\n').next().unwrap_or_default();
                lines.push(format!("function {}", lossy_text(first)));
                continue;
            }
            _ => continue,
        };
        let (name, db, expiry) = (entry.key.to_vec(), entry.db, entry.expiry);
        let is_part = entry.is_part;
        let key = keyspace.key(&name);
        let mut slot = keyspace.lock(key.slot());
        if is_part {
            let mut value = DetachedValue::empty_large(entry.packed_value.kind());
            assert!(value.add_part(entry.packed_value, &EncodingLimits::default()));
            while let Some(RdbItem::NextPart { part, is_last }) = loader.next_item().unwrap() {
                assert!(value.add_part(part, &EncodingLimits::default()));
                if is_last {
                    break;
                }
            }
            slot.table(db).attach(&key, value, expiry);
        } else {
            slot.table(db).insert(&key, entry.packed_value, expiry);
        }
        lines.push(format_key(slot.table(db), &key, &name, db, expiry));
    }
    lines.sort();
    Some(lines)
}

fn lossy_text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.len() > 50 { format!("{} of {}", &text[..1], text.len()) } else { text.into_owned() }
}

fn format_key(table: &Table, key: &Key<'_>, name: &[u8], db: u16, expiry: Option<Millis>) -> String {
    let keyspace::KeyLookup::Live(place) = table.find(key, Millis(0)) else { panic!("it was stored") };
    let value = table.value(place);
    let mut parts = Vec::new();
    match value {
        Value::String(string) => parts.push(lossy_text(string.bytes)),
        Value::List(list) => {
            list.for_each(&mut |item| {
                parts.push(lossy_text(item.bytes(&mut keyspace::ItemDigits::default())));
            });
        }
        Value::Set(set) => set.for_each(&mut |member| parts.push(lossy_text(&member))),
        Value::SortedSet(set) => {
            set.visit(0..set.len(), false, &mut |member| {
                parts.push(format!("{} {}", lossy_text(member.name), member.score));
                true
            });
        }
        Value::Hash(hash) => hash.for_each(&mut |field| {
            let expiry = field.expiry.map(|Millis(at)| format!(" until {at}")).unwrap_or_default();
            parts.push(format!("{} {}{expiry}", lossy_text(field.name), lossy_text(field.value)));
        }),
        Value::Stream(stream) => parts.extend(format_stream_groups(&stream.to_stream())),
    }
    if matches!(value.kind(), Kind::Set | Kind::Hash) {
        parts.sort();
    }
    let expiry = expiry.map(|Millis(at)| format!(" until {at}")).unwrap_or_default();
    format!("{db} {}{expiry}: {}", lossy_text(name), parts.join(", "))
}

fn format_stream_groups(stream: &keyspace::Stream) -> Vec<String> {
    let head = stream.head();
    let mut parts = vec![format!(
        "{} of {}, last {}, deleted {}",
        head.len, head.entries_added, head.last_id, head.max_deleted_id
    )];
    for entry in stream.range(StreamId::MIN, StreamId { millis: u64::MAX, sequence: u64::MAX }) {
        let mut fields = String::new();
        entry.for_each(&mut |name, value| {
            fields.push_str(&format!(" {}={}", lossy_text(name), lossy_text(value)));
        });
        parts.push(format!("{}{fields}", entry.id));
    }
    for (name, group) in stream.groups() {
        parts.push(format!(
            "group {} at {} after {:?}",
            lossy_text(name),
            group.last_delivered,
            group.entries_read
        ));
        for (name, consumer) in group.consumers() {
            parts.push(format!("consumer {} has {}", lossy_text(name), consumer.pending_len()));
        }
        for (id, pending) in group.pending_from(StreamId::MIN) {
            parts.push(format!(
                "{id} with {} {} times",
                lossy_text(&pending.consumer),
                pending.delivery_count
            ));
        }
    }
    parts
}

fn check_files(name: &str, expected: &[&str]) {
    for server in SERVER_FILES {
        match format_file(server, name) {
            Some(lines) => assert_eq!(lines, expected, "{server}"),
            // Redis 7.0 has no field expiry.
            None => assert_eq!((server, name), ("redis-7.0", "fields")),
        }
    }
}

#[test]
fn reads_strings_of_real_servers() {
    check_files(
        "string",
        &[
            "0 big: 12345678901234",
            "0 long: x of 100",
            "0 negative: -70000",
            "0 small: 7",
            "0 text: hello",
            "0 timed until 4102444800123: x",
            "3 other: db",
        ],
    );
}

#[test]
fn reads_lists_of_real_servers() {
    let nodes = ["0 nodes: a, b, c, d, e, f, g, 70000", "0 packed: a, 1, -300", "0 plain: y of 9000, z"];
    check_files("list", &nodes);
}

#[test]
fn reads_sets_of_real_servers() {
    let lines = [
        "0 integers: 1, 2, 70000",
        "0 long-word: x of 100",
        "0 many-integers: 1, 2, 3, 4, 5",
        "0 words: 3, a, b",
    ];
    check_files("set", &lines);
}

#[test]
fn reads_sorted_sets_of_real_servers() {
    check_files("zset", &["0 many: f -inf, a 1, b 2, c 3, d 4.25, e inf", "0 packed: c -3, a 1, b 2.5"]);
}

#[test]
fn reads_hashes_of_real_servers() {
    check_files("hash", &["0 long: a x of 100", "0 many: a 1, b 2, c 3, d 4", "0 packed: a 1, b two"]);
}

#[test]
fn reads_hash_field_expiry_of_real_servers() {
    let many = "0 many: a 1 until 4102444800456, b 2, c 3 until 4102444800456, d 4";
    check_files("fields", &[many, "0 packed: a 1 until 4102444800123, b 2"]);
}

#[test]
fn reads_streams_of_real_servers() {
    let groups = "0 groups: 2 of 2, last 2-0, deleted 0-0, 1-0 a=1, 2-0 a=2, group first at 2-0 after Some(2), \
                  consumer idle has 0, consumer worker has 1, 2-0 with worker 1 times, group second at 1-0 after None";
    let plain = "0 plain: 3 of 4, last 3-0, deleted 1-2, 1-1 a=1 b=2, 2-0 other=x, 3-0 a=5 b=6";
    check_files("stream", &["0 empty: 0 of 1, last 5-5, deleted 5-5", groups, plain]);
}

#[test]
fn reads_function_libraries() {
    check_files("function", &["0 key: value", "function #!lua name=lib"]);
}
