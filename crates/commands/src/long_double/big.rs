//! Unsigned big integers, with only the operations that parsing and printing a floating-point number need.

/// Words of 32 bits, least significant first, without leading zero words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct BigUint(Vec<u32>);

impl From<u64> for BigUint {
    fn from(value: u64) -> Self {
        let mut big = Self(vec![value as u32, (value >> 32) as u32]);
        big.trim_leading_zeros();
        big
    }
}

impl BigUint {
    fn trim_leading_zeros(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bit_len(&self) -> i64 {
        match self.0.last() {
            Some(word) => self.0.len() as i64 * 32 - i64::from(word.leading_zeros()),
            None => 0,
        }
    }

    /// Computes `self * factor + addend` in place.
    pub(super) fn mul_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for word in &mut self.0 {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    pub(super) fn mul_power_of_ten(&mut self, power: u32) {
        for _ in 0..power / 9 {
            self.mul_add(1_000_000_000, 0);
        }
        self.mul_add(10u32.pow(power % 9), 0);
    }

    pub(super) fn shift_left(&mut self, bits: u32) {
        if self.0.is_empty() {
            return;
        }
        let below = bits % 32;
        if below > 0 {
            self.mul_add(1 << below, 0);
        }
        self.0.splice(0..0, std::iter::repeat_n(0, bits as usize / 32));
    }

    /// Shifts right by one bit and discards the lowest bit.
    fn shift_right_by_one(&mut self) {
        let mut carry = 0;
        for word in self.0.iter_mut().rev() {
            let lowest = *word & 1;
            *word = *word >> 1 | carry << 31;
            carry = lowest;
        }
        self.trim_leading_zeros();
    }

    fn is_less_than(&self, other: &Self) -> bool {
        let len = self.0.len().cmp(&other.0.len());
        len.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev())).is_lt()
    }

    /// Subtracts `other`, which must not be larger than `self`.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = false;
        for (index, word) in self.0.iter_mut().enumerate() {
            let (once, a) = word.overflowing_sub(other.0.get(index).copied().unwrap_or(0));
            let (twice, b) = once.overflowing_sub(u32::from(borrow));
            *word = twice;
            borrow = a || b;
        }
        debug_assert!(!borrow);
        self.trim_leading_zeros();
    }

    /// Splits the number into its highest bits and an exponent: returns `(bits, sticky, exponent)`, so that `self` is
    /// `bits * 2^exponent`, or slightly more if `sticky` is set. Keeps at least the 96 highest bits.
    pub(super) fn top_bits(&self) -> (u128, bool, i64) {
        let low = self.0.len().saturating_sub(4);
        let bits = self.0[low..].iter().rev().fold(0u128, |bits, word| bits << 32 | u128::from(*word));
        (bits, self.0[..low].iter().any(|word| *word != 0), low as i64 * 32)
    }

    /// Computes `self / divisor` in the form of [`BigUint::top_bits`], with 66 or 67 significant bits.
    pub(super) fn quotient(&self, divisor: &Self) -> (u128, bool, i64) {
        let (mut rest, mut divisor) = (self.clone(), divisor.clone());
        let shift = divisor.bit_len() + 66 - rest.bit_len();
        if shift >= 0 {
            rest.shift_left(shift as u32);
        } else {
            divisor.shift_left(shift.unsigned_abs() as u32);
        }
        // Long division bit by bit. The quotient is below 2^67.
        divisor.shift_left(67);
        let mut quotient = 0u128;
        for _ in 0..67 {
            divisor.shift_right_by_one();
            quotient <<= 1;
            if !rest.is_less_than(&divisor) {
                rest.subtract(&divisor);
                quotient |= 1;
            }
        }
        (quotient, !rest.0.is_empty(), -shift)
    }

    pub(super) fn to_decimal(&self) -> String {
        let mut rest = self.clone();
        let mut groups = Vec::new();
        while !rest.0.is_empty() {
            let mut remainder = 0u64;
            for word in rest.0.iter_mut().rev() {
                let value = remainder << 32 | u64::from(*word);
                *word = (value / 1_000_000_000) as u32;
                remainder = value % 1_000_000_000;
            }
            rest.trim_leading_zeros();
            groups.push(remainder);
        }
        let mut text = groups.pop().unwrap_or(0).to_string();
        for group in groups.iter().rev() {
            text.push_str(&format!("{group:09}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_integer_operations_are_exact() {
        let mut big = BigUint::from(1);
        big.mul_power_of_ten(28);
        assert_eq!(big.to_decimal(), format!("1{}", "0".repeat(28)));
        big.shift_left(33);
        assert_eq!(big.to_decimal(), (10u128.pow(28) << 33).to_string());
        let (bits, sticky, exponent) = BigUint::from(1).quotient(&BigUint::from(3));
        assert_eq!((bits, sticky), ((1u128 << -exponent) / 3, true));
        assert_eq!(BigUint::from(6).quotient(&BigUint::from(3)), (1 << 66, false, -65));
        assert_eq!(BigUint::default().to_decimal(), "0");
    }
}
