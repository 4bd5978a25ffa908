//! The trace of a run: its digest, and its text if requested.

use clock::Instant;

/// The simulated time at the beginning of a run. It is not zero, so that earlier times can be represented.
pub(crate) const START_TIME: Instant = Instant::from_millis(1_000_000);

#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) digest: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(keeps_lines: bool) -> Self {
        // The digest is FNV-1a. This number is its offset basis; `record` uses its prime.
        Self { digest: 0xcbf2_9ce4_8422_2325, lines: keeps_lines.then(Vec::new) }
    }

    pub(crate) fn record(&mut self, now: Instant, text: &str) {
        for byte in text.bytes().chain(now.as_micros().to_le_bytes()) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>10} {text}", micros_since_start(now)));
        }
    }

    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}

/// Returns the microseconds from the start of the run to `at`.
pub(crate) fn micros_since_start(at: Instant) -> u64 {
    at.as_micros() - START_TIME.as_micros()
}

/// Converts a time to the nanoseconds that the engine uses.
pub(crate) fn to_nanos(at: Instant) -> u64 {
    at.as_micros() * 1000
}
