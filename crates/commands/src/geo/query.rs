//! The arguments of a search, and words that all commands of the family share.

use engine::{CommandError, quoted};
use keyspace::SortedSetRef;
use resp::{Args, Protocol, Writer};

use super::area::{Area, Polygon, Shape};
use super::cell::Point;

/// A unit of length, in meters.
pub(super) fn unit(word: &[u8]) -> Result<f64, CommandError> {
    match () {
        () if word.eq_ignore_ascii_case(b"m") => Ok(1.0),
        () if word.eq_ignore_ascii_case(b"km") => Ok(1000.0),
        () if word.eq_ignore_ascii_case(b"ft") => Ok(0.3048),
        () if word.eq_ignore_ascii_case(b"mi") => Ok(1609.34),
        () => Err(CommandError::text("ERR unsupported unit provided. please use M, KM, FT, MI")),
    }
}

/// The point with this longitude and latitude.
pub(super) fn point(longitude: Option<f64>, latitude: Option<f64>) -> Result<Point, CommandError> {
    let degrees = |number: Option<f64>| number.ok_or(CommandError::NotFloat);
    let point = Point { longitude: degrees(longitude)?, latitude: degrees(latitude)? };
    if point.is_valid() {
        return Ok(point);
    }
    let Point { longitude, latitude } = point;
    Err(CommandError::Text(
        format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}").into(),
    ))
}

pub(super) fn reply_distance(reply: &mut Writer<'_>, distance: f64) {
    reply.bulk(format!("{distance:.4}").as_bytes());
}

/// Replies with longitude and latitude, to seventeen places.
pub(super) fn reply_point(reply: &mut Writer<'_>, point: Point) {
    reply.array(2);
    for degrees in [point.longitude, point.latitude] {
        let text = format!("{degrees:.17}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        let text = if text == "-0" { "0" } else { text };
        if reply.protocol() == Protocol::Resp3 {
            reply.raw(format!(",{text}\r\n").as_bytes());
        } else {
            reply.bulk(text.as_bytes());
        }
    }
}

/// Which command it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// GEORADIUS: longitude, latitude, radius and unit first.
    Point,
    /// GEORADIUSBYMEMBER: a member, radius and unit first.
    Member,
    /// GEOSEARCH
    Search,
    /// GEOSEARCHSTORE
    Store,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    None,
    Nearest,
    Farthest,
}

/// The middle of what is searched.
#[derive(Debug, Clone, Copy)]
enum Center {
    Point(Point),
    /// Where a member is, if there are any.
    Member(Option<Point>),
}

/// The things that a search is read from.
pub(super) struct Given<'a> {
    pub(super) args: Args<'a>,
    /// Reads a number with a point.
    pub(super) double: &'a dyn Fn(&[u8]) -> Option<f64>,
    /// The places that are searched, if there are any.
    pub(super) source: Option<SortedSetRef<'a>>,
}

impl<'a> Given<'a> {
    fn arg(&self, index: usize) -> &'a [u8] {
        self.args.get(index).unwrap_or_default()
    }

    fn double(&self, index: usize) -> Option<f64> {
        (self.double)(self.arg(index))
    }

    fn integer(&self, index: usize) -> Result<i64, CommandError> {
        resp::parse_i64(self.arg(index)).ok_or(CommandError::NotInteger)
    }

    fn point(&self, index: usize) -> Result<Point, CommandError> {
        point(self.double(index), self.double(index + 1))
    }

    /// Where the member at `index` is.
    fn member(&self, index: usize) -> Result<Center, CommandError> {
        let Some(places) = self.source else { return Ok(Center::Member(None)) };
        let name = self.arg(index);
        let missing = || format!("ERR member {} does not exist", quoted(name, name.len()));
        let score = places.score(name).ok_or_else(|| CommandError::Text(missing().into()))?;
        Ok(Center::Member(Some(Point::of_score(score))))
    }
}

/// The area of a search, and the use that is made of its result.
#[derive(Debug)]
pub(super) struct Query {
    center: Option<Center>,
    shape: Option<Shape>,
    /// The unit of distances, in meters.
    pub(super) meters: f64,
    pub(super) distances: bool,
    pub(super) scores: bool,
    pub(super) points: bool,
    pub(super) sort: Sort,
    /// How many are wanted at most; 0 is all.
    pub(super) count: usize,
    /// Any of them will do.
    pub(super) any: bool,
    /// The place of the key under which what is found is stored.
    pub(super) store: Option<usize>,
    /// Distances are stored, not scores.
    pub(super) stores_distances: bool,
}

