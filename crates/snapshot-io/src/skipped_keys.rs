//! Keys that a load left out since their time is past.
//!
//! The file belongs to a history that replicas of this node may know, with those keys: only a deletion in the log makes
//! them go there too. The log has the deletions after the history got its new name, since no other node has these
//! bytes.

/// The deletions of the keys that a load left out, for the log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Commands in wire form, by database in the order of the file.
    runs: Vec<(u16, Vec<u8>)>,
    bytes: u64,
    too_many: bool,
}

impl LeftOut {
    /// Takes note of a command that deletes a key, or fields of one. No log would keep more than `most` bytes.
    pub fn add(&mut self, db: u16, command: &[&[u8]], most: u64) {
        if self.too_many {
            return;
        }
        if self.runs.last().is_none_or(|(of, _)| *of != db) {
            self.runs.push((db, Vec::new()));
        }
        if let Some((_, run)) = self.runs.last_mut() {
            let before = run.len();
            resp::encode_request(run, command.iter().copied());
            self.bytes += (run.len() - before) as u64;
        }
        if self.bytes > most {
            (self.too_many, self.runs) = (true, Vec::new());
        }
    }

    /// The commands; `None` if they are more than a log keeps.
    #[must_use]
    pub fn commands(&self) -> Option<&[(u16, Vec<u8>)]> {
        (!self.too_many).then_some(&self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_database_has_its_commands_and_too_many_are_none() {
        let mut left_out = LeftOut::default();
        for (db, key) in [(0, "a"), (0, "b"), (3, "c")] {
            left_out.add(db, &[b"DEL", key.as_bytes()], 1000);
        }
        let del = |key| format!("*2\r\n$3\r\nDEL\r\n$1\r\n{key}\r\n");
        let expected = [(0, (del("a") + &del("b")).into_bytes()), (3, del("c").into_bytes())];
        assert_eq!(left_out.commands(), Some(&expected[..]));
        left_out.add(3, &[b"DEL", &[b'k'; 2000]], 1000);
        left_out.add(3, &[b"DEL", b"d"], 1000);
        assert_eq!(left_out.commands(), None);
    }
}
