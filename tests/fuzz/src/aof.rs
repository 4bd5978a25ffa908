//! Fuzzes the AOF check and manifests: a truncated file must pass the check, read boundaries must not matter, and a
//! parsed manifest must survive a round trip.

use persistence::aof::{AofCheckResult, Manifest, ReplAnnotation, check_aof};

use crate::ChunkedReader;

/// Checks `bytes` as an AOF and parses them as a manifest and as an offset record.
pub fn fuzz_aof(bytes: &[u8]) {
    let whole = check_with_read_size(bytes, usize::MAX);
    for len in crate::READ_SIZES {
        assert_eq!(check_with_read_size(bytes, len), whole);
    }
    assert!(whole.complete_bytes <= whole.len && whole.len == bytes.len() as u64);
    if let Some(past) = whole.past_limit_offset {
        assert!(past <= whole.len);
    }
    let rest = check_with_read_size(&bytes[..whole.complete_bytes as usize], usize::MAX);
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

fn check_with_read_size(bytes: &[u8], read_size: usize) -> AofCheckResult {
    check_aof(ChunkedReader { remaining: bytes, max_read_size: read_size }, Some(1_700_000_000))
        .expect("memory can be read")
}
