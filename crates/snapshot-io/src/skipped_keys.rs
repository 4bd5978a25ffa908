//! Collects the deletions of expired keys that a load skipped.
//!
//! Replicas of this node may have loaded the same data including those keys, and delete them only when the replication
//! stream tells them to. The deletions are written to the stream under a new replication id, because no other node has
//! them under the old id.

/// Commands that delete the keys and fields that a load skipped.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SkippedKeyDeletions {
    /// Commands in RESP encoding with their database, in file order.
    commands_by_database: Vec<(u16, Vec<u8>)>,
    bytes: u64,
    has_overflowed: bool,
}

impl SkippedKeyDeletions {
    /// Records a command that deletes a key, or fields of a key. If all commands together exceed `max_bytes`,
    /// they are discarded, because they would not fit in the replication log.
    pub fn add(&mut self, db: u16, command: &[&[u8]], max_bytes: u64) {
        if self.has_overflowed {
            return;
        }
        if self.commands_by_database.last().is_none_or(|(of, _)| *of != db) {
            self.commands_by_database.push((db, Vec::new()));
        }
        if let Some((_, run)) = self.commands_by_database.last_mut() {
            let before = run.len();
            resp::encode_request(run, command.iter().copied());
            self.bytes += (run.len() - before) as u64;
        }
        if self.bytes > max_bytes {
            (self.has_overflowed, self.commands_by_database) = (true, Vec::new());
        }
    }

    /// Returns the commands by database; `None` if they exceeded the limit.
    #[must_use]
    pub fn commands_by_database(&self) -> Option<&[(u16, Vec<u8>)]> {
        (!self.has_overflowed).then_some(&self.commands_by_database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_keys_are_grouped_by_database_and_limited() {
        let mut skipped_keys = SkippedKeyDeletions::default();
        for (db, key) in [(0, "a"), (0, "b"), (3, "c")] {
            skipped_keys.add(db, &[b"DEL", key.as_bytes()], 1000);
        }
        let del = |key| format!("*2\r\n$3\r\nDEL\r\n$1\r\n{key}\r\n");
        let expected = [(0, (del("a") + &del("b")).into_bytes()), (3, del("c").into_bytes())];
        assert_eq!(skipped_keys.commands_by_database(), Some(&expected[..]));
        skipped_keys.add(3, &[b"DEL", &[b'k'; 2000]], 1000);
        skipped_keys.add(3, &[b"DEL", b"d"], 1000);
        assert_eq!(skipped_keys.commands_by_database(), None);
    }
}
