//! A file of commands and a manifest: what is whole ends within the file and is whole by itself, where reads end makes no
//! difference, and a manifest that is read is written as the same.

use persistence::aof::{AofCheck, Manifest, ReplAnnotation, check};

use crate::Pieces;

/// The bytes as a file of commands, and as a manifest.
pub fn run(bytes: &[u8]) {
    let whole = found(bytes, usize::MAX);
    for len in crate::PIECES {
        assert_eq!(found(bytes, len), whole);
    }
    assert!(whole.whole <= whole.len && whole.len == bytes.len() as u64);
    if let Some(past) = whole.past {
        assert!(past <= whole.len);
    }
    let rest = found(&bytes[..whole.whole as usize], usize::MAX);
    assert!(rest.is_whole() && rest.error.is_none(), "what is cut back needs no second cut");
    assert_eq!(rest.commands, whole.commands);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(manifest) = Manifest::parse(text) {
            assert_eq!(Manifest::parse(&manifest.text()).as_ref(), Ok(&manifest));
        }
        if let Some(place) = ReplAnnotation::parse(bytes) {
            assert_eq!(ReplAnnotation::parse(place.to_string().as_bytes()), Some(place));
        }
    }
}

fn found(bytes: &[u8], len: usize) -> AofCheck {
    check(Pieces { left: bytes, len }, Some(1_700_000_000)).expect("memory can be read")
}
