//! HyperLogLog: estimates the number of distinct elements with an error of about 0.8 %, in at most 12 KB.
//!
//! The low bits of an element's hash select one of 16384 registers ([`Observation`]), and the register keeps the
//! maximum length of the run of zeros in the other bits. The cardinality is estimated from the histogram of register
//! values ([`estimate`]). The byte format is that of Redis, so sketches can be exchanged between servers:
//!
//! ```text
//! bytes 0..4    "HYLL"
//! byte  4       0 dense, 1 sparse
//! bytes 5..8    not used
//! bytes 8..16   cached estimate, little-endian; the highest bit marks it as stale
//! bytes 16..    dense: 16384 registers of 6 bits, lowest bit first; sparse: runs of registers (sparse.rs)
//! ```
//!
//! Clients can supply any bytes (SET, RESTORE): the header is checked when a sketch is read, and the runs whenever they
//! are decoded. References: P. Flajolet and others, "HyperLogLog: the analysis of a near-optimal cardinality estimation
//! algorithm", 2007; O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", 2017. The format is
//! that of Redis 2.8.9 and later.

mod dense;
mod estimate;
mod hash;
mod sparse;

pub(crate) use hash::Observation;
pub(crate) use sparse::RegisterRun;

use estimate::Histogram;

/// Number of hash bits that select the register.
const INDEX_BITS: u32 = 14;
/// Number of registers of a sketch.
pub(crate) const REGISTER_COUNT: usize = 1 << INDEX_BITS;
/// Size of a sketch's header in bytes.
const HEADER_BYTES: usize = 16;
const MAGIC: &[u8] = b"HYLL";
const DENSE_ENCODING: u8 = 0;
const SPARSE_ENCODING: u8 = 1;
/// Flag in the last byte of the cached estimate: a register has changed since the estimate was computed.
const STALE_FLAG: u8 = 0x80;

/// The reason why a string is not a valid sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SketchError {
    /// The header is not that of a sketch.
    NotASketch,
    /// The sparse runs do not cover exactly all registers.
    Corrupt,
}

/// A string with a valid sketch header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sketch<'a>(&'a [u8]);

impl<'a> Sketch<'a> {
    /// Checks the header and the length of a dense sketch. The runs of a sparse sketch are checked when they are read.
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Result<Self, SketchError> {
        let is_one = bytes.len() >= HEADER_BYTES
            && bytes.starts_with(MAGIC)
            && match bytes[MAGIC.len()] {
                DENSE_ENCODING => bytes.len() == HEADER_BYTES + dense::DENSE_BYTES,
                encoding => encoding == SPARSE_ENCODING,
            };
        if is_one { Ok(Self(bytes)) } else { Err(SketchError::NotASketch) }
    }

    pub(crate) fn is_dense(self) -> bool {
        self.0[MAGIC.len()] == DENSE_ENCODING
    }

    fn register_bytes(self) -> &'a [u8] {
        &self.0[HEADER_BYTES..]
    }

    /// The runs of a sparse sketch.
    pub(crate) fn runs(self) -> impl Iterator<Item = RegisterRun> + use<'a> {
        sparse::runs(self.register_bytes())
    }

    /// The cached estimate, unless it is stale.
    pub(crate) fn cached_estimate(self) -> Option<u64> {
        let number =
            u64::from_le_bytes(*self.0[..HEADER_BYTES].last_chunk().expect("a header ends with a number"));
        (number >> 63 == 0).then_some(number)
    }

    /// Whether the sketch is dense and this observation would raise one of its registers.
    pub(crate) fn would_raise_dense_register(self, observation: Observation) -> bool {
        self.is_dense()
            && dense::read_register(self.register_bytes(), observation.register) < observation.value
    }

    /// Estimates the number of distinct elements.
    pub(crate) fn estimate(self) -> Result<u64, SketchError> {
        if self.is_dense() {
            return Ok(Histogram::from_registers(&self.dense_values()).estimate());
        }
        let mut histogram = Histogram::default();
        sparse::try_for_each_run(self.register_bytes(), |run| histogram.add(run.value, run.len))?;
        Ok(histogram.estimate())
    }

    fn dense_values(self) -> [u8; REGISTER_COUNT] {
        let mut values = [0; REGISTER_COUNT];
        keyspace::with_wide_vectors(|| dense::unpack(self.register_bytes(), &mut values));
        values
    }
}

/// The union of sketches: each register holds the maximum of the sources.
#[derive(Debug, Clone)]
pub(crate) struct Registers(Box<[u8; REGISTER_COUNT]>);

impl Default for Registers {
    fn default() -> Self {
        Self(Box::new([0; REGISTER_COUNT]))
    }
}

