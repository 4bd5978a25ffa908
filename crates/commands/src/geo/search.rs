//! GEORADIUS, GEOSEARCH and their variants.

use engine::{CommandError, Context, EstimateInput};
use keyspace::{Key, OrderBoundary, ScoredMember, SortedSetRef, Value};

use super::cell::{GridCell, Point};
use super::query::{
    GeoQuery, QueryInput, SearchCommand, SortOrder, StoreOption, reply_distance, reply_point,
};
use crate::sorted_set::members::SortedSetAccess;

/// A member found by a search.
struct GeoMatch {
    name: Vec<u8>,
    score: f64,
    point: Point,
    /// Distance from the center, in meters.
    distance: f64,
}

/// Handles `GEORADIUS key longitude latitude radius unit [options]`.
pub(super) fn georadius(context: &mut Context<'_>) -> Result<(), CommandError> {
    search(context, SearchCommand::Radius, StoreOption::Allowed)
}

pub(super) fn georadius_ro(context: &mut Context<'_>) -> Result<(), CommandError> {
    search(context, SearchCommand::Radius, StoreOption::Forbidden)
}

/// Handles `GEORADIUSBYMEMBER key member radius unit [options]`.
pub(super) fn georadiusbymember(context: &mut Context<'_>) -> Result<(), CommandError> {
    search(context, SearchCommand::RadiusByMember, StoreOption::Allowed)
}

pub(super) fn georadiusbymember_ro(context: &mut Context<'_>) -> Result<(), CommandError> {
    search(context, SearchCommand::RadiusByMember, StoreOption::Forbidden)
}

/// Handles `GEOSEARCH key FROMMEMBER member | FROMLONLAT longitude latitude BYRADIUS radius unit | BYBOX width height
/// unit [options]` and `GEOSEARCH key BYPOLYGON vertices longitude latitude ... [options]`.
pub(super) fn geosearch(context: &mut Context<'_>) -> Result<(), CommandError> {
    search(context, SearchCommand::Search, StoreOption::Forbidden)
}

/// Handles `GEOSEARCHSTORE destination source`, followed by the same arguments as GEOSEARCH after its key.
pub(super) fn geosearchstore(context: &mut Context<'_>) -> Result<(), CommandError> {
    search(context, SearchCommand::SearchStore, StoreOption::Forbidden)
}

fn search(
    context: &mut Context<'_>,
    command: SearchCommand,
    store_option: StoreOption,
) -> Result<(), CommandError> {
    let key = context.key(source_key_index(command))?;
    let place = context.read_sorted_set(&key)?;
    let source = place.map(|place| context.sorted_set_at(&key, place));
    let double = |text: &[u8]| context.parse_double(text);
    let query = GeoQuery::parse(
        &QueryInput { args: context.args, parse_double: &double, source },
        command,
        store_option,
    )?;
    let mut found = source.map_or_else(Vec::new, |places| find_members(&places, &query));
    match query.order {
        SortOrder::None => {}
        SortOrder::Nearest => found.sort_by(|one, other| one.distance.total_cmp(&other.distance)),
        SortOrder::Farthest => found.sort_by(|one, other| other.distance.total_cmp(&one.distance)),
    }
    if query.count > 0 {
        found.truncate(query.count);
    }
    match query.destination_index {
        Some(target) => {
            let target = context.key(target)?;
            store_matches(context, &query, command, &target, &found);
        }
        None => reply_matches(context, &query, &found),
    }
    Ok(())
}

/// Argument index of the source key.
fn source_key_index(command: SearchCommand) -> usize {
    if command == SearchCommand::SearchStore { 2 } else { 1 }
}

/// Estimated run time, from the number of members in the cells of the search area.
pub(super) fn estimated_cost(
    request: &EstimateInput<'_>,
    command: SearchCommand,
    store_option: StoreOption,
) -> u64 {
    let of_value = |value: Value<'_>| {
        let Value::SortedSet(set) = value else { return 0 };
        let given = QueryInput { args: request.args, parse_double: &resp::parse_double, source: Some(set) };
        let Ok(query) = GeoQuery::parse(&given, command, store_option) else { return 0 };
        let cells = query.search_area().map_or_else(Vec::new, |area| area.covering_cells());
        let places = |cell: GridCell| {
            let (low, high) = cell.score_range();
            let before = |score| set.count_before(OrderBoundary::BeforeScore(score));
            before(high).saturating_sub(before(low))
        };
        let all = cells.into_iter().map(places).sum::<usize>();
        all.min(if query.accepts_any { query.count } else { usize::MAX }) as u64 * 100
    };
    request.with_value(source_key_index(command), of_value).unwrap_or(0)
}

