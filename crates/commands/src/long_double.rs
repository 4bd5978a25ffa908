//! The floating-point type of INCRBYFLOAT and HINCRBYFLOAT: the 80-bit extended format of x86, in software.
//!
//! Redis adds in C's `long double` and prints with `%.17Lf`. On x86-64 that is a sign, a mantissa of 64 bits and an
//! exponent of 15 bits. Emulating this format gives the same digits on every machine. Three steps round exactly once
//! each, to nearest with ties to even: parsing ([`LongDouble::parse`]), addition ([`LongDouble::add`]) and printing
//! (`Display`).
//!
//! Subnormal numbers are not emulated and keep their full precision. They are below 10^-4931 and print as 0.

use std::fmt;

mod big;

use big::BigUint;

/// Longer text is refused, since Redis copies the text into a buffer of 5 KiB.
const MAX_TEXT_LEN: usize = 5 * 1024;
/// Finite numbers are below 2 to the power of this exponent.
const MAX_EXPONENT: i64 = 16384;
/// Numbers below 2 to the power of this exponent (half of the smallest subnormal) are refused.
const MIN_EXPONENT: i64 = -16445;
/// Number of decimal places that are printed.
const DECIMAL_PLACES: u32 = 17;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LongDouble {
    /// `mantissa * 2^exponent`. The mantissa is normalized (highest bit set) or zero.
    Finite {
        negative: bool,
        mantissa: u64,
        exponent: i32,
    },
    Infinite {
        negative: bool,
    },
}

impl Default for LongDouble {
    fn default() -> Self {
        Self::ZERO
    }
}

impl LongDouble {
    pub(crate) const ZERO: Self = Self::Finite { negative: false, mantissa: 0, exponent: 0 };

    /// The largest finite number.
    pub(crate) const MAX: Self =
        Self::Finite { negative: false, mantissa: u64::MAX, exponent: MAX_EXPONENT as i32 - 64 };
    pub(crate) const MIN: Self = Self::MAX.negated();

    /// Parses the syntax of C's `strtold` without surrounding text: decimal and hexadecimal numbers and infinities.
    /// Refuses NaN and numbers out of range.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= MAX_TEXT_LEN {
            return None;
        }
        let (negative, digits) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if digits.eq_ignore_ascii_case(b"inf") || digits.eq_ignore_ascii_case(b"infinity") {
            return Some(Self::Infinite { negative });
        }
        let (mantissa, exponent) = match digits {
            [b'0', b'x' | b'X', rest @ ..] => Numeral::parse::<16>(rest)?.round_hexadecimal()?,
            _ => Numeral::parse::<10>(digits)?.round_decimal()?,
        };
        Some(Self::Finite { negative, mantissa, exponent })
    }

    /// Converts to a double: infinite if the number is out of range, and zero only for zero.
    pub(crate) fn to_double(self) -> f64 {
        let (negative, magnitude) = match self {
            Self::Infinite { negative } => (negative, f64::INFINITY),
            Self::Finite { negative, mantissa, exponent } => {
                // Scale in two steps: 2^exponent alone may be out of range although the result is not.
                let (first, second) = (exponent / 2, exponent - exponent / 2);
                let magnitude = mantissa as f64 * 2f64.powi(first) * 2f64.powi(second);
                (negative, if mantissa == 0 { 0.0 } else { magnitude.max(f64::MIN_POSITIVE) })
            }
        };
        if negative { -magnitude } else { magnitude }
    }

    pub(crate) fn is_finite(self) -> bool {
        matches!(self, Self::Finite { .. })
    }

    /// The number with the opposite sign.
    pub(crate) const fn negated(self) -> Self {
        match self {
            Self::Finite { negative, mantissa, exponent } => {
                Self::Finite { negative: !negative, mantissa, exponent }
            }
            Self::Infinite { negative } => Self::Infinite { negative: !negative },
        }
    }

    /// Compares two numbers; `self` must be finite.
    pub(crate) fn is_greater_than(self, other: Self) -> bool {
        match self.add(other.negated()) {
            Some(Self::Finite { negative, mantissa, .. }) => !negative && mantissa != 0,
            // The difference overflows only if the signs differ, so the sign decides.
            Some(Self::Infinite { .. }) | None => {
                matches!(self, Self::Finite { negative: false, .. } | Self::Infinite { negative: false })
            }
        }
    }

    /// The sum, or `None` if it is infinite or NaN.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        let (
            Self::Finite { negative: n1, mantissa: m1, exponent: e1 },
            Self::Finite { negative: n2, mantissa: m2, exponent: e2 },
        ) = (self, other)
        else {
            return None;
        };
        if m1 == 0 || m2 == 0 {
            return Some(if m2 == 0 && (m1 != 0 || !n1) { self } else { other });
        }
        if e1 < e2 {
            return other.add(self);
        }
        // Align the larger operand so that 62 bits remain below it. Bits of the smaller operand that are shifted out
        // set the sticky bit. Both operands stay below 2^126, so their sum cannot overflow.
        let distance = (e1 - e2) as u32;
        let large = u128::from(m1) << 62;
        let full = u128::from(m2) << 62;
        let small = match distance {
            0..=126 => full >> distance | u128::from(full & ((1 << distance) - 1) != 0),
            _ => 1,
        };
        let (negative, sum) = match (n1 == n2, large >= small) {
            (true, _) => (n1, large + small),
            (false, true) => (n1, large - small),
            (false, false) => (n2, small - large),
        };
        if sum == 0 {
            return Some(Self::ZERO);
        }
        let (mantissa, exponent) = round(sum, false, i64::from(e1) - 62)?;
        Some(Self::Finite { negative, mantissa, exponent })
    }
}

