//! Number formatting like C's `printf`.

use resp::Double;

/// Formats like `%.{precision}g`.
#[must_use]
pub(crate) fn format_g(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan".to_owned() } else { "nan".to_owned() };
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    let precision = precision.max(1);
    let scientific = format!("{:.*e}", precision - 1, value);
    let (mantissa, exponent) = scientific.split_once('e').expect("the form of LowerExp");
    let exponent: i32 = exponent.parse().expect("the form of LowerExp");
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim_trailing_zeros(mantissa), exponent.abs());
    }
    let decimals = (precision as i32 - 1 - exponent) as usize;
    trim_trailing_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// Formats a number as a command argument with the fewest digits that read back as the same number, as in Valkey.
#[must_use]
pub(crate) fn format_argument(value: f64) -> String {
    if value.is_nan() {
        return format_g(value, 17);
    }
    // Adding 0.0 removes the sign of negative zero.
    Double(value + 0.0).to_string()
}

/// Whether a number is an integer in the range where doubles represent every integer exactly.
pub(crate) fn is_exact_integer(number: f64) -> bool {
    const MAX_EXACT_INTEGER: f64 = (1_u64 << 53) as f64;
    number.abs() < MAX_EXACT_INTEGER && number.trunc() == number
}

fn trim_trailing_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Converts a number to an integer like a C cast on x86-64: values out of range become the minimum.
#[must_use]
pub(crate) fn to_integer(value: f64) -> i64 {
    const INTEGER_BOUND: f64 = 9_223_372_036_854_775_808.0;
    if (-INTEGER_BOUND..INTEGER_BOUND).contains(&value) { value as i64 } else { i64::MIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_like_printf() {
        let table: &[(f64, usize, &str)] = &[
            (0.0, 17, "0"),
            (-0.0, 17, "-0"),
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (1e17, 17, "1e+17"),
            (12345.0, 17, "12345"),
            (1e-5, 14, "1e-05"),
            (1.5e300, 14, "1.5e+300"),
            (123_456_789_012_345_680.0, 17, "1.2345678901234568e+17"),
            (99_999_999_999_999.9, 14, "1e+14"),
            (-2.5, 3, "-2.5"),
            (100.0, 3, "100"),
            (1000.0, 3, "1e+03"),
            (f64::INFINITY, 14, "inf"),
        ];
        for (value, precision, text) in table {
            assert_eq!(format_g(*value, *precision), *text);
        }
        let words: &[(f64, &str)] = &[
            (0.1, "0.1"),
            (-0.0, "0"),
            (1e17, "100000000000000000"),
            (1e-5, "0.00001"),
            (-1.234e-5, "-1.234e-5"),
            (1.5e300, "1.5e+300"),
            (f64::NEG_INFINITY, "-inf"),
            (-f64::NAN, "-nan"),
        ];
        for (value, text) in words {
            assert_eq!(format_argument(*value), *text);
        }
        assert_eq!(to_integer(3.99), 3);
        assert_eq!(to_integer(-3.99), -3);
        assert_eq!((to_integer(f64::NAN), to_integer(1e300)), (i64::MIN, i64::MIN));
    }
}
