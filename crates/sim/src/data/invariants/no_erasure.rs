//! A replica that has its master's writes does not give them up for those of that master when it comes back with
//! nothing.
//!
//! The writes that a replica has confirmed to its master, an acknowledged one among them, must stay somewhere: the
//! master's memory is gone, and its file with it.

use std::collections::{BTreeMap, BTreeSet};

use replication::ReplId;
use slot_routing::ReplOffset;

use super::{Seen, What};
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct NoErasure {
    /// The masters that have acknowledged something in their present lives.
    written: BTreeSet<usize>,
    /// How often each process has begun anew.
    lives: BTreeMap<usize, usize>,
    /// Of each replica, the master that it has told last that it has some of it, and in which of that one's lives.
    copies: BTreeMap<usize, (usize, usize)>,
    /// The history that each process has shown last.
    histories: BTreeMap<usize, ReplId>,
    /// The masters that came back with nothing and have not been replicas since, each with the history that it lost. A
    /// snapshot of that may still be on its way.
    emptied: BTreeMap<usize, ReplId>,
    /// The replicas that an operator has had forgotten: they are not waited for.
    forgotten: BTreeSet<usize>,
}

impl Invariant<Seen<'_>> for NoErasure {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let host = seen.host;
        match seen.what {
            What::Acknowledged { .. } => {
                self.written.insert(host);
            }
            What::Confirmed { replica, offset } if offset > ReplOffset(0) && self.written.contains(&host) => {
                self.copies.insert(replica, (host, self.life(host)));
            }
            What::Restarted { .. } => {
                *self.lives.entry(host).or_default() += 1;
                self.copies.remove(&host);
                self.written.remove(&host);
                let lost = self.histories.remove(&host).unwrap_or(ReplId::NONE);
                if seen.store.offset() == ReplOffset(0) {
                    self.emptied.insert(host, lost);
                } else {
                    self.emptied.remove(&host);
                }
                return Ok(());
            }
            What::Demoted => {
                self.emptied.remove(&host);
            }
            What::Forgotten { by: None } => {
                self.forgotten.insert(host);
            }
            What::Forgotten { by } if self.copies.get(&host).map(|copy| copy.0) == by => {
                self.copies.remove(&host);
            }
            What::Promoted { .. } => {
                self.copies.remove(&host);
            }
            What::Replaced => self.replaced(seen)?,
            What::Confirmed { .. }
            | What::Stands
            | What::Synced { .. }
            | What::Copied { .. }
            | What::Applied
            | What::Dropped { .. }
            | What::Forgotten { .. } => {}
        }
        if !seen.store.is_loading() {
            self.histories.insert(host, seen.store.history());
        }
        Ok(())
    }
}

impl NoErasure {
    /// Looks at a snapshot that begins to replace data.
    fn replaced(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let host = seen.host;
        // The log is closed and not begun anew: it still says how far the old data reached.
        let had_data = seen.store.offset() > ReplOffset(0);
        let copied = self.copies.remove(&host).filter(|_| had_data && !self.forgotten.contains(&host));
        // Of its present life it has nothing that the master lacks: that is the same history, and gone on with.
        let of_before = |(master, life): (usize, usize)| (life < self.life(master)).then_some(master);
        let master = seen.store.upstream().filter(|master| copied.and_then(of_before) == Some(*master));
        let emptied = |master: &usize| {
            let lost = self.emptied.get(master);
            lost.is_some_and(|lost| seen.store.loads() != Some(*lost))
        };
        match master.filter(emptied) {
            Some(master) => {
                Err(format!("host {host} gives up what it has of host {master}, which lost all that it had"))
            }
            None => Ok(()),
        }
    }

    fn life(&self, host: usize) -> usize {
        self.lives.get(&host).copied().unwrap_or_default()
    }
}
