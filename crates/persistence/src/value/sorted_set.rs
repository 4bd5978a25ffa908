//! The RDB encodings of sorted sets.
//!
//! Sorted sets are written with eight-byte scores (type 5), which every version since Redis 4.0 reads.
//!
//! | type | encoding |
//! | ---: | --- |
//! | 3 | number of members; each with its score as length-prefixed text, lengths 254 and 255 for the infinities |
//! | 5 | number of members; each with an eight-byte score |
//! | 12 | a ziplist string: member, score, member, score |
//! | 17 | a listpack string: member, score, member, score |

use std::io::{self, Read, Write};

use keyspace::{ScoredMember, SortedSetPart, SortedSetRef};

use super::commands::Commands;
use super::{Codec, MultipartCodec, RemainingElements, ValueBuffer, duplicates, packed_encodings};
use crate::Dialect;
use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::{RdbError, RdbErrorReason};

const TYPE_TEXT_SCORES: u8 = 3;
const TYPE_BINARY_SCORES: u8 = 5;
const TYPE_ZIPLIST: u8 = 12;
const TYPE_LISTPACK: u8 = 17;

/// Special values in place of the length of a text score.
const SCORE_LEN_NAN: u8 = 253;
const SCORE_LEN_INFINITY: u8 = 254;
const SCORE_LEN_NEGATIVE_INFINITY: u8 = 255;

/// Size in bytes above which a sorted set is read in parts, so that it is never in memory twice, decoded and stored.
const PART_BYTES: usize = 128 << 10;
const INVALID_SCORE_ERROR: RdbErrorReason = RdbErrorReason::BadValue("a member whose score is no number");
const DUPLICATE_MEMBER_ERROR: RdbErrorReason =
    RdbErrorReason::BadValue("a sorted set with the same member twice");

pub(super) struct SortedSetCodec;

impl Codec for SortedSetCodec {
    const TYPE_CODES: &'static [u8] = &[TYPE_TEXT_SCORES, TYPE_BINARY_SCORES, TYPE_ZIPLIST, TYPE_LISTPACK];
    type Value<'a> = SortedSetRef<'a>;

    fn type_code(_: &SortedSetRef<'_>, _: Dialect) -> u8 {
        TYPE_BINARY_SCORES
    }

    fn write<W: Write>(_: u8, set: &SortedSetRef<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        out.write_len(set.len() as u64)?;
        let mut outcome = Ok(());
        set.visit(0..set.len(), false, &mut |member| {
            outcome = write_member(&member, out);
            outcome.is_ok()
        });
        outcome
    }

    fn add_commands(set: &SortedSetRef<'_>, out: &mut Commands) {
        set.visit(0..set.len(), false, &mut |member| {
            add_member(&member, out);
            true
        });
    }

    fn read<R: Read>(code: u8, source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        match code {
            TYPE_TEXT_SCORES | TYPE_BINARY_SCORES => {
                buffer.remaining_elements =
                    RemainingElements { code, elements: source.read_len()?, ..RemainingElements::default() };
                Self::read_next_part(source, buffer)?;
            }
            _ => read_packed(code, source, buffer)?,
        }
        let members = buffer.value();
        if members.is_empty() {
            return Err(source.error(RdbErrorReason::Empty("a sorted set without members")));
        }
        if !buffer.is_part() {
            // For a value in several parts, the caller sorts the members and detects duplicates across the parts.
            let names = members.scored_members().map(|member| member.name);
            if duplicates::has_duplicate(names, members.len()) {
                return Err(source.error(DUPLICATE_MEMBER_ERROR));
            }
            buffer.packed.sort_scored_members();
        }
        Ok(())
    }
}

impl MultipartCodec for SortedSetCodec {
    type Part<'a> = SortedSetPart<'a>;

    fn part_code(_: &SortedSetPart<'_>, _: Dialect) -> u8 {
        TYPE_BINARY_SCORES
    }

    fn write_head<W: Write>(
        _: u8,
        total: usize,
        _: &SortedSetPart<'_>,
        out: &mut Encoder<W>,
    ) -> io::Result<()> {
        out.write_len(total as u64)
    }

    fn write_part<W: Write>(_: u8, part: &SortedSetPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        let mut outcome = Ok(());
        part.for_each(&mut |member| {
            if outcome.is_ok() {
                outcome = write_member(&member, out);
            }
        });
        outcome
    }

    fn add_part_commands(part: &SortedSetPart<'_>, out: &mut Commands) {
        part.for_each(&mut |member| add_member(&member, out));
    }

    /// Reads members until a part is full or the value ends.
    fn read_next_part<R: Read>(source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        let ValueBuffer { packed, first_buffer: name, remaining_elements: remaining, .. } = buffer;
        while remaining.elements > 0 && packed.packed().bytes().len() < PART_BYTES {
            remaining.elements -= 1;
            source.read_string(name)?;
            let score = if remaining.code == TYPE_TEXT_SCORES {
                read_text_score(source)?
            } else {
                f64::from_le_bytes(source.read_array()?)
            };
            if score.is_nan() {
                return Err(source.error(INVALID_SCORE_ERROR));
            }
            packed.push_scored_member(name, score);
        }
        Ok(())
    }
}

fn add_member(member: &ScoredMember<'_>, out: &mut Commands) {
    // Debug formatting gives the shortest decimal text that parses to this score.
    out.add_element("ZADD", &[format!("{:?}", member.score).as_bytes(), member.name]);
}

fn write_member<W: Write>(member: &ScoredMember<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    out.write_string(member.name)?;
    out.write_bytes(&member.score.to_le_bytes())
}

/// Reads a score in text form, as written before Redis 4.0.
fn read_text_score<R: Read>(source: &mut RdbReader<R>) -> Result<f64, RdbError> {
    match source.read_byte()? {
        SCORE_LEN_NAN => Ok(f64::NAN),
        SCORE_LEN_INFINITY => Ok(f64::INFINITY),
        SCORE_LEN_NEGATIVE_INFINITY => Ok(f64::NEG_INFINITY),
        len => {
            let mut text = [0; SCORE_LEN_NAN as usize];
            for byte in &mut text[..usize::from(len)] {
                *byte = source.read_byte()?;
            }
            resp::parse_double(&text[..usize::from(len)]).ok_or_else(|| source.error(INVALID_SCORE_ERROR))
        }
    }
}

fn read_packed<R: Read>(
    code: u8,
    source: &mut RdbReader<R>,
    buffer: &mut ValueBuffer,
) -> Result<(), RdbError> {
    let ValueBuffer { packed, first_buffer: blob, depth, .. } = buffer;
    source.read_string(blob)?;
    let (items, broken) = if code == TYPE_ZIPLIST {
        (packed_encodings::decode_ziplist(blob, *depth), "Zset ziplist integrity check failed.")
    } else {
        (packed_encodings::decode_listpack(blob, *depth), "Zset listpack integrity check failed.")
    };
    let outcome = items.ok_or(RdbErrorReason::BadValue(broken)).and_then(|items| {
        if items.len() % 2 != 0 {
            return Err(RdbErrorReason::BadValue("a packed sorted set with a member and no score"));
        }
        items.chunks(2).try_for_each(|member| {
            let score = match member[1] {
                packed_encodings::PackedItem::Integer(score) => score as f64,
                packed_encodings::PackedItem::Bytes(text) => {
                    resp::parse_double(text).ok_or(INVALID_SCORE_ERROR)?
                }
            };
            packed.push_scored_member(member[0].as_bytes(&mut Default::default()), score);
            Ok(())
        })
    });
    outcome.map_err(|reason| source.error(reason))
}

#[cfg(test)]
mod tests;
