//! The packed binary format of a sorted set.
//!
//! ```text
//!  0        2
//! +-------+--------------------------------+-------+--------+-----+
//! | count | member length * 4 + log2(size) | score | member | ... |
//! +-------+--------------------------------+-------+--------+-----+
//!  u16     varint                           size bytes: 1, 2, 4 or 8 ([`crate::score`])
//! ```
//!
//! Members are stored in order.

use smallvec::SmallVec;

use crate::order::ElementBoundary;
use crate::packed::COUNT_LEN;
use crate::score::{self, EncodedScore};
use crate::varint;

/// A member of a packed sorted set, and the byte range of its record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberRecord<'a> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) score: f64,
    pub(crate) name: &'a [u8],
}

impl MemberRecord<'_> {
    #[inline]
    pub(crate) fn is_before(&self, boundary: &ElementBoundary<'_>) -> bool {
        boundary.is_after(score::order_bits(self.score), || self.name)
    }
}

#[inline]
fn read_record(packed: &[u8], start: usize) -> MemberRecord<'_> {
    let mut at = start;
    let head = varint::read(packed, &mut at);
    let member_at = at + (1 << (head & 3));
    let end = member_at + (head >> 2);
    MemberRecord { start, end, score: score::decode(&packed[at..member_at]), name: &packed[member_at..end] }
}

/// Returns the members of a packed sorted set. `packed` includes the count prefix.
#[inline]
pub(crate) fn records(packed: &[u8]) -> impl Iterator<Item = MemberRecord<'_>> + Clone {
    let mut at = COUNT_LEN;
    std::iter::from_fn(move || {
        let record = (at < packed.len()).then(|| read_record(packed, at))?;
        at = record.end;
        Some(record)
    })
}

#[inline]
pub(crate) fn find_record<'a>(packed: &'a [u8], member: &[u8]) -> Option<MemberRecord<'a>> {
    let mut at = COUNT_LEN;
    while at < packed.len() {
        let mut read = at;
        let head = varint::read(packed, &mut read);
        let member_at = read + (1 << (head & 3));
        let end = member_at + (head >> 2);
        if &packed[member_at..end] == member {
            return Some(read_record(packed, at));
        }
        at = end;
    }
    None
}

/// Returns the members in descending order.
pub(crate) fn records_reversed(packed: &[u8]) -> impl Iterator<Item = MemberRecord<'_>> {
    let starts: SmallVec<[u16; 128]> = records(packed).map(|record| record.start as u16).collect();
    starts.into_iter().rev().map(|start| read_record(packed, usize::from(start)))
}

pub(crate) fn push_record(out: &mut impl Extend<u8>, member: &[u8], score: f64) {
    let kept = EncodedScore::new(score, 1);
    let (mut head, mut len) = ([0; varint::MAX_LEN], 0);
    varint::write(&mut head, &mut len, member.len() << 2 | kept.bytes().len().trailing_zeros() as usize);
    out.extend(head[..len].iter().copied());
    out.extend(kept.bytes().iter().copied());
    out.extend(member.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_members_round_trip() {
        let long = vec![7; 70_000];
        let members: &[(&[u8], f64)] = &[
            (b"", -1e300),
            (b"a", -0.0),
            (b"b", 0.0),
            (&[1; 31], 127.0),
            (&[2; 32], 30_000.0),
            (&long, 1e9),
        ];
        let mut packed = vec![0; COUNT_LEN];
        members.iter().for_each(|(member, score)| push_record(&mut packed, member, *score));
        let read: Vec<_> = records(&packed).map(|record| (record.name, record.score.to_bits())).collect();
        let pushed: Vec<_> = members.iter().map(|(member, score)| (*member, score.to_bits())).collect();
        assert_eq!(read, pushed);
        for (member, score) in members {
            assert_eq!(
                find_record(&packed, member).map(|record| record.score.to_bits()),
                Some(score.to_bits())
            );
        }
        assert!(find_record(&packed, b"c").is_none());
    }
}
