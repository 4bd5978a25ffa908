//! Search areas: which points they contain and which grid cells cover them.

use super::cell::{BISECTION_STEPS, GridCell, Point};

/// Mean radius of the earth in meters, with the value that Redis uses.
const EARTH_RADIUS_METERS: f64 = 6_372_797.560_856;
/// Half of the Mercator map's width at the equator, in meters.
const HALF_MAP_WIDTH_METERS: f64 = 20_037_726.37;
const RADIANS_PER_DEGREE: f64 = std::f64::consts::PI / 180.0;

/// Tolerance for rounding errors: if a computed distance exceeds the limit times this factor, the exact distance
/// certainly exceeds the limit.
const ROUNDING_TOLERANCE: f64 = 1.000_001;

fn to_radians(degrees: f64) -> f64 {
    degrees * RADIANS_PER_DEGREE
}

fn to_degrees(radians: f64) -> f64 {
    radians / RADIANS_PER_DEGREE
}

/// The distance in meters between two latitudes along a meridian.
fn meridian_distance(from: f64, to: f64) -> f64 {
    EARTH_RADIUS_METERS * (to_radians(to) - to_radians(from)).abs()
}

/// The great-circle distance in meters, by the haversine formula.
pub(super) fn distance(from: Point, to: Point) -> f64 {
    distance_from(from, to_radians(from.latitude).cos(), to)
}

/// Like [`distance`], with a precomputed cosine of the first point's latitude.
fn distance_from(from: Point, latitude_cosine: f64, to: Point) -> f64 {
    let v = ((to_radians(to.longitude) - to_radians(from.longitude)) / 2.0).sin();
    if v == 0.0 {
        return meridian_distance(from.latitude, to.latitude);
    }
    let (one, other) = (to_radians(from.latitude), to_radians(to.latitude));
    let u = ((other - one) / 2.0).sin();
    let a = u * u + latitude_cosine * other.cos() * v * v;
    2.0 * EARTH_RADIUS_METERS * a.sqrt().asin()
}

/// The shape of a search area, lengths in meters.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Circle { radius: f64 },
    Box { width: f64, height: f64 },
    Polygon(Polygon),
}

/// A polygon on a flat map of longitude and latitude, as in Valkey. No edge crosses the antimeridian.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Polygon {
    vertices: Vec<Point>,
}

impl Polygon {
    /// Creates a polygon from at least three vertices.
    pub(super) fn new(vertices: Vec<Point>) -> Self {
        Self { vertices }
    }

    /// The reference point for distances: the mean of the vertices on the sphere, projected back to the surface.
    pub(super) fn center(&self) -> Point {
        let mut sum = [0.0; 3];
        for vertex in &self.vertices {
            let (longitude, latitude) = (to_radians(vertex.longitude), to_radians(vertex.latitude));
            sum[0] += latitude.cos() * longitude.cos();
            sum[1] += latitude.cos() * longitude.sin();
            sum[2] += latitude.sin();
        }
        let [x, y, z] = sum.map(|part| part / self.vertices.len() as f64);
        Point { longitude: to_degrees(y.atan2(x)), latitude: to_degrees(z.atan2(x.hypot(y))) }
    }

    /// The south-west and north-east corners of the bounding box.
    fn bounding_box(&self) -> (Point, Point) {
        let [low, high] =
            [f64::INFINITY, f64::NEG_INFINITY].map(|edge| Point { longitude: edge, latitude: edge });
        self.vertices.iter().fold((low, high), |(low, high), vertex| {
            let low = Point {
                longitude: low.longitude.min(vertex.longitude),
                latitude: low.latitude.min(vertex.latitude),
            };
            let high = Point {
                longitude: high.longitude.max(vertex.longitude),
                latitude: high.latitude.max(vertex.latitude),
            };
            (low, high)
        })
    }

