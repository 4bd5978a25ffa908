//! An acknowledged write stays until its master changes it or is no longer master.
//!
//! The stream of an old master that is still being applied would overwrite it.

use std::collections::BTreeMap;

use super::{Seen, What};
use crate::data::Key;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct NoOverwrite {
    /// The latest acknowledged write of each key, by master.
    acknowledged: BTreeMap<usize, BTreeMap<Key, u64>>,
}

impl Invariant<Seen<'_>> for NoOverwrite {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let host = seen.host;
        let acknowledged = self.acknowledged.entry(host).or_default();
        match seen.what {
            // A write that began before its master was ordered to follow another may be lost.
            What::Acknowledged { key, write, .. } if seen.store.upstream().is_none() => {
                acknowledged.insert(key, write);
            }
            What::Dropped { key } => {
                acknowledged.remove(&key);
            }
            What::Promoted { .. } | What::Demoted | What::Restarted { .. } => acknowledged.clear(),
            What::Applied | What::Replaced => {
                let is_lost = |(key, write): &(&Key, &u64)| {
                    !seen.store.is_locked(**key) && seen.store.held.get(**key) != Some(**write)
                };
                let lost = acknowledged.iter().find(is_lost);
                if let Some((key, write)) = lost {
                    let now = seen.store.held.get(*key);
                    return Err(format!(
                        "master {host} has acknowledged {write} for key {key} and holds {now:?}"
                    ));
                }
            }
            What::Acknowledged { .. }
            | What::Stands
            | What::Synced { .. }
            | What::Copied { .. }
            | What::Confirmed { .. }
            | What::Forgotten { .. } => {}
        }
        Ok(())
    }
}