/// Finds the members within the area, cell by cell.
fn find_members(set: &SortedSetRef<'_>, query: &GeoQuery) -> Vec<GeoMatch> {
    let mut found = Vec::new();
    let Some(area) = query.search_area() else { return found };
    let enough = if query.accepts_any { query.count } else { usize::MAX };
    for cell in area.covering_cells() {
        if found.len() >= enough {
            break;
        }
        let (low, high) = cell.score_range();
        let start = set.count_before(OrderBoundary::BeforeScore(low));
        set.visit(start..set.len(), false, &mut |ScoredMember { name, score }| {
            if score >= high {
                return false;
            }
            let point = Point::from_score(score);
            if let Some(distance) = area.distance_within(point) {
                found.push(GeoMatch { name: name.to_vec(), score, point, distance });
            }
            found.len() < enough
        });
    }
    found
}

fn reply_matches(context: &mut Context<'_>, query: &GeoQuery, found: &[GeoMatch]) {
    let reply = &mut context.reply;
    let parts = [query.with_distances, query.with_scores, query.with_coordinates]
        .into_iter()
        .filter(|wanted| *wanted)
        .count();
    reply.array(found.len());
    for GeoMatch { name, score, point, distance } in found {
        if parts > 0 {
            reply.array(1 + parts);
        }
        reply.bulk(name);
        if query.with_distances {
            reply_distance(reply, distance / query.unit_meters);
        }
        if query.with_scores {
            reply.integer(*score as i64);
        }
        if query.with_coordinates {
            reply_point(reply, *point);
        }
        if reply.is_over_limit() {
            break;
        }
    }
}

fn store_matches(
    context: &mut Context<'_>,
    query: &GeoQuery,
    command: SearchCommand,
    target: &Key<'_>,
    found: &[GeoMatch],
) {
    let score = |found: &GeoMatch| {
        if query.stores_distances { found.distance / query.unit_meters } else { found.score }
    };
    let mut members: Vec<_> =
        found.iter().map(|found| ScoredMember { name: &found.name, score: score(found) }).collect();
    members.sort_by(|one, other| one.score.total_cmp(&other.score).then_with(|| one.name.cmp(other.name)));
    let event = if command == SearchCommand::SearchStore { "geosearchstore" } else { "georadiusstore" };
    let was_there = context.peek(target).is_some();
    context.store_members(target, members.iter().copied(), event);
    context.count_changes((members.len() as u64).saturating_sub(1));
    if query.is_valkey_only() {
        replicate_stored_members(context, target, was_there, &members);
    }
}

