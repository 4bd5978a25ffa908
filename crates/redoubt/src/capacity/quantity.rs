//! Parses and formats numbers with units.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

/// A count or a number of bytes, such as `700M`, `64GB` or `1.5k`. Units are powers of 1000, `KiB` and so on of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantity(pub(super) u64);

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a number like 1500, 700M, 64GB or 16GiB");
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim().to_ascii_lowercase();
        let unit = unit.strip_suffix('b').unwrap_or(&unit);
        let factor = match unit {
            "" => 1.0,
            "k" => 1e3,
            "m" => 1e6,
            "g" => 1e9,
            "t" => 1e12,
            "ki" => 1024.0,
            "mi" => 1024.0 * 1024.0,
            "gi" => 1024.0 * 1024.0 * 1024.0,
            "ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(wrong()),
        };
        let value = number * factor;
        if value > 1e18 { Err(wrong()) } else { Ok(Self(value.round() as u64)) }
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;
        impl Visitor<'_> for QuantityVisitor {
            type Value = Quantity;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a number like 1500 or 700M")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity(value))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                u64::try_from(value).map(Quantity).map_err(|_| E::custom("must not be negative"))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// Parses a fraction such as `30%` or `0.3`.
pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    let wrong = || format!("'{text}' is not a percentage like 30%");
    let (number, factor) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    if number.is_finite() && number >= 0.0 { Ok(number * factor) } else { Err(wrong()) }
}

/// Parses a growth rate such as `5%/month` or `60%/year`; returns the monthly rate.
pub(super) fn parse_growth(text: &str) -> Result<f64, String> {
    let (rate, unit) = text.split_once('/').unwrap_or((text, "month"));
    let rate = parse_share(rate)?;
    match unit {
        "month" => Ok(rate),
        "year" => Ok((1.0 + rate).powf(1.0 / 12.0) - 1.0),
        _ => Err(format!("'{text}' is not a growth rate like 5%/month or 60%/year")),
    }
}

/// Parses the free share of a node, which must be below 100 %.
pub(super) fn parse_headroom(text: &str) -> Result<f64, String> {
    parse_share(text).and_then(|share| {
        if share < 1.0 { Ok(share) } else { Err("headroom must be less than 100%".to_owned()) }
    })
}

/// Formats bytes with a decimal unit.
pub(super) fn format_bytes(value: f64) -> String {
    const BYTE_UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut value = value;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < BYTE_UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let places = usize::from(unit > 0 && value < 100.0);
    format!("{value:.places$} {}", BYTE_UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_parsed_and_formatted() {
        let read = |text: &str| text.parse::<Quantity>().map(|quantity| quantity.0);
        assert_eq!(read("700M"), Ok(700_000_000));
        assert_eq!((read("64GB"), read("1.5k"), read("16GiB")), (Ok(64_000_000_000), Ok(1500), Ok(16 << 30)));
        for text in ["", "M", "-1", "1x", "1e30", "9999999TB"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!((parse_share("30%"), parse_share("0.5")), (Ok(0.3), Ok(0.5)));
        assert!(parse_share("x").is_err() && parse_share("-1%").is_err() && parse_headroom("100%").is_err());
        assert_eq!(parse_growth("5%/month"), Ok(0.05));
        assert!(
            (parse_growth("60%/year").unwrap_or(0.0) - 0.0399).abs() < 0.001
                && parse_growth("5%/day").is_err()
        );
        assert_eq!(
            (format_bytes(12.0), format_bytes(644e9), format_bytes(1500.0)),
            ("12 B".into(), "644 GB".into(), "1.5 KB".into())
        );
    }
}
