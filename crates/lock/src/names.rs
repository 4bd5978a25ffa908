//! Key and channel names of a lock. All keys of a lock are in one hash slot.

use crate::Error;

/// Redisson's channel prefix, so that both implementations wake each other's waiters.
const CHANNEL_PREFIX: &str = "redisson_lock__channel";

/// The key of a lock, and the channel on which its release is announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockNames {
    pub(crate) lock: String,
    pub(crate) channel: String,
}

impl LockNames {
    pub(crate) fn new(lock: &str) -> Result<Self, Error> {
        // A hash tag "{tag}" determines the slot of the lock's key and of all derived keys; names without braces are
        // wrapped in braces for derived keys. An unbalanced brace or an empty tag would put these keys into different
        // slots.
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

    /// Returns the name of an additional key of the lock, which is in the same hash slot.
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
    fn channel_is_that_of_redisson() {
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
