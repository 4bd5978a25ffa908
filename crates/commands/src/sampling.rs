//! Random selection of elements: HRANDFIELD, SRANDMEMBER and ZRANDMEMBER.
//!
//! Memory is bounded whatever the count: only a few chosen names and the reply itself are kept. The reply ends at the
//! client's output buffer limit or, if repeats are allowed, at the maximum size of a bulk string.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use engine::{CommandError, Context, Random};
use resp::Writer;

/// Elements are selected by random probes if the collection has more than `MIN_PROBE_RATIO` times the wanted number and
/// at most `MAX_PROBED_ELEMENTS` are wanted. Otherwise a scan of all elements is as cheap.
const MIN_PROBE_RATIO: usize = 3;
const MAX_PROBED_ELEMENTS: usize = 10_000;
/// Number of failed probes that are allowed for each wanted element.
const TRIES_PER_ELEMENT: usize = 20;
/// Minimum size in bytes of an element in a reply.
const MIN_ELEMENT_BYTES: usize = b"$0\r\n\r\n".len();

pub(super) const OUT_OF_RANGE_ERROR: CommandError = CommandError::text("ERR value is out of range");

/// Parses argument 2 as a count. A negative count allows repeats.
pub(super) fn parse_count(context: &Context<'_>) -> Result<i64, CommandError> {
    match context.integer_arg(2)? {
        i64::MIN => Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        )),
        count => Ok(count),
    }
}

/// A collection to select elements from.
pub(super) trait SamplePool {
    type Element: Copy;
    /// Identity of an element; distinct elements have distinct names.
    type ElementName: Ord;

    fn name(element: &Self::Element) -> Self::ElementName;

    /// The number of elements, including expired ones.
    fn len(&self) -> usize;

    /// The number of elements that have not expired.
    fn live_len(&self) -> usize;

    /// Returns the element at the position that the random number selects, or `None` if that element has expired.
    fn element_at_random(&self, random: u64) -> Option<Self::Element>;

    /// Visits the elements that have not expired.
    fn for_each(&self, visit: &mut dyn FnMut(Self::Element));
}

/// Writes selected elements to a reply.
pub(super) struct SampleReply<'r, 'w, E> {
    reply: &'r mut Writer<'w>,
    /// Writes the reply's header from the number of elements.
    write_header: fn(&mut Writer<'_>, usize),
    write_element: fn(&mut Writer<'_>, E),
    /// Maximum size in bytes of a reply with repeats.
    max_bytes: usize,
}

/// The maximum size in bytes of a reply in which elements may repeat.
pub(super) fn max_reply_bytes(context: &Context<'_>) -> usize {
    let most = context.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed);
    usize::try_from(most).unwrap_or(usize::MAX)
}

impl<'r, 'w, E> SampleReply<'r, 'w, E> {
    pub(super) fn new(
        reply: &'r mut Writer<'w>,
        max_bytes: usize,
        write_header: fn(&mut Writer<'_>, usize),
        write_element: fn(&mut Writer<'_>, E),
    ) -> Self {
        Self { reply, write_header, write_element, max_bytes }
    }

    fn write_count(&mut self, count: usize) {
        (self.write_header)(self.reply, count);
    }

    fn write(&mut self, element: E) {
        (self.write_element)(self.reply, element);
    }
}

/// Selects a random element by probing. `None` if nearly all elements have expired.
pub(super) fn random_element<P: SamplePool>(pool: &P, random: &mut Random) -> Option<P::Element> {
    (0..TRIES_PER_ELEMENT).find_map(|_| pool.element_at_random(random.next_u64()))
}

/// Replies with `count` elements, or with all distinct elements if there are fewer.
pub(super) fn reply_random_elements<P: SamplePool>(
    pool: Option<P>,
    count: i64,
    random: &mut Random,
    mut out: SampleReply<'_, '_, P::Element>,
) -> Result<(), CommandError> {
    let Some(pool) = pool.filter(|pool| count != 0 && pool.live_len() > 0) else {
        out.write_count(0);
        return Ok(());
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 {
        return reply_samples_with_repeats(&pool, wanted, random, &mut out);
    }
    reply_distinct_samples(&pool, wanted.min(pool.live_len()), random, &mut out);
    Ok(())
}

/// Replies with `count` independently selected elements, which may repeat.
fn reply_samples_with_repeats<P: SamplePool>(
    pool: &P,
    count: usize,
    random: &mut Random,
    out: &mut SampleReply<'_, '_, P::Element>,
) -> Result<(), CommandError> {
    if count.saturating_mul(MIN_ELEMENT_BYTES) > out.max_bytes {
        return Err(OUT_OF_RANGE_ERROR);
    }
    let start = out.reply.len();
    out.write_count(count);
    for _ in 0..count {
        match random_element(pool, random) {
            Some(element) => out.write(element),
            // Nearly all elements have expired, so select by rank among those that have not.
            None => reply_samples_by_scan(pool, 1, random, out),
        }
        if out.reply.is_over_limit() {
            break;
        }
        if out.reply.len() - start > out.max_bytes {
            return Err(OUT_OF_RANGE_ERROR);
        }
    }
    Ok(())
}

/// Replies with `count` distinct elements; the pool must have at least as many.
fn reply_distinct_samples<P: SamplePool>(
    pool: &P,
    count: usize,
    random: &mut Random,
    out: &mut SampleReply<'_, '_, P::Element>,
) {
    out.write_count(count);
    let live = pool.live_len();
    let few = count <= MAX_PROBED_ELEMENTS && count.saturating_mul(MIN_PROBE_RATIO) < live;
    if !few || live != pool.len() {
        return reply_samples_by_scan(pool, count, random, out);
    }
    let mut chosen = BTreeSet::new();
    for _ in 0..count.saturating_mul(TRIES_PER_ELEMENT) {
        let Some(element) = pool.element_at_random(random.next_u64()) else { break };
        if chosen.len() < count && chosen.insert(P::name(&element)) {
            out.write(element);
        }
    }
    if chosen.len() < count {
        // Too many probes failed: take the missing elements in scan order.
        let mut missing = count - chosen.len();
        pool.for_each(&mut |element| {
            if missing > 0 && !chosen.contains(&P::name(&element)) {
                out.write(element);
                missing -= 1;
            }
        });
    }
}

/// Selection sampling in a single scan: each element is chosen with probability (still wanted) / (still to come).
fn reply_samples_by_scan<P: SamplePool>(
    pool: &P,
    count: usize,
    random: &mut Random,
    out: &mut SampleReply<'_, '_, P::Element>,
) {
    let (mut left, mut missing) = (pool.live_len() as u64, count as u64);
    pool.for_each(&mut |element| {
        if missing > 0 {
            if random.next_u64() % left < missing {
                out.write(element);
                missing -= 1;
            }
            left -= 1;
        }
    });
}
