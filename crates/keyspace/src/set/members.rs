//! The packed binary format of a set.
//!
//! ```text
//! 0       2       3
//! +-------+-------+---------+---------+-----+
//! | count | width | integer | integer | ... |    ascending integers of `width` bytes each, 1 to 8
//! +-------+-------+---------+---------+-----+
//! | count |   0   | length | member | ...  |    arbitrary members in insertion order
//! +-------+-------+------------------------+
//! u16      u8
//! ```
//!
//! An empty set is only the count. Lengths are encoded as in [`crate::varint`]. The layout is independent of OBJECT
//! ENCODING. An edit computes the changed bytes, which then replace a range of the set.

use std::cmp::Ordering;
use std::ops::{Deref, Range};

use smallvec::SmallVec;

use crate::packed::COUNT_LEN;
use crate::varint;

const MEMBERS_OFFSET: usize = COUNT_LEN + 1;
/// Maximum number of decimal digits of an integer, including the sign.
const MAX_DIGITS: usize = 20;

/// A member of a set.
#[derive(Debug, Clone, Copy)]
pub enum SetMember<'a> {
    /// A member whose bytes are stored as they are.
    Bytes(&'a [u8]),
    /// A member stored as an integer. Its bytes are the decimal digits.
    Integer(Digits),
}

/// The decimal digits of an integer.
#[derive(Debug, Clone, Copy)]
pub struct Digits {
    digits: [u8; MAX_DIGITS],
    len: u8,
}

impl From<i64> for Digits {
    fn from(value: i64) -> Self {
        let (mut buffer, mut digits) = (itoa::Buffer::new(), [0; MAX_DIGITS]);
        let text = buffer.format(value).as_bytes();
        digits[..text.len()].copy_from_slice(text);
        Self { digits, len: text.len() as u8 }
    }
}

impl Deref for SetMember<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Integer(Digits { digits, len }) => &digits[..usize::from(*len)],
        }
    }
}

impl PartialEq for SetMember<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SetMember<'_> {}

impl PartialOrd for SetMember<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SetMember<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum PackedMembers<'a> {
    Integers(Integers<'a>),
    /// Members in insertion order, each after its length.
    Strings(&'a [u8]),
}

/// Ascending integers of `width` bytes each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Integers<'a> {
    packed: &'a [u8],
    width: usize,
}

/// Returns the number of bytes that an integer needs.
fn width_of(value: i64) -> usize {
    let bits = 65 - (value ^ value >> 63).leading_zeros();
    bits.div_ceil(8) as usize
}

impl Integers<'_> {
    fn len(&self) -> usize {
        self.packed.len().saturating_sub(MEMBERS_OFFSET) / self.width
    }

    fn byte_range(&self, index: usize) -> Range<usize> {
        let start = MEMBERS_OFFSET + index * self.width;
        start..start + self.width
    }

    #[inline]
    fn value_at(&self, index: usize) -> i64 {
        let Range { start, end } = self.byte_range(index);
        let last = match self.packed[..end].last_chunk() {
            // Shift out the bytes that belong to the previous integer.
            Some(bytes) => i64::from_le_bytes(*bytes),
            None => {
                let mut bytes = [0; 8];
                bytes[8 - self.width..].copy_from_slice(&self.packed[start..end]);
                i64::from_le_bytes(bytes)
            }
        };
        last >> (64 - 8 * self.width)
    }

    /// Returns the index of an integer, or the index at which it would be inserted.
    fn search(&self, value: i64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.value_at(middle).cmp(&value) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = i64> + Clone + use<'_> {
        (0..self.len()).map(|index| self.value_at(index))
    }
}

fn string_members(packed: &[u8]) -> impl Iterator<Item = (Range<usize>, &[u8])> + Clone {
    let mut at = MEMBERS_OFFSET;
    std::iter::from_fn(move || {
        if at >= packed.len() {
            return None;
        }
        let start = at;
        let len = varint::read(packed, &mut at);
        let member = &packed[at..at + len];
        at += len;
        Some((start..at, member))
    })
}

impl<'a> PackedMembers<'a> {
    #[inline]
    pub(crate) fn from_packed(packed: &'a [u8]) -> Self {
        match packed.get(COUNT_LEN) {
            Some(0) => Self::Strings(packed),
            width => Self::Integers(Integers { packed, width: width.map_or(1, |width| usize::from(*width)) }),
        }
    }

