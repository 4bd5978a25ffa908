//! Cardinality estimate from the histogram of register values (Ertl 2017, algorithm 6).

use super::{INDEX_BITS, REGISTER_COUNT};

/// Maximum register value: all hash bits that do not select the register are zero.
const MAX_REGISTER_VALUE: usize = (u64::BITS - INDEX_BITS) as usize;
/// 1 / (2 ln 2), with the digits that Redis uses.
const ALPHA_INFINITY: f64 = 0.721_347_520_444_481_7;

/// Number of registers for each value. Registers of six bits can have values that no element produces.
#[derive(Debug, Clone)]
pub(super) struct Histogram([u16; 64]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Histogram {
    /// Counts the values of all registers.
    pub(super) fn from_registers(values: &[u8; REGISTER_COUNT]) -> Self {
        // Use four counters per value: neighbouring registers are often equal, and consecutive increments of one
        // counter depend on each other.
        let mut counts = [[0_u16; 64]; 4];
        for four in values.as_chunks::<4>().0 {
            for (counts, value) in counts.iter_mut().zip(four) {
                counts[usize::from(value & 63)] += 1;
            }
        }
        Self(std::array::from_fn(|value| counts.iter().map(|counts| counts[value]).sum()))
    }

    pub(super) fn add(&mut self, value: u8, registers: u16) {
        self.0[usize::from(value & 63)] += registers;
    }

    pub(super) fn estimate(&self) -> u64 {
        let all = REGISTER_COUNT as f64;
        let part = |value: usize| f64::from(self.0[value]) / all;
        let mut sum = all * tau((all - f64::from(self.0[MAX_REGISTER_VALUE + 1])) / all);
        for value in (1..=MAX_REGISTER_VALUE).rev() {
            sum += f64::from(self.0[value]);
            sum *= 0.5;
        }
        sum += all * sigma(part(0));
        (ALPHA_INFINITY * all * all / sum).round() as u64
    }
}

/// Computes x plus the sum of x^(2^k) 2^(k-1) over all k >= 1.
fn sigma(x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut factor, mut sum) = (x, 1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

/// Computes (1 - x - the sum of (1 - x^(2^-k))^2 2^-k over all k >= 1) / 3.
fn tau(x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut x, mut factor, mut sum) = (x, 1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}
