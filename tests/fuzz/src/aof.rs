//! Fuzzes the AOF check and manifests: a truncated file must pass the check, read boundaries must not matter, and a
//! parsed manifest must survive a round trip.

use persistence::aof::{AofCheck, Manifest, ReplAnnotation, check};

use crate::ChunkedReader;

/// Checks `bytes` as an AOF and parses them as a manifest and as an offset record.
pub fn run_aof(bytes: &[u8]) {
    let whole = check_in_reads_of(bytes, usize::MAX);
    for len in crate::READ_SIZES {
        assert_eq!(check_in_reads_of(bytes, len), whole);
    }
    assert!(whole.complete_bytes <= whole.len && whole.len == bytes.len() as u64);
    if let Some(past) = whole.is_past_limit {
        assert!(past <= whole.len);
    }
    let rest = check_in_reads_of(&bytes[..whole.complete_bytes as usize], usize::MAX);
    assert!(rest.is_complete() && rest.error.is_none(), "a truncated file must pass the check");
    assert_eq!(rest.commands, whole.commands);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(manifest) = Manifest::parse(text) {
            assert_eq!(Manifest::parse(&manifest.to_text()).as_ref(), Ok(&manifest));
        }
        if let Some(place) = ReplAnnotation::parse(bytes) {
            assert_eq!(ReplAnnotation::parse(place.to_string().as_bytes()), Some(place));
        }
    }
}

fn check_in_reads_of(bytes: &[u8], len: usize) -> AofCheck {
    check(ChunkedReader { remaining: bytes, len }, Some(1_700_000_000)).expect("memory can be read")
}
