//! Elements chosen by chance: HRANDFIELD, SRANDMEMBER and their kin.
//!
//! Whatever the count, nothing is kept but a few chosen names and the reply itself, which ends where the client's
//! limit or, if the same element may come twice, that of a bulk string ends.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use engine::{CommandError, Context, Random};
use resp::Writer;

/// Elements are chosen by trying while there are more than `TRY_BELOW` times as many as are wanted, and at
/// most `TRY_AT_MOST` are wanted; else a walk over all elements is as cheap.
const TRY_BELOW: usize = 3;
const TRY_AT_MOST: usize = 10_000;
/// The tries in vain that are allowed for each element that is wanted.
const TRIES: usize = 20;
/// The fewest bytes that an element takes in a reply.
const LEAST: usize = b"$0\r\n\r\n".len();

pub(super) const OUT_OF_RANGE: CommandError = CommandError::text("ERR value is out of range");

/// Argument 2 as a count: how many are wanted; fewer than 0 where the same one may come twice.
pub(super) fn parse_count(context: &Context<'_>) -> Result<i64, CommandError> {
    match context.integer(2)? {
        i64::MIN => Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        )),
        count => Ok(count),
    }
}

/// A collection to choose elements from.
pub(super) trait Pool {
    type Element: Copy;
    /// The identity of an element: two elements differ where their names do.
    type Name: Ord;

    fn name(element: &Self::Element) -> Self::Name;

    /// How many elements there are, those that have expired among them.
    fn len(&self) -> usize;

    /// How many of them may be chosen.
    fn live_len(&self) -> usize;

    /// The element that `random` chooses of all, unless it has expired.
    fn random(&self, random: u64) -> Option<Self::Element>;

    /// Visits those that may be chosen.
    fn for_each(&self, visit: &mut dyn FnMut(Self::Element));
}

/// Elements on their way into a reply.
pub(super) struct Out<'r, 'w, E> {
    reply: &'r mut Writer<'w>,
    /// Begins the reply: so many elements will follow.
    head: fn(&mut Writer<'_>, usize),
    each: fn(&mut Writer<'_>, E),
    /// Bytes that the reply may have if the same element may come twice.
    most: usize,
}

/// How long a reply may become in which the same element may come twice.
pub(super) fn longest_reply(context: &Context<'_>) -> usize {
    let most = context.engine.settings.proto_max_bulk_len.load(Ordering::Relaxed);
    usize::try_from(most).unwrap_or(usize::MAX)
}

impl<'r, 'w, E> Out<'r, 'w, E> {
    pub(super) fn new(
        reply: &'r mut Writer<'w>,
        most: usize,
        head: fn(&mut Writer<'_>, usize),
        each: fn(&mut Writer<'_>, E),
    ) -> Self {
        Self { reply, head, each, most }
    }

    fn begin(&mut self, count: usize) {
        (self.head)(self.reply, count);
    }

    fn push(&mut self, element: E) {
        (self.each)(self.reply, element);
    }
}

/// An element chosen by chance, unless nearly all of them have expired.
pub(super) fn any<P: Pool>(pool: &P, random: &mut Random) -> Option<P::Element> {
    (0..TRIES).find_map(|_| pool.random(random.number()))
}

/// Replies with `count` elements, or with as many different ones as there are.
pub(super) fn choose<P: Pool>(
    pool: Option<P>,
    count: i64,
    random: &mut Random,
    mut out: Out<'_, '_, P::Element>,
) -> Result<(), CommandError> {
    let Some(pool) = pool.filter(|pool| count != 0 && pool.live_len() > 0) else {
        out.begin(0);
        return Ok(());
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 {
        return repeated(&pool, wanted, random, &mut out);
    }
    distinct(&pool, wanted.min(pool.live_len()), random, &mut out);
    Ok(())
}

/// `wanted` elements, each chosen anew.
fn repeated<P: Pool>(
    pool: &P,
    wanted: usize,
    random: &mut Random,
    out: &mut Out<'_, '_, P::Element>,
) -> Result<(), CommandError> {
    if wanted.saturating_mul(LEAST) > out.most {
        return Err(OUT_OF_RANGE);
    }
    let start = out.reply.len();
    out.begin(wanted);
    for _ in 0..wanted {
        match any(pool, random) {
            Some(element) => out.push(element),
            // Nearly all have expired: one of the others, by its rank.
            None => sample(pool, 1, random, out),
        }
        if out.reply.is_full() {
            break;
        }
        if out.reply.len() - start > out.most {
            return Err(OUT_OF_RANGE);
        }
    }
    Ok(())
}

/// `wanted` different elements, of no fewer.
fn distinct<P: Pool>(pool: &P, wanted: usize, random: &mut Random, out: &mut Out<'_, '_, P::Element>) {
    out.begin(wanted);
    let live = pool.live_len();
    let few = wanted <= TRY_AT_MOST && wanted.saturating_mul(TRY_BELOW) < live;
    if !few || live != pool.len() {
        return sample(pool, wanted, random, out);
    }
    let mut chosen = BTreeSet::new();
    for _ in 0..wanted.saturating_mul(TRIES) {
        let Some(element) = pool.random(random.number()) else { break };
        if chosen.len() < wanted && chosen.insert(P::name(&element)) {
            out.push(element);
        }
    }
    if chosen.len() < wanted {
        // Too many tries were in vain: the missing elements are taken in order.
        let mut missing = wanted - chosen.len();
        pool.for_each(&mut |element| {
            if missing > 0 && !chosen.contains(&P::name(&element)) {
                out.push(element);
                missing -= 1;
            }
        });
    }
}

/// `wanted` of the elements, on one walk: each has the chance to be among those still wanted, of those that are still
/// to come.
fn sample<P: Pool>(pool: &P, wanted: usize, random: &mut Random, out: &mut Out<'_, '_, P::Element>) {
    let (mut left, mut missing) = (pool.live_len() as u64, wanted as u64);
    pool.for_each(&mut |element| {
        if missing > 0 {
            if random.number() % left < missing {
                out.push(element);
                missing -= 1;
            }
            left -= 1;
        }
    });
}