    #[inline]
    pub(crate) fn find(self, member: &[u8]) -> Option<Range<usize>> {
        match self {
            Self::Integers(integers) => {
                integers.search(resp::parse_i64(member)?).ok().map(|index| integers.byte_range(index))
            }
            Self::Strings(packed) => {
                string_members(packed).find(|(_, other)| *other == member).map(|(range, _)| range)
            }
        }
    }

    /// Returns the member at `index` and its byte range.
    pub(crate) fn nth(self, index: usize) -> Option<(Range<usize>, SetMember<'a>)> {
        match self {
            Self::Integers(integers) => (index < integers.len())
                .then(|| (integers.byte_range(index), SetMember::Integer(integers.value_at(index).into()))),
            Self::Strings(packed) => {
                string_members(packed).nth(index).map(|(range, member)| (range, SetMember::Bytes(member)))
            }
        }
    }

    /// Returns the members if they are stored unsorted; otherwise nothing.
    pub(crate) fn unordered(self) -> impl Iterator<Item = &'a [u8]> + Clone {
        let packed = if let Self::Strings(packed) = self { packed } else { &[] };
        string_members(packed).map(|(_, member)| member)
    }

    pub(crate) fn for_each(self, visit: &mut dyn FnMut(SetMember<'a>)) {
        match self {
            Self::Integers(integers) => {
                integers.iter().for_each(|value| visit(SetMember::Integer(value.into())));
            }
            Self::Strings(packed) => {
                string_members(packed).for_each(|(_, member)| visit(SetMember::Bytes(member)));
            }
        }
    }
}

/// The byte range to replace, and its replacement, to add a member to a packed set.
#[derive(Debug)]
pub(crate) struct MemberAddition {
    /// The range of bytes to replace.
    pub(crate) range: Range<usize>,
    /// The bytes that replace the range.
    pub(crate) replacement: SmallVec<[u8; 64]>,
    /// Whether all members, including the new one, are integers.
    pub(crate) all_integers: bool,
    /// Length of the new member, or of the longest member if all others were integers.
    pub(crate) max_member_len: usize,
}

impl MemberAddition {
    /// Returns the byte replacement that adds `member`; `None` if the set contains it already.
    pub(crate) fn from_packed(packed: &[u8], member: &[u8]) -> Option<Self> {
        let members = PackedMembers::from_packed(packed);
        let PackedMembers::Integers(integers) = members else {
            return members.find(member).is_none().then(|| Self::for_string(packed, member));
        };
        let Some(value) = resp::parse_i64(member) else {
            return Some(Self::for_first_string(&integers, member));
        };
        let at = integers.search(value).err()?;
        let width = width_of(value).max(integers.width);
        let mut with = SmallVec::new();
        let range = if integers.len() > 0 && width == integers.width {
            push_integer(&mut with, value, width);
            let start = integers.byte_range(at).start;
            start..start
        } else {
            // All integers are stored with the width of the widest one.
            with.push(width as u8);
            let all = integers.iter().take(at).chain([value]).chain(integers.iter().skip(at));
            all.for_each(|value| push_integer(&mut with, value, width));
            COUNT_LEN..packed.len()
        };
        Some(Self { range, replacement: with, all_integers: true, max_member_len: member.len() })
    }

    fn for_string(packed: &[u8], member: &[u8]) -> Self {
        let mut with = SmallVec::new();
        push_string(&mut with, member);
        Self {
            range: packed.len()..packed.len(),
            replacement: with,
            all_integers: false,
            max_member_len: member.len(),
        }
    }

    /// Returns the replacement that adds the first non-integer, which converts all integers to strings.
    fn for_first_string(integers: &Integers<'_>, member: &[u8]) -> Self {
        let mut with = SmallVec::new();
        push_all_as_strings(&mut with, integers);
        push_string(&mut with, member);
        let ends = integers.iter().next().into_iter().chain(integers.iter().next_back());
        let longest = ends.map(|value| usize::from(Digits::from(value).len)).chain([member.len()]).max();
        let range = COUNT_LEN..integers.packed.len();
        Self { range, replacement: with, all_integers: false, max_member_len: longest.unwrap_or_default() }
    }
}

