//! Every value was written by a client: a key that is only written by SET holds one of the written
//! values.

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
