//! Argument parsing of geo searches, and arguments that all geo commands share.

use engine::{CommandError, RequestKeys, quote};
use keyspace::SortedSetRef;
use resp::{Args, Protocol, Writer};

use super::area::{Polygon, SearchArea, Shape};
use super::cell::Point;
use crate::rows::key;

/// Parses a unit of length and returns its size in meters.
pub(super) fn parse_unit(word: &[u8]) -> Result<f64, CommandError> {
    match () {
        () if word.eq_ignore_ascii_case(b"m") => Ok(1.0),
        () if word.eq_ignore_ascii_case(b"km") => Ok(1000.0),
        () if word.eq_ignore_ascii_case(b"ft") => Ok(0.3048),
        () if word.eq_ignore_ascii_case(b"mi") => Ok(1609.34),
        () => Err(CommandError::text("ERR unsupported unit provided. please use M, KM, FT, MI")),
    }
}

/// Creates a point if both coordinates are valid numbers within the limits of the grid.
pub(super) fn parse_point(longitude: Option<f64>, latitude: Option<f64>) -> Result<Point, CommandError> {
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

/// Replies with longitude and latitude, with seventeen decimals.
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

/// The command whose arguments are parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchCommand {
    /// GEORADIUS, whose first arguments are longitude, latitude, radius and unit.
    Radius,
    /// GEORADIUSBYMEMBER, whose first arguments are a member, radius and unit.
    RadiusByMember,
    /// GEOSEARCH, which has only options after the key.
    Search,
    /// GEOSEARCHSTORE, which has only options after the two keys.
    SearchStore,
}

impl SearchCommand {
    /// Index of the first option.
    fn first_option_index(self) -> usize {
        match self {
            Self::Radius => 6,
            Self::RadiusByMember => 5,
            Self::Search => 2,
            Self::SearchStore => 3,
        }
    }
}

/// Whether a search command accepts STORE and STOREDIST with a destination key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreOption {
    Allowed,
    Forbidden,
}

/// An option of a geo search.
enum SearchOption {
    WithDistances,
    WithScores,
    WithCoordinates,
    Any,
    Sorted(SortOrder),
    /// The option COUNT; holds the index of its number.
    Count(usize),
    /// The option STORE or STOREDIST of GEORADIUS; holds the index of the destination key.
    Store {
        key_index: usize,
        stores_distances: bool,
    },
    /// The option STOREDIST of GEOSEARCHSTORE, which has no value.
    StoresDistances,
    /// An option that defines the area of GEOSEARCH, or an unknown word.
    Other,
}

/// Returns the option at `index` and the index of the next option. Both the handler and [`parse_radius_keys`] use this
/// function, so that they agree on the keys.
fn parse_option_at(
    args: Args<'_>,
    command: SearchCommand,
    store_option: StoreOption,
    index: usize,
) -> (SearchOption, usize) {
    let is = |name: &str| args.get(index).unwrap_or_default().eq_ignore_ascii_case(name.as_bytes());
    let (next, has_more) = (index + 1, index + 1 < args.len());
    let stores = || store_option == StoreOption::Allowed && has_more;
    match () {
        () if is("withdist") => (SearchOption::WithDistances, next),
        () if is("withhash") => (SearchOption::WithScores, next),
        () if is("withcoord") => (SearchOption::WithCoordinates, next),
        () if is("any") => (SearchOption::Any, next),
        () if is("asc") => (SearchOption::Sorted(SortOrder::Nearest), next),
        () if is("desc") => (SearchOption::Sorted(SortOrder::Farthest), next),
        () if is("count") && has_more => (SearchOption::Count(next), next + 1),
        () if is("store") && stores() => {
            (SearchOption::Store { key_index: next, stores_distances: false }, next + 1)
        }
        () if is("storedist") && stores() => {
            (SearchOption::Store { key_index: next, stores_distances: true }, next + 1)
        }
        () if is("storedist") && command == SearchCommand::SearchStore => {
            (SearchOption::StoresDistances, next)
        }
        () => (SearchOption::Other, next),
    }
}

