//! Dense registers: packed values of six bits, least significant bit first.

use super::{Observation, REGISTER_COUNT};

const REGISTER_BITS: usize = 6;
/// Number of registers in a group. Eight packed registers of six bits fill six bytes, and unpacked they fill one 64-bit
/// word.
pub(super) const GROUP_REGISTERS: usize = 8;
const GROUP_BYTES: usize = GROUP_REGISTERS * REGISTER_BITS / 8;
pub(super) const DENSE_BYTES: usize = REGISTER_COUNT * REGISTER_BITS / 8;
const REGISTER_MASK: u32 = (1 << REGISTER_BITS) - 1;

/// The byte index and bit offset of a register.
fn bit_position(register: usize) -> (usize, u32) {
    (register * REGISTER_BITS / 8, (register * REGISTER_BITS % 8) as u32)
}

/// Reads the byte at `index` and the next byte. Bytes past the end read as 0.
fn read_two_bytes(registers: &[u8], index: usize) -> u32 {
    u32::from(registers[index]) | u32::from(registers.get(index + 1).copied().unwrap_or(0)) << 8
}

pub(super) fn read_register(registers: &[u8], index: usize) -> u8 {
    let (at, shift) = bit_position(index);
    (read_two_bytes(registers, at) >> shift & REGISTER_MASK) as u8
}

/// Raises a register to the observed value if it is lower. Returns whether it changed.
pub(super) fn raise_register(registers: &mut [u8], observation: Observation) -> bool {
    let (at, shift) = bit_position(observation.register);
    let before = read_two_bytes(registers, at);
    if (before >> shift & REGISTER_MASK) >= u32::from(observation.value) {
        return false;
    }
    let after = before & !(REGISTER_MASK << shift) | u32::from(observation.value) << shift;
    registers[at] = after as u8;
    if let Some(next) = registers.get_mut(at + 1) {
        *next = (after >> 8) as u8;
    }
    true
}

/// Unpacks all registers, so that each one fills a byte.
#[inline(always)]
pub(super) fn unpack(registers: &[u8], values: &mut [u8; REGISTER_COUNT]) {
    let groups = registers.as_chunks::<GROUP_BYTES>().0;
    for (values, group) in values.as_chunks_mut::<GROUP_REGISTERS>().0.iter_mut().zip(groups) {
        let mut word = [0; GROUP_REGISTERS];
        word[..GROUP_BYTES].copy_from_slice(group);
        *values = spread_to_bytes(u64::from_le_bytes(word)).to_le_bytes();
    }
}

/// Packs all registers, so that each one takes six bits.
#[inline(always)]
pub(super) fn pack(values: &[u8; REGISTER_COUNT], registers: &mut [u8]) {
    let groups = registers.as_chunks_mut::<GROUP_BYTES>().0;
    for (values, group) in values.as_chunks::<GROUP_REGISTERS>().0.iter().zip(groups) {
        let word = gather_from_bytes(u64::from_le_bytes(*values)).to_le_bytes();
        group.copy_from_slice(&word[..GROUP_BYTES]);
    }
}

/// Spreads eight packed values of six bits to one byte each. Each step moves the upper half of the values away from the
/// lower half.
#[inline(always)]
fn spread_to_bytes(word: u64) -> u64 {
    let word = word & 0x00ff_ffff | (word & 0xffff_ff00_0000) << 8;
    let word = word & 0x0fff_0000_0fff | (word & 0x00ff_f000_00ff_f000) << 4;
    word & 0x003f_003f_003f_003f | (word & 0x0fc0_0fc0_0fc0_0fc0) << 2
}

/// Packs the values of eight bytes into six bits each, the inverse of [`spread_to_bytes`].
#[inline(always)]
fn gather_from_bytes(word: u64) -> u64 {
    let word = word & 0x003f_003f_003f_003f | (word & 0x3f00_3f00_3f00_3f00) >> 2;
    let word = word & 0x0fff_0000_0fff | (word & 0x0fff_0000_0fff_0000) >> 4;
    word & 0x00ff_ffff | (word & 0x00ff_ffff_0000_0000) >> 8
}
