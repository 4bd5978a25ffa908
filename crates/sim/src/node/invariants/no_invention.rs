//! Every value was written by a client. This is checked for keys that clients write only with SET.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct NoInventionInvariant;

impl Invariant<NodeObservation> for NoInventionInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        let NodeObservation::NodeStarted { loaded: Ok(loaded), issued_value_count: issued, .. } = observation
        else {
            return Ok(());
        };
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
