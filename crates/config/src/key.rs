//! How the program names a parameter.

use std::fmt;
use std::ops::Index;

use crate::parameters::{Id, Values};

/// A parameter by its name in the program. It is known when the program is compiled of which type its value is, and
/// reading it is reading a field: see [`keys`](crate::keys) for all of them.
pub struct Key<T: 'static> {
    pub(crate) id: Id,
    pub(crate) read: fn(&Values) -> &T,
    pub(crate) write: fn(&mut Values) -> &mut T,
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
    /// The parameter's name, as users know it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.id.name()
    }
}

impl<T> Index<Key<T>> for Values {
    type Output = T;

    #[inline]
    fn index(&self, key: Key<T>) -> &T {
        (key.read)(self)
    }
}
