//! The keys and the channel of a lock. All keys of one lock lie in one slot.

use crate::Error;

/// Redisson's channel for the locks of a name, so that each side wakes the other's waiters.
const CHANNEL: &str = "redisson_lock__channel";

/// The key and the channel of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) lock: String,
    pub(crate) channel: String,
}

impl Names {
    pub(crate) fn new(lock: &str) -> Result<Self, Error> {
        // "{tag}" decides the slot of the lock itself and of the names derived from it alike; no braces are put around
        // the whole name. One brace alone, or an empty tag, would be read differently in the two.
        let tag = lock.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let in_one_slot = match tag {
            Some((tag, _)) => !tag.is_empty(),
            None => !lock.contains(['{', '}']),
        };
        if !in_one_slot {
            return Err(Error::Name(lock.to_owned()));
        }
        Ok(Self { lock: lock.to_owned(), channel: tagged(CHANNEL, lock) })
    }

    /// Another key, beside the lock's own.
    pub(crate) fn key(&self, what: &str) -> String {
        tagged(&format!("redoubt_lock__{what}"), &self.lock)
    }
}

fn tagged(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_is_redissons() {
        assert_eq!(Names::new("orders").unwrap().channel, "redisson_lock__channel:{orders}");
        assert_eq!(Names::new("{shop}:orders").unwrap().channel, "redisson_lock__channel:{shop}:orders");
    }

    #[test]
    fn other_keys_lie_in_the_slot_of_the_lock() {
        assert_eq!(Names::new("orders").unwrap().key("token"), "redoubt_lock__token:{orders}");
        assert_eq!(Names::new("{shop}:orders").unwrap().key("token"), "redoubt_lock__token:{shop}:orders");
    }

    #[test]
    fn a_name_that_would_lie_in_two_slots_is_refused() {
        for name in ["a{b", "a}b", "a{}b", "}a{b"] {
            assert_eq!(Names::new(name), Err(Error::Name(name.to_owned())));
        }
    }
}
