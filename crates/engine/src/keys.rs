//! Where a command's keys stand among its arguments.
//!
//! A command has key specs: each says where to begin and how to go on, as COMMAND INFO describes it.

use bitflags::bitflags;
use resp::Args;
use smallvec::SmallVec;

bitflags! {
    /// The use that a command makes of a key, as COMMAND GETKEYSANDFLAGS names it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct KeyFlags: u16 {
        /// Its value is read.
        const RO = 1;
        /// Its value is read and changed.
        const RW = 1 << 1;
        /// Its value is replaced.
        const OW = 1 << 2;
        /// It is deleted.
        const RM = 1 << 3;
        /// Something of its value reaches the client.
        const ACCESS = 1 << 4;
        /// Its value is changed by what the client sent.
        const UPDATE = 1 << 5;
        /// Something is added to its value.
        const INSERT = 1 << 6;
        /// Something is taken out of its value.
        const DELETE = 1 << 7;
        /// It is no key, but is routed as one.
        const NOT_KEY = 1 << 8;
        /// There may be further keys.
        const INCOMPLETE = 1 << 9;
        /// The use that is made of it depends on other words.
        const VARIABLE_FLAGS = 1 << 10;
    }
}

/// Where the search for keys begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// At this argument.
    Index(u8),
    /// After this word, looked for from argument `from` on (backwards from the end where negative).
    Keyword {
        /// The word.
        word: &'static str,
        /// Where the search for it begins; negative from the end.
        from: i8,
    },
    /// COMMAND INFO cannot describe it: the command's own parser finds the keys ([`ParseKeys`]), or they are known only
    /// while it runs.
    Unknown,
}

/// Which of the arguments from there on are keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Find {
    /// From the first to `last` after it (counted from the end where negative), each `step`-th; with a
    /// `limit` above 1 only that part of what is left (1/limit).
    Range {
        /// Its last, counted from its first; negative from the end of all.
        last: i8,
        /// Every so many.
        step: u8,
        /// With a negative `last`, one part in so many of what is left.
        limit: u8,
    },
    /// A number at `count_at` says how many; the first at `first`.
    KeyNum {
        /// Where the count stands, counted from the beginning.
        count_at: u8,
        /// Where the first key stands.
        first: u8,
        /// Every so many.
        step: u8,
    },
}

/// One group of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySpec {
    /// Where to begin.
    pub begin: Begin,
    /// Which arguments from there.
    pub find: Find,
    /// The use that is made of them.
    pub flags: KeyFlags,
}

impl KeySpec {
    /// A single key at argument `index`.
    #[must_use]
    pub const fn one(index: u8, flags: KeyFlags) -> Self {
        Self::range(index, 0, 1, flags)
    }

    /// Keys from argument `index` to `last` after it, each `step`-th.
    #[must_use]
    pub const fn range(index: u8, last: i8, step: u8, flags: KeyFlags) -> Self {
        Self { begin: Begin::Index(index), find: Find::Range { last, step, limit: 0 }, flags }
    }

    /// Keys behind their number, which is argument `index`.
    #[must_use]
    pub const fn counted(index: u8, flags: KeyFlags) -> Self {
        Self { begin: Begin::Index(index), find: Find::KeyNum { count_at: 0, first: 1, step: 1 }, flags }
    }

    /// A key behind a word that is looked for from argument `from` on.
    #[must_use]
    pub const fn behind(word: &'static str, from: i8, flags: KeyFlags) -> Self {
        Self { begin: Begin::Keyword { word, from }, find: Find::Range { last: 0, step: 1, limit: 0 }, flags }
    }

    /// All arguments behind such a word, or the first half of them where `limit` is 2.
    #[must_use]
    pub const fn all_behind(word: &'static str, from: i8, limit: u8, flags: KeyFlags) -> Self {
        Self { begin: Begin::Keyword { word, from }, find: Find::Range { last: -1, step: 1, limit }, flags }
    }

    /// If this is a single key at a fixed place: that place.
    #[must_use]
    pub const fn single(&self) -> Option<usize> {
        match (self.begin, self.find) {
            (Begin::Index(index), Find::Range { last: 0, .. }) => Some(index as usize),
            _ => None,
        }
    }