/// The keys of GEORADIUS and GEORADIUSBYMEMBER. If STORE and STOREDIST are repeated, the last one wins.
pub(super) fn parse_radius_keys(args: Args<'_>, command: SearchCommand) -> RequestKeys {
    let (mut stored, mut index) = (None, command.first_option_index());
    while index < args.len() {
        let (option, next) = parse_option_at(args, command, StoreOption::Allowed, index);
        if let SearchOption::Store { key_index: place, .. } = option {
            stored = Some(place);
        }
        index = next;
    }
    RequestKeys::default().key(1, key::READ).keys(stored, key::OVERWRITE)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortOrder {
    None,
    Nearest,
    Farthest,
}

/// The center of the search.
#[derive(Debug, Clone, Copy)]
enum SearchCenter {
    Point(Point),
    /// The position of a member, or `None` if the key does not exist.
    Member(Option<Point>),
}

/// The input of query parsing: the request, a number parser and the sorted set to search.
pub(super) struct QueryInput<'a> {
    pub(super) args: Args<'a>,
    /// Parses a floating-point number.
    pub(super) parse_double: &'a dyn Fn(&[u8]) -> Option<f64>,
    /// The sorted set to search, or `None` if the key does not exist.
    pub(super) source: Option<SortedSetRef<'a>>,
}

impl<'a> QueryInput<'a> {
    fn arg(&self, index: usize) -> &'a [u8] {
        self.args.get(index).unwrap_or_default()
    }

    fn parse_double(&self, index: usize) -> Option<f64> {
        (self.parse_double)(self.arg(index))
    }

    fn parse_integer(&self, index: usize) -> Result<i64, CommandError> {
        resp::parse_i64(self.arg(index)).ok_or(CommandError::NotInteger)
    }

    fn parse_point(&self, index: usize) -> Result<Point, CommandError> {
        parse_point(self.parse_double(index), self.parse_double(index + 1))
    }

    /// Looks up the position of the member at `index`.
    fn parse_member(&self, index: usize) -> Result<SearchCenter, CommandError> {
        let Some(places) = self.source else { return Ok(SearchCenter::Member(None)) };
        let name = self.arg(index);
        let missing = || format!("ERR member {} does not exist", quote(name, name.len()));
        let score = places.score(name).ok_or_else(|| CommandError::Text(missing().into()))?;
        Ok(SearchCenter::Member(Some(Point::from_score(score))))
    }
}

/// A parsed geo search.
#[derive(Debug)]
pub(super) struct GeoQuery {
    center: Option<SearchCenter>,
    shape: Option<Shape>,
    /// The length in meters of the unit of distances in the reply.
    pub(super) unit_meters: f64,
    pub(super) with_distances: bool,
    pub(super) with_scores: bool,
    pub(super) with_coordinates: bool,
    pub(super) order: SortOrder,
    /// Maximum number of results; 0 means all.
    pub(super) count: usize,
    /// Whether any `count` matches suffice, instead of the nearest ones (ANY).
    pub(super) accepts_any: bool,
    /// Argument index of the destination key, if the result is stored.
    pub(super) destination_index: Option<usize>,
    /// Whether the stored scores are distances instead of geohashes (STOREDIST).
    pub(super) stores_distances: bool,
}

impl GeoQuery {
    pub(super) fn parse(
        input: &QueryInput<'_>,
        command: SearchCommand,
        store_option: StoreOption,
    ) -> Result<Self, CommandError> {
        let mut query = Self {
            center: None,
            shape: None,
            unit_meters: 1.0,
            with_distances: false,
            with_scores: false,
            with_coordinates: false,
            order: SortOrder::None,
            count: 0,
            accepts_any: false,
            destination_index: (command == SearchCommand::SearchStore).then_some(1),
            stores_distances: false,
        };
        query.parse_positional(input, command)?;
        let mut index = command.first_option_index();
        while index < input.args.len() {
            index = match query.parse_option(input, command, store_option, index)? {
                Some(next) => next,
                None => return Err(CommandError::Syntax),
            };
        }
        query.check_options(input, command)?;
        Ok(query)
    }

