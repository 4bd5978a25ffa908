//! A sentinel's epochs never decrease, also across restarts, as long as it keeps its id; and each
//! configuration epoch means the same master address at every sentinel.

use sentinel::Addr;

use super::SentinelObservation;
use crate::invariant::{Invariant, NonDecreasing, SetOnce};

#[derive(Debug, Default)]
pub(super) struct Epochs {
    newest: NonDecreasing<String, u64>,
    addresses: SetOnce<u64, Addr>,
}

impl Invariant<SentinelObservation<'_>> for Epochs {
    fn check(&mut self, seen: &SentinelObservation<'_>) -> Result<(), String> {
        let SentinelObservation::Step { sentinel, status } = seen else { return Ok(()) };
        let id = sentinel.my_id().to_string();
        self.newest.check_next(&id, status.config_epoch, "configuration epoch")?;
        let epoch = status.config_epoch;
        self.addresses.record(epoch, &status.addr).map_err(|known| {
            format!("configuration epoch {epoch} means {known} and for {id} {}", status.addr)
        })
    }
}
