//! Builds a set from the arguments of a command or from other sets.

use super::members::{Addition, Members};
use super::{OfSet, SetRef};
use crate::entries::Loose;
use crate::fields::Fields;
use crate::kind::{Form, Kind, SetBounds};
use crate::large::Large;
use crate::packed::{self, About, COUNT, MOST_BYTES, MOST_ELEMENTS, Shape};
use crate::table::Detached;

/// A set that belongs to no table yet. Its encoding follows the thresholds as if members were added one at a
/// time.
#[derive(Debug)]
pub struct NewSet {
    shape: Owned,
    form: Form,
    bounds: SetBounds,
}

#[derive(Debug)]
pub(super) enum Owned {
    Packed(Vec<u8>),
    Large(Box<Fields<OfSet>>),
}

impl NewSet {
    /// An empty set.
    #[must_use]
    pub fn new(bounds: SetBounds) -> Self {
        Self { shape: Owned::Packed(vec![0; COUNT]), form: Form::first_of(Kind::Set), bounds }
    }

    /// The thresholds for its encoding.
    #[must_use]
    pub fn bounds(&self) -> SetBounds {
        self.bounds
    }

    /// Copies a packed set.
    pub(super) fn of(packed: &[u8], form: Form, bounds: SetBounds) -> Self {
        Self { shape: Owned::Packed(packed.to_vec()), form, bounds }
    }

    /// Hints that `count` members follow at once, new or not; the encoding is chosen as if all were new.
    pub fn expect_more(&mut self, count: usize) {
        let about = About { count: count as u32, ..About::of(self.form) };
        self.form = self.form.renamed_set(&about, self.bounds);
    }

    /// Reserves space for `count` members. Only valid while empty.
    pub fn make_room(&mut self, count: usize) {
        if count > MOST_ELEMENTS && self.view().is_empty() {
            let mut fields = Box::<Fields<OfSet>>::default();
            fields.reserve(count);
            self.shape = Owned::Large(fields);
        }
    }

    /// Adds a member. Returns whether it is new.
    pub fn add(&mut self, member: &[u8]) -> bool {
        let fields = match &mut self.shape {
            Owned::Large(fields) => fields,
            Owned::Packed(bytes) => {
                let Some(addition) = Addition::of(bytes, member) else { return false };
                let count = packed::count(bytes) + 1;
                self.form = self.form.renamed_set(&addition.about(count), self.bounds);
                if !outgrows(&addition, bytes.len(), count, self.form) {
                    bytes.splice(addition.range, addition.with);
                    packed::set_count(bytes, count);
                    return true;
                }
                let fields = large(bytes);
                self.shape = Owned::Large(fields);
                return self.add(member);
            }
        };
        let is_new = fields.insert_if_new(member);
        if is_new {
            let about = about(member, fields.len());
            self.form = self.form.renamed_set(&about, self.bounds);
        }
        is_new
    }

    /// Removes a member. Returns whether it existed.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.shape {
            Owned::Large(fields) => fields.remove(member),
            Owned::Packed(bytes) => {
                let Some(range) = Members::of(bytes).find(member) else { return false };
                let count = packed::count(bytes) - 1;
                bytes.drain(range);
                packed::set_count(bytes, count);
                true
            }
        }
    }

    /// A read-only view.
    #[must_use]
    pub fn view(&self) -> SetRef<'_> {
        let shape = match &self.shape {
            Owned::Packed(bytes) => Shape::Packed(bytes),
            Owned::Large(fields) => Shape::Large(&**fields),
        };
        SetRef { shape, form: self.form }
    }

    pub(super) fn into_parts(self) -> (Owned, Form) {
        (self.shape, self.form)
    }

    /// Converts the set into a value that can be stored under a key.
    pub fn into_value(self) -> Detached {
        let value = match self.shape {
            Owned::Packed(bytes) => Loose::Bytes(bytes.into()),
            Owned::Large(fields) => Loose::Outside(Large::Set(fields)),
        };
        Detached::of(self.form, value)
    }
}

/// Whether a packed set of `len` bytes must become large when this addition makes it `count` members long.
pub(super) fn outgrows(addition: &Addition, len: usize, count: usize, form: Form) -> bool {
    len - addition.range.len() + addition.with.len() > MOST_BYTES || count > form.most_packed()
}

/// Converts a packed set into a large one.
pub(super) fn large(packed: &[u8]) -> Box<Fields<OfSet>> {
    let mut fields = Box::<Fields<OfSet>>::default();
    Members::of(packed).for_each(&mut |member| {
        fields.insert_if_new(&member);
    });
    fields
}

/// Describes a member added to a large set that now has `count` members.
pub(super) fn about(member: &[u8], count: usize) -> About {
    let form = if resp::parse_i64(member).is_some() { Form::IntsetSet } else { Form::ListpackSet };
    About { count: count as u32, longest: member.len() as u32, ..About::of(form) }
}

impl Addition {
    /// Describes a packed set that has `count` members after this addition.
    pub(super) fn about(&self, count: usize) -> About {
        let form = if self.integers { Form::IntsetSet } else { Form::ListpackSet };
        About { count: count as u32, longest: self.longest as u32, ..About::of(form) }
    }
}