/// Converts a packed set of integers to strings.
pub(crate) fn convert_to_strings(packed: &mut Vec<u8>) {
    if let PackedMembers::Integers(integers) = PackedMembers::from_packed(packed) {
        let mut with = SmallVec::new();
        push_all_as_strings(&mut with, &integers);
        packed.truncate(COUNT_LEN);
        packed.extend_from_slice(&with);
    }
}

/// Appends a new member to a packed set of strings.
pub(crate) fn append_string(packed: &mut Vec<u8>, member: &[u8]) {
    let (mut head, mut len) = ([0; varint::MAX_LEN], 0);
    varint::write(&mut head, &mut len, member.len());
    packed.extend_from_slice(&head[..len]);
    packed.extend_from_slice(member);
}

fn push_integer(out: &mut SmallVec<[u8; 64]>, value: i64, width: usize) {
    out.extend_from_slice(&value.to_le_bytes()[..width]);
}

fn push_string(out: &mut SmallVec<[u8; 64]>, member: &[u8]) {
    let (mut head, mut len) = ([0; varint::MAX_LEN], 0);
    varint::write(&mut head, &mut len, member.len());
    out.extend_from_slice(&head[..len]);
    out.extend_from_slice(member);
}

fn push_all_as_strings(out: &mut SmallVec<[u8; 64]>, integers: &Integers<'_>) {
    out.push(0);
    integers.iter().for_each(|value| push_string(out, &SetMember::Integer(value.into())));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn add(packed: &mut Vec<u8>, member: &[u8]) -> bool {
        let Some(MemberAddition { range, replacement: with, .. }) =
            MemberAddition::from_packed(packed, member)
        else {
            return false;
        };
        packed.splice(range, with);
        true
    }

    fn all_members(packed: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        PackedMembers::from_packed(packed).for_each(&mut |member| all.push(member.to_vec()));
        all
    }

    #[test]
    fn integer_width_is_minimal() {
        for (value, width) in [
            (0, 1),
            (-1, 1),
            (127, 1),
            (-128, 1),
            (128, 2),
            (-129, 2),
            (32_767, 2),
            (32_768, 3),
            (1 << 31, 5),
            (i64::MAX, 8),
            (i64::MIN, 8),
        ] {
            assert_eq!(width_of(value), width, "{value}");
        }
    }

    #[test]
    fn integers_of_every_width_stay_sorted() {
        let mut packed = vec![0; COUNT_LEN];
        let mut twin = BTreeSet::new();
        assert_eq!(PackedMembers::from_packed(&packed).find(b"5"), None);
        for value in [5, 0, -1, 127, 128, -129, 7, 70_000, -40_000, 5, 1 << 40, i64::MIN, i64::MAX, 3, 0] {
            assert_eq!(add(&mut packed, value.to_string().as_bytes()), twin.insert(value), "{value}");
            let expected: Vec<_> = twin.iter().map(|value| value.to_string().into_bytes()).collect();
            assert_eq!(all_members(&packed), expected);
            for (index, value) in twin.iter().enumerate() {
                let text = value.to_string();
                let found = PackedMembers::from_packed(&packed).find(text.as_bytes()).expect("there");
                assert_eq!(
                    PackedMembers::from_packed(&packed).nth(index),
                    Some((found, SetMember::Bytes(text.as_bytes())))
                );
            }
        }
        for text in ["05", "+5", "5 ", "", "4", "9223372036854775808"] {
            assert_eq!(PackedMembers::from_packed(&packed).find(text.as_bytes()), None);
        }
        let range = PackedMembers::from_packed(&packed).find(b"128").expect("there");
        packed.drain(range);
        assert_eq!(PackedMembers::from_packed(&packed).find(b"128"), None);
        assert_eq!(all_members(&packed).len(), twin.len() - 1);
    }

    #[test]
    fn string_member_converts_integers_to_strings() {
        let mut packed = vec![0; COUNT_LEN];
        let long = vec![b'x'; 300];
        for member in [&b"12"[..], b"-7", b"07", &long, b"", b"9"] {
            assert!(add(&mut packed, member));
            assert!(!add(&mut packed, member));
        }
        assert_eq!(all_members(&packed), [&b"-7"[..], b"12", b"07", &long, b"", b"9"]);
        let addition = MemberAddition::from_packed(&[0, 0, 1, 0xf9, 12], b"a").expect("new");
        assert_eq!((addition.max_member_len, addition.all_integers), (2, false));
    }
}
