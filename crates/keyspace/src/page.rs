//! The layout of a page: entries back to back in one pool block.
//!
//! ```text
//! 0     2      4          10
//! +-----+------+----------+---------+---------+-----+------------+
//! | end | dead | earliest | entry   | entry   | ... | free       |
//! +-----+------+----------+---------+---------+-----+------------+
//! u16   u16    48 bits                             ^ end
//! ```
//!
//! `dead` is the number of bytes of dead entries. `earliest` is a lower bound of the entries' expiry times; these six
//! bytes per page are all that the expiry index costs.

use clock::Millis;

use crate::entry::{Header, STATE_DEAD, read_time, write_time};

pub(crate) const HEADER_LEN: usize = 10;
const EARLIEST_EXPIRY_OFFSET: usize = 4;
/// Expiry bound of a page without expiring entries.
pub(crate) const NO_EXPIRY: Millis = Millis((1 << 47) - 1);

pub(crate) fn initialize(page: &mut [u8]) {
    set_entries_end(page, HEADER_LEN);
    set_dead_bytes(page, 0);
    set_earliest_expiry(page, NO_EXPIRY);
}

#[inline]
pub(crate) fn entries_end(page: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([page[0], page[1]]))
}

pub(crate) fn set_entries_end(page: &mut [u8], end: usize) {
    page[..2].copy_from_slice(&(end as u16).to_le_bytes());
}

#[inline]
pub(crate) fn dead_bytes(page: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([page[2], page[3]]))
}

pub(crate) fn set_dead_bytes(page: &mut [u8], dead: usize) {
    page[2..4].copy_from_slice(&(dead as u16).to_le_bytes());
}

/// Returns the bytes of all entries that are not dead.
pub(crate) fn live_bytes(page: &[u8]) -> usize {
    entries_end(page) - HEADER_LEN - dead_bytes(page)
}

/// Returns the number of free bytes at the end of the page.
#[inline]
pub(crate) fn free_len(page: &[u8]) -> usize {
    page.len() - entries_end(page)
}

#[inline]
pub(crate) fn earliest_expiry(page: &[u8]) -> Millis {
    read_time(page, EARLIEST_EXPIRY_OFFSET)
}

pub(crate) fn set_earliest_expiry(page: &mut [u8], time: Millis) {
    write_time(page, EARLIEST_EXPIRY_OFFSET, time);
}

/// Iterates over the entries at offset `at` or later that are not dead, with their headers.
pub(crate) fn entries(page: &[u8], at: usize) -> impl Iterator<Item = (usize, Header)> + '_ {
    let mut at = at;
    std::iter::from_fn(move || {
        while at < entries_end(page) {
            let header = Header::read(page, at);
            let here = at;
            at += header.len();
            if header.state() != STATE_DEAD {
                return Some((here, header));
            }
        }
        None
    })
}
