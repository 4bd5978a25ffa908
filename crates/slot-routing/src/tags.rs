//! Finds, for each slot, a short hash tag that routes a name to that slot.
//!
//! The tag is the first of the shortest alphanumeric strings that hash to the slot, in ASCII order except that
//! lower-case letters sort before upper-case ones. Valkey uses the same tags.

use std::sync::LazyLock;

use crate::slot::{SLOT_COUNT, Slot};

const TAG_LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Strings of up to three characters cover every slot.
const MAX_TAG_LEN: usize = 3;

static SLOT_TAGS: LazyLock<Vec<String>> = LazyLock::new(find_tags);

fn find_tags() -> Vec<String> {
    let mut tags = vec![String::new(); SLOT_COUNT];
    let mut words = vec![String::new()];
    for _ in 0..MAX_TAG_LEN {
        let longer = |word: &String| {
            TAG_LETTERS.iter().map(|letter| format!("{word}{}", char::from(*letter))).collect()
        };
        words = words.iter().flat_map(|word| -> Vec<String> { longer(word) }).collect();
        for word in &words {
            let tag = &mut tags[Slot::of_key(word.as_bytes()).index()];
            if tag.is_empty() {
                tag.clone_from(word);
            }
        }
    }
    tags
}

impl Slot {
    /// Returns a hash tag that routes to this slot, without braces.
    #[must_use]
    pub fn tag(self) -> &'static str {
        &SLOT_TAGS[self.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_the_tag_that_valkey_uses() {
        for slot in Slot::all() {
            assert_eq!(Slot::of_key(format!("{{{}}}", slot.tag()).as_bytes()), slot);
        }
        let some =
            [(0, "06S"), (1, "Qi"), (5, "460"), (100, "0or"), (9000, "1F4"), (15495, "a"), (16383, "6ZJ")];
        for (number, tag) in some {
            assert_eq!(Slot::new(number).map(Slot::tag), Some(tag));
        }
    }
}
