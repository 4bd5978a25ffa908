//! The append-only file (AOF): its manifest, its base, and a check for complete commands.
//!
//! An AOF consists of a base (the data at some moment, as an RDB or as commands) and increments (the commands since
//! then), each in its own file. A manifest lists the files in order:
//!
//! ```text
//! file appendonly.aof.2.base.rdb seq 2 type b
//! file appendonly.aof.4.incr.aof seq 4 type i
//! ```
//!
//! Type `h` marks files to be deleted. A rewrite first starts a new increment, then writes the base, and only then the
//! manifest that names the base: after a crash before that, the old base and all increments are still valid. The format
//! is that of Redis 7.
//!
//! A line between commands that starts with `#` is an annotation, which every reader skips: `#TS:` with Unix seconds,
//! as in Redis, and `#REPL:` with the position of the following commands in the replication stream
//! ([`ReplAnnotation`]). A `#REPL:` annotation whose replication id is forty zeros says that the commands up to the
//! next annotation are not part of the stream.

use std::fmt;

mod check;
mod commands;
mod manifest;

pub use check::{AofCheckResult, check_aof};
pub use commands::CommandWriter;
pub use manifest::{AofFile, FileKind, Manifest, ManifestError};

/// An annotation that states the position of the following commands in the replication stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplAnnotation {
    /// The replication id of the stream: forty hexadecimal characters.
    pub history: String,
    /// Stream offset at which the following commands start.
    pub offset: u64,
}

impl fmt::Display for ReplAnnotation {
    /// Formats the annotation line, including CR LF.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#REPL:{} {}\r\n", self.history, self.offset)
    }
}

impl ReplAnnotation {
    /// Parses a `#REPL:` line; returns `None` for any other annotation.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
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
    fn repl_annotation_round_trips() {
        let place =
            ReplAnnotation { history: "0123456789abcdef0123456789abcdef01234567".to_owned(), offset: 77 };
        assert_eq!(ReplAnnotation::parse(place.to_string().as_bytes()), Some(place));
        for line in [
            "#TS:1700000000\r\n",
            "#REPL:x 1 0\r\n",
            "#REPL:\r\n",
            "",
            "#REPL:0123456789abcdef0123456789abcdef01234567 x\r\n",
        ] {
            assert_eq!(ReplAnnotation::parse(line.as_bytes()), None, "{line}");
        }
    }
}