    /// Visits the place of each key in `args`. Arguments that do not fit (a count that is no number,
    /// or too large) give no keys: the handler will refuse them.
    pub fn visit(&self, args: Args<'_>, visit: &mut impl FnMut(usize)) {
        let Some(begin) = self.begin(args) else { return };
        let (first, count, step) = match self.find {
            Find::Range { last, step, limit } => {
                let left = args.len().saturating_sub(begin);
                let end = match (last, limit) {
                    (0.., _) => begin + last as usize,
                    (-1, 2..) => begin + (left / usize::from(limit)).max(1) - 1,
                    _ => match args.len().checked_sub(usize::from(last.unsigned_abs())) {
                        Some(end) => end,
                        None => return,
                    },
                };
                let step = usize::from(step);
                ((begin), (end + 1).saturating_sub(begin).div_ceil(step), step)
            }
            Find::KeyNum { count_at, first, step } => {
                let count = args.get(begin + usize::from(count_at)).and_then(resp::parse_i64);
                let Some(count) = count.and_then(|count| usize::try_from(count).ok()) else { return };
                let (first, step) = (begin + usize::from(first), usize::from(step));
                if count > args.len().saturating_sub(first).div_ceil(step) {
                    return;
                }
                (first, count, step)
            }
        };
        for index in (0..count).map(|n| first + n * step).take_while(|&index| index < args.len()) {
            visit(index);
        }
    }

    fn begin(&self, args: Args<'_>) -> Option<usize> {
        match self.begin {
            Begin::Unknown => None,
            Begin::Index(index) => Some(usize::from(index)),
            Begin::Keyword { word, from } => {
                let is_word = |index: &usize| args[*index].eq_ignore_ascii_case(word.as_bytes());
                let found = if from >= 0 {
                    (from as usize..args.len()).find(is_word)
                } else {
                    let end = args.len().checked_sub(usize::from(from.unsigned_abs()))?;
                    (1..=end).find(is_word)
                };
                found.map(|index| index + 1)
            }
        }
    }
}

/// The keys of one request, and the databases that it names, as the command's own parser finds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestKeys {
    keys: SmallVec<[(usize, KeyFlags); 4]>,
    databases: SmallVec<[i64; 2]>,
}

/// Finds the keys and databases of a request whose places depend on its option words. The handler takes its options
/// from the same parser, so that it never works on a key that routing, locking and access control have not seen. A
/// request that the handler refuses may have any keys.
pub type ParseKeys = fn(Args<'_>) -> RequestKeys;

impl RequestKeys {
    /// With a key at argument `index`.
    #[must_use]
    pub fn key(self, index: usize, flags: KeyFlags) -> Self {
        self.keys(index..index + 1, flags)
    }

    /// With keys at these arguments.
    #[must_use]
    pub fn keys(mut self, places: impl IntoIterator<Item = usize>, flags: KeyFlags) -> Self {
        self.keys.extend(places.into_iter().map(|index| (index, flags)));
        self
    }

    /// With these databases beside the client's own.
    #[must_use]
    pub fn databases(mut self, numbers: impl IntoIterator<Item = i64>) -> Self {
        self.databases.extend(numbers);
        self
    }

    /// The place of each key among the arguments, and its use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, KeyFlags)> {
        self.keys.iter().copied()
    }

    /// The databases that the request names, which need not exist.
    pub(crate) fn named_databases(&self) -> &[i64] {
        &self.databases
    }
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;

    #[test]
    fn keys_are_found_by_every_kind_of_spec() {
        let range = |last, step| KeySpec::range(1, last, step, KeyFlags::RO);
        let streams = |limit| KeySpec::all_behind("STREAMS", 1, limit, KeyFlags::RO);
        let numkeys = KeySpec::counted(1, KeyFlags::RO);
        let migrate = KeySpec::all_behind("KEYS", -2, 0, KeyFlags::RW);
        let table: &[(KeySpec, &str, &[usize])] = &[
            (range(0, 1), "get a", &[1]),
            (range(-1, 1), "del a b c", &[1, 2, 3]),
            (range(-1, 2), "mset a 1 b 2", &[1, 3]),
            (range(-1, 2), "mset a 1 b", &[1, 3]),
            (range(-2, 1), "blpop a b 0", &[1, 2]),
            (range(1, 1), "lcs a b", &[1, 2]),
            (range(-1, 1), "del", &[]),
            (streams(2), "xread count 1 streams a b 0 0", &[4, 5]),
            (streams(2), "xread count 1", &[]),
            (numkeys, "msetex 2 a b c", &[2, 3]),
            (numkeys, "msetex 9 a b", &[]),
            (numkeys, "msetex x a b", &[]),
            (migrate, "migrate h 1 nokey 0 9 keys a b", &[7, 8]),
            (migrate, "migrate h 1 k 0 9", &[]),
        ];
        for (spec, line, expected) in table {
            let request: Request = line.split(' ').collect();
            let mut found = Vec::new();
            spec.visit(request.args(), &mut |index| found.push(index));
            assert_eq!(&found, expected, "{line}");
        }
    }
}