    /// Point-in-polygon test by ray casting: counts the edges that a ray to the east crosses.
    fn contains(&self, point: Point) -> bool {
        let mut is_within = false;
        let mut previous = self.vertices.last();
        for vertex in &self.vertices {
            let Some(other) = previous.replace(vertex) else { continue };
            if (vertex.latitude > point.latitude) == (other.latitude > point.latitude) {
                continue;
            }
            let slope = (other.longitude - vertex.longitude) / (other.latitude - vertex.latitude);
            let crossing = slope * (point.latitude - vertex.latitude) + vertex.longitude;
            is_within ^= point.longitude < crossing;
        }
        is_within
    }
}

/// A shape with its center, the reference point for distances.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchArea<'s> {
    center: Point,
    shape: &'s Shape,
    /// Cosine of the center's latitude.
    latitude_cosine: f64,
}

impl<'s> SearchArea<'s> {
    pub(super) fn new(center: Point, shape: &'s Shape) -> Self {
        Self { center, shape, latitude_cosine: to_radians(center.latitude).cos() }
    }

    /// The distance from the center, or `None` if the point lies outside.
    pub(super) fn distance_within(&self, point: Point) -> Option<f64> {
        match *self.shape {
            Shape::Polygon(ref polygon) => polygon.contains(point).then(|| distance(self.center, point)),
            Shape::Circle { radius } => {
                // Cheap lower bound first: no path between two latitudes is shorter than the meridian.
                if meridian_distance(self.center.latitude, point.latitude) > radius * ROUNDING_TOLERANCE {
                    return None;
                }
                let distance = distance_from(self.center, self.latitude_cosine, point);
                (distance <= radius).then_some(distance)
            }
            Shape::Box { width, height } => {
                if meridian_distance(point.latitude, self.center.latitude) > height / 2.0 {
                    return None;
                }
                let neighbour = Point { longitude: self.center.longitude, ..point };
                if distance(point, neighbour) > width / 2.0 {
                    return None;
                }
                Some(distance_from(self.center, self.latitude_cosine, point))
            }
        }
    }

    /// The south-west and north-east corners of a bounding box.
    fn bounding_box(&self) -> (Point, Point) {
        let (height, width) = match *self.shape {
            Shape::Circle { radius } => (radius, radius),
            Shape::Box { width, height } => (height / 2.0, width / 2.0),
            Shape::Polygon(ref polygon) => return polygon.bounding_box(),
        };
        let Point { longitude, latitude } = self.center;
        let up = to_degrees(height / EARTH_RADIUS_METERS);
        let across = |latitude: f64| to_degrees(width / EARTH_RADIUS_METERS / to_radians(latitude).cos());
        let across = if latitude < 0.0 { across(latitude - up) } else { across(latitude + up) };
        (
            Point { longitude: longitude - across, latitude: latitude - up },
            Point { longitude: longitude + across, latitude: latitude + up },
        )
    }

    /// The point around which cells are searched.
    fn search_center(&self) -> Point {
        let Shape::Polygon(polygon) = self.shape else { return self.center };
        let (low, high) = polygon.bounding_box();
        Point {
            longitude: (low.longitude + high.longitude) / 2.0,
            latitude: (low.latitude + high.latitude) / 2.0,
        }
    }

    /// Distance in meters from [`SearchArea::search_center`] to the farthest point of the area.
    fn max_distance(&self) -> f64 {
        match *self.shape {
            Shape::Circle { radius } => radius,
            Shape::Box { width, height } => (width / 2.0).hypot(height / 2.0),
            Shape::Polygon(ref polygon) => {
                let (low, high) = polygon.bounding_box();
                let widest = low.latitude.max(0.0).min(high.latitude);
                let width = EARTH_RADIUS_METERS
                    * to_radians(high.longitude - low.longitude)
                    * to_radians(widest).cos();
                (width / 2.0).hypot(meridian_distance(low.latitude, high.latitude) / 2.0)
            }
        }
    }

