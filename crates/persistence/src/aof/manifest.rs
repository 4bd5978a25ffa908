//! The AOF manifest: the list of files, and the changes a rewrite makes to it.

use std::fmt::Write;

/// Maximum length of a line in bytes.
const MAX_LINE_LEN: usize = 1024;
/// Maximum number of files in a manifest. Each failed rewrite can add one increment.
const MAX_FILES: usize = 10_000;

/// Type of an AOF file, which the manifest stores as a letter after `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// `b`: the data at the moment when a rewrite started.
    Base,
    /// `i`: the commands since the base or the previous increment.
    Increment,
    /// `h`: a file that a rewrite replaced, to be deleted.
    History,
}

/// A file that the manifest lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AofFile {
    /// File name without a directory.
    pub name: String,
    /// Sequence number among files of its type.
    pub seq: u64,
}

/// The content of a manifest: all files of an AOF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    /// The file with the data that the increments build on; `None` if they start from an empty dataset.
    pub base: Option<AofFile>,
    /// The increments in loading order.
    pub increments: Vec<AofFile>,
    /// Files that a rewrite replaced, to be deleted.
    pub history: Vec<AofFile>,
    base_seq: u64,
    increment_seq: u64,
}

/// Why a manifest was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The manifest has no lines.
    #[error("Found an empty AOF manifest")]
    Empty,
    /// The line with this number is malformed.
    #[error("Invalid AOF manifest file format, at line {0}")]
    MalformedLine(usize),
    /// The line with this number has an unknown type.
    #[error("Unknown AOF file type, at line {0}")]
    UnknownType(usize),
    /// The file name on the line with this number contains a directory.
    #[error("File can't be a path, just a filename, at line {0}")]
    DirectoryInName(usize),
    /// The line with this number exceeds the maximum length.
    #[error("The AOF manifest file contains too long line, at line {0}")]
    LineTooLong(usize),
    /// The line with this number lists a second base.
    #[error("Found duplicate base file information, at line {0}")]
    TwoBases(usize),
    /// The increment on the line with this number has a lower sequence number than the previous increment.
    #[error("Found a non-monotonic sequence number, at line {0}")]
    OutOfOrder(usize),
    /// The manifest lists more files than the maximum.
    #[error("too many files")]
    TooManyFiles,
}

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// The first fault, with its line number if it concerns a single line.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let mut manifest = Self::default();
        let mut lines = 0;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            if line.starts_with('#') {
                continue;
            }
            lines += 1;
            if lines > MAX_FILES {
                return Err(ManifestError::TooManyFiles);
            }
            if line.len() >= MAX_LINE_LEN {
                return Err(ManifestError::LineTooLong(number));
            }
            let (file, kind) = parse_line(line).map_err(|fault| fault(number))?;
            manifest.parse_file(file, kind, number)?;
        }
        if lines == 0 { Err(ManifestError::Empty) } else { Ok(manifest) }
    }

    fn parse_file(&mut self, file: AofFile, kind: FileKind, line: usize) -> Result<(), ManifestError> {
        match kind {
            FileKind::Base if self.base.is_some() => return Err(ManifestError::TwoBases(line)),
            FileKind::Base => {
                self.base_seq = file.seq;
                self.base = Some(file);
            }
            FileKind::History => self.history.push(file),
            FileKind::Increment if file.seq <= self.increment_seq => {
                return Err(ManifestError::OutOfOrder(line));
            }
            FileKind::Increment => {
                self.increment_seq = file.seq;
                self.increments.push(file);
            }
        }
        Ok(())
    }

    /// Formats the manifest, one line per file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let files = self.base.iter().map(|file| (file, 'b'));
        let files = files.chain(self.history.iter().map(|file| (file, 'h')));
        for (AofFile { name, seq }, kind) in files.chain(self.increments.iter().map(|file| (file, 'i'))) {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "file {} seq {seq} type {kind}", quote(name));
        }
        text
    }

    /// Reserves a name for a new increment of the AOF called `filename`. A reserved name is never reused, even if the
    /// increment is abandoned: a manifest that names it may be on disk although its write failed.
    pub fn reserve_increment(&mut self, filename: &str) -> AofFile {
        self.increment_seq += 1;
        let seq = self.increment_seq;
        AofFile { name: format!("{filename}.{seq}.incr.aof"), seq }
    }

    /// Makes `file` the last increment.
    pub fn append_increment(&mut self, file: AofFile) {
        self.increments.push(file);
    }

    /// Reserves a name for a new base. A reserved name is never reused.
    pub fn reserve_base(&mut self, filename: &str, is_rdb: bool) -> AofFile {
        self.base_seq += 1;
        let seq = self.base_seq;
        AofFile { name: format!("{filename}.{seq}.base.{}", if is_rdb { "rdb" } else { "aof" }), seq }
    }

    /// Installs a base that contains everything before the increment called `first_increment`; the old base and
    /// increments become history.
    pub fn replace_base(&mut self, base: AofFile, first_increment: &str) {
        self.base_seq = self.base_seq.max(base.seq);
        self.history.extend(self.base.replace(base));
        let kept = self
            .increments
            .iter()
            .position(|file| file.name == first_increment)
            .unwrap_or(self.increments.len());
        self.history.extend(self.increments.drain(..kept));
    }

    /// Returns the base and the increments in loading order.
    pub fn files(&self) -> impl Iterator<Item = &AofFile> {
        self.base.iter().chain(&self.increments)
    }
}

