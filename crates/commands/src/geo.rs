//! Geospatial indexes: sorted sets whose scores are cells of a geohash grid ([`cell`]).

mod add;
mod area;
mod cell;
mod look;
mod query;
mod search;

use engine::{Command, KeySpec};
use query::{Form, Storing, keys_of_radius};

use super::rows::*;

family!(geo, Geo, GEO);

const MAY_STORE: &[KeySpec] = &[
    KeySpec::one(1, key::READ),
    KeySpec::behind("STORE", 6, variable(key::STORE)),
    KeySpec::behind("STOREDIST", 6, variable(key::STORE)),
];
const MAY_STORE_BY_MEMBER: &[KeySpec] = &[
    KeySpec::one(1, key::READ),
    KeySpec::behind("STORE", 5, variable(key::STORE)),
    KeySpec::behind("STOREDIST", 5, variable(key::STORE)),
];

pub(super) const COMMANDS: &[Command] = &[
    geo("geoadd", "3.2.0", -5, GROW, UPDATES, "Adds places, or moves them.").run(add::geoadd),
    geo("geodist", "3.2.0", -4, READ, READS, "Returns the distance between two places.").run(look::geodist),
    geo("geohash", "3.2.0", -2, READ, READS, "Returns the geohashes of places.").run(look::geohash),
    geo("geopos", "3.2.0", -2, READ, READS, "Returns the longitudes and latitudes of places.")
        .run(look::geopos),
    geo("georadius", "3.2.0", -6, GROW, MAY_STORE, "Returns or stores the places around a point.")
        .parse_keys(|args| keys_of_radius(args, Form::Point))
        .run(search::georadius)
        .long(|request| search::long(request, Form::Point, Storing::Allowed)),
    geo("georadius_ro", "3.2.10", -6, READ, READS, "Returns the places around a point.")
        .run(search::georadius_ro)
        .long(|request| search::long(request, Form::Point, Storing::Unknown)),
    geo(
        "georadiusbymember",
        "3.2.0",
        -5,
        GROW,
        MAY_STORE_BY_MEMBER,
        "Returns or stores the places around one of them.",
    )
    .parse_keys(|args| keys_of_radius(args, Form::Member))
    .run(search::georadiusbymember)
    .long(|request| search::long(request, Form::Member, Storing::Allowed)),
    geo("georadiusbymember_ro", "3.2.10", -5, READ, READS, "Returns the places around one of them.")
        .run(search::georadiusbymember_ro)
        .long(|request| search::long(request, Form::Member, Storing::Unknown)),
    geo("geosearch", "6.2.0", -7, READ, READS, "Returns the places within a circle, a box or a polygon.")
        .run(search::geosearch)
        .long(|request| search::long(request, Form::Search, Storing::Unknown)),
    geo(
        "geosearchstore",
        "6.2.0",
        -8,
        GROW,
        STORES_ONE,
        "Stores the places within a circle, a box or a polygon.",
    )
    .run(search::geosearchstore)
    .long(|request| search::long(request, Form::Store, Storing::Unknown)),
];
