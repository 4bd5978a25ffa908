//! Fuzzes the RDB reader: it accepts or refuses any file without a panic, and read boundaries do not matter.

use std::io::Read;

use persistence::{RdbError, RdbLoader, ReadLimits};

use crate::ChunkedReader;

/// Loads `file` with several read sizes, which must give the same result.
pub fn fuzz_rdb(file: &[u8]) {
    let whole = read_items(file);
    for len in crate::READ_SIZES {
        assert_eq!(read_items(ChunkedReader { remaining: file, max_read_size: len }), whole);
    }
    if let Err(error) = whole.1 {
        assert!(error.offset <= file.len() as u64, "the offset of an error is within the file");
    }
}

/// Returns the items as text, and the final result.
fn read_items(input: impl Read) -> (Vec<String>, Result<(), RdbError>) {
    let mut items = Vec::new();
    let outcome = read_items_into(input, &mut items);
    (items, outcome)
}

fn read_items_into(input: impl Read, items: &mut Vec<String>) -> Result<(), RdbError> {
    let limits = ReadLimits { verify_checksum: false, ..ReadLimits::default() };
    let mut loader = RdbLoader::new(input, limits)?;
    while let Some(item) = loader.next_item()? {
        items.push(format!("{item:?}"));
    }
    Ok(())
}
