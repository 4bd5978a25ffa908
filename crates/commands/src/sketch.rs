//! HyperLogLog: how many different elements were seen, to about 0.8 %, in at most 12 KB.
//!
//! An element's hash chooses one of 16384 registers by its lowest bits ([`Observation`]), and the register keeps the
//! longest run of zeros that the other bits began with. The number of elements is estimated from how many registers
//! have which value ([`estimate`]). A sketch is a string of Redis's form, byte by byte, so that one server can go on
//! with another's sketch:
//!
//! ```text
//! bytes 0..4    "HYLL"
//! byte  4       0 dense, 1 sparse
//! bytes 5..8    not used
//! bytes 8..16   the number that was estimated last, little-endian; the highest bit says that it holds no more
//! bytes 16..    dense: 16384 registers of 6 bits, lowest bit first; sparse: runs of registers (sparse.rs)
//! ```
//!
//! A sketch may come from any client (SET, RESTORE): the header is checked when it is read, the runs whenever they are
//! walked over. Sources: P. Flajolet and others, "HyperLogLog: the analysis of a near-optimal cardinality estimation
//! algorithm", 2007; O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", 2017; the form is that
//! of Redis 2.8.9 and later.

mod dense;
mod estimate;
mod hash;
mod sparse;

pub(crate) use hash::Observation;
pub(crate) use sparse::Run;

use estimate::Histogram;

/// How many bits of a hash choose the register.
const CHOOSING_BITS: u32 = 14;
/// Registers of a sketch.
pub(crate) const REGISTERS: usize = 1 << CHOOSING_BITS;
/// Bytes before the registers.
const HEADER: usize = 16;
const MAGIC: &[u8] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
/// In the last byte of the number that was estimated last: it holds no more.
const STALE: u8 = 0x80;

/// Why a string is of no use as a sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// It does not begin as one.
    NotASketch,
    /// Its runs do not cover the registers.
    Corrupt,
}

/// A string that is a sketch by its header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sketch<'a>(&'a [u8]);

impl<'a> Sketch<'a> {
    /// Looks at the header.
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, Unusable> {
        let is_one = bytes.len() >= HEADER
            && bytes.starts_with(MAGIC)
            && match bytes[MAGIC.len()] {
                DENSE => bytes.len() == HEADER + dense::BYTES,
                encoding => encoding == SPARSE,
            };
        if is_one { Ok(Self(bytes)) } else { Err(Unusable::NotASketch) }
    }

    pub(crate) fn is_dense(self) -> bool {
        self.0[MAGIC.len()] == DENSE
    }

    fn body(self) -> &'a [u8] {
        &self.0[HEADER..]
    }

    /// The runs of a sparse one.
    pub(crate) fn runs(self) -> impl Iterator<Item = Run> + use<'a> {
        sparse::runs(self.body())
    }

    /// The number that was estimated last, if nothing was seen since.
    pub(crate) fn cached(self) -> Option<u64> {
        let number = u64::from_le_bytes(*self.0[..HEADER].last_chunk().expect("a header ends with a number"));
        (number >> 63 == 0).then_some(number)
    }

    /// Whether an observation would change it, if it is dense.
    pub(crate) fn is_dense_and_lacks(self, seen: Observation) -> bool {
        self.is_dense() && dense::register(self.body(), seen.register) < seen.value
    }

    /// How many different elements it has seen, about.
    pub(crate) fn estimate(self) -> Result<u64, Unusable> {
        if self.is_dense() {
            return Ok(Histogram::of(&self.dense_values()).estimate());
        }
        let mut histogram = Histogram::default();
        sparse::each_run(self.body(), |run| histogram.add(run.value, run.len))?;
        Ok(histogram.estimate())
    }

    fn dense_values(self) -> [u8; REGISTERS] {
        let mut values = [0; REGISTERS];
        keyspace::in_wide_vectors(|| dense::unpack(self.body(), &mut values));
        values
    }
}

/// The registers of several sketches, each the highest of its namesakes.
#[derive(Debug, Clone)]
pub(crate) struct Registers(Box<[u8; REGISTERS]>);

impl Default for Registers {
    fn default() -> Self {
        Self(Box::new([0; REGISTERS]))
    }
}

impl Registers {
    /// Takes what a sketch has seen, too.
    pub(crate) fn merge(&mut self, sketch: Sketch<'_>) -> Result<(), Unusable> {
        if sketch.is_dense() {
            let values = sketch.dense_values();
            self.0.iter_mut().zip(&values).for_each(|(most, value)| *most = (*most).max(*value));
            return Ok(());
        }
        let mut at = 0;
        sparse::each_run(sketch.body(), |run| {
            let next = at + usize::from(run.len);
            if run.value > 0 {
                self.0[at..next].iter_mut().for_each(|most| *most = (*most).max(run.value));
            }
            at = next;
        })
    }

