//! The RDB encodings of sets.
//!
//! Sets are written as strings (type 2), which every version reads. Integers are written in their short form, and a
//! reader turns a small set of integers into an intset.
//!
//! | type | encoding |
//! | ---: | --- |
//! | 2 | number of members; each member |
//! | 11 | an intset string: integer size (2, 4 or 8), number of integers, the integers in ascending order |
//! | 20 | (Redis 7.2) a listpack string |

use std::io::{self, Read, Write};

use keyspace::{FieldsPart, SetMember, SetRef};

use super::commands::Commands;
use super::{
    Codec, MultipartCodec, PART_BYTES, RemainingElements, ValueBuffer, duplicates, packed_encodings,
};
use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::{RdbError, RdbErrorReason};
use crate::{Dialect, ValidationDepth};

const TYPE_MEMBERS: u8 = 2;
const TYPE_INTSET: u8 = 11;
const TYPE_LISTPACK: u8 = 20;

const DUPLICATE_MEMBER_ERROR: RdbErrorReason = RdbErrorReason::BadValue("a set with the same member twice");

pub(super) struct SetCodec;

impl Codec for SetCodec {
    const TYPE_CODES: &'static [u8] = &[TYPE_MEMBERS, TYPE_INTSET, TYPE_LISTPACK];
    type Value<'a> = SetRef<'a>;

    fn type_code(_: &SetRef<'_>, _: Dialect) -> u8 {
        TYPE_MEMBERS
    }

    fn write<W: Write>(_: u8, set: &SetRef<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        out.write_len(set.len() as u64)?;
        let mut outcome = Ok(());
        set.for_each(&mut |member| {
            if outcome.is_ok() {
                outcome = out.write_string(&member);
            }
        });
        outcome
    }

    fn add_commands(set: &SetRef<'_>, out: &mut Commands) {
        set.for_each(&mut |member| out.add_element("SADD", &[&member]));
    }

    fn read<R: Read>(code: u8, source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        if code == TYPE_MEMBERS {
            buffer.remaining_elements =
                RemainingElements { code, elements: source.read_len()?, ..RemainingElements::default() };
            Self::read_next_part(source, buffer)?;
        } else {
            let ValueBuffer { packed, first_buffer: blob, depth, .. } = buffer;
            source.read_string(blob)?;
            let mut push =
                |member: &[u8]| if packed.push_member(member) { Ok(()) } else { Err(DUPLICATE_MEMBER_ERROR) };
            let outcome = if code == TYPE_INTSET {
                read_intset(blob, &mut push)
            } else {
                read_listpack(blob, *depth, &mut push)
            };
            outcome.map_err(|reason| source.error(reason))?;
        }
        let set = buffer.value();
        if set.is_empty() {
            return Err(source.error(RdbErrorReason::Empty("a set without members")));
        }
        // For a value in several parts, the caller detects duplicate members across the parts.
        if !buffer.is_part() && duplicates::has_duplicate(set.unordered_members(), set.len()) {
            return Err(source.error(DUPLICATE_MEMBER_ERROR));
        }
        Ok(())
    }
}

impl MultipartCodec for SetCodec {
    type Part<'a> = FieldsPart<'a>;

    fn part_code(_: &FieldsPart<'_>, _: Dialect) -> u8 {
        TYPE_MEMBERS
    }

    fn write_head<W: Write>(_: u8, total: usize, _: &FieldsPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        out.write_len(total as u64)
    }

    fn write_part<W: Write>(_: u8, part: &FieldsPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        let mut outcome = Ok(());
        part.for_each(&mut |member| {
            if outcome.is_ok() {
                outcome = out.write_string(member.name);
            }
        });
        outcome
    }

    fn add_part_commands(part: &FieldsPart<'_>, out: &mut Commands) {
        part.for_each(&mut |member| out.add_element("SADD", &[member.name]));
    }

    /// Reads members until a part is full or the value ends.
    fn read_next_part<R: Read>(source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        let ValueBuffer { packed, first_buffer: member, remaining_elements: remaining, .. } = buffer;
        while remaining.elements > 0 && packed.packed().bytes().len() < PART_BYTES {
            remaining.elements -= 1;
            source.read_string(member)?;
            if !packed.push_member(member) {
                return Err(source.error(DUPLICATE_MEMBER_ERROR));
            }
        }
        Ok(())
    }
}

type PushMember<'p> = &'p mut dyn FnMut(&[u8]) -> Result<(), RdbErrorReason>;

fn read_intset(blob: &[u8], push: PushMember<'_>) -> Result<(), RdbErrorReason> {
    const INVALID_INTSET_ERROR: RdbErrorReason = RdbErrorReason::BadValue("Intset integrity check failed.");
    let (head, integers) = blob.split_first_chunk::<8>().ok_or(INVALID_INTSET_ERROR)?;
    let number = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().expect("four bytes")) as usize;
    let (width, count) = (number(0), number(4));
    if !matches!(width, 2 | 4 | 8) || count.checked_mul(width) != Some(integers.len()) {
        return Err(INVALID_INTSET_ERROR);
    }
    let mut last = None;
    for bytes in integers.chunks_exact(width) {
        let mut wide = [0; 8];
        wide[8 - width..].copy_from_slice(bytes);
        let value = i64::from_le_bytes(wide) >> (64 - 8 * width);
        if last.is_some_and(|last| last >= value) {
            return Err(RdbErrorReason::BadValue("an intset that is not in order"));
        }
        last = Some(value);
        push(&SetMember::Integer(value.into()))?;
    }
    Ok(())
}

fn read_listpack(blob: &[u8], depth: ValidationDepth, push: PushMember<'_>) -> Result<(), RdbErrorReason> {
    let broken = RdbErrorReason::BadValue("Set listpack integrity check failed.");
    let items = packed_encodings::decode_listpack(blob, depth).ok_or(broken)?;
    items.iter().try_for_each(|item| push(item.as_bytes(&mut Default::default())))
}

#[cfg(test)]
mod tests;
