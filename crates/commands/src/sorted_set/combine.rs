//! ZUNION, ZINTER, ZDIFF and their variants. Members of plain sets have the score 1.

use std::borrow::Cow;
use std::collections::HashMap;

use engine::{CommandError, Context};
use keyspace::{EntryRef, Key, Keyspace, LockedSlots, PartElements, ScoredMember, Value};
use smallvec::{SmallVec, smallvec};

use super::members::MemberLayout;
use super::members::SortedSetAccess;
use crate::kinds::{ElementName, ScoredMembers, as_any_value};

/// The set operation that a command computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SetOperation {
    Union,
    Intersection,
    Difference,
}

impl SetOperation {
    fn event(self) -> &'static str {
        match self {
            Self::Union => "zunionstore",
            Self::Intersection => "zinterstore",
            Self::Difference => "zdiffstore",
        }
    }
}

/// How the scores of a member are combined.
#[derive(Debug, Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn combine_scores(self, one: f64, other: f64) -> f64 {
        match self {
            // The sum of opposite infinities is NaN.
            Self::Sum => nan_to_zero(one + other),
            Self::Min => one.min(other),
            Self::Max => one.max(other),
        }
    }
}

/// Converts NaN, the sum of opposite infinities, to zero as Redis does.
fn nan_to_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// The command's operation and argument layout.
#[derive(Clone, Copy)]
struct CommandLayout {
    operation: SetOperation,
    name: &'static str,
    numkeys_index: usize,
    /// Whether only the cardinality is returned (ZINTERCARD).
    returns_only_count: bool,
}

/// A source key with its weight. The key may not exist.
struct SourceKey<'k> {
    key: Key<'k>,
    entry: Option<EntryRef>,
    weight: f64,
}

/// The parsed sources and options.
struct CombineQuery<'k> {
    inputs: Vec<SourceKey<'k>>,
    aggregate: Aggregate,
    with_scores: bool,
    /// The cardinality at which ZINTERCARD stops; 0 means unlimited.
    limit: usize,
}

/// The members of the result, as scores and names.
type ScoredNames<'c> = Vec<(f64, ElementName<'c>)>;

/// The scores of one member, each with the index of the source that has this score.
type MemberScores = SmallVec<[(usize, f64); 2]>;

/// Number of members whose lookups are prefetched together.
const PREFETCH_BATCH: usize = 64;

/// The value of a source key with its weight.
#[derive(Clone, Copy)]
struct SourceSet<'c> {
    value: Option<Value<'c>>,
    weight: f64,
}

