//! The meaning of each line of a configuration that was written for Redis, Valkey or this server.
//!
//! Each line is read by the same reader as at a start, so what is said here and what a start does cannot differ. A line
//! that would stop a start is told, and the lines behind it are read as well.

use super::unbuilt::{self, Effect};
use super::{Config, ConfigError, Source, find};

/// A line and its meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// From 1.
    pub line: usize,
    /// As it was read, without blanks at its ends.
    pub text: String,
    /// Its effect.
    pub meaning: Meaning,
    /// Something to know or to take instead, where there is something.
    pub advice: Option<&'static str>,
}

/// The effect of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// It sets this parameter to this value, as CONFIG GET shows them.
    Sets(&'static str, String),
    /// It is carried out and sets no parameter: `include`, `user`, `rename-command`.
    Directive,
    /// There is no such thing here; a start goes on, and a warning says so.
    WithoutEffect,
    /// It tunes what is done in another way here, for this reason.
    WithoutPurpose(&'static str),
    /// It sets what no longer exists anywhere.
    Forgotten,
    /// A start stops at it, for this reason.
    Refused(String),
}

/// The meaning of each line of `text` that is neither empty nor a comment.
#[must_use]
pub fn explain(text: &str) -> Vec<Explained> {
    let config = Config::default();
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let words = super::file::split(line).unwrap_or_default();
            let name = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
            let meaning = meaning(&config, line, &name);
            let advice = match &meaning {
                Meaning::Sets(name, _) => unbuilt::note(name),
                Meaning::WithoutEffect | Meaning::Refused(_) => unbuilt::instead(&name),
                Meaning::Directive | Meaning::WithoutPurpose(_) | Meaning::Forgotten => None,
            };
            Explained { line: number, text: line.to_owned(), meaning, advice }
        })
        .collect()
}

fn meaning(config: &Config, line: &str, name: &str) -> Meaning {
    // The lines behind an `include` are of another file, which need not be on this machine.
    if name == "include" {
        return Meaning::Directive;
    }
    if let Err(ConfigError { reason, .. }) = config.load_text(line, &Source::StandardInput) {
        return Meaning::Refused(reason);
    }
    let Some(row) = find(name) else {
        return if unbuilt::is_forgotten(name) { Meaning::Forgotten } else { Meaning::Directive };
    };
    match Effect::of(row.id) {
        Effect::Applied => Meaning::Sets(row.name, row.field.show(&config.values())),
        Effect::NotBuilt => Meaning::WithoutEffect,
        Effect::NoPurpose(reason) => Meaning::WithoutPurpose(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_meaning() {
        let text = "# a comment\n\nport 7000\nmaxmemory 2gb\nlua-time-limit 100\nactivedefrag yes\ndynamic-hz no\n\
                    lua-replicate-commands yes\nloadmodule /x.so\nuser alice on\ninclude /nowhere.conf\nbad\n\
                    maxmemory lots\nsave \"3600 1\n";
        let explained = explain(text);
        let meanings: Vec<_> = explained.iter().map(|line| (line.line, &line.meaning)).collect();
        let refused = |reason: &str| Meaning::Refused(reason.to_owned());
        let expected = [
            (3, Meaning::Sets("port", "7000".to_owned())),
            (4, Meaning::Sets("maxmemory", "2147483648".to_owned())),
            (5, Meaning::Sets("busy-reply-threshold", "100".to_owned())),
            (6, Meaning::WithoutEffect),
            (7, Meaning::WithoutPurpose("timers are event-driven")),
            (8, Meaning::Forgotten),
            (9, refused("modules are not supported")),
            (10, Meaning::Directive),
            (11, Meaning::Directive),
            (12, refused("Bad directive or wrong number of arguments")),
            (13, refused("argument must be a memory value")),
            (14, refused("Unbalanced quotes in configuration line")),
        ];
        let expected: Vec<_> = expected.iter().map(|(line, meaning)| (*line, meaning)).collect();
        assert_eq!(meanings, expected);
    }

    #[test]
    fn a_line_without_effect_has_something_to_take_instead() {
        for row in crate::parameters::PARAMETERS {
            let is_missing = Effect::of(row.id) == Effect::NotBuilt && !row.hidden;
            assert!(!is_missing || unbuilt::instead(row.name).is_some(), "{}: nothing instead", row.name);
        }
        let advice = |line: &str| explain(line)[0].advice;
        assert!(advice("loadmodule x").is_some() && advice("io-threads 4").is_some());
        assert_eq!(advice("port 1"), None);
    }
}
