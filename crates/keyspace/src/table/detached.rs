//! Values that go from one key to another.

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

/// A value that lies in no table: it was taken out of one to be put into another (RENAME, MOVE), is a copy (COPY), or
/// is being made before its key is (RESTORE, loading).
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

    /// A value without elements, to be filled with more than a packed one can have.
    pub fn large(kind: Kind) -> Self {
        Self::of(Form::first_of(kind), Loose::Outside(Large::empty(kind)))
    }

    /// Adds the elements of a part to a large value of its kind; says whether all of them were new. `limits` decides
    /// how OBJECT ENCODING will call it.
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
    /// Takes the key out and gives its value, without copying what is large unless a snapshot needs it
    /// where it is.
    pub fn detach(&mut self, place: Place, key: &Key<'_>) -> Detached {
        self.entries.forget_parts_due(key.bytes);
        let (marks, value) = self.entries.detach(place, key);
        Detached { form: Form::of(marks.code), usage: marks.usage, value }
    }

    /// A copy of the value at `place`, for another key.
    pub fn copy(&self, place: Place) -> Detached {
        let (marks, value) = self.entries.copy(place);
        Detached { form: Form::of(marks.code), usage: Usage::of_new().0, value }
    }

    /// Stores a value that was taken out elsewhere under a key that is not there.
    pub fn attach(&mut self, key: &Key<'_>, detached: Detached, expiry: Option<Millis>) -> Place {
        let Detached { form, usage, value } = detached;
        let place = self.entries.attach(key, Marks { code: form.code(), usage, expiry }, value);
        self.note_parts_due(place, key);
        place
    }
}