impl Query {
    /// `may_store`: whether the words STORE and STOREDIST are known.
    pub(super) fn parse(given: &Given<'_>, form: Form, may_store: bool) -> Result<Self, CommandError> {
        let mut query = Self {
            center: None,
            shape: None,
            meters: 1.0,
            distances: false,
            scores: false,
            points: false,
            sort: Sort::None,
            count: 0,
            any: false,
            store: (form == Form::Store).then_some(1),
            stores_distances: false,
        };
        let mut index = query.read_fixed(given, form)?;
        while index < given.args.len() {
            index = match query.read_word(given, form, may_store, index)? {
                Some(next) => next,
                None => return Err(CommandError::Syntax),
            };
        }
        query.check(given, form)?;
        Ok(query)
    }

    /// Reads the arguments before the words; returns the index where the words begin.
    fn read_fixed(&mut self, given: &Given<'_>, form: Form) -> Result<usize, CommandError> {
        match form {
            Form::Point => {
                self.center = Some(Center::Point(given.point(2)?));
                self.read_circle(given, 4)?;
                Ok(6)
            }
            Form::Member => {
                if given.source.is_some() {
                    self.center = Some(given.member(2)?);
                    self.read_circle(given, 3)?;
                }
                Ok(5)
            }
            Form::Search => Ok(2),
            Form::Store => Ok(3),
        }
    }

    /// Reads a word and what belongs to it; returns where the next one stands, or `None` if it is none.
    fn read_word(
        &mut self,
        given: &Given<'_>,
        form: Form,
        may_store: bool,
        index: usize,
    ) -> Result<Option<usize>, CommandError> {
        let is = |name: &str| given.arg(index).eq_ignore_ascii_case(name.as_bytes());
        let left = given.args.len() - index - 1;
        let mut taken = 0;
        match () {
            () if is("withdist") => self.distances = true,
            () if is("withhash") => self.scores = true,
            () if is("withcoord") => self.points = true,
            () if is("any") => self.any = true,
            () if is("asc") => self.sort = Sort::Nearest,
            () if is("desc") => self.sort = Sort::Farthest,
            () if is("count") && left >= 1 => {
                let count = usize::try_from(given.integer(index + 1)?).ok().filter(|count| *count > 0);
                self.count = count.ok_or(CommandError::text("ERR COUNT must be > 0"))?;
                taken = 1;
            }
            () if may_store && left >= 1 && (is("store") || is("storedist")) => {
                (self.store, self.stores_distances) = (Some(index + 1), is("storedist"));
                taken = 1;
            }
            () if form == Form::Store && is("storedist") => self.stores_distances = true,
            () if matches!(form, Form::Search | Form::Store) => return self.read_area(given, index),
            () => return Ok(None),
        }
        Ok(Some(index + 1 + taken))
    }

    /// The same for the words of GEOSEARCH that say what is searched.
    fn read_area(&mut self, given: &Given<'_>, index: usize) -> Result<Option<usize>, CommandError> {
        let is = |name: &str| given.arg(index).eq_ignore_ascii_case(name.as_bytes());
        let left = given.args.len() - index - 1;
        if matches!(self.shape, Some(Shape::Polygon(_))) && !is("bypolygon") {
            // A polygon has its own middle and says all there is to say.
            return Ok(None);
        }
        let taken = match () {
            () if is("bypolygon") && left >= 2 && self.may_be_polygon() => {
                self.read_polygon(given, index + 1)?
            }
            () if is("frommember") && left >= 1 && !matches!(self.center, Some(Center::Point(_))) => {
                self.center = Some(given.member(index + 1)?);
                1
            }
            () if is("fromlonlat") && left >= 2 && !matches!(self.center, Some(Center::Member(_))) => {
                self.center = Some(Center::Point(given.point(index + 1)?));
                2
            }
            () if is("byradius") && left >= 2 && !matches!(self.shape, Some(Shape::Box { .. })) => {
                self.read_circle(given, index + 1)?;
                2
            }
            () if is("bybox") && left >= 3 && !matches!(self.shape, Some(Shape::Circle { .. })) => {
                self.read_box(given, index + 1)?;
                3
            }
            () => return Ok(None),
        };
        Ok(Some(index + 1 + taken))
    }

