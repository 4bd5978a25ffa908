//! Names that come twice in one value, which no server writes.

/// Among so many names, one is looked for by looking at the tags of all.
const FEW: usize = 32;

/// Whether two of the names are the same.
pub(super) fn one_twice<'a>(names: impl Iterator<Item = &'a [u8]> + Clone, len: usize) -> bool {
    if len > FEW {
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        return names.windows(2).any(|pair| pair[0] == pair[1]);
    }
    let mut tags = [0; FEW];
    for (count, name) in names.clone().enumerate() {
        let tag = tag(name);
        if tags[..count].contains(&tag) && names.clone().take(count).any(|other| other == name) {
            return true;
        }
        tags[count] = tag;
    }
    false
}

/// The begin and the end of a name, and its length, which mostly differ.
fn tag(name: &[u8]) -> u64 {
    let (begin, end) = match (name.first_chunk(), name.last_chunk()) {
        (Some(begin), Some(end)) => (u32::from_le_bytes(*begin), u32::from_le_bytes(*end)),
        _ => (name.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)), 0),
    };
    (u64::from(begin) << 32 | u64::from(end)) ^ (name.len() as u64) << 24
}