/// Replicates the stored members instead of the command, for replicas that do not support this kind of search.
fn replicate_stored_members(
    context: &mut Context<'_>,
    key: &Key<'_>,
    existed: bool,
    members: &[ScoredMember<'_>],
) {
    if existed {
        context.log_effect(&[b"DEL", key.bytes()]);
    }
    if !members.is_empty() {
        let scores: Vec<String> = members.iter().map(|member| member.score.to_string()).collect();
        let pairs = scores.iter().zip(members).flat_map(|(score, member)| [score.as_bytes(), member.name]);
        let effect: Vec<&[u8]> = [&b"ZADD"[..], key.bytes()].into_iter().chain(pairs).collect();
        context.log_effect(&effect);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    fn client_with_sicilian_cities() -> Client {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("geoadd s 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", ":2"),
            ("geoadd s 12.758489 38.788135 edge1 17.241510 38.788135 edge2", ":2"),
        ]);
        client
    }

    #[test]
    fn geosearch_by_radius_and_box() {
        let mut client = client_with_sicilian_cities();
        client.check_replies(&[
            ("geosearch s fromlonlat 15 37 byradius 200 km asc", "*2|$7|Catania|$7|Palermo"),
            ("geosearch s fromlonlat 15 37 byradius 200 km desc count 1", "*1|$7|Palermo"),
            (
                "geosearch s fromlonlat 15 37 bybox 400 400 km asc withdist",
                "*4|*2|$7|Catania|$7|56.4413|*2|$7|Palermo|$8|190.4424|*2|$5|edge2|$8|279.7403|*2|$5|edge1|$8|279.7405",
            ),
            ("geosearch s frommember Palermo byradius 1 m", "*1|$7|Palermo"),
            (
                "georadius s 15 37 200 km withcoord withhash count 1",
                "*1|*3|$7|Catania|:3479447370796909|*2|$20|15.08726745843887329|$20|37.50266842333162032",
            ),
            ("georadiusbymember s Palermo 200 km asc", "*3|$7|Palermo|$5|edge1|$7|Catania"),
            ("georadius_ro s 15 37 10 km", "*0"),
            ("geosearch nosuch frommember x byradius 1 m", "*0"),
            ("georadiusbymember nosuch x 1 m", "*0"),
        ]);
    }

    /// Regression test: a Redis replica did not know BYPOLYGON and kept the old value of the destination.
    #[test]
    fn polygon_search_store_is_replicated_by_result() {
        let mut client = client_with_sicilian_cities();
        client.check_replies(&[
            ("geosearchstore d s bypolygon 3 12 37 15 42 18 37", ":2"),
            ("geosearchstore d s bypolygon 3 1 1 2 2 3 1", ":0"),
            ("geosearchstore d s bypolygon 3 1 1 2 2 3 1", ":0"),
        ]);
        let log = client.logged_commands();
        assert_eq!(log[2..], ["0 ZADD d 3479099956230698 Palermo 3479447370796909 Catania", "0 DEL d"]);
    }

    #[test]
    fn geosearch_by_polygon() {
        const TRIANGLE_ARGS: &str = "bypolygon 3 12 37 15 42 18 37";
        let mut client = client_with_sicilian_cities();
        let searches = |words: &str| format!("geosearch s {TRIANGLE_ARGS} {words}");
        client.check_replies(&[
            (&*searches("asc"), "*2|$7|Catania|$7|Palermo"),
            (&*searches("desc count 1 withdist"), "*1|*2|$7|Palermo|$11|156569.3217"),
            (&*searches(TRIANGLE_ARGS), "*2|$7|Palermo|$7|Catania"),
            (&*searches("byradius 1 m"), "-ERR syntax error"),
            (&*searches("fromlonlat 1 1"), "-ERR syntax error"),
            ("geosearch s byradius 1 m bypolygon 3 12 37 15 42 18 37", "-ERR syntax error"),
            ("geosearch s frommember Palermo bypolygon 3 12 37 15 42 18 37", "-ERR syntax error"),
            ("geosearch s bypolygon 4 12 37 15 42 18 37 15 38", "*1|$7|Palermo"),
            ("geosearch s bypolygon 2 12 37 15 42", "-ERR GEOSEARCH BYPOLYGON must have at least 3 vertices"),
            (
                "geosearch s bypolygon 3 12 37 15 42 18",
                "-ERR GEOSEARCH BYPOLYGON must have at least 3 vertices",
            ),
            (
                "geosearch s bypolygon -1 12 37 15 42 18",
                "-ERR GEOSEARCH BYPOLYGON must have at least 3 vertices",
            ),
            (
                "geosearch s bypolygon 2147483647 12 37 15 42",
                "-ERR GEOSEARCH BYPOLYGON must have at least 3 vertices",
            ),
            ("geosearch s bypolygon 2147483648 12 37 15 42", "-ERR invalid number of vertices"),
            ("geosearch s bypolygon x 12 37 15 42 18 37", "-ERR invalid number of vertices"),
            ("geosearch s bypolygon 3 12 37 15 42 18 x", "-ERR value is not a valid float"),
            (
                "geosearch s bypolygon 3 12 37 15 42 18 99",
                "-ERR invalid longitude,latitude pair 18.000000,99.000000",
            ),
            ("geosearch nosuch bypolygon 3 12 37 15 42 18 37", "*0"),
            ("geosearchstore d s bypolygon 3 12 37 15 42 18 37", ":2"),
            ("zrange d 0 -1", "*2|$7|Palermo|$7|Catania"),
        ]);
    }

    #[test]
    fn search_results_are_stored() {
        let mut client = client_with_sicilian_cities();
        client.check_replies(&[
            ("geosearchstore d s fromlonlat 15 37 byradius 200 km", ":2"),
            ("zrange d 0 -1", "*2|$7|Palermo|$7|Catania"),
            ("geosearchstore d s fromlonlat 15 37 byradius 200 km storedist", ":2"),
            ("zrange d 0 -1", "*2|$7|Catania|$7|Palermo"),
            ("georadius s 15 37 200 km store e count 1", ":1"),
            ("zrange e 0 -1", "*1|$7|Catania"),
            ("georadius s 15 37 1 km storedist e", ":0"),
            ("exists e", ":0"),
            ("geosearchstore d nosuch fromlonlat 15 37 byradius 200 km", ":0"),
            ("exists d", ":0"),
        ]);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let mut client = client_with_sicilian_cities();
        client.check_replies(&[
            ("geosearch s fromlonlat 15 37 asc withdist", "-ERR exactly one of BYRADIUS and BYBOX can be specified for geosearch"),
            ("geosearch s byradius 1 m asc withdist", "-ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for geosearch"),
            ("geosearch s frommember x byradius 1 m", "-ERR member x does not exist"),
            ("geosearch s fromlonlat 1 1 frommember x byradius 1 m", "-ERR syntax error"),
            ("geosearch s fromlonlat 1 1 byradius 1 m bybox 1 1 m", "-ERR syntax error"),
            ("geosearch s fromlonlat 1 1 byradius -1 m", "-ERR radius cannot be negative"),
            ("geosearch s fromlonlat 1 1 byradius x m", "-ERR need numeric radius"),
            ("geosearch s fromlonlat 1 1 bybox 1 -1 m", "-ERR height or width cannot be negative"),
            ("geosearch s fromlonlat 1 1 byradius 1 m any", "-ERR the ANY argument requires COUNT argument"),
            ("geosearch s fromlonlat 1 1 byradius 1 m count 0", "-ERR COUNT must be > 0"),
            ("georadius s 1 1 1 m store d withdist", "-ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options"),
            ("geosearchstore d s fromlonlat 1 1 byradius 1 m withdist", "-ERR GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options"),
            ("georadius_ro s 1 1 1 m store d", "-ERR syntax error"),
            ("georadius s 200 1 1 m", "-ERR invalid longitude,latitude pair 200.000000,1.000000"),
        ]);
    }
}
