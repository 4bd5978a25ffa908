//! Parses and formats doubles the way Redis does.

use std::fmt;

use crate::grisu::{self, Decimal};

/// Parses a complete decimal number, `inf` or `infinity`, without surrounding space. Rejects NaN, nonzero numbers that
/// underflow to zero, and finite numbers that overflow.
#[must_use]
pub fn parse_double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, magnitude) = match text.as_bytes() {
        [b'-', ..] => (-1.0, &text[1..]),
        [b'+', ..] => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    match magnitude.as_bytes() {
        [b'+' | b'-', ..] => None,
        [b'i' | b'I', ..] => {
            let infinite = ["inf", "infinity"].iter().any(|word| magnitude.eq_ignore_ascii_case(word));
            infinite.then_some(sign * f64::INFINITY)
        }
        _ => {
            let value: f64 = magnitude.parse().ok()?;
            let mantissa = magnitude.split(['e', 'E']).next().unwrap_or_default();
            let is_zero = !mantissa.bytes().any(|byte| (b'1'..=b'9').contains(&byte));
            let fits = value.is_finite() && (value != 0.0 || is_zero);
            fits.then_some(sign * value)
        }
    }
}

/// Parses like C's `strtod`, which Redis 7.0 uses: also accepts hexadecimal numbers and leading space.
#[must_use]
pub fn parse_strtod(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start();
    let (sign, magnitude) = match text {
        [b'-', rest @ ..] => (-1.0, rest),
        [b'+', rest @ ..] => (1.0, rest),
        rest => (1.0, rest),
    };
    match magnitude {
        [b'0', b'x' | b'X', digits @ ..] => {
            parse_hexadecimal(std::str::from_utf8(digits).ok()?).map(|value| sign * value)
        }
        _ => parse_double(text),
    }
}

/// Parses `h.hhhp+d`, the part of a hexadecimal number after `0x`.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['p', 'P']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (mut value, mut shift) = (0u128, 0i32);
    for (index, digit) in whole.chars().chain(fraction.chars()).enumerate() {
        let digit = u128::from(digit.to_digit(16)?);
        let is_fraction = i32::from(index >= whole.len());
        if value >> 124 == 0 {
            value = value << 4 | digit;
            shift -= 4 * is_fraction;
        } else {
            // The mantissa is full. A lower digit matters only for rounding, and only whether it is nonzero.
            value |= u128::from(digit != 0);
            shift += 4 * (1 - is_fraction);
        }
    }
    let exponent = exponent.checked_add(shift)?.clamp(-3000, 3000);
    // Scale in two steps: a single power of two could overflow even if the result is in range.
    let result = value as f64 * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
    (result.is_finite() && (result != 0.0 || value == 0)).then_some(result)
}

impl Double {
    /// Returns the integer that is printed for this value, or `None` if the value is not integral or too large.
    #[must_use]
    #[inline]
    pub fn to_integer(self) -> Option<i64> {
        let Self(value) = self;
        let whole = value as i64;
        let is_whole = value.abs() <= MAX_INTEGRAL && (whole as f64).to_bits() == value.to_bits();
        is_whole.then_some(whole)
    }
}

/// Displays a double as Redis replies: the shortest digits that parse to this value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Double(pub f64);

/// Integral values up to this magnitude are printed as integers.
const MAX_INTEGRAL: f64 = (i64::MAX / 2) as f64;
/// Maximum number of zeros added before or after the digits; beyond it, exponent notation is used.
const MAX_PADDING_ZEROS: i32 = 7;

impl fmt::Display for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_integer() {
            Some(whole) => write!(f, "{whole}"),
            None => ShortestDouble(self.0).fmt(f),
        }
    }
}

/// Displays a double by its shortest digits even if it is integral: `1e+17`. Used by DEBUG DIGEST, never in
/// replies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShortestDouble(pub f64);

