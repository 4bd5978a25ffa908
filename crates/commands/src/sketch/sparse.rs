//! Registers as runs of equal ones, for a sketch that has seen little.
//!
//! ```text
//! 00nnnnnn             n + 1 registers (1 to 64) that are 0
//! 01nnnnnn nnnnnnnn    n + 1 registers (1 to 16384) that are 0, the higher bits first
//! 1vvvvvnn             n + 1 registers (1 to 4) that are v + 1 (1 to 32)
//! ```
//!
//! The runs cover the registers from the first to the last. Which runs a change leaves is as in Redis, so that the same
//! elements give the same bytes: the run in which the register lies is cut, and of the five runs from the one before it
//! on, neighbours that are equal and not 0 become one.

use smallvec::SmallVec;

use super::{Observation, REGISTERS, Unusable};

/// The most registers that a short run of zeros covers.
const MOST_SHORT: usize = 64;
/// The most registers that a run of others than 0 covers, and the greatest value that they can have.
const MOST_EQUAL: u8 = 4;
const MOST_VALUE: u8 = 32;
/// The number of runs that are searched for neighbours to merge.
const LOOKED_AT: usize = 5;

/// Registers in a row that have one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) value: u8,
    pub(crate) len: u16,
    /// How many bytes say so.
    pub(crate) bytes: u8,
}

impl Run {
    /// The run that the bytes begin with.
    #[inline]
    fn first_of(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let low = u16::from(first & 0x3f);
        match first >> 6 {
            0 => Some(Self { value: 0, len: low + 1, bytes: 1 }),
            1 => Some(Self { value: 0, len: (low << 8 | u16::from(*bytes.get(1)?)) + 1, bytes: 2 }),
            _ => Some(Self { value: (first >> 2 & 0x1f) + 1, len: u16::from(first & 3) + 1, bytes: 1 }),
        }
    }
}

/// The runs in these bytes, up to one that is cut off.
pub(super) fn runs(mut bytes: &[u8]) -> impl Iterator<Item = Run> {
    std::iter::from_fn(move || {
        let run = Run::first_of(bytes)?;
        bytes = &bytes[usize::from(run.bytes)..];
        Some(run)
    })
}

/// Shows each run, if they cover the registers, or those before the first that goes beyond.
pub(super) fn each_run(bytes: &[u8], mut show: impl FnMut(Run)) -> Result<(), Unusable> {
    let (mut registers, mut read) = (0, 0);
    for run in runs(bytes) {
        registers += usize::from(run.len);
        read += usize::from(run.bytes);
        if registers > REGISTERS {
            break;
        }
        show(run);
    }
    if registers == REGISTERS && read == bytes.len() { Ok(()) } else { Err(Unusable::Corrupt) }
}

/// Where a register lies.
struct Found {
    run: Run,
    /// Where the run begins, and the one before it.
    at: usize,
    before: usize,
    /// The run's first register.
    first: usize,
}

fn find(bytes: &[u8], register: usize) -> Result<Found, Unusable> {
    let (mut at, mut before, mut first) = (0, 0, 0);
    loop {
        let run = Run::first_of(&bytes[at..]).ok_or(Unusable::Corrupt)?;
        if register < first + usize::from(run.len) {
            return Ok(Found { run, at, before, first });
        }
        before = at;
        at += usize::from(run.bytes);
        first += usize::from(run.len);
    }
}

/// Appends the shortest run of so many zeros, if there are any.
pub(super) fn push_zeros(bytes: &mut impl Extend<u8>, registers: usize) {
    match registers {
        0 => {}
        1..=MOST_SHORT => bytes.extend([(registers - 1) as u8]),
        _ => bytes.extend([0x40 | ((registers - 1) >> 8) as u8, (registers - 1) as u8]),
    }
}

/// A run of at most four registers that are not 0.
fn equal(value: u8, registers: u8) -> u8 {
    0x80 | (value - 1) << 2 | (registers - 1)
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Became {
    /// The register was as high.
    Same,
    Changed,
    /// It cannot be said in runs, or not in so few bytes. Nothing was done.
    TooLarge,
}

/// Raises a register of the runs that begin at `header`, unless there would be more than `most` bytes.
pub(super) fn set(
    bytes: &mut Vec<u8>,
    header: usize,
    seen: Observation,
    most: usize,
) -> Result<Became, Unusable> {
    if seen.value > MOST_VALUE {
        return Ok(Became::TooLarge);
    }
    let Found { run, at, before, first } = find(&bytes[header..], seen.register)?;
    if run.value >= seen.value {
        return Ok(Became::Same);
    }
    let mut cut: SmallVec<[u8; 5]> = SmallVec::new();
    let push = |cut: &mut SmallVec<[u8; 5]>, registers: usize| match run.value {
        0 => push_zeros(cut, registers),
        value if registers > 0 => cut.push(equal(value, registers as u8)),
        _ => {}
    };
    push(&mut cut, seen.register - first);
    cut.push(equal(seen.value, 1));
    push(&mut cut, first + usize::from(run.len) - 1 - seen.register);
    let old = usize::from(run.bytes);
    if cut.len() > old && bytes.len() + cut.len() - old > most {
        return Ok(Became::TooLarge);
    }
    bytes.splice(header + at..header + at + old, cut);
    join(bytes, header + before);
    Ok(Became::Changed)
}

/// Makes neighbours one that are equal and not 0, of the runs from `at` on.
fn join(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..LOOKED_AT {
        let Some(run) = Run::first_of(&bytes[at..]) else { return };
        let next = Run::first_of(&bytes[at + usize::from(run.bytes)..]);
        match next {
            Some(next)
                if run.value > 0
                    && run.value == next.value
                    && run.len + next.len <= u16::from(MOST_EQUAL) =>
            {
                bytes[at + 1] = equal(run.value, (run.len + next.len) as u8);
                bytes.remove(at);
            }
            _ => at += usize::from(run.bytes),
        }
    }
}
