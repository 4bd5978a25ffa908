//! Implements BITFIELD and BITFIELD_RO.

use engine::{CommandError, Context, EventClass, KeyFlags};
use keyspace::{EncodingHint, EntryRef, Key, PackedValue, StringRef};
use resp::Args;
use smallvec::SmallVec;

use super::integer::{IntegerType, OverflowMode};
use super::parse_bit_offset;

/// One sub-operation: GET, SET or INCRBY on an integer within the string.
#[derive(Debug, Clone, Copy)]
struct FieldOperation {
    action: FieldAction,
    integer_type: IntegerType,
    offset: u64,
}

#[derive(Debug, Clone, Copy)]
enum FieldAction {
    Get,
    Set { value: i64, overflow: OverflowMode },
    Add { amount: i64, overflow: OverflowMode },
}

type FieldOperations = SmallVec<[FieldOperation; 4]>;

/// Parses `GET type offset`, `SET type offset value`, `INCRBY type offset amount` and `OVERFLOW WRAP | SAT |
/// FAIL`. OVERFLOW applies to the operations after it.
fn parse_operations(context: &Context<'_>) -> Result<FieldOperations, CommandError> {
    let args = context.args;
    let mut operations = FieldOperations::new();
    let mut overflow = OverflowMode::Wrap;
    let mut index = 2;
    while let Some(word) = args.get(index) {
        let left = args.len() - index - 1;
        let is =
            |name: &str, arguments: usize| word.eq_ignore_ascii_case(name.as_bytes()) && left >= arguments;
        if is("overflow", 1) {
            overflow = parse_overflow(&args[index + 1])?;
            index += 2;
            continue;
        }
        let (get, set, add) = (is("get", 2), is("set", 3), is("incrby", 3));
        if !get && !set && !add {
            return Err(CommandError::Syntax);
        }
        let width = IntegerType::parse(&args[index + 1]).ok_or(CommandError::text(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        ))?;
        let offset = parse_bit_offset(context, index + 2, Some(width.bits))?;
        let action = if get {
            FieldAction::Get
        } else {
            let number = context.integer_arg(index + 3)?;
            if set {
                FieldAction::Set { value: number, overflow }
            } else {
                FieldAction::Add { amount: number, overflow }
            }
        };
        operations.push(FieldOperation { action, integer_type: width, offset });
        index += if get { 3 } else { 4 };
    }
    Ok(operations)
}

fn parse_overflow(word: &[u8]) -> Result<OverflowMode, CommandError> {
    match () {
        () if word.eq_ignore_ascii_case(b"wrap") => Ok(OverflowMode::Wrap),
        () if word.eq_ignore_ascii_case(b"sat") => Ok(OverflowMode::Saturate),
        () if word.eq_ignore_ascii_case(b"fail") => Ok(OverflowMode::Fail),
        () => Err(CommandError::text("ERR Invalid OVERFLOW type specified")),
    }
}

/// Key flags of BITFIELD: read-only if all operations are GET. An unknown word counts as a write.
pub(super) fn key_flags(args: Args<'_>) -> KeyFlags {
    let mut index = 2;
    while let Some(word) = args.get(index) {
        let behind = args.len() - 1 - index;
        index += match () {
            () if word.eq_ignore_ascii_case(b"get") && behind >= 2 => 3,
            () if word.eq_ignore_ascii_case(b"overflow") && behind >= 1 => 2,
            () => return KeyFlags::RW | KeyFlags::ACCESS | KeyFlags::UPDATE,
        };
    }
    KeyFlags::RO | KeyFlags::ACCESS
}

pub(super) fn bitfield(context: &mut Context<'_>) -> Result<(), CommandError> {
    let operations = parse_operations(context)?;
    if operations.iter().all(|operation| matches!(operation.action, FieldAction::Get)) {
        run_read_only(context, &operations)
    } else {
        run_writing(context, &operations)
    }
}

