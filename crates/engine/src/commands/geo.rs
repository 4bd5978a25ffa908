//! Places on the earth: a sorted set whose scores are cells of a grid ([`cell`]).

mod add;
mod area;
mod cell;
mod look;
mod query;
mod search;

use crate::command::{Categories, Command, Flags, Group};
use crate::keys::{Begin, Find, KeyFlags, KeySpec};

const STORE: Flags = Flags::WRITE.union(Flags::DENYOOM);

const READ_KEY: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const STORED: KeyFlags = KeyFlags::OW.union(KeyFlags::UPDATE);

const READS: &[KeySpec] = &[KeySpec::one(1, READ_KEY)];
const UPDATES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const STORES: &[KeySpec] = &[KeySpec::one(1, STORED), KeySpec::one(2, READ_KEY)];
const MAY_STORE: &[KeySpec] = &[KeySpec::one(1, READ_KEY), behind("STORE", 6), behind("STOREDIST", 6)];
const MAY_STORE_BY_MEMBER: &[KeySpec] =
    &[KeySpec::one(1, READ_KEY), behind("STORE", 5), behind("STOREDIST", 5)];

/// A key behind a word that is looked for from there on.
const fn behind(word: &'static str, from: i8) -> KeySpec {
    KeySpec {
        begin: Begin::Keyword { word, from },
        find: Find::Range { last: 0, step: 1, limit: 0 },
        flags: STORED,
    }
}

/// A row of this family.
const fn geo(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    keys: &'static [KeySpec],
    summary: &'static str,
) -> Command {
    Command::new(name, Group::Geo, since, arity, summary).flags(flags).category(Categories::GEO).keys(keys)
}

pub(super) const COMMANDS: &[Command] = &[
    geo("geoadd", "3.2.0", -5, STORE, UPDATES, "Adds places, or moves them.").run(add::geoadd),
    geo("geodist", "3.2.0", -4, Flags::READONLY, READS, "Returns the distance between two places.")
        .run(look::geodist),
    geo("geohash", "3.2.0", -2, Flags::READONLY, READS, "Returns the geohashes of places.")
        .run(look::geohash),
    geo("geopos", "3.2.0", -2, Flags::READONLY, READS, "Returns the longitudes and latitudes of places.")
        .run(look::geopos),
    geo("georadius", "3.2.0", -6, STORE, MAY_STORE, "Returns or stores the places around a point.")
        .run(search::georadius),
    geo("georadius_ro", "3.2.10", -6, Flags::READONLY, READS, "Returns the places around a point.")
        .run(search::georadius_ro),
    geo(
        "georadiusbymember",
        "3.2.0",
        -5,
        STORE,
        MAY_STORE_BY_MEMBER,
        "Returns or stores the places around one of them.",
    )
    .run(search::georadiusbymember),
    geo(
        "georadiusbymember_ro",
        "3.2.10",
        -5,
        Flags::READONLY,
        READS,
        "Returns the places around one of them.",
    )
    .run(search::georadiusbymember_ro),
    geo("geosearch", "6.2.0", -7, Flags::READONLY, READS, "Returns the places within a circle or a box.")
        .run(search::geosearch),
    geo("geosearchstore", "6.2.0", -8, STORE, STORES, "Stores the places within a circle or a box.")
        .run(search::geosearchstore),
];
