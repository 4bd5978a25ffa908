//! A script: its text, its SHA1 and the flags of its shebang.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sha1::{Digest, Sha1};

/// The flags of a script or function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScriptFlags {
    /// Whether the script or function declares flags. Scripts without a shebang run in a compatibility mode with the
    /// permissions of older Redis versions.
    pub declared: bool,
    /// The script does not write.
    pub no_writes: bool,
    /// The script may run when memory exceeds `maxmemory`.
    pub allow_oom: bool,
    /// The script may run on a replica with stale data.
    pub allow_stale: bool,
    /// The script must not run in cluster mode.
    pub no_cluster: bool,
    /// The script may access keys in different slots.
    pub allow_cross_slot: bool,
}

/// Flag names in listing order.
const FLAG_NAMES: [&str; 5] =
    ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

impl ScriptFlags {
    /// Sets a flag by name. Returns whether the name is known.
    pub fn set_flag(&mut self, name: &[u8]) -> bool {
        let Some(place) = FLAG_NAMES.iter().position(|known| known.as_bytes() == name) else { return false };
        *self.flag_fields()[place] = true;
        true
    }

    fn flag_fields(&mut self) -> [&mut bool; 5] {
        [
            &mut self.no_writes,
            &mut self.allow_oom,
            &mut self.allow_stale,
            &mut self.no_cluster,
            &mut self.allow_cross_slot,
        ]
    }

    /// The names of the flags that are set.
    #[must_use]
    pub fn names(mut self) -> Vec<&'static str> {
        let set = self.flag_fields().map(|field| *field);
        FLAG_NAMES.into_iter().zip(set).filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }
}

/// The first line of a script or library: `#!lua flags=...` or `#!lua name=...`, with the quoting of inline requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shebang<'a> {
    /// The name of the script engine; only `lua` is supported.
    pub engine: Vec<u8>,
    /// The words after the engine, such as `flags=no-writes` or `name=mylib`.
    pub options: Vec<Vec<u8>>,
    /// The text after the shebang, including its line break so that line numbers stay the same.
    pub body: &'a [u8],
}

/// The reason why a shebang was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShebangError {
    /// The shebang line has no end.
    Invalid,
    /// The shebang contains an unbalanced quote.
    UnbalancedQuotes,
    /// The named engine is not Lua.
    UnknownEngine(Vec<u8>),
    /// The shebang contains an unknown option.
    UnknownOption(Vec<u8>),
    /// The option `flags` contains an unknown flag.
    UnknownFlag(Vec<u8>),
}

impl std::fmt::Display for ShebangError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = String::from_utf8_lossy;
        match self {
            Self::Invalid => f.write_str("ERR Invalid script shebang"),
            Self::UnbalancedQuotes => f.write_str("ERR Invalid engine in script shebang"),
            Self::UnknownEngine(name) => {
                write!(f, "ERR Could not find scripting engine '{}'", shown(name))
            }
            Self::UnknownOption(name) => write!(f, "ERR Unknown lua shebang option: {}", shown(name)),
            Self::UnknownFlag(name) => write!(f, "ERR Unexpected flag in script shebang: {}", shown(name)),
        }
    }
}

impl std::error::Error for ShebangError {}

impl<'a> Shebang<'a> {
    /// Parses the shebang of `text`, if it has one.
    ///
    /// # Errors
    /// The line has no end, or a quote is unbalanced.
    pub fn parse(text: &'a [u8]) -> Result<Option<Self>, ShebangError> {
        if !text.starts_with(b"#!") {
            return Ok(None);
        }
        let end = memchr::memchr2(b'\n', 0, text).filter(|end| text[*end] == b'\n');
        let end = end.ok_or(ShebangError::Invalid)?;
        let words = resp::split_words_bytes(&text[..end]).ok_or(ShebangError::UnbalancedQuotes)?;
        let mut words = words.into_iter();
        let engine = words.next().unwrap_or_default().split_off(2);
        Ok(Some(Self { engine, options: words.collect(), body: &text[end..] }))
    }
}

/// A script, which clients refer to by its SHA1.
#[derive(Debug)]
pub struct Script {
    /// The SHA1 of the text as forty lower-case hexadecimal digits.
    pub sha: [u8; 40],
    /// The text as the client sent it, including the shebang.
    pub text: Box<[u8]>,
    /// The flags declared in the shebang; defaults without a shebang.
    pub flags: ScriptFlags,
    /// Byte offset in `text` of the code after the shebang.
    body_offset: usize,
    /// Whether the script was added by SCRIPT LOAD, which exempts it from eviction.
    pub(crate) is_pinned: AtomicBool,
    /// Whether the script is in the cache; false after it is flushed or evicted.
    pub(crate) is_live: AtomicBool,
    /// Time of the last run in milliseconds, used for eviction.
    pub(crate) last_used: AtomicU64,
    /// Whether a run of the script has accessed keys that its call did not declare.
    pub has_undeclared_keys: AtomicBool,
    /// Moving average of the run time in nanoseconds; 0 if not measured.
    pub mean_nanos: AtomicU64,
}

