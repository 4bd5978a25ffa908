//! The elements of a key here, and what describes them.

use std::iter;
use std::ops::Range;

use crate::data::Data;

/// The header of an element of a structure.
const ELEMENT: f64 = 4.0;

/// A number, written so long; different numbers are different if there is room for them.
pub(crate) fn text(number: u64, len: u64) -> Vec<u8> {
    let digits = number.to_string();
    let room = (len as usize).saturating_sub(digits.len());
    iter::repeat_n(b'k', room).chain(digits.bytes()).collect()
}

/// A value; the first is the longest.
pub(crate) fn value(data: &Data, number: u64) -> Vec<u8> {
    let (rest, longest) = data.lengths();
    let len = if number == 0 { longest } else { rest };
    if data.integers {
        // From 1 on, so that all are equally long.
        let least = 10_u64.saturating_pow(len.clamp(1, 19) as u32 - 1);
        return (least + number).to_string().into_bytes();
    }
    text(number, len)
}

/// The values with these numbers.
pub(crate) fn values(data: &Data, numbers: Range<u64>) -> Vec<Vec<u8>> {
    numbers.map(|number| value(data, number)).collect()
}

/// The headers of elements: `packed` bytes each in a value that is packed; in a structure that of an entry, and
/// `beside` it.
pub(crate) fn element_headers(data: &Data, is_structure: bool, packed: f64, beside: f64) -> f64 {
    data.elements() as f64 * if is_structure { ELEMENT + beside } else { packed }
}