    /// Parses the positional arguments before the options.
    fn parse_positional(
        &mut self,
        input: &QueryInput<'_>,
        command: SearchCommand,
    ) -> Result<(), CommandError> {
        match command {
            SearchCommand::Radius => {
                self.center = Some(SearchCenter::Point(input.parse_point(2)?));
                self.parse_circle(input, 4)
            }
            SearchCommand::RadiusByMember => {
                if input.source.is_some() {
                    self.center = Some(input.parse_member(2)?);
                    self.parse_circle(input, 3)?;
                }
                Ok(())
            }
            SearchCommand::Search | SearchCommand::SearchStore => Ok(()),
        }
    }

    /// Parses one option with its arguments. Returns the index of the next option, or `None` if the word is unknown.
    fn parse_option(
        &mut self,
        input: &QueryInput<'_>,
        command: SearchCommand,
        store_option: StoreOption,
        index: usize,
    ) -> Result<Option<usize>, CommandError> {
        let (option, next) = parse_option_at(input.args, command, store_option, index);
        match option {
            SearchOption::WithDistances => self.with_distances = true,
            SearchOption::WithScores => self.with_scores = true,
            SearchOption::WithCoordinates => self.with_coordinates = true,
            SearchOption::Any => self.accepts_any = true,
            SearchOption::Sorted(sort) => self.order = sort,
            SearchOption::Count(place) => {
                let count = usize::try_from(input.parse_integer(place)?).ok().filter(|count| *count > 0);
                self.count = count.ok_or(CommandError::text("ERR COUNT must be > 0"))?;
            }
            SearchOption::Store { key_index: place, stores_distances: distances } => {
                (self.destination_index, self.stores_distances) = (Some(place), distances);
            }
            SearchOption::StoresDistances => self.stores_distances = true,
            SearchOption::Other if matches!(command, SearchCommand::Search | SearchCommand::SearchStore) => {
                return self.parse_area(input, index);
            }
            SearchOption::Other => return Ok(None),
        }
        Ok(Some(next))
    }

    /// Parses FROMMEMBER, FROMLONLAT, BYRADIUS, BYBOX or BYPOLYGON of GEOSEARCH, as [`GeoQuery::parse_option`] does.
    fn parse_area(&mut self, input: &QueryInput<'_>, index: usize) -> Result<Option<usize>, CommandError> {
        let is = |name: &str| input.arg(index).eq_ignore_ascii_case(name.as_bytes());
        let left = input.args.len() - index - 1;
        if matches!(self.shape, Some(Shape::Polygon(_))) && !is("bypolygon") {
            // A polygon defines its own center, so it excludes the other area options.
            return Ok(None);
        }
        let taken = match () {
            () if is("bypolygon") && left >= 2 && self.allows_polygon() => {
                self.parse_polygon(input, index + 1)?
            }
            () if is("frommember") && left >= 1 && !matches!(self.center, Some(SearchCenter::Point(_))) => {
                self.center = Some(input.parse_member(index + 1)?);
                1
            }
            () if is("fromlonlat") && left >= 2 && !matches!(self.center, Some(SearchCenter::Member(_))) => {
                self.center = Some(SearchCenter::Point(input.parse_point(index + 1)?));
                2
            }
            () if is("byradius") && left >= 2 && !matches!(self.shape, Some(Shape::Box { .. })) => {
                self.parse_circle(input, index + 1)?;
                2
            }
            () if is("bybox") && left >= 3 && !matches!(self.shape, Some(Shape::Circle { .. })) => {
                self.parse_box(input, index + 1)?;
                3
            }
            () => return Ok(None),
        };
        Ok(Some(index + 1 + taken))
    }

    /// Whether no option was given that conflicts with BYPOLYGON.
    fn allows_polygon(&self) -> bool {
        self.center.is_none() && matches!(self.shape, None | Some(Shape::Polygon(_)))
    }