/// Parses `file NAME seq NUMBER type LETTER`; the name may be quoted. Redis 8 adds the replication offsets of
/// increments (`startoffset`, `endoffset`); unknown pairs are ignored.
fn parse_line(line: &str) -> Result<(AofFile, FileKind), fn(usize) -> ManifestError> {
    let bad: fn(usize) -> ManifestError = ManifestError::MalformedLine;
    let words = resp::split_words(line).ok_or(bad)?;
    let value = |key: &str| {
        let at = words.chunks_exact(2).position(|pair| pair[0].eq_ignore_ascii_case(key))?;
        Some(words[2 * at + 1].as_str())
    };
    if words.len() < 6 || !words.len().is_multiple_of(2) {
        return Err(bad);
    }
    let name = value("file").filter(|name| !name.is_empty()).ok_or(bad)?.to_owned();
    if name.contains('/') {
        return Err(ManifestError::DirectoryInName);
    }
    let seq = value("seq").and_then(|seq| seq.parse().ok()).filter(|seq| *seq > 0).ok_or(bad)?;
    let kind = match value("type").ok_or(bad)? {
        "b" => FileKind::Base,
        "i" => FileKind::Increment,
        "h" => FileKind::History,
        _ => return Err(ManifestError::UnknownType),
    };
    Ok((AofFile { name, seq }, kind))
}