    /// Whether nothing was said that a polygon does not go together with.
    fn may_be_polygon(&self) -> bool {
        self.center.is_none() && matches!(self.shape, None | Some(Shape::Polygon(_)))
    }

    /// Reads how many vertices there are, and these; says how many arguments that were.
    fn read_polygon(&mut self, given: &Given<'_>, index: usize) -> Result<usize, CommandError> {
        const TOO_FEW: CommandError =
            CommandError::text("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices");
        const NO_NUMBER: CommandError = CommandError::text("ERR invalid number of vertices");
        let count = given.integer(index).ok().and_then(|count| i32::try_from(count).ok());
        let left = given.args.len() - index - 1;
        let count = usize::try_from(count.ok_or(NO_NUMBER)?).map_err(|_| TOO_FEW)?;
        if !(3..=left / 2).contains(&count) {
            return Err(TOO_FEW);
        }
        let vertices: Result<_, _> = (0..count).map(|vertex| given.point(index + 1 + 2 * vertex)).collect();
        self.meters = 1.0;
        self.shape = Some(Shape::Polygon(Polygon::new(vertices?)));
        Ok(1 + 2 * count)
    }

    fn read_circle(&mut self, given: &Given<'_>, index: usize) -> Result<(), CommandError> {
        let radius = given.double(index);
        let radius = radius.ok_or(CommandError::text("ERR need numeric radius"))?;
        if radius < 0.0 {
            return Err(CommandError::text("ERR radius cannot be negative"));
        }
        self.meters = unit(given.arg(index + 1))?;
        self.shape = Some(Shape::Circle { radius: radius * self.meters });
        Ok(())
    }

    fn read_box(&mut self, given: &Given<'_>, index: usize) -> Result<(), CommandError> {
        let length = |index, error| given.double(index).ok_or(CommandError::text(error));
        let width = length(index, "ERR need numeric width")?;
        let height = length(index + 1, "ERR need numeric height")?;
        if width < 0.0 || height < 0.0 {
            return Err(CommandError::text("ERR height or width cannot be negative"));
        }
        self.meters = unit(given.arg(index + 2))?;
        self.shape = Some(Shape::Box { width: width * self.meters, height: height * self.meters });
        Ok(())
    }

    /// Refuses arguments that do not go together, or that lack one; COUNT without an order means the nearest.
    fn check(&mut self, given: &Given<'_>, form: Form) -> Result<(), CommandError> {
        if self.store.is_some() && (self.distances || self.scores || self.points) {
            let name = if form == Form::Store { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            return Err(CommandError::Text(
                format!("ERR {name} is not compatible with WITHDIST, WITHHASH and WITHCOORD options").into(),
            ));
        }
        if matches!(form, Form::Search | Form::Store) {
            let called = String::from_utf8_lossy(given.arg(0)).into_owned();
            let missing = match (self.center, &self.shape) {
                (_, Some(Shape::Polygon(_))) => None,
                (None, _) => {
                    Some(format!("ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {called}"))
                }
                (_, None) => {
                    Some(format!("ERR exactly one of BYRADIUS and BYBOX can be specified for {called}"))
                }
                _ => None,
            };
            if let Some(missing) = missing {
                return Err(CommandError::Text(missing.into()));
            }
        }
        if self.any && self.count == 0 {
            return Err(CommandError::text("ERR the ANY argument requires COUNT argument"));
        }
        if self.count > 0 && self.sort == Sort::None && !self.any {
            self.sort = Sort::Nearest;
        }
        Ok(())
    }

    /// Whether only Valkey from 9.0 on, and this server, know such a search.
    pub(super) fn is_only_valkeys(&self) -> bool {
        matches!(self.shape, Some(Shape::Polygon(_)))
    }

    /// The area to search; `None` where there is nothing to search.
    pub(super) fn area(&self) -> Option<Area<'_>> {
        let shape = self.shape.as_ref()?;
        let center = match (shape, self.center) {
            (Shape::Polygon(polygon), _) => polygon.center(),
            (_, Some(Center::Point(center) | Center::Member(Some(center)))) => center,
            (_, Some(Center::Member(None)) | None) => return None,
        };
        Some(Area::new(center, shape))
    }
}
