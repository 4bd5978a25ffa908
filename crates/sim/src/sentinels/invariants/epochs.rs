//! A sentinel's epochs never decrease, also across restarts, as long as it keeps its id; and each
//! configuration epoch means the same master address at every sentinel.

use sentinel::Addr;

use super::Seen;
use crate::invariant::{Invariant, Once, Rising};

#[derive(Debug, Default)]
pub(super) struct Epochs {
    newest: Rising<String, u64>,
    addresses: Once<u64, Addr>,
}

impl Invariant<Seen<'_>> for Epochs {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Step { sentinel, status } = seen else { return Ok(()) };
        let id = sentinel.my_id().to_string();
        self.newest.see(&id, status.config_epoch, "configuration epoch")?;
        let epoch = status.config_epoch;
        self.addresses.record(epoch, &status.addr).map_err(|known| {
            format!("configuration epoch {epoch} means {known} and for {id} {}", status.addr)
        })
    }
}