/// Rounds `bits * 2^exponent` to 64 bits. `sticky` means that nonzero bits follow below the lowest bit. `None` if the
/// result is out of range.
fn round(bits: u128, sticky: bool, exponent: i64) -> Option<(u64, i32)> {
    debug_assert!(bits != 0);
    let excess = 64 - i64::from(bits.leading_zeros());
    let mut exponent = exponent + excess;
    let mut mantissa = if excess <= 0 {
        debug_assert!(!sticky, "what is inexact has more than 64 bits");
        bits << -excess
    } else {
        let (kept, lost) = (bits >> excess, bits & ((1 << excess) - 1));
        let half = 1u128 << (excess - 1);
        let up = lost > half || lost == half && (sticky || kept & 1 == 1);
        kept + u128::from(up)
    };
    if mantissa >> 64 != 0 {
        mantissa >>= 1;
        exponent += 1;
    }
    if exponent + 64 > MAX_EXPONENT || exponent + 64 < MIN_EXPONENT {
        return None;
    }
    Some((mantissa as u64, exponent as i32))
}

/// A parsed number before rounding: `digits * base^exponent`.
struct Numeral {
    digits: BigUint,
    /// Number of significant digits.
    digit_count: i64,
    /// Number of digits after the point.
    decimal_places: i64,
    /// The exponent after `e` or `p`.
    exponent: i64,
}

impl Numeral {
    fn parse<const BASE: u32>(text: &[u8]) -> Option<Self> {
        let mut numeral = Self { digits: BigUint::default(), digit_count: 0, decimal_places: 0, exponent: 0 };
        let (mut point, mut any, mut rest) = (false, false, text);
        while let [byte, after @ ..] = rest {
            match char::from(*byte).to_digit(BASE) {
                Some(digit) => {
                    any = true;
                    numeral.digits.mul_add(BASE, digit);
                    numeral.digit_count += i64::from(numeral.digit_count > 0 || digit > 0);
                    numeral.decimal_places += i64::from(point);
                }
                None if *byte == b'.' && !point => point = true,
                None => break,
            }
            rest = after;
        }
        let mark = if BASE == 16 { b'p' } else { b'e' };
        match rest {
            [] => {}
            [byte, after @ ..] if byte.eq_ignore_ascii_case(&mark) => {
                numeral.exponent = parse_exponent(after)?;
            }
            _ => return None,
        }
        any.then_some(numeral)
    }

    fn round_hexadecimal(&self) -> Option<(u64, i32)> {
        if self.digit_count == 0 {
            return Some((0, 0));
        }
        let (bits, below, shift) = self.digits.top_bits();
        round(bits, below, self.exponent - 4 * self.decimal_places + shift)
    }

    fn round_decimal(&self) -> Option<(u64, i32)> {
        if self.digit_count == 0 {
            return Some((0, 0));
        }
        let power = self.exponent - self.decimal_places;
        // The number is far out of range, so avoid the computation with big integers.
        if !(-4970..=4940).contains(&(self.digit_count + power)) {
            return None;
        }
        if power >= 0 {
            let mut product = self.digits.clone();
            product.mul_power_of_ten(power as u32);
            let (bits, below, shift) = product.top_bits();
            return round(bits, below, shift);
        }
        let mut divisor = BigUint::from(1);
        divisor.mul_power_of_ten(power.unsigned_abs() as u32);
        let (bits, below, shift) = self.digits.quotient(&divisor);
        round(bits, below, shift)
    }
}