pub(super) fn bitfield_ro(context: &mut Context<'_>) -> Result<(), CommandError> {
    let operations = parse_operations(context)?;
    if operations.iter().any(|operation| !matches!(operation.action, FieldAction::Get)) {
        return Err(CommandError::text("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    run_read_only(context, &operations)
}

fn run_read_only(context: &mut Context<'_>, operations: &[FieldOperation]) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.read_typed::<StringRef<'_>>(&key)?;
    let (table, reply) = context.table_and_reply(&key);
    let string = found.and_then(|place| table.typed_value::<StringRef<'_>>(place));
    let bytes = string.map_or(&b""[..], |string| string.bytes);
    reply.array(operations.len());
    for operation in operations {
        reply.integer(operation.integer_type.read(bytes, operation.offset));
    }
    Ok(())
}

/// Returns the string under the command's key, extended to `len` bytes.
fn extend_string<'c>(
    context: &'c mut Context<'_>,
    key: &Key<'_>,
    found: Option<EntryRef>,
    len: usize,
) -> &'c mut [u8] {
    let place = match found {
        Some(place) => place,
        None => context.table(key).insert(key, PackedValue::string(b""), None),
    };
    context.table(key).edit_string(place, key, len, EncodingHint::Raw).1
}

fn run_writing(context: &mut Context<'_>, operations: &[FieldOperation]) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find_typed::<StringRef<'_>>(&key)?;
    let len = match found {
        Some(place) => context.string_value(&key, place)?.bytes.len(),
        None => 0,
    };
    let written = operations.iter().filter(|operation| !matches!(operation.action, FieldAction::Get));
    let need =
        written.map(|operation| operation.integer_type.required_bytes(operation.offset)).max().unwrap_or(0);
    // Growing the string is a modification even if every operation fails on overflow.
    let grown_now = need > len;
    let mut changes = 0;
    let mut replies: SmallVec<[Option<i64>; 4]> = SmallVec::new();
    let bytes = extend_string(context, &key, found, len.max(need));
    for &FieldOperation { action, integer_type: width, offset } in operations {
        let before = width.read(bytes, offset);
        let (after, shows_before) = match action {
            FieldAction::Get => {
                replies.push(Some(before));
                continue;
            }
            FieldAction::Set { value, overflow } => (width.fit_set_argument(value, overflow), true),
            FieldAction::Add { amount, overflow } => {
                (width.apply_overflow(i128::from(before) + i128::from(amount), overflow), false)
            }
        };
        if let Some(after) = after {
            width.write(bytes, offset, after);
            changes += usize::from(grown_now || after != before);
        }
        replies.push(after.map(|after| if shows_before { before } else { after }));
    }
    if grown_now || changes > 0 {
        context.report_changes(&key, changes);
        context.notify(EventClass::STRING, "setbit", &key);
    }
    context.reply.array(replies.len());
    for value in replies {
        match value {
            Some(value) => context.reply.integer(value),
            None => context.reply.null(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    const INVALID_TYPE: &str = "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but \
                        i64 is.";

    #[test]
    fn bitfield_reads_and_writes_integers() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("bitfield b", "*0"),
            ("bitfield b overflow wrap", "*0"),
            ("bitfield b get u8 0", "*1|:0"),
            ("exists b", ":0"),
            ("bitfield b set u8 0 255", "*1|:0"),
            (
                "bitfield b get u8 0 get i8 0 get u4 4 get i4 4 get u8 4 get u16 100",
                "*6|:255|:-1|:15|:-1|:240|:0",
            ),
            ("bitfield b get u63 0 get i64 0", "*2|:9187343239835811840|:-72057594037927936"),
            ("bitfield b get u8 #1 get u8 4294967295", "*2|:0|:0"),
            ("bitfield_ro b get u8 0 overflow sat get u8 #1", "*2|:255|:0"),
            ("bitfield_ro nosuch get u8 0", "*1|:0"),
            ("bitfield b set u8 0 255", "*1|:255"),
            ("bitfield b set u8 #0 1 get u8 #0 set i8 9 -3 get i8 9 incrby u5 13 40", "*5|:255|:1|:0|:-3|:2"),
            ("set s 1", "+OK"),
            ("bitfield s get u8 0", "*1|:49"),
            ("object encoding s", "$3|int"),
            ("bitfield s set u8 0 49", "*1|:49"),
            ("object encoding s", "$3|raw"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 bitfield b set u8 0 255",
                "0 bitfield b set u8 #0 1 get u8 #0 set i8 9 -3 get i8 9 incrby u5 13 40",
                "0 set s 1",
            ]
        );
    }

    #[test]
    fn overflow_mode_applies_to_following_operations() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("bitfield b set u8 0 256", "*1|:0"),
            ("bitfield b overflow sat set u8 0 256 set u8 0 -1", "*2|:0|:255"),
            ("bitfield b overflow fail set u8 0 -1 set u8 0 7", "*2|$-1|:255"),
            ("bitfield b overflow sat set i8 0 -129 set i8 0 128 get i8 0", "*3|:7|:-128|:127"),
            ("bitfield b overflow wrap set i8 0 128 get i8 0", "*2|:127|:-128"),
            // The expected reply is that of Redis, whose computation of the distance to 127 overflows.
            ("bitfield b overflow sat set i8 0 -9223372036854775680 get i8 0", "*2|:-128|:-128"),
            ("bitfield b overflow sat set i8 0 -9223372036854775681 get i8 0", "*2|:-128|:127"),
            ("bitfield b overflow sat set i8 0 -9223372036854775808 get i8 0", "*2|:127|:127"),
            ("bitfield b set i64 64 9223372036854775807", "*1|:0"),
            ("bitfield b incrby i64 64 1", "*1|:-9223372036854775808"),
            ("bitfield b overflow sat incrby i64 64 -1", "*1|:-9223372036854775808"),
            ("bitfield b overflow fail incrby i64 64 -1", "*1|$-1"),
            ("bitfield b set u63 64 9223372036854775807", "*1|:4611686018427387904"),
            ("bitfield b incrby u63 64 1", "*1|:0"),
            ("bitfield b overflow sat incrby u63 64 -1", "*1|:0"),
            ("bitfield b set u63 64 -1", "*1|:0"),
            ("bitfield b overflow sat incrby u63 64 9223372036854775807", "*1|:9223372036854775807"),
            (
                "bitfield b overflow sat incrby u8 100 200 incrby u8 100 200 overflow fail incrby u8 100 1",
                "*3|:255|:255|$-1",
            ),
        ]);
        let logged = client.logged_commands().len();
        client.check_replies(&[
            ("bitfield b overflow fail incrby u2 0 10", "*1|$-1"),
            ("bitfield new overflow fail incrby u2 100 10", "*1|$-1"),
            ("strlen new", ":13"),
        ]);
        assert_eq!(
            client.logged_commands().len(),
            logged + 1,
            "a string that has grown is the same everywhere"
        );
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let offset = "-ERR bit offset is not an integer or out of range";
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        Client::new().check_replies(&[
            ("bitfield b get", "-ERR syntax error"),
            ("bitfield b get u8", "-ERR syntax error"),
            ("bitfield b set u8 0", "-ERR syntax error"),
            ("bitfield b nosuch u8 0 1", "-ERR syntax error"),
            ("bitfield b overflow", "-ERR syntax error"),
            ("bitfield b overflow x", "-ERR Invalid OVERFLOW type specified"),
            ("bitfield b get u64 0", INVALID_TYPE),
            ("bitfield b get i65 0", INVALID_TYPE),
            ("bitfield b get u8 x", offset),
            ("bitfield b get u8 -1", offset),
            ("bitfield b get u8 #-1", offset),
            ("bitfield b get u8 #", offset),
            ("bitfield b get u8 4294967296", offset),
            ("bitfield b get u8 #536870912", offset),
            ("bitfield b get u8 #9223372036854775807", offset),
            ("bitfield b set u8 0 x", "-ERR value is not an integer or out of range"),
            ("bitfield_ro b set u8 0 1", "-ERR BITFIELD_RO only supports the GET subcommand"),
            ("hset h a 1", ":1"),
            ("bitfield h", wrong_type),
            ("bitfield h set u8 0 1", wrong_type),
            ("bitfield_ro h get u8 0", wrong_type),
            ("bitfield h set u8 0 x", "-ERR value is not an integer or out of range"),
        ]);
    }
}
