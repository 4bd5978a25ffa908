//! Moves values between keys.

use clock::Millis;

use super::Table;
use crate::entries::{Loose, Place};
use crate::entry::Marks;
use crate::key::Key;
use crate::kind::{Form, Kind, Limits};
use crate::large::Large;
use crate::overflow::Outside;
use crate::packed::Packed;
use crate::usage::Usage;

/// A value that belongs to no table: taken out of one to be put into another (RENAME, MOVE), copied (COPY),
/// or built before its key is created (RESTORE, loading).
#[derive(Debug)]
#[must_use = "the value lies nowhere else"]
pub struct Detached {
    form: Form,
    usage: u16,
    value: Loose<Large>,
}

impl Detached {
    pub(crate) fn of(form: Form, value: Loose<Large>) -> Self {
        Self { form, usage: Usage::of_new().0, value }
    }

    /// An empty value in the large form, for more elements than a packed one can hold.
    pub fn large(kind: Kind) -> Self {
        Self::of(Form::first_of(kind), Loose::Outside(Large::empty(kind)))
    }

    /// Adds the elements of a part to a large value of its kind. Returns whether all were new. `limits`
    /// decides the OBJECT ENCODING.
    #[must_use]
    pub fn add(&mut self, part: Packed<'_>, limits: &Limits) -> bool {
        debug_assert_eq!(self.form.kind(), part.kind());
        let Loose::Outside(large) = &mut self.value else { return false };
        let all_new = large.add(part);
        let mut about = part.about();
        about.count = large.shape().len() as u32;
        about.bytes = large.elements_len();
        self.form = self.form.renamed(&about, limits);
        all_new
    }
}

impl Table {
    /// Removes the key and returns its value. A large value is copied only if a snapshot needs the original.
    pub fn detach(&mut self, place: Place, key: &Key<'_>) -> Detached {
        self.entries.forget_parts_due(key.bytes);
        let (marks, value) = self.entries.detach(place, key);
        Detached { form: Form::of(marks.code), usage: marks.usage, value }
    }

    /// Copies the value at `place`.
    pub fn copy(&self, place: Place) -> Detached {
        let (marks, value) = self.entries.copy(place);
        Detached { form: Form::of(marks.code), usage: Usage::of_new().0, value }
    }

    /// Stores a detached value under a key that does not exist.
    pub fn attach(&mut self, key: &Key<'_>, detached: Detached, expiry: Option<Millis>) -> Place {
        let Detached { form, usage, value } = detached;
        let place = self.entries.attach(key, Marks { code: form.code(), usage, expiry }, value);
        self.note_parts_due(place, key);
        place
    }
}
