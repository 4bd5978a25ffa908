//! Collects the deletions of expired keys that a load skipped.
//!
//! Replicas of this node may have loaded the same history including those keys, and delete the keys only when the log
//! tells them to. The deletions are logged after the history got a new replication id, because no other node has these
//! deletions under the old id.

/// Deletions of the keys that a load skipped, for the log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SkippedKeys {
    /// Commands in wire format, by database in file order.
    runs_by_database: Vec<(u16, Vec<u8>)>,
    bytes: u64,
    has_overflowed: bool,
}

impl SkippedKeys {
    /// Records a command that deletes a key, or fields of a key. If the commands exceed `most` bytes, they would not
    /// fit the log, so all are discarded.
    pub fn add(&mut self, db: u16, command: &[&[u8]], most: u64) {
        if self.has_overflowed {
            return;
        }
        if self.runs_by_database.last().is_none_or(|(of, _)| *of != db) {
            self.runs_by_database.push((db, Vec::new()));
        }
        if let Some((_, run)) = self.runs_by_database.last_mut() {
            let before = run.len();
            resp::encode_request(run, command.iter().copied());
            self.bytes += (run.len() - before) as u64;
        }
        if self.bytes > most {
            (self.has_overflowed, self.runs_by_database) = (true, Vec::new());
        }
    }

    /// Returns the commands; `None` if they exceed the log size.
    #[must_use]
    pub fn to_commands(&self) -> Option<&[(u16, Vec<u8>)]> {
        (!self.has_overflowed).then_some(&self.runs_by_database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_keys_are_grouped_by_database_and_limited() {
        let mut skipped_keys = SkippedKeys::default();
        for (db, key) in [(0, "a"), (0, "b"), (3, "c")] {
            skipped_keys.add(db, &[b"DEL", key.as_bytes()], 1000);
        }
        let del = |key| format!("*2\r\n$3\r\nDEL\r\n$1\r\n{key}\r\n");
        let expected = [(0, (del("a") + &del("b")).into_bytes()), (3, del("c").into_bytes())];
        assert_eq!(skipped_keys.to_commands(), Some(&expected[..]));
        skipped_keys.add(3, &[b"DEL", &[b'k'; 2000]], 1000);
        skipped_keys.add(3, &[b"DEL", b"d"], 1000);
        assert_eq!(skipped_keys.to_commands(), None);
    }
}
