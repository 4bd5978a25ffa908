//! The words of SORT.

use std::ops::Range;

use engine::{CommandError, Context};
use slot_routing::Slot;

/// The source of the weights that elements are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By<'a> {
    Itself,
    /// The values that these name.
    Pattern(&'a [u8]),
    /// They stay in their order: a pattern that names one key for all.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Options<'a> {
    pub(super) by: By<'a>,
    pub(super) get: Vec<&'a [u8]>,
    pub(super) alpha: bool,
    pub(super) descending: bool,
    /// The argument that names the key for what comes of it.
    pub(super) store: Option<usize>,
    offset: i64,
    count: i64,
}

impl<'a> Options<'a> {
    pub(super) fn parse(context: &Context<'a>, stores: bool) -> Result<Self, CommandError> {
        let mut options = Self {
            by: By::Itself,
            get: Vec::new(),
            alpha: false,
            descending: false,
            store: None,
            offset: 0,
            count: -1,
        };
        let (args, mut index) = (context.args, 2);
        while let Some(word) = args.get(index) {
            let is = |name: &str, more: usize| {
                word.eq_ignore_ascii_case(name.as_bytes()) && index + more < args.len()
            };
            let taken = match () {
                () if is("asc", 0) => {
                    options.descending = false;
                    0
                }
                () if is("desc", 0) => {
                    options.descending = true;
                    0
                }
                () if is("alpha", 0) => {
                    options.alpha = true;
                    0
                }
                () if is("limit", 2) => {
                    options.offset = context.integer(index + 1)?;
                    options.count = context.integer(index + 2)?;
                    2
                }
                () if stores && is("store", 1) => {
                    options.store = Some(index + 1);
                    1
                }
                () if is("by", 1) => {
                    let pattern = context.arg(index + 1);
                    options.by = By::Nothing;
                    if pattern.contains(&b'*') {
                        check_pattern(context, pattern, BY)?;
                        options.by = By::Pattern(pattern);
                    }
                    1
                }
                () if is("get", 1) => {
                    let pattern = context.arg(index + 1);
                    check_pattern(context, pattern, GET)?;
                    options.get.push(pattern);
                    1
                }
                () => return Err(CommandError::Syntax),
            };
            index += 1 + taken;
        }
        Ok(options)
    }

    /// Whether elements that weigh the same stay in the order in which they were.
    pub(super) fn keeps_ties(&self) -> bool {
        self.alpha && matches!(self.by, By::Pattern(_))
    }

    /// Which of so many elements are asked for.
    pub(super) fn range(&self, len: usize) -> Range<usize> {
        let start = usize::try_from(self.offset.max(0)).unwrap_or(usize::MAX).min(len);
        match usize::try_from(self.count) {
            Ok(count) => start..start.saturating_add(count).min(len),
            Err(_) => start..len,
        }
    }
}

/// The errors for a pattern that may not be used.
struct Refusals {
    /// In a cluster it names keys of other slots.
    elsewhere: CommandError,
    /// The user may not read every key.
    hidden: CommandError,
}

const BY: Refusals = Refusals {
    elsewhere: CommandError::text(
        "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
    ),
    hidden: CommandError::text("ERR BY option of SORT denied due to insufficient ACL permissions."),
};
const GET: Refusals = Refusals {
    elsewhere: CommandError::text(
        "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
    ),
    hidden: CommandError::text("ERR GET option of SORT denied due to insufficient ACL permissions."),
};

/// Checks that the command may read all keys that a pattern can name. As in Redis, a user who may not read every key
/// is refused `GET #` as well, though it names none.
fn check_pattern(context: &Context<'_>, pattern: &[u8], refusals: Refusals) -> Result<(), CommandError> {
    let is_here = || pattern == b"#" || slot_of(pattern) == Some(Slot::of_key(context.arg(1)));
    if context.engine.topology.is_some() && !is_here() {
        return Err(refusals.elsewhere);
    }
    if context.may_read_all_keys() { Ok(()) } else { Err(refusals.hidden) }
}

/// The slot of all keys that a pattern can name, if it is one: that of a hash tag before anything that may vary.
fn slot_of(pattern: &[u8]) -> Option<Slot> {
    let mut tag = None;
    for (index, byte) in pattern.iter().enumerate() {
        match (byte, tag) {
            (b'*' | b'?' | b'[' | b'\\', _) => return None,
            (b'{', None) => tag = Some(index),
            (b'}', Some(start)) if index > start + 1 => return Some(Slot::of_key(&pattern[..=index])),
            // An empty tag is none.
            (b'}', Some(start)) if index == start + 1 => tag = Some(usize::MAX - 1),
            _ => {}
        }
    }
    Some(Slot::of_key(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_of_one_slot_if_its_tag_says_so() {
        let slot = |text: &str| Some(Slot::of_key(text.as_bytes()));
        for (pattern, expected) in [
            ("{a}w*", slot("a")),
            ("x{a}*->f", slot("a")),
            ("w*{a}", None),
            ("*", None),
            ("const", slot("const")),
            ("{}a*", None),
            ("{a*}", None),
        ] {
            assert_eq!(slot_of(pattern.as_bytes()), expected, "{pattern}");
        }
    }
}
