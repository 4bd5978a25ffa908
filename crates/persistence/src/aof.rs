//! The append-only file: which files it consists of, and where whole commands end in them.
//!
//! It is a base, the data at some moment as an RDB or as commands, and increments, the commands since then, each in a
//! file. A manifest names them in order:
//!
//! ```text
//! file appendonly.aof.2.base.rdb seq 2 type b
//! file appendonly.aof.4.incr.aof seq 4 type i
//! ```
//!
//! `h` is the type of files that are to be deleted. A rewrite begins a new increment first, then writes the base, and
//! only then the manifest that names that base: a server that dies in between leaves the old base with all
//! increments. The format is that of Redis 7.
//!
//! A line that begins with `#` between commands is an annotation, which every reader skips: `#TS:` and Unix seconds, as
//! Redis writes it, and `#REPL:`, the place in the replication stream at which what follows stands ([`ReplAnnotation`]).

use std::fmt;

mod check;
mod commands;
mod manifest;

pub use check::{Checked, check};
pub use commands::CommandWriter;
pub use manifest::{FileKind, Manifest, ManifestError, NamedFile};

/// A place in the replication stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplAnnotation {
    /// Forty hexadecimal characters.
    pub history: String,
    /// Bytes of the stream before what follows.
    pub offset: u64,
}

impl fmt::Display for ReplAnnotation {
    /// As an annotation, with the end of its line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#REPL:{} {}\r\n", self.history, self.offset)
    }
}

impl ReplAnnotation {
    /// Reads an annotation line; `None` if it is not the annotation of a place.
    #[must_use]
    pub fn of_annotation(line: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.trim_end().strip_prefix("#REPL:")?.split(' ');
        let history =
            words.next().filter(|id| id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let offset = words.next()?.parse().ok()?;
        words.next().is_none().then(|| Self { history: history.to_owned(), offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place =
            ReplAnnotation { history: "0123456789abcdef0123456789abcdef01234567".to_owned(), offset: 77 };
        assert_eq!(ReplAnnotation::of_annotation(place.to_string().as_bytes()), Some(place));
        for line in [
            "#TS:1700000000\r\n",
            "#REPL:x 1 0\r\n",
            "#REPL:\r\n",
            "",
            "#REPL:0123456789abcdef0123456789abcdef01234567 x\r\n",
        ] {
            assert_eq!(ReplAnnotation::of_annotation(line.as_bytes()), None, "{line}");
        }
    }
}