impl<'k> CombineQuery<'k> {
    fn parse(context: &mut Context<'k>, layout: CommandLayout) -> Result<Self, CommandError> {
        let CommandLayout { operation, name, numkeys_index: numkeys_at, returns_only_count: counts } = layout;
        let numkeys = context.integer_arg(numkeys_at)?;
        if numkeys < 1 {
            return Err(CommandError::Text(
                format!("ERR at least 1 input key is needed for '{name}' command").into(),
            ));
        }
        let first = numkeys_at + 1;
        let left = context.args.len() - first;
        let Some(count) = usize::try_from(numkeys).ok().filter(|count| *count <= left) else {
            return Err(CommandError::Syntax);
        };
        let mut inputs = Vec::new();
        for index in first..first + count {
            let key = context.key(index)?;
            let place = context.find_for_read(&key);
            if let Some(place) = place {
                as_any_value(&context.table_ref(&key).value(place))
                    .as_scored_members()
                    .ok_or(CommandError::WrongType)?;
            }
            inputs.push(SourceKey { key, entry: place, weight: 1.0 });
        }
        let mut query = Self { inputs, aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        let mut index = first + count;
        while let Some(word) = context.args.get(index) {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            let left = context.args.len() - index;
            let weighed = operation != SetOperation::Difference && !counts;
            match () {
                () if weighed && left > count && is("weights") => {
                    query.read_weights(context, index + 1)?;
                    index += count;
                }
                () if weighed && left >= 2 && is("aggregate") => {
                    query.aggregate = parse_aggregate(context.arg(index + 1))?;
                    index += 1;
                }
                () if numkeys_at == 1 && !counts && is("withscores") => query.with_scores = true,
                () if counts && left >= 2 && is("limit") => {
                    let limit =
                        context.integer_arg(index + 1).ok().and_then(|limit| usize::try_from(limit).ok());
                    query.limit = limit.ok_or(CommandError::text("ERR LIMIT can't be negative"))?;
                    index += 1;
                }
                () => return Err(CommandError::Syntax),
            }
            index += 1;
        }
        Ok(query)
    }

    fn read_weights(&mut self, context: &Context<'_>, from: usize) -> Result<(), CommandError> {
        for (index, input) in self.inputs.iter_mut().enumerate() {
            let weight = context.double_arg(from + index);
            input.weight = weight.ok_or(CommandError::text("ERR weight value is not a float"))?;
        }
        Ok(())
    }

    /// The source sets in argument order, or in ascending order of size.
    fn sources<'c>(&self, slots: &'c LockedSlots<'_>, db: u16, smallest_first: bool) -> Vec<SourceSet<'c>> {
        let view = |key: &Key<'_>| slots.slot(key.slot()).table_ref(db);
        let value = |input: &SourceKey<'_>| input.entry.map(|place| view(&input.key).value(place));
        let source = |input| SourceSet { value: value(input), weight: input.weight };
        let mut sources: Vec<_> = self.inputs.iter().map(source).collect();
        if smallest_first {
            sources.sort_by_key(SourceSet::len);
        }
        sources
    }

    /// Executes the operation and returns the members in sorted order.
    fn combine<'c>(
        &self,
        keyspace: &Keyspace,
        slots: &'c LockedSlots<'_>,
        db: u16,
        operation: SetOperation,
    ) -> ScoredNames<'c> {
        let sources = self.sources(slots, db, operation != SetOperation::Difference);
        let members = match operation {
            SetOperation::Union => self.union(&sources),
            SetOperation::Intersection => {
                let mut members = ScoredNames::new();
                self.intersect(keyspace, &sources, &mut |name, score| {
                    members.push((score, name));
                    true
                });
                members
            }
            SetOperation::Difference => difference(keyspace, &sources),
        };
        sort_members(members)
    }

    fn union<'c>(&self, sources: &[SourceSet<'c>]) -> ScoredNames<'c> {
        let mut members = HashMap::<ElementName<'c>, f64>::new();
        for source in sources {
            source.visit(&mut |name, score| {
                let score = nan_to_zero(score * source.weight);
                match members.get_mut(&*name) {
                    Some(before) => *before = self.aggregate.combine_scores(*before, score),
                    None => {
                        members.insert(name, score);
                    }
                }
                true
            });
        }
        members.into_iter().map(|(name, score)| (score, name)).collect()
    }

    /// Computes a union without blocking other clients: pins the memory of the large sources and unlocks their slots
    /// meanwhile. Returns `None` if the memory cannot be pinned.
    fn pinned_union(&self, context: &mut Context<'_>) -> Option<ScoredNames<'static>> {
        if !context.may_release_slots() {
            return None;
        }
        let (mut found, mut large) = (HashMap::<Vec<u8>, MemberScores>::new(), Vec::new());
        let mut add = |name: &[u8], score: f64, from: usize| match found.get_mut(name) {
            Some(scores) => scores.push((from, score)),
            None => drop(found.insert(name.to_vec(), smallvec![(from, score)])),
        };
        let mut inputs: Vec<&SourceKey<'_>> = self.inputs.iter().collect();
        let value = |input: &SourceKey<'_>| Some(context.table_ref(&input.key).value(input.entry?));
        inputs.sort_by_key(|input| value(input).map_or(0, |value| value.element_count()));
        for (index, input) in inputs.iter().enumerate() {
            let Some(value) = value(input) else { continue };
            if value.is_large() {
                large.extend(input.entry.map(|place| (input.key, place)));
                continue;
            }
            SourceSet { value: Some(value), weight: input.weight }.visit(&mut |name, score| {
                add(&name, score, index);
                true
            });
        }
        context.pin_values(&large)?.visit_elements(|key, elements| {
            let of_key = |input: &(usize, &&SourceKey<'_>)| input.1.key.bytes() == key;
            for (index, _) in inputs.iter().enumerate().filter(of_key) {
                match elements {
                    PartElements::SortedSet(part) => {
                        part.for_each(&mut |member| add(member.name, member.score, index));
                    }
                    others => others.visit_names(&mut |name| add(name, 1.0, index)),
                }
            }
            true
        });
        Some(sort_members(self.aggregate_scores(found, &inputs)))
    }

    /// Combines the scores of each member in the order of `inputs`.
    fn aggregate_scores(
        &self,
        found: HashMap<Vec<u8>, MemberScores>,
        inputs: &[&SourceKey<'_>],
    ) -> ScoredNames<'static> {
        let one = |(name, mut scores): (Vec<u8>, MemberScores)| {
            scores.sort_unstable_by_key(|(input, _)| *input);
            let weighed = scores.iter().map(|(input, score)| nan_to_zero(score * inputs[*input].weight));
            (
                weighed.reduce(|one, other| self.aggregate.combine_scores(one, other)).unwrap_or_default(),
                Cow::Owned(name),
            )
        };
        found.into_iter().map(one).collect()
    }

    /// Visits the members that all sources have, until `visit` returns false. The first source must be the smallest.
    fn intersect<'c>(
        &self,
        keyspace: &Keyspace,
        sources: &[SourceSet<'c>],
        visit: &mut dyn FnMut(ElementName<'c>, f64) -> bool,
    ) {
        let [first, others @ ..] = sources else { return };
        visit_prefetched(keyspace, first, others, &mut |name, hash, score| {
            let mut sum = nan_to_zero(score * first.weight);
            for other in others {
                let Some(score) = other.score(&name, hash) else { return true };
                sum = self.aggregate.combine_scores(sum, score * other.weight);
            }
            visit(name, sum)
        });
    }
}

fn sort_members(mut members: ScoredNames<'_>) -> ScoredNames<'_> {
    members.sort_unstable_by(|one, other| {
        one.0.partial_cmp(&other.0).expect("no score is NaN").then_with(|| one.1.cmp(&other.1))
    });
    members
}

fn difference<'c>(keyspace: &Keyspace, sources: &[SourceSet<'c>]) -> ScoredNames<'c> {
    let mut members = ScoredNames::new();
    let [first, others @ ..] = sources else { return members };
    visit_prefetched(keyspace, first, others, &mut |name, hash, score| {
        if others.iter().all(|other| other.score(&name, hash).is_none()) {
            members.push((score, name));
        }
        true
    });
    members
}

