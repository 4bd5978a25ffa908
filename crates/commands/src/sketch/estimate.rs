//! How many elements have been seen, from how many registers have which value (Ertl 2017, algorithm 6).

use super::{CHOOSING_BITS, REGISTERS};

/// The greatest value that an element can give a register: all bits that do not choose are zero.
const MOST: usize = (u64::BITS - CHOOSING_BITS) as usize;
/// Half of 1 / ln 2, as Redis writes it.
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// How many registers have which value. Six bits can say more than any element does.
#[derive(Debug, Clone)]
pub(super) struct Histogram([u16; 64]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Histogram {
    /// Of these registers.
    pub(super) fn of(values: &[u8; REGISTERS]) -> Self {
        // Neighbours are often equal, and counting in one place waits for the count before.
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
        let all = REGISTERS as f64;
        let part = |value: usize| f64::from(self.0[value]) / all;
        let mut sum = all * tau((all - f64::from(self.0[MOST + 1])) / all);
        for value in (1..=MOST).rev() {
            sum += f64::from(self.0[value]);
            sum *= 0.5;
        }
        sum += all * sigma(part(0));
        (ALPHA * all * all / sum).round() as u64
    }
}

/// The sum of x^(2^k) 2^(k-1) over k from 1 on, and x.
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

/// A third of 1 - x - the sum of (1 - x^(2^-k))^2 2^-k over k from 1 on.
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
