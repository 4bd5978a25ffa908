//! Validates a snapshot completely before the current data is dropped.
//!
//! The check decodes every value and verifies the checksum without storing anything: it needs memory for one
//! value, or for one part of a large one. It cannot detect an element that occurs in two parts of a large
//! value, because that requires the whole value.

use std::io::Read;

use persistence::RdbItem;

use crate::rdb::{LoadError, Loader};

impl Loader<'_> {
    /// Checks that [`Loader::replace`] would accept `input`. The data is not changed.
    ///
    /// # Errors
    /// The error that the load would return.
    pub fn check(&self, input: impl Read) -> Result<(), LoadError> {
        let mut loader = self.open(input)?;
        let databases = self.engine.keyspace.databases();
        let mut libraries = Vec::new();
        while let Some(item) = loader.next_item()? {
            match item {
                RdbItem::Entry(entry) if entry.db >= databases => {
                    return Err(LoadError::Database(entry.db, databases));
                }
                RdbItem::Function(code) => libraries.push(code.to_vec()),
                _ => {}
            }
        }
        Ok(self.engine.check_libraries(&libraries, self.host.nanos())?)
    }
}

#[cfg(test)]
mod tests {
    use engine::{Commands, Engine, NoLog};
    use keyspace::Keyspace;

    use super::*;
    use crate::host::{LoadEvent, LoadHost};

    struct IgnoringHost;

    impl LoadHost for IgnoringHost {
        fn now(&self) -> clock::Millis {
            clock::Millis(0)
        }

        fn nanos(&self) -> fn() -> u64 {
            || 0
        }

        fn on_begin(&self, _total: u64) {}

        fn report_progress(&self, _read: u64, _keys: u64) {}

        fn used_memory(&self, _bytes: u64) {}

        fn on_key_read(&self) {}

        fn report_event(&self, _told: LoadEvent<'_>) {}
    }

    /// A snapshot with one string and, unless it is empty, a function library.
    fn snapshot(value: &[u8], library: &str) -> Vec<u8> {
        let mut bytes = b"REDIS0011".to_vec();
        if !library.is_empty() {
            bytes.extend([0xF5, library.len() as u8]);
            bytes.extend(library.as_bytes());
        }
        bytes.extend([0xFE, 0, 0, 1, b'k', value.len() as u8]);
        bytes.extend(value);
        bytes.push(0xFF);
        // A checksum of zero means none.
        bytes.extend([0; 8]);
        bytes
    }

    fn with_loader(work: impl FnOnce(&Loader<'_>)) {
        let commands = Commands::new(::commands::for_server());
        let catalogue = commands.registry().catalogue();
        let engine = Engine::new(catalogue, Keyspace::new(1, 2), None, Box::new(NoLog));
        engine.begin_routing();
        let (engine, commands) = (&engine, &commands);
        work(&Loader {
            engine,
            commands,
            threads: 1,
            verify_checksum: true,
            max_deletion_bytes: 0,
            host: &IgnoringHost,
        });
    }

    fn has_data(loader: &Loader<'_>) -> bool {
        !loader.engine.keyspace.is_empty(0)
    }

    #[test]
    fn check_finds_load_errors_without_storing() {
        let good = snapshot(b"value", "#!lua name=lib\nserver.register_function('f', function() end)");
        with_loader(|loader| loader.check(good.as_slice()).unwrap());
        let mut bad: Vec<(Vec<u8>, &str)> =
            (0..good.len()).map(|end| (good[..end].to_vec(), "cut off")).collect();
        bad.push((snapshot(b"v", "#!lua name=lib\nnonsense("), "a library that does not load"));
        let vector_set = [&b"REDIS0012"[..], &[0xFE, 0, 7, 1, b'v', 1, 0, 0xFF]].concat();
        bad.push((vector_set, "a module's value"));
        bad.push((b"REDIS0999".to_vec(), "a version of the future"));
        let mut database = snapshot(b"v", "");
        database[b"REDIS0011".len() + 1] = 2;
        bad.push((database, "a database that is not there"));
        let mut damaged = good.clone();
        *damaged.last_mut().unwrap() = 1;
        bad.push((damaged, "a wrong checksum"));
        with_loader(|loader| {
            loader.replace(good.as_slice(), 0, false, || true).unwrap();
            for (bytes, what) in bad {
                assert!(loader.check(bytes.as_slice()).is_err(), "{what}");
                assert!(has_data(loader), "{what}");
                assert!(loader.replace(bytes.as_slice(), 0, false, || true).is_err(), "{what}");
                loader.replace(good.as_slice(), 0, false, || true).unwrap();
            }
            loader.check(good.as_slice()).unwrap();
        });
    }

    #[test]
    fn unreadable_header_keeps_the_data() {
        with_loader(|loader| {
            loader.replace(snapshot(b"value", "").as_slice(), 0, false, || true).unwrap();
            for header in [&b""[..], b"nonsense!", b"REDIS0999", b"REDI"] {
                let mut is_dropped = false;
                let outcome = loader.replace_after(header, 0, false, || is_dropped = true, || true);
                assert!(outcome.is_err() && !is_dropped && has_data(loader), "{header:?}");
            }
        });
    }
}