impl fmt::Display for ShortestDouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        if value.is_nan() {
            return f.write_str("nan");
        }
        if value.is_infinite() {
            return f.write_str(if value > 0.0 { "inf" } else { "-inf" });
        }
        if value == 0.0 {
            return f.write_str(if value.is_sign_negative() { "-0" } else { "0" });
        }
        // The value is `digits` times ten to the `scale`.
        let Decimal { digits, exponent: scale } = grisu::to_decimal(value.abs());
        let digits = digits.to_string();
        let count = digits.len() as i32;
        let exponent = scale + count - 1;
        if value < 0.0 {
            f.write_str("-")?;
        }
        if scale >= 0 && exponent < count + MAX_PADDING_ZEROS {
            return write!(f, "{digits}{:0<width$}", "", width = scale as usize);
        }
        if scale < 0 && (scale > -MAX_PADDING_ZEROS || exponent.abs() < 4) {
            let whole = count + scale;
            return if whole > 0 {
                let (whole, fraction) = digits.split_at(whole as usize);
                write!(f, "{whole}.{fraction}")
            } else {
                write!(f, "0.{:0<width$}{digits}", "", width = -whole as usize)
            };
        }
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        write!(f, "{first}{point}{rest}e{exponent:+}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_print_like_valkey_and_redis() {
        let table: &[(f64, &str)] = &[
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (1e10, "10000000000"),
            (-1e18, "-1000000000000000000"),
            (1e19, "1e+19"),
            (1e22, "1e+22"),
            (4_611_686_018_427_387_904.0, "4611686018427387904"),
            (123_456_789_012_345_680_000.0, "123456789012345680000"),
            (0.1, "0.1"),
            (1e-5, "0.00001"),
            (1e-7, "1e-7"),
            (1.234e-5, "1.234e-5"),
            (123_456_789.125, "123456789.125"),
            (1.5e300, "1.5e+300"),
            (5e-324, "5e-324"),
            (1.0 / 3.0, "0.3333333333333333"),
            (-2.5, "-2.5"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (value, text) in table {
            assert_eq!(Double(*value).to_string(), *text);
        }
    }

    #[test]
    fn integral_doubles_print_without_exponent() {
        let table: &[(f64, &str)] = &[
            (0.0, "0"),
            (-0.0, "-0"),
            (1e7, "10000000"),
            (1e17, "1e+17"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (3_480_469_786_558_251_008.0, "3480469786558251000"),
            (0.5, "0.5"),
        ];
        for (value, text) in table {
            assert_eq!(ShortestDouble(*value).to_string(), *text);
        }
    }

    #[test]
    fn printed_doubles_parse_to_the_same_value() {
        let mut bits = 1u64;
        for _ in 0..10_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = f64::from_bits(bits);
            if !value.is_nan() {
                let read = parse_double(Double(value).to_string().as_bytes());
                assert_eq!(read.map(f64::to_bits), Some(bits), "{value:e}");
            }
        }
    }

    #[test]
    fn strtod_accepts_hexadecimal_and_leading_space() {
        let table: &[(&str, Option<f64>)] = &[
            ("0x10", Some(16.0)),
            (" -0x1.8p1", Some(-3.0)),
            (" 1.5", Some(1.5)),
            ("0x", None),
            ("x", None),
        ];
        for (text, value) in table {
            assert_eq!(parse_strtod(text.as_bytes()), *value, "{text:?}");
        }
    }

    #[test]
    fn parse_double_accepts_only_decimal() {
        let table: &[(&str, Option<f64>)] = &[
            ("1", Some(1.0)),
            ("+1.5", Some(1.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("-1e3", Some(-1000.0)),
            ("inf", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("+inf", Some(f64::INFINITY)),
            ("0x10", None),
            ("-0x1.8p1", None),
            ("0", Some(0.0)),
            ("0e999", Some(0.0)),
            ("nan", None),
            ("-nan", None),
            ("1e400", None),
            ("1e-400", None),
            ("", None),
            ("-", None),
            ("+-1", None),
            (" 1", None),
            ("1 ", None),
            ("1x", None),
            ("infinit", None),
            ("0x", None),
        ];
        for (text, value) in table {
            assert_eq!(parse_double(text.as_bytes()), *value, "{text:?}");
        }
    }
}