/// Quotes a name that contains blanks, quotes or control characters, as in a configuration file.
fn quote(name: &str) -> String {
    let is_plain = |letter: char| {
        !letter.is_whitespace() && !letter.is_control() && !matches!(letter, '"' | '\'' | '\\' | '#')
    };
    if name.chars().all(is_plain) {
        return name.to_owned();
    }
    let mut text = String::from("\"");
    for letter in name.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            letter if letter.is_ascii_control() => {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\x{:02x}", u32::from(letter));
            }
            letter => text.push(letter),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_manifest_round_trips() {
        let text = "file appendonly.aof.2.base.rdb seq 2 type b\n\
                    file appendonly.aof.1.base.rdb seq 1 type h\n\
                    file appendonly.aof.4.incr.aof seq 4 type i\n\
                    file \"with blank.5.incr.aof\" seq 5 type i\n";
        let manifest = Manifest::parse(text).unwrap();
        assert_eq!(manifest.to_text(), text);
        let names: Vec<&str> = manifest.files().map(|file| file.name.as_str()).collect();
        assert_eq!(
            names,
            ["appendonly.aof.2.base.rdb", "appendonly.aof.4.incr.aof", "with blank.5.incr.aof"]
        );
    }

    #[test]
    fn unknown_manifest_fields_are_ignored() {
        let text = "file appendonly.aof.1.base.rdb seq 1 type b\n\
                    file appendonly.aof.1.incr.aof seq 1 type i startoffset 0 endoffset 120\n\
                    file appendonly.aof.2.incr.aof seq 2 type i startoffset 121 future x\n";
        let manifest = Manifest::parse(text).unwrap();
        assert_eq!(manifest.files().count(), 3);
        assert_eq!(
            manifest.to_text(),
            "file appendonly.aof.1.base.rdb seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n\
             file appendonly.aof.2.incr.aof seq 2 type i\n"
        );
        let odd = "file a seq 1 type i startoffset\n";
        assert_eq!(Manifest::parse(odd), Err(ManifestError::MalformedLine(1)));
    }

    #[test]
    fn rewrite_adds_increment_then_replaces_base() {
        let mut manifest = Manifest::default();
        for name in ["a.1.incr.aof", "a.2.incr.aof"] {
            let increment = manifest.reserve_increment("a");
            assert_eq!(increment.name, name);
            manifest.append_increment(increment);
        }
        let base = manifest.reserve_base("a", true);
        assert_eq!(base.name, "a.1.base.rdb");
        manifest.replace_base(base, "a.2.incr.aof");
        assert_eq!(
            manifest.to_text(),
            "file a.1.base.rdb seq 1 type b\nfile a.1.incr.aof seq 1 type h\nfile a.2.incr.aof seq 2 type i\n"
        );
        manifest.history.clear();
        let mut again = Manifest::parse(&manifest.to_text()).unwrap();
        assert_eq!(again.reserve_increment("a").name, "a.3.incr.aof");
        assert_eq!(
            again.reserve_increment("a").name,
            "a.4.incr.aof",
            "the third is nobody's, and no other's"
        );
        assert_eq!(again.reserve_base("a", false).name, "a.2.base.aof");
        assert_eq!(again.to_text(), manifest.to_text(), "a name that is reserved is not yet in it");
    }

    #[test]
    fn file_names_round_trip() {
        for name in ["a b", "a\nb", "\r", "\"q\" 'q'", "\\n", "\u{1}\u{7f}", "gr\u{fc}n", "#1"] {
            let base = AofFile { name: name.to_owned(), seq: 1 };
            let manifest = Manifest { base: Some(base), base_seq: 1, ..Manifest::default() };
            assert_eq!(Manifest::parse(&manifest.to_text()), Ok(manifest), "{name:?}");
        }
    }

    #[test]
    fn malformed_manifests_are_rejected_with_line_number() {
        for (text, error) in [
            ("", ManifestError::Empty),
            ("# only this\n", ManifestError::Empty),
            ("file a seq 1 type b\nfile b seq 2 type b\n", ManifestError::TwoBases(2)),
            ("file a seq 2 type i\nfile b seq 2 type i\n", ManifestError::OutOfOrder(2)),
            ("file a seq 0 type i\n", ManifestError::MalformedLine(1)),
            ("file ../a seq 1 type i\n", ManifestError::DirectoryInName(1)),
            ("file a seq 1 type x\n", ManifestError::UnknownType(1)),
            ("file a seq 1\n", ManifestError::MalformedLine(1)),
            ("\n", ManifestError::MalformedLine(1)),
        ] {
            assert_eq!(Manifest::parse(text), Err(error), "{text}");
        }
        let long = format!("file a seq 1 type i {}\n", "x y ".repeat(300));
        assert_eq!(Manifest::parse(&long), Err(ManifestError::LineTooLong(1)));
    }
}
