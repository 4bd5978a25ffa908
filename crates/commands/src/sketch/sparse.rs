//! Sparse registers: run-length encoding for sketches with few elements.
//!
//! ```text
//! 00nnnnnn             n + 1 registers (1 to 64) with value 0
//! 01nnnnnn nnnnnnnn    n + 1 registers (1 to 16384) with value 0, high bits first
//! 1vvvvvnn             n + 1 registers (1 to 4) with value v + 1 (1 to 32)
//! ```
//!
//! The runs cover all registers in order. Updates split and merge runs as Redis does, so that the same elements give
//! the same bytes: the run of the register is split, and then equal non-zero neighbours among the five runs starting at
//! its predecessor are merged.

use smallvec::SmallVec;

use super::{Observation, REGISTER_COUNT, SketchError};

/// Maximum number of registers in a one-byte run of zeros.
const MAX_SHORT_RUN_LEN: usize = 64;
/// Maximum number of registers in a run with a non-zero value.
const MAX_VALUE_RUN_LEN: u8 = 4;
const MAX_SPARSE_VALUE: u8 = 32;
/// The number of runs that are searched for neighbours to merge.
const MERGE_WINDOW_RUNS: usize = 5;

/// Consecutive registers with the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegisterRun {
    pub(crate) value: u8,
    pub(crate) len: u16,
    /// Encoded size in bytes.
    pub(crate) encoded_len: u8,
}

impl RegisterRun {
    /// Decodes the run at the start of `bytes`.
    #[inline]
    fn decode_first(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let low = u16::from(first & 0x3f);
        match first >> 6 {
            0 => Some(Self { value: 0, len: low + 1, encoded_len: 1 }),
            1 => Some(Self { value: 0, len: (low << 8 | u16::from(*bytes.get(1)?)) + 1, encoded_len: 2 }),
            _ => Some(Self { value: (first >> 2 & 0x1f) + 1, len: u16::from(first & 3) + 1, encoded_len: 1 }),
        }
    }
}

/// Decodes all runs. Decoding ends at a truncated run.
pub(super) fn runs(mut bytes: &[u8]) -> impl Iterator<Item = RegisterRun> {
    std::iter::from_fn(move || {
        let run = RegisterRun::decode_first(bytes)?;
        bytes = &bytes[usize::from(run.encoded_len)..];
        Some(run)
    })
}

/// Passes each run to `visit`. Fails if the runs do not cover exactly all registers, possibly after some runs were
/// visited.
pub(super) fn try_for_each_run(bytes: &[u8], mut visit: impl FnMut(RegisterRun)) -> Result<(), SketchError> {
    let (mut registers, mut read) = (0, 0);
    for run in runs(bytes) {
        registers += usize::from(run.len);
        read += usize::from(run.encoded_len);
        if registers > REGISTER_COUNT {
            break;
        }
        visit(run);
    }
    if registers == REGISTER_COUNT && read == bytes.len() { Ok(()) } else { Err(SketchError::Corrupt) }
}

/// The run that contains a register.
struct FoundRun {
    run: RegisterRun,
    /// Byte offset of the run.
    offset: usize,
    previous_offset: usize,
    /// Index of the run's first register.
    first_register: usize,
}

fn find_run(bytes: &[u8], register: usize) -> Result<FoundRun, SketchError> {
    let (mut at, mut before, mut first) = (0, 0, 0);
    loop {
        let run = RegisterRun::decode_first(&bytes[at..]).ok_or(SketchError::Corrupt)?;
        if register < first + usize::from(run.len) {
            return Ok(FoundRun { run, offset: at, previous_offset: before, first_register: first });
        }
        before = at;
        at += usize::from(run.encoded_len);
        first += usize::from(run.len);
    }
}

/// Appends the shortest encoding of `registers` zeros, or nothing if `registers` is 0.
pub(super) fn push_zeros(bytes: &mut impl Extend<u8>, registers: usize) {
    match registers {
        0 => {}
        1..=MAX_SHORT_RUN_LEN => bytes.extend([(registers - 1) as u8]),
        _ => bytes.extend([0x40 | ((registers - 1) >> 8) as u8, (registers - 1) as u8]),
    }
}

/// Encodes a run of at most four registers with a non-zero value.
fn encode_value_run(value: u8, registers: u8) -> u8 {
    0x80 | (value - 1) << 2 | (registers - 1)
}

/// The result of raising a register of a sparse sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SparseUpdate {
    /// The register already had at least this value.
    Unchanged,
    Changed,
    /// The value or the size exceeds what the sparse encoding allows; nothing was changed.
    TooLarge,
}

/// Raises a register to the observed value. The runs start at byte `runs_start`. Nothing changes if the sketch would
/// exceed `max_bytes` bytes.
pub(super) fn raise_register(
    bytes: &mut Vec<u8>,
    runs_start: usize,
    observation: Observation,
    max_bytes: usize,
) -> Result<SparseUpdate, SketchError> {
    if observation.value > MAX_SPARSE_VALUE {
        return Ok(SparseUpdate::TooLarge);
    }
    let FoundRun { run, offset: at, previous_offset: before, first_register: first } =
        find_run(&bytes[runs_start..], observation.register)?;
    if run.value >= observation.value {
        return Ok(SparseUpdate::Unchanged);
    }
    let mut cut: SmallVec<[u8; 5]> = SmallVec::new();
    let push = |cut: &mut SmallVec<[u8; 5]>, registers: usize| match run.value {
        0 => push_zeros(cut, registers),
        value if registers > 0 => cut.push(encode_value_run(value, registers as u8)),
        _ => {}
    };
    push(&mut cut, observation.register - first);
    cut.push(encode_value_run(observation.value, 1));
    push(&mut cut, first + usize::from(run.len) - 1 - observation.register);
    let old = usize::from(run.encoded_len);
    if cut.len() > old && bytes.len() + cut.len() - old > max_bytes {
        return Ok(SparseUpdate::TooLarge);
    }
    bytes.splice(runs_start + at..runs_start + at + old, cut);
    merge_equal_runs(bytes, runs_start + before);
    Ok(SparseUpdate::Changed)
}

/// Merges equal non-zero neighbours among the runs from byte `start` on.
fn merge_equal_runs(bytes: &mut Vec<u8>, mut start: usize) {
    for _ in 0..MERGE_WINDOW_RUNS {
        let Some(run) = RegisterRun::decode_first(&bytes[start..]) else { return };
        let next = RegisterRun::decode_first(&bytes[start + usize::from(run.encoded_len)..]);
        match next {
            Some(next)
                if run.value > 0
                    && run.value == next.value
                    && run.len + next.len <= u16::from(MAX_VALUE_RUN_LEN) =>
            {
                bytes[start + 1] = encode_value_run(run.value, (run.len + next.len) as u8);
                bytes.remove(start);
            }
            _ => start += usize::from(run.encoded_len),
        }
    }
}
