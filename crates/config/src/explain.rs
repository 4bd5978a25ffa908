//! Explains each line of a configuration written for Redis, Valkey or this server.
//!
//! The lines pass through the same parser as at startup, so that the explanation cannot differ from the server's
//! behaviour. A line with which the server would not start is reported, and the following lines are still explained.

use super::unsupported::{self, ParameterEffect};
use super::{Config, ConfigError, ConfigSource, find_parameter};

/// A configuration line and what the server does with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedLine {
    /// Line number, starting at 1.
    pub line: usize,
    /// The trimmed text of the line.
    pub text: String,
    /// What the server does with the line.
    pub effect: LineEffect,
    /// A hint or an alternative, if there is one.
    pub advice: Option<&'static str>,
}

/// What the server does with a configuration line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineEffect {
    /// The line sets this parameter to this value, in the format of CONFIG GET.
    SetsParameter(&'static str, String),
    /// The line takes effect without setting a parameter: `include`, `user`, `rename-command`.
    Directive,
    /// The feature is not implemented. The server starts with a warning.
    WithoutEffect,
    /// The parameter tunes a mechanism that this server implements differently; holds the explanation.
    NotNeeded(&'static str),
    /// The parameter was removed from newer versions of Redis and has no effect.
    Obsolete,
    /// The server refuses to start with the line; holds the reason.
    Refused(String),
}

/// Explains the lines of `text` except empty lines and comments.
#[must_use]
pub fn explain_configuration(text: &str) -> Vec<ExplainedLine> {
    let config = Config::default();
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let words = super::file::split_line(line).unwrap_or_default();
            let name = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
            let meaning = explain_line(&config, line, &name);
            let advice = match &meaning {
                LineEffect::SetsParameter(name, _) => unsupported::find_hint(name),
                LineEffect::WithoutEffect | LineEffect::Refused(_) => unsupported::find_alternative(&name),
                LineEffect::Directive | LineEffect::NotNeeded(_) | LineEffect::Obsolete => None,
            };
            ExplainedLine { line: number, text: line.to_owned(), effect: meaning, advice }
        })
        .collect()
}

fn explain_line(config: &Config, line: &str, name: &str) -> LineEffect {
    // Do not follow `include`, because the included file need not exist on this machine.
    if name == "include" {
        return LineEffect::Directive;
    }
    if let Err(ConfigError { reason, .. }) = config.load_text(line, &ConfigSource::StandardInput) {
        return LineEffect::Refused(reason);
    }
    let Some(row) = find_parameter(name) else {
        return if unsupported::is_obsolete(name) { LineEffect::Obsolete } else { LineEffect::Directive };
    };
    match ParameterEffect::of_parameter(row.id) {
        ParameterEffect::Applied => {
            LineEffect::SetsParameter(row.name, row.field.format_value(&config.values()))
        }
        ParameterEffect::NotImplemented => LineEffect::WithoutEffect,
        ParameterEffect::NotNeeded(reason) => LineEffect::NotNeeded(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_lines_are_explained() {
        let text = "# a comment\n\nport 7000\nmaxmemory 2gb\nlua-time-limit 100\nactivedefrag yes\ndynamic-hz no\n\
                    lua-replicate-commands yes\nloadmodule /x.so\nuser alice on\ninclude /nowhere.conf\nbad\n\
                    maxmemory lots\nsave \"3600 1\n";
        let explained = explain_configuration(text);
        let meanings: Vec<_> = explained.iter().map(|line| (line.line, &line.effect)).collect();
        let refused = |reason: &str| LineEffect::Refused(reason.to_owned());
        let expected = [
            (3, LineEffect::SetsParameter("port", "7000".to_owned())),
            (4, LineEffect::SetsParameter("maxmemory", "2147483648".to_owned())),
            (5, LineEffect::SetsParameter("busy-reply-threshold", "100".to_owned())),
            (6, LineEffect::WithoutEffect),
            (7, LineEffect::NotNeeded("timers are event-driven")),
            (8, LineEffect::Obsolete),
            (9, refused("modules are not supported")),
            (10, LineEffect::Directive),
            (11, LineEffect::Directive),
            (12, refused("Bad directive or wrong number of arguments")),
            (13, refused("argument must be a memory value")),
            (14, refused("Unbalanced quotes in configuration line")),
        ];
        let expected: Vec<_> = expected.iter().map(|(line, meaning)| (*line, meaning)).collect();
        assert_eq!(meanings, expected);
    }

    #[test]
    fn lines_without_effect_suggest_alternatives() {
        for row in crate::parameters::PARAMETERS {
            let is_missing =
                ParameterEffect::of_parameter(row.id) == ParameterEffect::NotImplemented && !row.hidden;
            assert!(
                !is_missing || unsupported::find_alternative(row.name).is_some(),
                "{}: no alternative is named",
                row.name
            );
        }
        let advice = |line: &str| explain_configuration(line)[0].advice;
        assert!(advice("loadmodule x").is_some() && advice("io-threads 4").is_some());
        assert_eq!(advice("port 1"), None);
    }
}