/// Parses the signed exponent after `e` or `p`. Saturates at values far out of range.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0i64;
    for byte in digits {
        let digit = char::from(*byte).to_digit(10)?;
        value = (value * 10 + i64::from(digit)).min(1_000_000);
    }
    Some(if negative { -value } else { value })
}

impl fmt::Display for LongDouble {
    /// Formats like `%.17Lf`, without trailing zeros and without a trailing point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (negative, mantissa, exponent) = match *self {
            Self::Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
            Self::Infinite { negative } => return f.write_str(if negative { "-inf" } else { "inf" }),
        };
        let sign = if negative { "-" } else { "" };
        if exponent >= 0 {
            let mut whole = BigUint::from(mantissa);
            whole.shift_left(exponent as u32);
            let text = whole.to_decimal();
            return write!(f, "{}{text}", if text == "0" { "" } else { sign });
        }
        let scaled = u128::from(mantissa) * 10u128.pow(DECIMAL_PLACES);
        let shift = exponent.unsigned_abs();
        let rounded = if shift >= 128 {
            0 // Below 2^121 / 2^128.
        } else {
            let (kept, lost, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1u128 << (shift - 1));
            kept + u128::from(lost > half || lost == half && kept & 1 == 1)
        };
        if rounded == 0 {
            return f.write_str("0");
        }
        let (whole, part) = (rounded / 10u128.pow(DECIMAL_PLACES), rounded % 10u128.pow(DECIMAL_PLACES));
        let part = format!("{part:017}");
        match part.trim_end_matches('0') {
            "" => write!(f, "{sign}{whole}"),
            part => write!(f, "{sign}{whole}.{part}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum_text(a: &str, b: &str) -> String {
        let parse = |text: &str| LongDouble::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
        parse(a).add(parse(b)).map_or("none".to_owned(), |sum| sum.to_string())
    }

    #[test]
    fn sums_match_redis() {
        // The expected texts were taken from INCRBYFLOAT of Redis 7.0.15 on x86-64.
        let table = [
            ("0.1", "0.2", "0.3"),
            ("10.5", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "1.1", "4.1"),
            ("1e17", "0.1", "100000000000000000.1015625"),
            ("1e19", "1", "10000000000000000001"),
            ("17179869184", "1.5", "17179869185.5"),
            ("0x10", "0x1.8p1", "19"),
            ("-1e-20", "0", "0"),
            ("inf", "1", "none"),
            ("-0", "-0", "0"),
            ("0.12345678901234567", "0", "0.12345678901234567"),
            ("1.000000000000000005", "0", "1"),
            ("9223372036854775807", "1", "9223372036854775808"),
            ("1", "-1", "0"),
        ];
        for (a, b, expected) in table {
            assert_eq!(sum_text(a, b), expected, "{a} + {b}");
        }
    }

    #[test]
    fn invalid_numbers_are_refused() {
        for text in
            ["", " 1", "1 ", "1e", "e1", ".", "-", "0x", "1e5000", "1e-5000", "nan", "1.2.3", "--1", "1_0"]
        {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(LongDouble::parse(&[b'1'; MAX_TEXT_LEN]), None);
        assert!(LongDouble::parse(b"1e4932").is_some());
        assert!(LongDouble::parse(b"0e-99999").is_some());
    }

    /// Formats `number / 10^places` without trailing zeros.
    fn format_decimal(number: i128, places: usize) -> String {
        let sign = if number < 0 { "-" } else { "" };
        let digits = format!("{:0width$}", number.unsigned_abs(), width = places + 1);
        let (whole, part) = digits.split_at(digits.len() - places);
        let part = part.trim_end_matches('0');
        format!("{sign}{whole}{}{part}", if part.is_empty() { "" } else { "." })
    }

    proptest! {
        /// Numbers with few significant bits are parsed, added and printed without loss.
        #[test]
        fn sums_of_short_numbers_are_exact(
            a in -1_000_000_000i128..1_000_000_000,
            b in -1_000_000_000i128..1_000_000_000,
            shift in 0usize..17,
        ) {
            // a / 2^shift equals (a * 5^shift) / 10^shift.
            let a = a * 5i128.pow(shift as u32);
            let expected = format_decimal(a + b * 10i128.pow(shift as u32), shift);
            prop_assert_eq!(sum_text(&format_decimal(a, shift), &b.to_string()), expected);
        }

        #[test]
        fn arbitrary_input_does_not_panic(text in "[-+]?[0-9a-fxp.e+-]{0,30}") {
            if let Some(number) = LongDouble::parse(text.as_bytes()) {
                let _ = number.add(number).map(|sum| sum.to_string());
            }
        }
    }
}
