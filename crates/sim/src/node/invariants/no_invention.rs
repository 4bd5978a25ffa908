//! Every value was written by a client. This is checked for keys that clients write only with SET.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct NoInvention;

impl Invariant<NodeObservation> for NoInvention {
    fn check(&mut self, seen: &NodeObservation) -> Result<(), String> {
        let NodeObservation::Started { loaded: Ok(loaded), issued, .. } = seen else { return Ok(()) };
        let is_written = |value: &&String| {
            let number = value.strip_prefix('v').and_then(|number| number.parse::<u64>().ok());
            number.is_some_and(|number| number <= *issued)
        };
        match loaded.plain_values.iter().find(|value| !is_written(value)) {
            Some(value) => Err(format!("nobody wrote {value:?}")),
            None => Ok(()),
        }
    }
}
