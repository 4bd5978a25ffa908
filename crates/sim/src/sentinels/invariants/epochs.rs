//! A sentinel's epochs never go back, also over restarts, as long as it keeps its identity; and one
//! configuration epoch means one address, at every sentinel.

use std::collections::BTreeMap;

use sentinel::Addr;

use super::{Invariant, Seen};
use crate::sentinels::MASTER;

#[derive(Debug, Default)]
pub(super) struct Epochs {
    newest: BTreeMap<String, u64>,
    addresses: BTreeMap<u64, Addr>,
}

impl Invariant for Epochs {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Step { sentinel } = seen else { return Ok(()) };
        let Some(status) = sentinel.status(MASTER) else { return Ok(()) };
        let id = sentinel.my_id().to_string();
        let newest = self.newest.entry(id.clone()).or_default();
        if status.config_epoch < *newest {
            return Err(format!(
                "{id} went back from configuration epoch {newest} to {}",
                status.config_epoch
            ));
        }
        *newest = status.config_epoch;
        let known = self.addresses.entry(status.config_epoch).or_insert_with(|| status.addr.clone());
        if *known == status.addr {
            return Ok(());
        }
        Err(format!("configuration epoch {} means {known} and for {id} {}", status.config_epoch, status.addr))
    }
}