/// Visits members with their hashes and scores until `visit` returns false. Members are read in batches, and the memory
/// for their lookups in `others` is prefetched.
fn visit_prefetched<'c>(
    keyspace: &Keyspace,
    source: &SourceSet<'c>,
    others: &[SourceSet<'_>],
    visit: &mut dyn FnMut(ElementName<'c>, u64, f64) -> bool,
) {
    let mut some = SmallVec::<[(ElementName<'c>, u64, f64); PREFETCH_BATCH]>::new();
    let mut look = |some: &mut SmallVec<[(ElementName<'c>, u64, f64); PREFETCH_BATCH]>| {
        let hashes: SmallVec<[u64; PREFETCH_BATCH]> = some.iter().map(|(_, hash, _)| *hash).collect();
        others.iter().for_each(|other| other.prefetch(&hashes));
        some.drain(..).all(|(name, hash, score)| visit(name, hash, score))
    };
    let mut goes_on = true;
    source.visit(&mut |name, score| {
        let hash = keyspace.hash_element_name(&name);
        some.push((name, hash, score));
        goes_on = some.len() < PREFETCH_BATCH || look(&mut some);
        goes_on
    });
    if goes_on {
        look(&mut some);
    }
}

impl<'c> SourceSet<'c> {
    fn members(&self) -> Option<&dyn ScoredMembers<'c>> {
        self.value.as_ref().and_then(|value| as_any_value(value).as_scored_members())
    }

    fn len(&self) -> usize {
        self.members().map_or(0, |members| members.len())
    }

    fn prefetch(&self, hashes: &[u64]) {
        if let Some(members) = self.members() {
            members.prefetch(hashes);
        }
    }

    fn score(&self, name: &[u8], hash: u64) -> Option<f64> {
        self.members()?.score(name, hash)
    }

    /// Visits members and their scores until `visit` returns false.
    fn visit(&self, visit: &mut dyn FnMut(ElementName<'c>, f64) -> bool) {
        if let Some(members) = self.members() {
            members.visit_members(visit);
        }
    }
}

fn parse_aggregate(word: &[u8]) -> Result<Aggregate, CommandError> {
    match () {
        () if word.eq_ignore_ascii_case(b"sum") => Ok(Aggregate::Sum),
        () if word.eq_ignore_ascii_case(b"min") => Ok(Aggregate::Min),
        () if word.eq_ignore_ascii_case(b"max") => Ok(Aggregate::Max),
        () => Err(CommandError::Syntax),
    }
}

/// Handles `ZUNION numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE SUM | MIN | MAX] [WITHSCORES]`.
pub(super) fn zunion(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_result(context, SetOperation::Union, "zunion")
}

/// Handles `ZINTER numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE SUM | MIN | MAX] [WITHSCORES]`.
pub(super) fn zinter(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_result(context, SetOperation::Intersection, "zinter")
}

/// Handles `ZDIFF numkeys key [key ...] [WITHSCORES]`.
pub(super) fn zdiff(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_result(context, SetOperation::Difference, "zdiff")
}

/// Handles `ZUNIONSTORE destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE SUM | MIN | MAX]`.
pub(super) fn zunionstore(context: &mut Context<'_>) -> Result<(), CommandError> {
    store_result(context, SetOperation::Union, "zunionstore")
}

/// Handles `ZINTERSTORE destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE SUM | MIN | MAX]`.
pub(super) fn zinterstore(context: &mut Context<'_>) -> Result<(), CommandError> {
    store_result(context, SetOperation::Intersection, "zinterstore")
}

/// Handles `ZDIFFSTORE destination numkeys key [key ...]`.
pub(super) fn zdiffstore(context: &mut Context<'_>) -> Result<(), CommandError> {
    store_result(context, SetOperation::Difference, "zdiffstore")
}

/// Handles `ZINTERCARD numkeys key [key ...] [LIMIT limit]`.
pub(super) fn zintercard(context: &mut Context<'_>) -> Result<(), CommandError> {
    let operation = SetOperation::Intersection;
    let plan = CommandLayout { operation, name: "zintercard", numkeys_index: 1, returns_only_count: true };
    let query = CombineQuery::parse(context, plan)?;
    let sources = query.sources(&context.slots, context.session.db(), true);
    let mut count = 0;
    query.intersect(&context.engine.keyspace, &sources, &mut |_, _| {
        count += 1;
        count != query.limit
    });
    context.reply.integer(count as i64);
    Ok(())
}

fn reply_result(
    context: &mut Context<'_>,
    operation: SetOperation,
    name: &'static str,
) -> Result<(), CommandError> {
    let query = CombineQuery::parse(
        context,
        CommandLayout { operation, name, numkeys_index: 1, returns_only_count: false },
    )?;
    let form = MemberLayout::for_range_reply(&context.reply, query.with_scores);
    let is_union = operation == SetOperation::Union;
    let members = match is_union.then(|| query.pinned_union(context)).flatten() {
        Some(members) => members,
        None => query.combine(&context.engine.keyspace, &context.slots, context.session.db(), operation),
    };
    form.write_header(&mut context.reply, members.len());
    for (score, name) in &members {
        form.write_member(&mut context.reply, &ScoredMember { name, score: *score });
        if context.reply.is_over_limit() {
            break;
        }
    }
    Ok(())
}

fn store_result(
    context: &mut Context<'_>,
    operation: SetOperation,
    name: &'static str,
) -> Result<(), CommandError> {
    let query = CombineQuery::parse(
        context,
        CommandLayout { operation, name, numkeys_index: 2, returns_only_count: false },
    )?;
    let members = query.combine(&context.engine.keyspace, &context.slots, context.session.db(), operation);
    let count = members.len();
    let built =
        context.build_members(members.iter().map(|(score, name)| ScoredMember { name, score: *score }));
    context.store_built_members(&context.key(1)?, &built, count, operation.event());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use resp::Value;

    use crate::testing::Client;

    type ReferenceSets = BTreeMap<String, i64>;

    /// Parses a reply with scores into pairs of score and member.
    fn parse_scored_reply(reply: &Value) -> Vec<(i64, String)> {
        let text = |value: &Value| String::from_utf8(value.as_bytes().expect("text").to_vec()).unwrap();
        let all = reply.as_array().expect("a list");
        all.chunks(2).map(|pair| (text(&pair[1]).parse().unwrap(), text(&pair[0]))).collect()
    }

    /// Combines packed, large and very large (prefetched) sorted sets and plain sets. The stored result is then emptied
    /// member by member and refilled, so that its index shrinks and grows.
    #[test]
    fn set_operations_match_reference_on_large_sets() {
        let mut client = Client::new();
        let mut twins: Vec<ReferenceSets> = Vec::new();
        for (number, (size, step)) in
            [(10, 1), (400, 3), (6000, 2), (2000, 1), (300, 4)].into_iter().enumerate()
        {
            let key = number.to_string();
            let is_set = number == 4;
            let score = |n: i64| if is_set { 1 } else { n * 7919 % 1009 };
            let twin: ReferenceSets = (0..size).map(|n| (format!("{}", n * step), score(n))).collect();
            for (name, score) in &twin {
                let score = score.to_string();
                let words = if is_set { vec!["sadd", &key, name] } else { vec!["zadd", &key, &score, name] };
                client.call(&words);
            }
            twins.push(twin);
        }
        for choice in 0..25 {
            let (one, other) = (&twins[choice / 5], &twins[choice % 5]);
            let (mut inter, mut union, mut diff) =
                (ReferenceSets::new(), other.clone(), ReferenceSets::new());
            for (name, score) in one {
                *union.entry(name.clone()).or_default() += score;
                match other.get(name) {
                    Some(more) => drop(inter.insert(name.clone(), score + more)),
                    None => drop(diff.insert(name.clone(), *score)),
                }
            }
            let keys = [(choice / 5).to_string(), (choice % 5).to_string()];
            for (name, twin) in [("zinter", inter), ("zunion", union), ("zdiff", diff)] {
                let mut expected: Vec<_> = twin.iter().map(|(name, score)| (*score, name.clone())).collect();
                expected.sort_unstable();
                let reply = client.call(&[name, "2", &keys[0], &keys[1], "withscores"]);
                assert_eq!(parse_scored_reply(&reply), expected, "{name} {keys:?}");
                let stored = client.call(&[&format!("{name}store"), "d", "2", &keys[0], &keys[1]]);
                assert_eq!(stored, Value::Integer(expected.len() as i64));
                let reply = client.call(&["zrange", "d", "0", "-1", "withscores"]);
                assert_eq!(parse_scored_reply(&reply), expected, "{name}store {keys:?}");
                for (_, name) in &expected {
                    assert_eq!(client.call(&["zrem", "d", name]), Value::Integer(1));
                }
                assert_eq!(client.call(&["exists", "d"]), Value::Integer(0));
            }
        }
    }

    #[test]
    fn sorted_sets_are_combined() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("zadd {k}a 1 x 2 y 3 z", ":3"),
            ("zadd {k}b 10 y 20 z 30 w", ":3"),
            ("zunion 2 {k}a {k}b withscores", "*8|$1|x|$1|1|$1|y|$2|12|$1|z|$2|23|$1|w|$2|30"),
            ("zunion 3 {k}a {k}b {k}nosuch", "*4|$1|x|$1|y|$1|z|$1|w"),
            ("zinter 2 {k}a {k}b withscores", "*4|$1|y|$2|12|$1|z|$2|23"),
            ("zinter 2 {k}a {k}b weights 2 0.5 withscores", "*4|$1|y|$1|9|$1|z|$2|16"),
            ("zinter 2 {k}a {k}b aggregate max withscores", "*4|$1|y|$2|10|$1|z|$2|20"),
            ("zunion 2 {k}a {k}b aggregate MIN withscores", "*8|$1|x|$1|1|$1|y|$1|2|$1|z|$1|3|$1|w|$2|30"),
            ("zinter 2 {k}a {k}nosuch", "*0"),
            ("zdiff 2 {k}a {k}b withscores", "*2|$1|x|$1|1"),
            ("zdiff 1 {k}nosuch", "*0"),
            ("zintercard 2 {k}a {k}b", ":2"),
            ("zintercard 2 {k}a {k}b limit 1", ":1"),
            ("zintercard 2 {k}a {k}b limit 0", ":2"),
            ("zunionstore {k}d 2 {k}a {k}b", ":4"),
            ("zscore {k}d y", "$2|12"),
            ("zinterstore {k}d 2 {k}a {k}b", ":2"),
            ("zdiffstore {k}d 2 {k}a {k}b", ":1"),
            ("zdiffstore {k}d 2 {k}a {k}a", ":0"),
            ("exists {k}d", ":0"),
            ("zadd {k}i inf x -inf y", ":2"),
            ("zadd {k}j -inf x 0 y", ":2"),
            ("zunion 2 {k}i {k}j withscores", "*4|$1|y|$4|-inf|$1|x|$1|0"),
            ("sadd {k}s x y new", ":3"),
            ("zunion 2 {k}a {k}s withscores", "*8|$3|new|$1|1|$1|x|$1|2|$1|y|$1|3|$1|z|$1|3"),
            ("zinter 2 {k}s {k}a weights 5 1 withscores", "*4|$1|x|$1|6|$1|y|$1|7"),
            ("zdiff 2 {k}s {k}a withscores", "*2|$3|new|$1|1"),
            ("zintercard 2 {k}s {k}a limit 1", ":1"),
            ("zunion 1 {k}i weights 0 withscores", "*4|$1|x|$1|0|$1|y|$1|0"),
        ]);
        assert_eq!(
            client.logged_commands()[2..],
            [
                "0 zunionstore {k}d 2 {k}a {k}b",
                "0 zinterstore {k}d 2 {k}a {k}b",
                "0 zdiffstore {k}d 2 {k}a {k}b",
                "0 zdiffstore {k}d 2 {k}a {k}a",
                "0 zadd {k}i inf x -inf y",
                "0 zadd {k}j -inf x 0 y",
                "0 sadd {k}s x y new",
            ]
        );
        client.run_to_text("hello 3");
        client.check_replies(&[("zinter 2 {k}a {k}b withscores", "*2|*2|$1|y|,12|*2|$1|z|,23")]);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let syntax = "-ERR syntax error";
        Client::new().check_replies(&[
            ("zunion 0 a", "-ERR at least 1 input key is needed for 'zunion' command"),
            ("zunionstore d 0 a", "-ERR at least 1 input key is needed for 'zunionstore' command"),
            ("zunion x a", "-ERR value is not an integer or out of range"),
            ("zunion 2 a", syntax),
            ("zunion 1 a weights", syntax),
            ("zunion 1 a weights x", "-ERR weight value is not a float"),
            ("zunion 1 a aggregate avg", syntax),
            ("zdiff 1 a weights 1", syntax),
            ("zunionstore d 1 a withscores", syntax),
            ("zintercard 1 a weights 1", syntax),
            ("zintercard 1 a limit -1", "-ERR LIMIT can't be negative"),
            ("zintercard 1 a limit x", "-ERR LIMIT can't be negative"),
            ("zinter 1 a limit 1", syntax),
            ("set s v", "+OK"),
            ("zunion 1 s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }
}
