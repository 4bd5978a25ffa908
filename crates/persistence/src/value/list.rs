//! The RDB encodings of lists.
//!
//! Lists are written as in Redis 7.0 and later (type 18): the number of nodes, then each node as its type and a string.
//! A list is stored as runs of elements in listpack format, which become one node each; a long element gets its own
//! node.
//!
//! | type | encoding |
//! | ---: | --- |
//! | 1 | number of elements; each as a string |
//! | 10 | a ziplist string |
//! | 14 | number of nodes; each a ziplist string |
//! | 18 | number of nodes; each 1 and an element, or 2 and a listpack string |

use std::io::{self, Read, Write};

use keyspace::{ItemDigits, ListPart, ListRef, ListRun};

use super::commands::Commands;
use super::{Codec, MultipartCodec, PART_BYTES, RemainingElements, ValueBuffer, packed_encodings};
use crate::Dialect;
use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::{RdbError, RdbErrorReason};

const TYPE_STRINGS: u8 = 1;
const TYPE_ZIPLIST: u8 = 10;
const TYPE_ZIPLISTS: u8 = 14;
const TYPE_NODES: u8 = 18;

/// Node types of [`TYPE_NODES`]: one plain element, or a listpack of several.
const NODE_PLAIN: u64 = 1;
const NODE_PACKED: u64 = 2;

/// Listpack size above which an element gets its own node, as in Redis since 7.2.
const MAX_PACKED_NODE_BYTES: usize = 8192;
const EMPTY_LIST_ERROR: RdbErrorReason = RdbErrorReason::Empty("a list without elements");

pub(super) struct ListCodec;

impl Codec for ListCodec {
    const TYPE_CODES: &'static [u8] = &[TYPE_STRINGS, TYPE_ZIPLIST, TYPE_ZIPLISTS, TYPE_NODES];
    type Value<'a> = ListRef<'a>;

    fn type_code(_: &ListRef<'_>, _: Dialect) -> u8 {
        TYPE_NODES
    }

    fn write<W: Write>(_: u8, list: &ListRef<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        out.write_len(list.run_count() as u64)?;
        write_runs(out, |visit| list.for_each_run(visit))
    }

    fn add_commands(list: &ListRef<'_>, out: &mut Commands) {
        let mut digits = ItemDigits::default();
        list.for_each(&mut |item| out.add_element("RPUSH", &[item.bytes(&mut digits)]));
    }

    fn read<R: Read>(code: u8, source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        let elements = if code == TYPE_ZIPLIST { 1 } else { source.read_len()? };
        buffer.remaining_elements = RemainingElements { code, elements, ..RemainingElements::default() };
        Self::read_next_part(source, buffer)?;
        if buffer.value().is_empty() {
            return Err(source.error(EMPTY_LIST_ERROR));
        }
        Ok(())
    }
}

impl MultipartCodec for ListCodec {
    type Part<'a> = ListPart<'a>;

    fn part_code(_: &ListPart<'_>, _: Dialect) -> u8 {
        TYPE_NODES
    }

    fn write_head<W: Write>(_: u8, _: usize, first: &ListPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        out.write_len(first.total_runs() as u64)
    }

    fn write_part<W: Write>(_: u8, part: &ListPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        write_runs(out, |visit| part.for_each_run(visit))
    }

    fn add_part_commands(part: &ListPart<'_>, out: &mut Commands) {
        let mut digits = ItemDigits::default();
        part.for_each_run(&mut |run| {
            run.items().for_each(|item| out.add_element("RPUSH", &[item.bytes(&mut digits)]));
        });
    }

    /// Reads nodes until a part is full or the value ends.
    fn read_next_part<R: Read>(source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        let ValueBuffer { packed, first_buffer: string, remaining_elements: remaining, depth, .. } = buffer;
        while remaining.elements > 0 && packed.packed().bytes().len() < PART_BYTES {
            remaining.elements -= 1;
            let container = if remaining.code == TYPE_NODES { source.read_len()? } else { NODE_PACKED };
            source.read_string(string)?;
            let (items, broken) = match (remaining.code, container) {
                (TYPE_STRINGS, _) | (_, NODE_PLAIN) => {
                    packed.push_item(string);
                    continue;
                }
                (TYPE_NODES, NODE_PACKED) => {
                    (packed_encodings::decode_listpack(string, *depth), "Listpack integrity check failed.")
                }
                (TYPE_NODES, _) => {
                    return Err(source.error(RdbErrorReason::BadValue("Quicklist integrity check failed.")));
                }
                (TYPE_ZIPLIST, _) => {
                    (packed_encodings::decode_ziplist(string, *depth), "List ziplist integrity check failed.")
                }
                _ => (packed_encodings::decode_ziplist(string, *depth), "Ziplist integrity check failed."),
            };
            let mut digits = itoa::Buffer::new();
            for item in &items.ok_or_else(|| source.error(RdbErrorReason::BadValue(broken)))? {
                packed.push_item(item.as_bytes(&mut digits));
            }
        }
        Ok(())
    }
}

/// Writes each run of elements that `visit_runs` visits as a node.
fn write_runs<'a, W: Write>(
    out: &mut Encoder<W>,
    visit_runs: impl FnOnce(&mut dyn FnMut(ListRun<'a>)),
) -> io::Result<()> {
    let (mut outcome, mut listpack, mut digits) = (Ok(()), Vec::new(), ItemDigits::default());
    let mut write = |run: ListRun<'_>| {
        if run.len == 1
            && run.entries.len() > MAX_PACKED_NODE_BYTES
            && let Some(item) = run.items().next()
        {
            out.write_len(NODE_PLAIN)?;
            return out.write_string(item.bytes(&mut digits));
        }
        packed_encodings::wrap_listpack(&mut listpack, run.len, run.entries);
        out.write_len(NODE_PACKED)?;
        out.write_string(&listpack)
    };
    visit_runs(&mut |run| {
        if outcome.is_ok() {
            outcome = write(run);
        }
    });
    outcome
}

#[cfg(test)]
mod tests;
