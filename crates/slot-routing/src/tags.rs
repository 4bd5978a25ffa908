//! A hash tag for each slot, by which a word that is no key is routed to it.
//!
//! Of all words of letters and digits it is the first of the shortest, where digits stand before small letters and
//! those before capitals. Valkey's tags are the same.

use std::sync::LazyLock;

use crate::slot::{SLOT_COUNT, Slot};

const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Words of so many letters name every slot.
const LONGEST: usize = 3;

static TAGS: LazyLock<Vec<String>> = LazyLock::new(find);

fn find() -> Vec<String> {
    let mut tags = vec![String::new(); SLOT_COUNT];
    let mut words = vec![String::new()];
    for _ in 0..LONGEST {
        let longer =
            |word: &String| LETTERS.iter().map(|letter| format!("{word}{}", char::from(*letter))).collect();
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
    /// A word that hashes to this slot, as it stands between braces.
    #[must_use]
    pub fn tag(self) -> &'static str {
        &TAGS[self.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_a_tag_and_it_is_valkeys() {
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
