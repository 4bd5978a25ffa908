//! A file: whatever its bytes are it is read or refused, and where reads end makes no difference.

use std::io::Read;

use persistence::{RdbError, RdbLoader, ReadLimits};

use crate::Pieces;

/// A file, loaded.
pub fn run(file: &[u8]) {
    let whole = read(file);
    for len in crate::PIECES {
        assert_eq!(read(Pieces { left: file, len }), whole);
    }
    if let Err(error) = whole.1 {
        assert!(error.offset <= file.len() as u64, "an error is at a place of the file");
    }
}

/// All items as text, and how it ended.
fn read(input: impl Read) -> (Vec<String>, Result<(), RdbError>) {
    let mut items = Vec::new();
    let outcome = read_into(input, &mut items);
    (items, outcome)
}

fn read_into(input: impl Read, items: &mut Vec<String>) -> Result<(), RdbError> {
    let limits = ReadLimits { verify_checksum: false, ..ReadLimits::default() };
    let mut loader = RdbLoader::new(input, limits)?;
    while let Some(item) = loader.next_item()? {
        items.push(format!("{item:?}"));
    }
    Ok(())
}