impl Registers {
    /// Merges another sketch into the registers.
    pub(crate) fn merge(&mut self, sketch: Sketch<'_>) -> Result<(), SketchError> {
        if sketch.is_dense() {
            let values = sketch.dense_values();
            self.0.iter_mut().zip(&values).for_each(|(most, value)| *most = (*most).max(*value));
            return Ok(());
        }
        let mut at = 0;
        sparse::try_for_each_run(sketch.register_bytes(), |run| {
            let next = at + usize::from(run.len);
            if run.value > 0 {
                self.0[at..next].iter_mut().for_each(|most| *most = (*most).max(run.value));
            }
            at = next;
        })
    }

    /// Estimates the number of distinct elements in the union.
    pub(crate) fn estimate(&self) -> u64 {
        Histogram::from_registers(&self.0).estimate()
    }

    /// The registers that are not zero, as observations.
    pub(crate) fn observations(&self) -> impl Iterator<Item = Observation> + '_ {
        let seen = self.0.iter().enumerate().filter(|(_, value)| **value > 0);
        seen.map(|(register, value)| Observation { register, value: *value })
    }

    /// The values of all registers, one byte each.
    pub(crate) fn register_values(&self) -> &[u8] {
        &self.0[..]
    }
}

/// The bytes of an empty sketch.
pub(crate) fn empty_sketch() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()] = SPARSE_ENCODING;
    sparse::push_zeros(&mut bytes, REGISTER_COUNT);
    bytes
}

/// Adds an observation to a sketch. Converts the sketch to the dense form if it would exceed `max_sparse_bytes` bytes.
/// Returns whether a register changed.
pub(crate) fn observe(
    bytes: &mut Vec<u8>,
    observation: Observation,
    max_sparse_bytes: usize,
) -> Result<bool, SketchError> {
    let sketch = Sketch::from_bytes(bytes)?;
    if !sketch.is_dense() {
        match sparse::raise_register(bytes, HEADER_BYTES, observation, max_sparse_bytes)? {
            sparse::SparseUpdate::Unchanged => return Ok(false),
            sparse::SparseUpdate::Changed => {
                mark_stale(bytes);
                return Ok(true);
            }
            sparse::SparseUpdate::TooLarge => make_dense(bytes)?,
        }
    }
    Ok(observe_dense(bytes, observation))
}

/// Adds an observation like [`observe`] to a sketch that is already dense.
pub(crate) fn observe_dense(bytes: &mut [u8], observation: Observation) -> bool {
    let changed = dense::raise_register(&mut bytes[HEADER_BYTES..], observation);
    if changed {
        mark_stale(bytes);
    }
    changed
}

/// Converts a sparse sketch to the dense form.
pub(crate) fn make_dense(bytes: &mut Vec<u8>) -> Result<(), SketchError> {
    let sketch = Sketch::from_bytes(bytes)?;
    if sketch.is_dense() {
        return Ok(());
    }
    let mut registers = Registers::default();
    registers.merge(sketch)?;
    bytes[MAGIC.len()] = DENSE_ENCODING;
    bytes.resize(HEADER_BYTES + dense::DENSE_BYTES, 0);
    set_registers(bytes, &registers);
    Ok(())
}

/// Replaces the registers of a dense sketch.
pub(crate) fn set_registers(bytes: &mut [u8], registers: &Registers) {
    keyspace::with_wide_vectors(|| dense::pack(&registers.0, &mut bytes[HEADER_BYTES..]));
}

/// Marks a sketch's cached estimate as stale, since a register has changed.
pub(crate) fn mark_stale(bytes: &mut [u8]) {
    bytes[HEADER_BYTES - 1] |= STALE_FLAG;
}

/// Stores an estimate in the sketch's header and marks it as valid.
pub(crate) fn store_estimate(bytes: &mut [u8], estimate: u64) {
    bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&estimate.to_le_bytes());
}

/// PFSELFTEST: adds known elements to a sketch as it changes from sparse to dense, and compares the registers and
/// estimates. Returns a description of the first error.
pub(crate) fn self_test() -> Result<(), String> {
    /// Ten standard errors (1.04 / sqrt(registers)), a deviation that practically never occurs.
    const MAX_DEVIATION: f64 = 10.0 * 1.04 / 128.0;
    let (mut sketch, mut registers) = (empty_sketch(), Registers::default());
    for element in 1..=100_000_u64 {
        let seen = Observation::from_element(&element.to_le_bytes());
        observe(&mut sketch, seen, 3000).map_err(|error| format!("element {element}: {error:?}"))?;
        let value = &mut registers.0[seen.register];
        *value = (*value).max(seen.value);
        if ![10, 100, 1000, 10_000, 100_000].contains(&element) {
            continue;
        }
        let read = Sketch::from_bytes(&sketch).map_err(|error| format!("{element} elements: {error:?}"))?;
        let mut own = Registers::default();
        own.merge(read).map_err(|error| format!("{element} elements: {error:?}"))?;
        if own.register_values() != registers.register_values() {
            return Err(format!("registers are not what {element} elements make of them"));
        }
        let estimate = registers.estimate();
        if (estimate as f64 - element as f64).abs() > (element as f64 * MAX_DEVIATION).max(2.0) {
            return Err(format!("{element} elements are estimated as {estimate}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
