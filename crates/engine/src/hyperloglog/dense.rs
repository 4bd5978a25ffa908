//! Registers of six bits, one behind another, each with its lowest bit first.

use super::{Observation, REGISTERS};

const BITS: usize = 6;
/// So many registers fill whole bytes together.
pub(super) const GROUP: usize = 16;
const GROUP_BYTES: usize = GROUP * BITS / 8;
pub(super) const BYTES: usize = REGISTERS * BITS / 8;
const MASK: u32 = (1 << BITS) - 1;

/// Where a register begins: the byte, and the bit in it.
fn place(register: usize) -> (usize, u32) {
    (register * BITS / 8, (register * BITS % 8) as u32)
}

/// A byte and the one behind it; behind the last there is none.
fn two_bytes(registers: &[u8], at: usize) -> u32 {
    u32::from(registers[at]) | u32::from(registers.get(at + 1).copied().unwrap_or(0)) << 8
}

pub(super) fn register(registers: &[u8], register: usize) -> u8 {
    let (at, shift) = place(register);
    (two_bytes(registers, at) >> shift & MASK) as u8
}

/// Sets a register to what was seen, unless it is as high; says whether it was lower.
pub(super) fn raise(registers: &mut [u8], seen: Observation) -> bool {
    let (at, shift) = place(seen.register);
    let before = two_bytes(registers, at);
    if (before >> shift & MASK) >= u32::from(seen.value) {
        return false;
    }
    let after = before & !(MASK << shift) | u32::from(seen.value) << shift;
    registers[at] = after as u8;
    if let Some(next) = registers.get_mut(at + 1) {
        *next = (after >> 8) as u8;
    }
    true
}

/// Shows the values of all registers, a group at a time.
#[inline]
pub(super) fn each_group(registers: &[u8], mut show: impl FnMut(&[u8; GROUP])) {
    for group in registers.as_chunks::<GROUP_BYTES>().0 {
        let mut values = [0; GROUP];
        for (four, bytes) in values.as_chunks_mut::<4>().0.iter_mut().zip(group.as_chunks::<3>().0) {
            let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
            *four = [0, 6, 12, 18].map(|shift| (word >> shift & MASK) as u8);
        }
        show(&values);
    }
}
