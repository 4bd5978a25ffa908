//! Geospatial indexes: sorted sets whose scores are cells of a geohash grid ([`cell`]).

mod add;
mod area;
mod cell;
mod look;
mod query;
mod search;

use engine::{Command, KeySpec};
use query::{SearchCommand, StoreOption, parse_radius_keys};

use super::rows::*;

family!(geo, Geo, GEO);

const GEORADIUS_KEYS: &[KeySpec] = &[
    KeySpec::single_key(1, key::READ),
    KeySpec::key_after("STORE", 6, with_variable_flags(key::OVERWRITE)),
    KeySpec::key_after("STOREDIST", 6, with_variable_flags(key::OVERWRITE)),
];
const GEORADIUSBYMEMBER_KEYS: &[KeySpec] = &[
    KeySpec::single_key(1, key::READ),
    KeySpec::key_after("STORE", 5, with_variable_flags(key::OVERWRITE)),
    KeySpec::key_after("STOREDIST", 5, with_variable_flags(key::OVERWRITE)),
];

pub(super) const COMMANDS: &[Command] = &[
    geo("geoadd", "3.2.0", -5, WRITE_DENYOOM, UPDATE_KEY, "Adds or updates positions in a geo index.")
        .run(add::geoadd),
    geo("geodist", "3.2.0", -4, READ, READ_KEY, "Returns the distance between two positions.")
        .run(look::geodist),
    geo("geohash", "3.2.0", -2, READ, READ_KEY, "Returns the geohashes of positions.").run(look::geohash),
    geo("geopos", "3.2.0", -2, READ, READ_KEY, "Returns the coordinates of members.").run(look::geopos),
    geo(
        "georadius",
        "3.2.0",
        -6,
        WRITE_DENYOOM,
        GEORADIUS_KEYS,
        "Returns or stores the members around a point.",
    )
    .parse_keys(|args| parse_radius_keys(args, SearchCommand::Radius))
    .run(search::georadius)
    .with_estimate(|request| search::estimated_cost(request, SearchCommand::Radius, StoreOption::Allowed)),
    geo("georadius_ro", "3.2.10", -6, READ, READ_KEY, "Returns the members around a point.")
        .run(search::georadius_ro)
        .with_estimate(|request| {
            search::estimated_cost(request, SearchCommand::Radius, StoreOption::Forbidden)
        }),
    geo(
        "georadiusbymember",
        "3.2.0",
        -5,
        WRITE_DENYOOM,
        GEORADIUSBYMEMBER_KEYS,
        "Returns or stores the members around another member.",
    )
    .parse_keys(|args| parse_radius_keys(args, SearchCommand::RadiusByMember))
    .run(search::georadiusbymember)
    .with_estimate(|request| {
        search::estimated_cost(request, SearchCommand::RadiusByMember, StoreOption::Allowed)
    }),
    geo("georadiusbymember_ro", "3.2.10", -5, READ, READ_KEY, "Returns the members around another member.")
        .run(search::georadiusbymember_ro)
        .with_estimate(|request| {
            search::estimated_cost(request, SearchCommand::RadiusByMember, StoreOption::Forbidden)
        }),
    geo("geosearch", "6.2.0", -7, READ, READ_KEY, "Returns the members within a circle, a box or a polygon.")
        .run(search::geosearch)
        .with_estimate(|request| {
            search::estimated_cost(request, SearchCommand::Search, StoreOption::Forbidden)
        }),
    geo(
        "geosearchstore",
        "6.2.0",
        -8,
        WRITE_DENYOOM,
        OVERWRITE_FROM_KEY,
        "Stores the members within a circle, a box or a polygon.",
    )
    .run(search::geosearchstore)
    .with_estimate(|request| {
        search::estimated_cost(request, SearchCommand::SearchStore, StoreOption::Forbidden)
    }),
];
