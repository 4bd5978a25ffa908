//! Key specifications: the positions of a command's keys among its arguments.
//!
//! Each spec has a start and a search rule, as described by COMMAND INFO.

use bitflags::bitflags;
use resp::Args;
use smallvec::SmallVec;

bitflags! {
    /// How a command uses a key, as COMMAND GETKEYSANDFLAGS reports it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct KeyFlags: u16 {
        /// The command reads the value.
        const RO = 1;
        /// The command reads and modifies the value.
        const RW = 1 << 1;
        /// The command overwrites the value.
        const OW = 1 << 2;
        /// The command deletes the key.
        const RM = 1 << 3;
        /// The command returns data of the value to the client.
        const ACCESS = 1 << 4;
        /// The command modifies the value with data from the client.
        const UPDATE = 1 << 5;
        /// The command inserts elements into the value.
        const INSERT = 1 << 6;
        /// The command removes elements from the value.
        const DELETE = 1 << 7;
        /// The argument is not a key, but is routed like one.
        const NOT_KEY = 1 << 8;
        /// The command may have keys that the spec does not find.
        const INCOMPLETE = 1 << 9;
        /// The command's other arguments decide which of the flags apply.
        const VARIABLE_FLAGS = 1 << 10;
    }
}

/// Where the search for keys starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginSearch {
    /// The search starts at this argument index.
    Index(u8),
    /// The search starts after a keyword, which is itself searched from argument `search_from` (backwards from the end
    /// if negative).
    Keyword {
        /// The keyword, such as `STREAMS`.
        word: &'static str,
        /// Argument index from which the keyword is searched; negative counts from the end.
        search_from: i8,
    },
    /// COMMAND INFO cannot express the positions: the command's own parser finds the keys ([`ParseKeys`]), or they are
    /// known only during execution.
    Unknown,
}

/// Which arguments after the start are keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindKeys {
    /// Every `step`-th argument is a key, from the start to `last_key_position`. A `limit` above 1 restricts the keys
    /// to the first 1/limit of the remaining arguments.
    Range {
        /// Position of the last key relative to the first; negative counts from the end of the arguments.
        last_key_position: i8,
        /// Distance from one key to the next, in arguments.
        step: u8,
        /// With a negative `last_key_position`, the divisor of the remaining arguments.
        limit: u8,
    },
    /// The number of keys is itself an argument.
    KeyNum {
        /// Position of the count, relative to the start.
        count_position: u8,
        /// Position of the first key, relative to the start.
        first_key_position: u8,
        /// Distance from one key to the next, in arguments.
        step: u8,
    },
}

/// The specification of one group of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySpec {
    /// Where the search for the keys starts.
    pub search_start: BeginSearch,
    /// Which arguments after the start are keys.
    pub find_keys: FindKeys,
    /// How the command uses these keys.
    pub flags: KeyFlags,
}

impl KeySpec {
    /// Specifies a single key at argument `index`.
    #[must_use]
    pub const fn single_key(index: u8, flags: KeyFlags) -> Self {
        Self::key_range(index, 0, 1, flags)
    }

    /// Specifies every `step`-th argument from `index` to `last` after it.
    #[must_use]
    pub const fn key_range(index: u8, last: i8, step: u8, flags: KeyFlags) -> Self {
        Self {
            search_start: BeginSearch::Index(index),
            find_keys: FindKeys::Range { last_key_position: last, step, limit: 0 },
            flags,
        }
    }

    /// Specifies keys that follow their count at argument `index`.
    #[must_use]
    pub const fn counted_keys(index: u8, flags: KeyFlags) -> Self {
        Self {
            search_start: BeginSearch::Index(index),
            find_keys: FindKeys::KeyNum { count_position: 0, first_key_position: 1, step: 1 },
            flags,
        }
    }

    /// Specifies one key after a keyword, searched from argument `from`.
    #[must_use]
    pub const fn key_after(word: &'static str, from: i8, flags: KeyFlags) -> Self {
        Self {
            search_start: BeginSearch::Keyword { word, search_from: from },
            find_keys: FindKeys::Range { last_key_position: 0, step: 1, limit: 0 },
            flags,
        }
    }

    /// Specifies all arguments after a keyword, or the first half of them if `limit` is 2.
    #[must_use]
    pub const fn keys_after(word: &'static str, from: i8, limit: u8, flags: KeyFlags) -> Self {
        Self {
            search_start: BeginSearch::Keyword { word, search_from: from },
            find_keys: FindKeys::Range { last_key_position: -1, step: 1, limit },
            flags,
        }
    }

    /// Returns the argument index if this is a single key at a fixed position.
    #[must_use]
    pub const fn fixed_position(&self) -> Option<usize> {
        match (self.search_start, self.find_keys) {
            (BeginSearch::Index(index), FindKeys::Range { last_key_position: 0, .. }) => Some(index as usize),
            _ => None,
        }
    }

