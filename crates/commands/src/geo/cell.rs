//! Cells of the geohash grid.
//!
//! Longitude and latitude are each bisected 26 times, which gives two numbers of 26 bits. Their interleaved bits
//! (latitude first, from the lowest) form a score of 52 bits, which a double holds exactly. Points that are close on
//! the earth mostly have close scores. The ranges, and therefore the scores, are those of Redis.

/// Number of bisection steps for each coordinate of a stored point.
pub(super) const BISECTION_STEPS: u32 = 26;
/// Number of bits of a score.
const SCORE_BITS: u32 = 2 * BISECTION_STEPS;

/// A range of degrees, from lowest to highest.
pub(super) type DegreeRange = (f64, f64);
pub(super) const LONGITUDES: DegreeRange = (-180.0, 180.0);
/// Latitude limits of the square Web Mercator map.
pub(super) const LATITUDES: DegreeRange = (-85.051_128_78, 85.051_128_78);
/// The full latitude range, which standard geohash strings use.
const ALL_LATITUDES: DegreeRange = (-90.0, 90.0);

const BASE32_ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// A point in degrees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

impl Point {
    /// Whether the point is within the limits of the grid.
    pub(super) fn is_valid(self) -> bool {
        (LONGITUDES.0..=LONGITUDES.1).contains(&self.longitude)
            && (LATITUDES.0..=LATITUDES.1).contains(&self.latitude)
    }

    /// The center of the cell that a score stands for.
    pub(super) fn from_score(score: f64) -> Self {
        let cell = GridCell::from_bits(score_to_bits(score), BISECTION_STEPS);
        let ((west, east), (south, north)) = (cell.longitude_range(), cell.latitude_range());
        Self {
            longitude: ((west + east) / 2.0).clamp(LONGITUDES.0, LONGITUDES.1),
            latitude: ((south + north) / 2.0).clamp(LATITUDES.0, LATITUDES.1),
        }
    }

    /// The score of this point.
    pub(super) fn score(self) -> f64 {
        GridCell::containing(self, BISECTION_STEPS).to_bits() as f64
    }

    /// The standard geohash of eleven characters. The last one is padding, since only 52 bits exist.
    pub(super) fn geohash(self) -> [u8; 11] {
        let (x, y) = (
            cell_index(self.longitude, LONGITUDES, BISECTION_STEPS),
            cell_index(self.latitude, ALL_LATITUDES, BISECTION_STEPS),
        );
        let bits = GridCell { column: x, row: y, steps: BISECTION_STEPS }.to_bits();
        let mut text = [BASE32_ALPHABET[0]; 11];
        for (index, letter) in text.iter_mut().take(10).enumerate() {
            *letter = BASE32_ALPHABET[(bits >> (SCORE_BITS - 5 * (index as u32 + 1)) & 31) as usize];
        }
        text
    }
}

/// Converts any score to grid bits. Redis leaves the conversion of out-of-range doubles to the CPU; this function does
/// what current x86-64 CPUs do.
fn score_to_bits(score: f64) -> u64 {
    const TWO_TO_63: f64 = (1u64 << 63) as f64;
    match score {
        score if score < TWO_TO_63 => (score as i64).cast_unsigned(),
        score if score < 2.0 * TWO_TO_63 => score as u64,
        _ => 0,
    }
}

/// A grid cell after a number of steps: its column counted from the west and its row from the south.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GridCell {
    column: u32,
    row: u32,
    steps: u32,
}

/// Index of the part that contains `degree`, if `range` is divided into `2^steps` equal parts.
fn cell_index(degree: f64, range: DegreeRange, steps: u32) -> u32 {
    ((degree - range.0) / (range.1 - range.0) * f64::from(1u32 << steps)) as u32
}

/// The range of degrees of the part with this index, if `range` is divided into `2^steps` equal parts.
fn cell_range(index: u32, range: DegreeRange, steps: u32) -> DegreeRange {
    let (parts, width) = (f64::from(1u32 << steps), range.1 - range.0);
    (range.0 + f64::from(index) / parts * width, range.0 + (f64::from(index) + 1.0) / parts * width)
}

/// Spreads the bits of a number to the even bit positions of the result.
fn interleave_zeros(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// The inverse of [`interleave_zeros`].
fn drop_odd_bits(bits: u64) -> u32 {
    let mut bits = bits & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

impl GridCell {
    pub(super) fn containing(point: Point, steps: u32) -> Self {
        Self {
            column: cell_index(point.longitude, LONGITUDES, steps),
            row: cell_index(point.latitude, LATITUDES, steps),
            steps,
        }
    }

    fn from_bits(bits: u64, steps: u32) -> Self {
        Self { column: drop_odd_bits(bits >> 1), row: drop_odd_bits(bits), steps }
    }

    fn to_bits(self) -> u64 {
        interleave_zeros(self.column) << 1 | interleave_zeros(self.row)
    }

    /// The cell that is `east` columns and `north` rows away; the grid wraps around. A point exactly at the highest
    /// longitude or latitude is in a separate cell, which has no neighbours.
    pub(super) fn neighbour(self, east: i32, north: i32) -> Self {
        let mask = (1u32 << self.steps) - 1;
        let moved = |part: u32, by: i32| if by == 0 { part } else { part.wrapping_add_signed(by) & mask };
        Self { column: moved(self.column, east), row: moved(self.row, north), ..self }
    }

    pub(super) fn longitude_range(self) -> DegreeRange {
        cell_range(self.column, LONGITUDES, self.steps)
    }

    pub(super) fn latitude_range(self) -> DegreeRange {
        cell_range(self.row, LATITUDES, self.steps)
    }

    /// The range of scores of the points in the cell. The first score is included, the second is not.
    pub(super) fn score_range(self) -> (f64, f64) {
        let shift = SCORE_BITS - 2 * self.steps;
        ((self.to_bits() << shift) as f64, ((self.to_bits() + 1) << shift) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any sorted set works as a geo index, so scores that no point produces map to the same points as in Redis.
    #[test]
    fn any_score_decodes_to_a_point() {
        for (score, hash) in [
            (1e300, b"00bh0hbj200"),
            (-5.0, b"bp05b5048p0"),
            (f64::INFINITY, b"00bh0hbj200"),
            (9e15, b"zz17vgpd8p0"),
        ] {
            assert_eq!(&Point::from_score(score).geohash(), hash, "{score}");
        }
    }

    #[test]
    fn interleave_zeros_and_drop_odd_bits_are_inverse() {
        let mut number = 1u32;
        for _ in 0..1000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            assert_eq!(drop_odd_bits(interleave_zeros(number)), number);
            assert_eq!(drop_odd_bits(interleave_zeros(number) << 1), 0);
        }
    }

    #[test]
    fn scores_match_redis() {
        let palermo = Point { longitude: 13.361389, latitude: 38.115556 };
        assert_eq!(palermo.score(), 3_479_099_956_230_698.0);
        let read = Point::from_score(palermo.score());
        assert!(
            (read.longitude - palermo.longitude).abs() < 1e-5
                && (read.latitude - palermo.latitude).abs() < 1e-5
        );
        assert_eq!(&read.geohash(), b"sqc8b49rny0");
    }

    #[test]
    fn neighbouring_cells_wrap_around() {
        let cell = GridCell { column: 0, row: 3, steps: 2 };
        assert_eq!(cell.neighbour(-1, 1), GridCell { column: 3, row: 0, steps: 2 });
        assert_eq!(cell.neighbour(1, -1), GridCell { column: 1, row: 2, steps: 2 });
    }
}