    /// Parses the number of vertices and the vertices. Returns the number of arguments consumed.
    fn parse_polygon(&mut self, input: &QueryInput<'_>, index: usize) -> Result<usize, CommandError> {
        const TOO_FEW_VERTICES: CommandError =
            CommandError::text("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices");
        const INVALID_VERTEX_COUNT: CommandError = CommandError::text("ERR invalid number of vertices");
        let count = input.parse_integer(index).ok().and_then(|count| i32::try_from(count).ok());
        let left = input.args.len() - index - 1;
        let count = usize::try_from(count.ok_or(INVALID_VERTEX_COUNT)?).map_err(|_| TOO_FEW_VERTICES)?;
        if !(3..=left / 2).contains(&count) {
            return Err(TOO_FEW_VERTICES);
        }
        let vertices: Result<_, _> =
            (0..count).map(|vertex| input.parse_point(index + 1 + 2 * vertex)).collect();
        self.unit_meters = 1.0;
        self.shape = Some(Shape::Polygon(Polygon::new(vertices?)));
        Ok(1 + 2 * count)
    }

    fn parse_circle(&mut self, input: &QueryInput<'_>, index: usize) -> Result<(), CommandError> {
        let radius = input.parse_double(index);
        let radius = radius.ok_or(CommandError::text("ERR need numeric radius"))?;
        if radius < 0.0 {
            return Err(CommandError::text("ERR radius cannot be negative"));
        }
        self.unit_meters = parse_unit(input.arg(index + 1))?;
        self.shape = Some(Shape::Circle { radius: radius * self.unit_meters });
        Ok(())
    }

    fn parse_box(&mut self, input: &QueryInput<'_>, index: usize) -> Result<(), CommandError> {
        let length = |index, error| input.parse_double(index).ok_or(CommandError::text(error));
        let width = length(index, "ERR need numeric width")?;
        let height = length(index + 1, "ERR need numeric height")?;
        if width < 0.0 || height < 0.0 {
            return Err(CommandError::text("ERR height or width cannot be negative"));
        }
        self.unit_meters = parse_unit(input.arg(index + 2))?;
        self.shape = Some(Shape::Box { width: width * self.unit_meters, height: height * self.unit_meters });
        Ok(())
    }

    /// Refuses missing or conflicting options. COUNT without an order returns the nearest matches.
    fn check_options(&mut self, input: &QueryInput<'_>, command: SearchCommand) -> Result<(), CommandError> {
        if self.destination_index.is_some()
            && (self.with_distances || self.with_scores || self.with_coordinates)
        {
            let name = if command == SearchCommand::SearchStore {
                "GEOSEARCHSTORE"
            } else {
                "STORE option in GEORADIUS"
            };
            return Err(CommandError::Text(
                format!("ERR {name} is not compatible with WITHDIST, WITHHASH and WITHCOORD options").into(),
            ));
        }
        if matches!(command, SearchCommand::Search | SearchCommand::SearchStore) {
            let called = String::from_utf8_lossy(input.arg(0)).into_owned();
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
        if self.accepts_any && self.count == 0 {
            return Err(CommandError::text("ERR the ANY argument requires COUNT argument"));
        }
        if self.count > 0 && self.order == SortOrder::None && !self.accepts_any {
            self.order = SortOrder::Nearest;
        }
        Ok(())
    }

    /// Whether only Valkey 9.0 and later, and this server, know this kind of search (BYPOLYGON).
    pub(super) fn is_valkey_only(&self) -> bool {
        matches!(self.shape, Some(Shape::Polygon(_)))
    }

    /// The area to search, or `None` if the source does not exist.
    pub(super) fn search_area(&self) -> Option<SearchArea<'_>> {
        let shape = self.shape.as_ref()?;
        let center = match (shape, self.center) {
            (Shape::Polygon(polygon), _) => polygon.center(),
            (_, Some(SearchCenter::Point(center) | SearchCenter::Member(Some(center)))) => center,
            (_, Some(SearchCenter::Member(None)) | None) => return None,
        };
        Some(SearchArea::new(center, shape))
    }
}
