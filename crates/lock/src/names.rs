//! Key and channel names of a lock. All keys of a lock are in one hash slot.

use crate::Error;

/// The prefix of Redisson's channels. By using the same channels, Redisson and this crate wake each other's waiters.
const CHANNEL_PREFIX: &str = "redisson_lock__channel";

/// The key of a lock, and the channel on which the release of the lock is announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockNames {
    pub(crate) lock: String,
    pub(crate) channel: String,
}

impl LockNames {
    pub(crate) fn new(lock: &str) -> Result<Self, Error> {
        // The hash tag "{tag}" of a key determines its slot. If the lock's name contains no braces, derived keys
        // contain the name in braces. An unbalanced brace or an empty tag would put derived keys into other slots than
        // the lock's key.
        let tag = lock.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let in_one_slot = match tag {
            Some((tag, _)) => !tag.is_empty(),
            None => !lock.contains(['{', '}']),
        };
        if !in_one_slot {
            return Err(Error::Name(lock.to_owned()));
        }
        Ok(Self { lock: lock.to_owned(), channel: with_hash_tag(CHANNEL_PREFIX, lock) })
    }

    /// Returns the name of an additional key of the lock. It is in the same hash slot as the lock's key.
    pub(crate) fn derived_key(&self, suffix: &str) -> String {
        with_hash_tag(&format!("redoubt_lock__{suffix}"), &self.lock)
    }
}

fn with_hash_tag(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_name_matches_redisson() {
        assert_eq!(LockNames::new("orders").unwrap().channel, "redisson_lock__channel:{orders}");
        assert_eq!(LockNames::new("{shop}:orders").unwrap().channel, "redisson_lock__channel:{shop}:orders");
    }

    #[test]
    fn derived_keys_share_the_slot_of_the_lock() {
        assert_eq!(LockNames::new("orders").unwrap().derived_key("token"), "redoubt_lock__token:{orders}");
        assert_eq!(
            LockNames::new("{shop}:orders").unwrap().derived_key("token"),
            "redoubt_lock__token:{shop}:orders"
        );
    }

    #[test]
    fn names_that_span_two_slots_are_rejected() {
        for name in ["a{b", "a}b", "a{}b", "}a{b"] {
            assert_eq!(LockNames::new(name), Err(Error::Name(name.to_owned())));
        }
    }
}
