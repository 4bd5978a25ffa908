//! Nothing is there that no client wrote: a key that is only ever set as a whole has one of the values that it was set
//! to.

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct NoInvention;

impl Invariant<Seen> for NoInvention {
    fn check(&mut self, seen: &Seen) -> Result<(), String> {
        let Seen::Started { loaded: Ok(loaded), issued, .. } = seen else { return Ok(()) };
        let is_written = |value: &&String| {
            let number = value.strip_prefix('v').and_then(|number| number.parse::<u64>().ok());
            number.is_some_and(|number| number <= *issued)
        };
        match loaded.plain.iter().find(|value| !is_written(value)) {
            Some(value) => Err(format!("nobody wrote {value:?}")),
            None => Ok(()),
        }
    }
}