    /// The number of grid steps at which a cell is about as large as the area.
    fn grid_steps(&self) -> u32 {
        let mut reach = self.max_distance();
        if reach == 0.0 {
            return BISECTION_STEPS;
        }
        let mut steps = 1i32;
        while reach < HALF_MAP_WIDTH_METERS {
            reach *= 2.0;
            steps += 1;
        }
        // Use larger cells near the poles, where cells are narrow, so that a cell and its neighbours cover the area.
        let latitude = self.search_center().latitude.abs();
        steps -= 2 + i32::from(latitude > 66.0) + i32::from(latitude > 80.0);
        steps.clamp(1, BISECTION_STEPS as i32) as u32
    }

    /// The cells that cover the area, in search order: the center cell, north, south, east, west, then the corners.
    pub(super) fn covering_cells(&self) -> Vec<GridCell> {
        const NEIGHBOUR_OFFSETS: [(i32, i32); 9] =
            [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let (low, high) = self.bounding_box();
        let (middle, steps) = (self.search_center(), self.grid_steps());
        let mut cell = GridCell::containing(middle, steps);
        let is_short = cell.neighbour(0, 1).latitude_range().1 < high.latitude
            || cell.neighbour(0, -1).latitude_range().0 > low.latitude
            || cell.neighbour(1, 0).longitude_range().1 < high.longitude
            || cell.neighbour(-1, 0).longitude_range().0 > low.longitude;
        let mut final_steps = steps;
        if steps > 1 && is_short {
            final_steps -= 1;
            cell = GridCell::containing(middle, final_steps);
        }
        let ((west, east), (south, north)) = (cell.longitude_range(), cell.latitude_range());
        let needed = |(x, y): (i32, i32)| {
            final_steps < 2
                || !(y < 0 && south < low.latitude
                    || y > 0 && north > high.latitude
                    || x < 0 && west < low.longitude
                    || x > 0 && east > high.longitude)
        };
        let mut cells: Vec<GridCell> = Vec::new();
        for (x, y) in NEIGHBOUR_OFFSETS.into_iter().filter(|neighbour| needed(*neighbour)) {
            let next = cell.neighbour(x, y);
            // In a large area, neighbours wrap around to cells that are already in the list.
            if cells.len() < 2 || cells.last() != Some(&next) {
                cells.push(next);
            }
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_match_redis() {
        let palermo = Point::from_score(Point { longitude: 13.361389, latitude: 38.115556 }.score());
        let catania = Point::from_score(Point { longitude: 15.087269, latitude: 37.502669 }.score());
        assert_eq!(format!("{:.4}", distance(palermo, catania)), "166274.1516");
    }

    #[test]
    fn points_in_area_are_in_covering_cells() {
        let mut random = 7u64;
        let mut next = |range: f64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0) * range
        };
        let mut within = 0;
        for number in 0..20_000 {
            let center = Point { longitude: next(180.0), latitude: next(60.0) };
            let reach = 10f64.powf(next(1.0) * 2.5 + 3.0);
            let spread = reach / 100_000.0;
            let shape = match number % 3 {
                0 => Shape::Circle { radius: reach },
                1 => Shape::Box { width: reach, height: reach / 2.0 },
                _ => {
                    let mut vertex = || Point {
                        longitude: (center.longitude + next(spread * 2.0)).clamp(-180.0, 180.0),
                        latitude: center.latitude + next(spread),
                    };
                    Shape::Polygon(Polygon::new((0..3 + number % 5).map(|_| vertex()).collect()))
                }
            };
            let area = SearchArea::new(center, &shape);
            let point = Point {
                longitude: center.longitude + next(spread),
                latitude: center.latitude + next(spread),
            };
            if !point.is_valid() || area.distance_within(point).is_none() {
                continue;
            }
            within += 1;
            let score = point.score();
            let covered = area
                .covering_cells()
                .iter()
                .any(|cell| (cell.score_range().0..cell.score_range().1).contains(&score));
            assert!(covered, "{area:?} {point:?}");
        }
        assert!(within > 1000, "{within}");
    }
}
