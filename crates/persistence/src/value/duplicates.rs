//! Detects duplicate names in a value, which only corrupt or malicious input contains.

/// Maximum number of names for which all pairs of tags are compared.
const MAX_COMPARED_NAMES: usize = 32;

/// Returns whether two of the names are equal.
pub(super) fn has_duplicate<'a>(names: impl Iterator<Item = &'a [u8]> + Clone, count: usize) -> bool {
    if count > MAX_COMPARED_NAMES {
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        return names.windows(2).any(|pair| pair[0] == pair[1]);
    }
    let mut tags = [0; MAX_COMPARED_NAMES];
    for (count, name) in names.clone().enumerate() {
        let tag = name_tag(name);
        if tags[..count].contains(&tag) && names.clone().take(count).any(|other| other == name) {
            return true;
        }
        tags[count] = tag;
    }
    false
}

/// Returns a tag made from a name's first and last bytes and its length. Different names rarely have equal tags.
fn name_tag(name: &[u8]) -> u64 {
    let (begin, end) = match (name.first_chunk(), name.last_chunk()) {
        (Some(begin), Some(end)) => (u32::from_le_bytes(*begin), u32::from_le_bytes(*end)),
        _ => (name.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)), 0),
    };
    (u64::from(begin) << 32 | u64::from(end)) ^ (name.len() as u64) << 24
}