    /// Visits the index of each key in `args`. If a count is malformed, its leading digits are used, as in Valkey,
    /// although the handler will refuse the command.
    pub fn visit_keys(&self, args: Args<'_>, visit: &mut impl FnMut(usize)) {
        let Some(begin) = self.first_index(args) else { return };
        let (first, count, step) = match self.find_keys {
            FindKeys::Range { last_key_position: last, step, limit } => {
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
            FindKeys::KeyNum { count_position: count_at, first_key_position: first, step } => {
                let Some(count) = args.get(begin + usize::from(count_at)) else { return };
                // MSETEX is the only command with another step, and the only one that checks the count in Valkey.
                let count = if step == 1 { leading_integer(count) } else { resp::parse_i64(count) };
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

    /// Returns whether the spec finds any key in `args`.
    #[must_use]
    pub fn finds_keys(&self, args: Args<'_>) -> bool {
        let mut any = false;
        self.visit_keys(args, &mut |_| any = true);
        any
    }

    fn first_index(&self, args: Args<'_>) -> Option<usize> {
        match self.search_start {
            BeginSearch::Unknown => None,
            BeginSearch::Index(index) => Some(usize::from(index)),
            BeginSearch::Keyword { word, search_from: from } => {
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

/// Parses the integer at the start of `text`, like the function `atoi` of C.
fn leading_integer(text: &[u8]) -> Option<i64> {
    if let number @ Some(_) = resp::parse_i64(text) {
        return number;
    }
    let text = text.trim_ascii_start();
    let signs = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[signs..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..signs + digits]).ok()?.parse().ok()
}

/// The keys and databases of one request, as found by the command's own parser.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestKeys {
    keys: SmallVec<[(usize, KeyFlags); 4]>,
    databases: SmallVec<[i64; 2]>,
    has_invalid_database: bool,
}

/// Function that parses the keys and databases of a request whose key positions depend on options. The handler parses
/// its options with the same function, so it never accesses a key that routing, locking and access control have not
/// seen. For requests that the handler refuses, the result is arbitrary.
pub type ParseKeys = fn(Args<'_>) -> RequestKeys;

impl RequestKeys {
    /// Adds the key at argument `index`.
    #[must_use]
    pub fn key(self, index: usize, flags: KeyFlags) -> Self {
        self.keys(index..index + 1, flags)
    }

    /// Adds the keys at these argument indexes.
    #[must_use]
    pub fn keys(mut self, indexes: impl IntoIterator<Item = usize>, flags: KeyFlags) -> Self {
        self.keys.extend(indexes.into_iter().map(|index| (index, flags)));
        self
    }

    /// Adds databases that the request names besides the selected one.
    #[must_use]
    pub fn databases(mut self, numbers: impl IntoIterator<Item = i64>) -> Self {
        self.databases.extend(numbers);
        self
    }

    /// Sets whether one of the database numbers is malformed.
    #[must_use]
    pub fn invalid_database(mut self, is_invalid: bool) -> Self {
        self.has_invalid_database = is_invalid;
        self
    }

    /// Returns whether the request names a database other than `db`, or a malformed database number.
    pub(crate) fn names_other_database(&self, db: u16) -> bool {
        self.has_invalid_database || self.databases.iter().any(|named| *named != i64::from(db))
    }

    /// Returns the argument index and use of each key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, KeyFlags)> {
        self.keys.iter().copied()
    }

    /// Returns the named databases, which may not exist.
    pub(crate) fn named_databases(&self) -> &[i64] {
        &self.databases
    }
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;

    #[test]
    fn every_kind_of_key_spec_finds_keys() {
        let range = |last, step| KeySpec::key_range(1, last, step, KeyFlags::RO);
        let streams = |limit| KeySpec::keys_after("STREAMS", 1, limit, KeyFlags::RO);
        let numkeys = KeySpec::counted_keys(1, KeyFlags::RO);
        let migrate = KeySpec::keys_after("KEYS", -2, 0, KeyFlags::RW);
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
            (numkeys, "eval s 1", &[]),
            (numkeys, "zunion 1.5 a b", &[2]),
            (numkeys, "zunion +2x a b", &[2, 3]),
            (numkeys, "zunion -1 a b", &[]),
            (migrate, "migrate h 1 nokey 0 9 keys a b", &[7, 8]),
            (migrate, "migrate h 1 k 0 9", &[]),
        ];
        for (spec, line, expected) in table {
            let request: Request = line.split(' ').collect();
            let mut found = Vec::new();
            spec.visit_keys(request.args(), &mut |index| found.push(index));
            assert_eq!(&found, expected, "{line}");
        }
    }
}
