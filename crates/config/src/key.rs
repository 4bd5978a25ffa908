//! Typed parameter keys.

use std::fmt;
use std::ops::Index;

use crate::parameters::{Id, Values};

/// Identifies a parameter and carries the type of its value, so that reading a parameter is a field access checked at
/// compile time. All keys are in [`keys`](crate::keys).
pub struct Key<T: 'static> {
    pub(crate) id: Id,
    pub(crate) getter: fn(&Values) -> &T,
    pub(crate) setter: fn(&mut Values) -> &mut T,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.id.name()).finish()
    }
}

impl<T> Key<T> {
    /// The parameter's primary name in configuration files, without its alias.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.id.name()
    }
}

impl<T> Index<Key<T>> for Values {
    type Output = T;

    #[inline]
    fn index(&self, key: Key<T>) -> &T {
        (key.getter)(self)
    }
}