    /// How many different elements they have seen together, about.
    pub(crate) fn estimate(&self) -> u64 {
        Histogram::of(&self.0).estimate()
    }

    /// The registers that are not 0, as observations.
    pub(crate) fn observations(&self) -> impl Iterator<Item = Observation> + '_ {
        let seen = self.0.iter().enumerate().filter(|(_, value)| **value > 0);
        seen.map(|(register, value)| Observation { register, value: *value })
    }

    /// All of them.
    pub(crate) fn values(&self) -> &[u8] {
        &self.0[..]
    }
}

/// The bytes of a sketch that has seen nothing.
pub(crate) fn empty() -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()] = SPARSE;
    sparse::push_zeros(&mut bytes, REGISTERS);
    bytes
}

/// Changes a sketch by an observation; it becomes dense where it would have more than `most_sparse` bytes. Says whether
/// there was anything to change.
pub(crate) fn observe(bytes: &mut Vec<u8>, seen: Observation, most_sparse: usize) -> Result<bool, Unusable> {
    let sketch = Sketch::of(bytes)?;
    if !sketch.is_dense() {
        match sparse::set(bytes, HEADER, seen, most_sparse)? {
            sparse::Became::Same => return Ok(false),
            sparse::Became::Changed => {
                set_stale(bytes);
                return Ok(true);
            }
            sparse::Became::TooLarge => make_dense(bytes)?,
        }
    }
    Ok(observe_dense(bytes, seen))
}

/// [`observe`] of a sketch that is dense.
pub(crate) fn observe_dense(bytes: &mut [u8], seen: Observation) -> bool {
    let changed = dense::raise(&mut bytes[HEADER..], seen);
    if changed {
        set_stale(bytes);
    }
    changed
}

/// Makes a sketch dense that is not.
pub(crate) fn make_dense(bytes: &mut Vec<u8>) -> Result<(), Unusable> {
    let sketch = Sketch::of(bytes)?;
    if sketch.is_dense() {
        return Ok(());
    }
    let mut registers = Registers::default();
    registers.merge(sketch)?;
    bytes[MAGIC.len()] = DENSE;
    bytes.resize(HEADER + dense::BYTES, 0);
    set_registers(bytes, &registers);
    Ok(())
}

/// Gives a sketch that is dense these registers.
pub(crate) fn set_registers(bytes: &mut [u8], registers: &Registers) {
    keyspace::in_wide_vectors(|| dense::pack(&registers.0, &mut bytes[HEADER..]));
}

/// Marks a sketch's cached estimate as stale, since a register has changed.
pub(crate) fn set_stale(bytes: &mut [u8]) {
    bytes[HEADER - 1] |= STALE;
}

/// Notes in a sketch what was estimated.
pub(crate) fn set_cached(bytes: &mut [u8], number: u64) {
    bytes[HEADER - 8..HEADER].copy_from_slice(&number.to_le_bytes());
}

/// Counts known elements in a sketch that begins sparse and becomes dense, and beside it; says what is wrong.
pub(crate) fn self_test() -> Result<(), String> {
    /// Twice as far off as five standard errors (1.04 / sqrt(registers)) is never seen.
    const FARTHEST: f64 = 10.0 * 1.04 / 128.0;
    let (mut sketch, mut registers) = (empty(), Registers::default());
    for element in 1..=100_000_u64 {
        let seen = Observation::of(&element.to_le_bytes());
        observe(&mut sketch, seen, 3000).map_err(|error| format!("element {element}: {error:?}"))?;
        let value = &mut registers.0[seen.register];
        *value = (*value).max(seen.value);
        if ![10, 100, 1000, 10_000, 100_000].contains(&element) {
            continue;
        }
        let read = Sketch::of(&sketch).map_err(|error| format!("{element} elements: {error:?}"))?;
        let mut own = Registers::default();
        own.merge(read).map_err(|error| format!("{element} elements: {error:?}"))?;
        if own.values() != registers.values() {
            return Err(format!("registers are not what {element} elements make of them"));
        }
        let estimate = registers.estimate();
        if (estimate as f64 - element as f64).abs() > (element as f64 * FARTHEST).max(2.0) {
            return Err(format!("{element} elements are estimated as {estimate}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
