//! Sets.
//!
//! A set is packed ([`members`]) while it has few members and bytes, in its entry or outside: integers in order,
//! anything else in a row. Past that its members are the entries of a store of their own ([`crate::fields`]), which
//! have no values. Users see only the name that OBJECT ENCODING gives, and that follows Redis's thresholds, not the
//! shape.
mod builder;
mod editing;
pub(crate) mod members;

use crate::fields::{Field, Fields, FieldsPart, Of, name_key};
use crate::kind::{Form, Kind};
use crate::large::Large;
use crate::packed::{self, Builder, MOST_ELEMENTS, Packed, Shape};
use crate::value::Elements;

pub use builder::NewSet;
use members::Members;
pub use members::{Digits, Member};

/// The members of a set: each is a name alone.
#[derive(Debug)]
pub(crate) struct OfSet;

impl Of for OfSet {
    type Outside = Vec<u8>;

    fn elements(part: FieldsPart<'_>) -> Elements<'_> {
        Elements::Set(part)
    }

    fn large(fields: Box<Fields<Self>>) -> Large {
        Large::Set(fields)
    }

    fn unpack(packed: &Packed<'_>, visit: &mut dyn FnMut(Field<'_>)) {
        Members::of(packed.bytes())
            .for_each(&mut |member| visit(Field { name: &member, value: b"", expiry: None }));
    }
}

/// A set as it is read, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub struct SetRef<'a> {
    pub(crate) shape: Shape<'a, Fields<OfSet>>,
    pub(crate) form: Form,
}

impl<'a> SetRef<'a> {
    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Only a set that was just made has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name that OBJECT ENCODING gives it.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        match self.form {
            Form::IntsetSet => "intset",
            Form::ListpackSet => "listpack",
            _ => "hashtable",
        }
    }

    /// Whether it has this member.
    #[must_use]
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        match self.shape {
            Shape::Packed(packed) => Members::of(packed).find(member).is_some(),
            Shape::Large(fields) => fields.find(&name_key(member)).is_some(),
        }
    }

    /// The same, for a caller that knows the member's hash ([`crate::Keyspace::hash_part`]).
    #[must_use]
    #[inline]
    pub fn contains_hashed(&self, member: &[u8], hash: u64) -> bool {
        match self.shape {
            Shape::Packed(packed) => Members::of(packed).find(member).is_some(),
            Shape::Large(fields) => fields.has_hashed(member, hash),
        }
    }

    /// Asks the processor for the members with these hashes, if there are so many members that they may be far away.
    pub fn touch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if let Shape::Large(fields) = self.shape {
            fields.touch(hashes);
        }
    }

    /// Visits members, in any order, until `visit` says no; says whether it never did.
    pub fn visit(&self, visit: &mut dyn FnMut(Member<'a>) -> bool) -> bool {
        match self.shape {
            Shape::Packed(packed) => {
                let mut goes_on = true;
                Members::of(packed).for_each(&mut |member| goes_on = goes_on && visit(member));
                goes_on
            }
            Shape::Large(fields) => fields.visit_all(&mut |field| visit(Member::Bytes(field.name))),
        }
    }

    /// Visits all members.
    pub fn for_each(&self, visit: &mut dyn FnMut(Member<'a>)) {
        match self.shape {
            Shape::Packed(packed) => Members::of(packed).for_each(visit),
            Shape::Large(fields) => fields.for_each(&mut |field| visit(Member::Bytes(field.name))),
        }
    }

    /// Visits about `count` members from position `from` on, as [`crate::Table::scan`] does; a packed set is
    /// visited whole.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(Member<'a>)) -> Option<u64> {
        match self.shape {
            Shape::Packed(_) => {
                self.for_each(visit);
                None
            }
            Shape::Large(fields) => fields.scan(from, count, &mut |field| visit(Member::Bytes(field.name))),
        }
    }

    /// A member chosen by `random`, a uniform random number.
    #[must_use]
    pub fn random(&self, random: u64) -> Option<Member<'a>> {
        match self.shape {
            Shape::Packed(packed) => {
                let index = random.checked_rem(packed::count(packed) as u64)? as usize;
                Members::of(packed).nth(index).map(|(_, member)| member)
            }
            Shape::Large(fields) => fields.random(random).map(|field| Member::Bytes(field.name)),
        }
    }
}

impl Builder {
    /// Adds a member to a set. Says whether it was new, as far as that can be seen at once: among integers.
    #[must_use]
    pub fn push_member(&mut self, member: &[u8]) -> bool {
        let about = &mut self.about;
        about.count += 1;
        about.longest = about.longest.max(member.len() as u32);
        let is_integer = resp::parse_i64(member).is_some();
        if !is_integer {
            about.form = Form::ListpackSet;
        }
        let mut is_new = true;
        match Members::of(&self.bytes) {
            Members::Integers(_) if is_integer && about.count as usize <= MOST_ELEMENTS => {
                match members::Addition::of(&self.bytes, member) {
                    Some(addition) => drop(self.bytes.splice(addition.range, addition.with)),
                    None => is_new = false,
                }
            }
            Members::Integers(_) => {
                members::as_strings(&mut self.bytes);
                members::append_string(&mut self.bytes, member);
            }
            Members::Strings(_) => members::append_string(&mut self.bytes, member),
        }
        packed::set_count(&mut self.bytes, about.count as usize);
        is_new
    }
}

impl<'a> Packed<'a> {
    /// Visits the members of a packed set, or of a part of one.
    pub fn for_each_member(&self, visit: &mut dyn FnMut(Member<'a>)) {
        debug_assert_eq!(self.kind(), Kind::Set);
        Members::of(self.bytes()).for_each(visit);
    }

    /// Those members among which there may be two of the same: none if they stand in order.
    pub fn unordered_members(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        debug_assert_eq!(self.kind(), Kind::Set);
        Members::of(self.bytes()).unordered()
    }
}