impl Script {
    /// Parses a script.
    ///
    /// # Errors
    /// The shebang is invalid.
    pub fn new(text: &[u8]) -> Result<Self, ShebangError> {
        let mut flags = ScriptFlags::default();
        let mut body = 0;
        if let Some(shebang) = Shebang::parse(text)? {
            flags.declared = true;
            for option in shebang.options {
                let Some(names) = option.strip_prefix(b"flags=") else {
                    return Err(ShebangError::UnknownOption(option));
                };
                let mut names = names.split(|byte| *byte == b',').filter(|_| !names.is_empty());
                if let Some(unknown) = names.find(|name| !flags.set_flag(name)) {
                    return Err(ShebangError::UnknownFlag(unknown.to_vec()));
                }
            }
            if !shebang.engine.eq_ignore_ascii_case(b"lua") {
                return Err(ShebangError::UnknownEngine(shebang.engine));
            }
            body = text.len() - shebang.body.len();
        }
        Ok(Self {
            sha: sha1_hex(text),
            text: text.into(),
            flags,
            body_offset: body,
            is_pinned: AtomicBool::new(false),
            is_live: AtomicBool::new(true),
            last_used: AtomicU64::new(0),
            has_undeclared_keys: AtomicBool::new(false),
            mean_nanos: AtomicU64::new(0),
        })
    }

    /// The text for Lua to compile, without the shebang.
    pub(crate) fn body(&self) -> &[u8] {
        &self.text[self.body_offset..]
    }

    /// Whether clients can still call the script by its SHA1.
    #[must_use]
    #[inline]
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire)
    }

    /// Records a run at `millis`.
    #[inline]
    pub fn record_use(&self, millis: u64) {
        if self.last_used.load(Ordering::Relaxed) != millis {
            self.last_used.store(millis, Ordering::Relaxed);
        }
    }
}

/// The SHA1 of `text` as hexadecimal digits.
#[must_use]
pub fn sha1_hex(text: &[u8]) -> [u8; 40] {
    const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 40];
    for (place, byte) in Sha1::digest(text).iter().enumerate() {
        hex[2 * place] = HEX_DIGITS[usize::from(byte >> 4)];
        hex[2 * place + 1] = HEX_DIGITS[usize::from(byte & 15)];
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shebang_declares_script_flags() {
        let flags = |text: &str| Script::new(text.as_bytes()).map(|script| script.flags.names());
        assert_eq!(flags("return 1"), Ok(vec![]));
        assert_eq!(flags("#!lua\nreturn 1"), Ok(vec![]));
        let some = flags("#!lua flags=no-cluster,no-writes\nreturn 1");
        assert_eq!(some, Ok(vec!["no-writes", "no-cluster"]));
        let spellings = [
            "#!lua\t \tflags=no-writes",
            "#!lua flags=\"no-writes\"",
            "#!'LUA' \"flags=no-\\x77rites\"",
            "#!lua flags= fla'gs=no-writes'",
        ];
        for line in spellings {
            assert_eq!(flags(&format!("{line}\nreturn 1")), Ok(vec!["no-writes"]), "{line}");
        }
        let errors = [
            ("#!lua flags=no-writes", "ERR Invalid script shebang"),
            ("#!lua\0\nreturn 1", "ERR Invalid script shebang"),
            ("#!lua flags='no-writes\nreturn 1", "ERR Invalid engine in script shebang"),
            ("#!luax\nreturn 1", "ERR Could not find scripting engine 'luax'"),
            ("#! lua\nreturn 1", "ERR Unknown lua shebang option: lua"),
            ("#!luax flags=foo\nreturn 1", "ERR Unexpected flag in script shebang: foo"),
            ("#!lua flags=no-writes,\nreturn 1", "ERR Unexpected flag in script shebang: "),
            ("#!lua x=1\nreturn 1", "ERR Unknown lua shebang option: x=1"),
            ("#!lua flags=foo\nreturn 1", "ERR Unexpected flag in script shebang: foo"),
        ];
        for (text, error) in errors {
            assert_eq!(flags(text).unwrap_err().to_string(), error);
        }
        let script = Script::new(b"#!lua\nreturn 1").unwrap();
        assert_eq!(script.body(), b"\nreturn 1");
        assert!(!Script::new(b"return 1").unwrap().flags.declared && script.flags.declared);
        assert_eq!(&sha1_hex(b"x"), b"11f6ad8ec52a2984abaafd7c3b516503785c2072");
    }
}
