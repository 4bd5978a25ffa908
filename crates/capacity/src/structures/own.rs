//! Generates sample elements and sums their metadata for this server.

use std::iter;
use std::ops::Range;

use crate::data::KeyGroup;

/// Bytes of the header of an element in a large collection.
const ELEMENT_HEADER_BYTES: f64 = 4.0;

/// Pads `number` to `len` bytes with leading letters. Longer numbers are not truncated, so results are distinct.
pub(crate) fn format_number(number: u64, len: u64) -> Vec<u8> {
    let digits = number.to_string();
    let room = (len as usize).saturating_sub(digits.len());
    iter::repeat_n(b'k', room).chain(digits.bytes()).collect()
}

/// Returns the sample value with this number. Value 0 has the length of the longest value.
pub(crate) fn sample_value(data: &KeyGroup, number: u64) -> Vec<u8> {
    let (rest, longest) = data.value_lengths();
    let len = if number == 0 { longest } else { rest };
    if data.values_are_integers {
        // Start at a power of ten so that all integers have equal length.
        let least = 10_u64.saturating_pow(len.clamp(1, 19) as u32 - 1);
        return (least + number).to_string().into_bytes();
    }
    format_number(number, len)
}

/// Returns the sample values with the numbers in this range.
pub(crate) fn sample_values(data: &KeyGroup, numbers: Range<u64>) -> Vec<Vec<u8>> {
    numbers.map(|number| sample_value(data, number)).collect()
}

/// Returns the metadata bytes of all elements, given those of one element in a packed value and, besides the entry
/// header, in a separate structure.
pub(crate) fn element_metadata(
    data: &KeyGroup,
    is_structure: bool,
    packed_overhead: f64,
    structure_overhead: f64,
) -> f64 {
    data.elements_per_key() as f64
        * if is_structure { ELEMENT_HEADER_BYTES + structure_overhead } else { packed_overhead }
}
