//! Parses the redis.conf syntax, and the command line of redis-server by converting it to the same syntax: `--port 7000
//! --save ''` becomes the lines `port 7000` and `save ""`.

use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;

use resp::REDIS_VERSION;

use super::{CommandRename, Config, SetError, UserLine, keys, unsupported};

/// Maximum nesting depth of `include`.
const MAX_INCLUDE_DEPTH: usize = 16;

/// The origin of a configuration line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigSource {
    /// The line is from a file; holds the path as given by the user.
    File(String),
    /// The line is from standard input (the file is given as `-`).
    StandardInput,
    /// The line is from a command line option.
    CommandLine,
}

/// An invalid configuration line, or a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file or command line that contains the line.
    pub source: ConfigSource,
    /// Line number, starting at 1. On the command line, the number of the option.
    pub line: usize,
    /// The trimmed text of the line.
    pub text: String,
    /// The reason why the line is invalid.
    pub reason: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.source {
            ConfigSource::File(path) => format!("Reading the configuration file '{path}'"),
            ConfigSource::StandardInput => "Reading the configuration from standard input".to_owned(),
            ConfigSource::CommandLine => "Reading the options of the command line".to_owned(),
        };
        write!(
            f,
            "\n*** FATAL CONFIG FILE ERROR (Version {REDIS_VERSION}) ***\n{place}, at line {}\n>>> '{}'\n{}",
            self.line, self.text, self.reason
        )
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Loads a configuration file.
    ///
    /// # Errors
    /// The first invalid line, or the file cannot be read.
    pub fn load_file(&self, path: &str) -> Result<(), ConfigError> {
        self.load_nested(path, 0)
    }

    fn load_nested(&self, path: &str, depth: usize) -> Result<(), ConfigError> {
        let source = ConfigSource::File(path.to_owned());
        let fail =
            |reason: String| ConfigError { source: source.clone(), line: 0, text: path.to_owned(), reason };
        if depth > MAX_INCLUDE_DEPTH {
            return Err(fail("include directives are nested too deeply".to_owned()));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| fail(format!("can't open config file: {error}")))?;
        self.load_lines(&text, &source, depth)
    }

    /// Loads configuration text that came from `source`.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn load_text(&self, text: &str, source: &ConfigSource) -> Result<(), ConfigError> {
        self.load_lines(text, source, 0)
    }

    fn load_lines(&self, text: &str, source: &ConfigSource, depth: usize) -> Result<(), ConfigError> {
        for (number, line) in (1..).zip(text.lines()) {
            let fail = |reason: String| ConfigError {
                source: source.clone(),
                line: number,
                text: line.trim().to_owned(),
                reason,
            };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words =
                split_line(line).ok_or_else(|| fail("Unbalanced quotes in configuration line".to_owned()))?;
            let Some((name, values)) = words.split_first() else { continue };
            match name.to_ascii_lowercase().as_str() {
                "include" => {
                    let [pattern] = values else { return Err(fail(BAD_DIRECTIVE_ERROR.to_owned())) };
                    for path in expand_include(pattern) {
                        self.load_nested(&path, depth + 1)?;
                    }
                }
                // `save` lines accumulate over all sources. The first line replaces the default save points, and an
                // empty `save` clears all previous ones.
                "save" if !values.is_empty() => {
                    let is_first = !self.has_save_lines.swap(true, Ordering::Relaxed);
                    let save = keys::SAVE.id.parameter();
                    let before =
                        if is_first { String::new() } else { save.field.format_value(&self.values()) };
                    let words = |text: &str| -> Vec<String> {
                        text.split_ascii_whitespace().map(str::to_owned).collect()
                    };
                    let new = words(&values.join(" "));
                    let all =
                        if new.is_empty() { vec![String::new()] } else { [words(&before), new].concat() };
                    self.load_directive(name, &all).map_err(fail)?;
                }
                "rename-command" => {
                    let [from, to] = values else { return Err(fail(BAD_DIRECTIVE_ERROR.to_owned())) };
                    let (from, to) = (from.clone(), to.clone());
                    self.command_renames.write().push(CommandRename {
                        original_name: from,
                        new_name: to,
                        location: fail(String::new()),
                    });
                }
                "user" if !values.is_empty() => {
                    self.user_lines
                        .write()
                        .push(UserLine { arguments: values.to_vec(), location: fail(String::new()) });
                }
                // Only CONFIG REWRITE produces an empty `replicaof`; in a file it must name a master.
                "replicaof" | "slaveof" if values.is_empty() => {
                    return Err(fail("wrong number of arguments".to_owned()));
                }
                _ if unsupported::is_obsolete(name) && values.len() == 1 => {}
                _ => self.load_directive(name, values).map_err(fail)?,
            }
        }
        Ok(())
    }

    fn load_directive(&self, name: &str, values: &[String]) -> Result<(), String> {
        self.load(name, values).map_err(|error| match error {
            SetError::UnknownParameter => {
                unsupported::refusal_reason(name).unwrap_or(BAD_DIRECTIVE_ERROR).to_owned()
            }
            SetError::Immutable | SetError::Protected => BAD_DIRECTIVE_ERROR.to_owned(),
            SetError::Invalid(reason) => reason,
        })
    }
}

/// Expands an `include` pattern to files in sorted order. A name without wildcards is returned even if no such file
/// exists.
fn expand_include(pattern: &str) -> Vec<String> {
    let is_wild = |part: &str| part.contains(['*', '?', '[']);
    let mut found = vec![if pattern.starts_with('/') { "/".to_owned() } else { String::new() }];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        if !is_wild(part) {
            found.iter_mut().for_each(|path| path.push_str(&format!("{part}/")));
            continue;
        }
        let inside = |folder: &String| {
            let entries = std::fs::read_dir(if folder.is_empty() { "." } else { folder.as_str() });
            let names = entries.into_iter().flatten().flatten();
            let mut names: Vec<String> =
                names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.retain(|name| {
                name.starts_with('.') == part.starts_with('.')
                    && glob::matches(part.as_bytes(), name.as_bytes())
            });
            names.sort_unstable();
            names.into_iter().map(|name| format!("{folder}{name}/")).collect::<Vec<_>>()
        };
        found = found.iter().flat_map(inside).collect();
    }
    found.retain(|path| !is_wild(pattern) || Path::new(path.trim_end_matches('/')).exists());
    found.iter().map(|path| path.trim_end_matches('/').to_owned()).collect()
}

const BAD_DIRECTIVE_ERROR: &str = "Bad directive or wrong number of arguments";

/// Splits a line into its arguments, with the quoting of inline requests. Returns `None` if the line is empty or a
/// quote is unbalanced.
pub(super) fn split_line(line: &str) -> Option<Vec<String>> {
    resp::split_words(line).filter(|words| !words.is_empty())
}

/// Converts `--name value ... --name value ...` to configuration lines.
///
/// As in Valkey, the argument after an option is its value even if it starts with dashes (`--requirepass --secret`),
/// unless the option already contains its value (`"--port 7000"`). Only `--save` may have no value.
#[must_use]
pub fn arguments_to_lines(arguments: &[String]) -> String {
    let mut lines = String::new();
    let mut value_expected = false;
    let mut arguments = arguments.iter().peekable();
    while let Some(argument) = arguments.next() {
        let name = argument.strip_prefix("--").filter(|name| !name.is_empty() && !value_expected);
        let Some(name) = name else {
            let escaped = argument.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            lines.push_str(&format!(" \"{escaped}\""));
            value_expected = false;
            continue;
        };
        lines.push('\n');
        lines.push_str(name);
        let is_name_alone = split_line(name).is_some_and(|words| words.len() == 1);
        let may_lack_value = name.trim().eq_ignore_ascii_case("save");
        let is_option_next = arguments.peek().is_none_or(|next| next.starts_with("--"));
        value_expected = is_name_alone && !(may_lack_value && is_option_next);
        if is_name_alone && !value_expected {
            lines.push_str(" \"\"");
        }
    }
    lines.trim_start_matches('\n').to_owned()
}

/// Whether the argument is a file path rather than an option.
#[must_use]
pub fn is_file_argument(argument: &str) -> bool {
    !argument.starts_with("--") && !Path::new(argument).as_os_str().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(config: &Config, name: &str) -> String {
        let all = config.visible_parameters();
        all.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value).unwrap()
    }

    #[test]
    fn file_sets_parameters() {
        let config = Config::default();
        let text =
            "# comment\nport 7000\n\nbind 127.0.0.1 ::1\nsave 900 1\nsave 60 10\nrequirepass \"a b\"\n";
        config.load_text(text, &ConfigSource::StandardInput).unwrap();
        assert_eq!(config.get(keys::PORT), 7000);
        assert_eq!(config.get(keys::BIND).join(" "), "127.0.0.1 ::1");
        assert_eq!(value_of(&config, "save"), "900 1 60 10");
        assert_eq!(config.get(keys::REQUIREPASS).as_deref(), Some("a b"));
    }

    /// Valkey parses the file and the command line as one text, so their save points accumulate.
    #[test]
    fn save_points_accumulate_until_cleared() {
        let table: [(&str, &[&str], &str); 5] = [
            ("", &[], "3600 1 300 100 60 10000"),
            ("save 900 1\nsave 900 5 60 2\n", &[], "900 1 900 5 60 2"),
            ("save 900 1\n", &["--save", "5 1"], "900 1 5 1"),
            ("save 900 1\n", &["--save", "", "--save", "7", "1"], "7 1"),
            ("", &["--save", "900 1", "--save", "300 10 900 5"], "900 1 300 10 900 5"),
        ];
        for (text, arguments, expected) in table {
            let config = Config::default();
            config.load_text(text, &ConfigSource::File("x.conf".into())).unwrap();
            let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            config.load_text(&arguments_to_lines(&arguments), &ConfigSource::CommandLine).unwrap();
            assert_eq!(value_of(&config, "save"), expected, "{text} {arguments:?}");
        }
    }

    #[test]
    fn include_expands_patterns() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(path("conf.d")).unwrap();
        std::fs::write(path("conf.d/10-port.conf"), "port 1\n").unwrap();
        std::fs::write(path("conf.d/20-port.conf"), "port 2\n").unwrap();
        std::fs::write(path("conf.d/.hidden.conf"), "port 3\n").unwrap();
        std::fs::write(path("conf.d/other.txt"), "port 4\n").unwrap();
        let main = format!("include {}\ninclude {}\n", path("conf.d/*.conf"), path("none/*"));
        std::fs::write(path("main.conf"), main).unwrap();
        let config = Config::default();
        config.load_file(&path("main.conf")).unwrap();
        assert_eq!(config.get(keys::PORT), 2);
        std::fs::write(path("main.conf"), format!("include {}\n", path("missing.conf"))).unwrap();
        let error = config.load_file(&path("main.conf")).unwrap_err();
        assert_eq!(error.source, ConfigSource::File(path("missing.conf")));
        std::fs::write(path("main.conf"), format!("include {}\n", path("main.conf"))).unwrap();
        let error = config.load_file(&path("main.conf")).unwrap_err();
        assert_eq!(error.reason, "include directives are nested too deeply");
    }

    #[test]
    fn invalid_line_is_reported() {
        let config = Config::default();
        let error =
            config.load_text("port 1\nnonsense 1\n", &ConfigSource::File("x.conf".into())).unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (2, "nonsense 1"));
        assert_eq!(error.reason, BAD_DIRECTIVE_ERROR);
        let error = config.load_text("maxmemory lots", &ConfigSource::CommandLine).unwrap_err();
        assert_eq!(error.reason, "argument must be a memory value");
    }

    #[test]
    fn command_line_converts_to_configuration_lines() {
        let arguments = ["--port", "7000", "--save", "", "--bind", "a", "b", "--requirepass", "x \"y\""];
        let lines = arguments_to_lines(&arguments.map(str::to_owned));
        assert_eq!(lines, "port \"7000\"\nsave \"\"\nbind \"a\" \"b\"\nrequirepass \"x \\\"y\\\"\"");
        let config = Config::default();
        config.load_text(&lines, &ConfigSource::CommandLine).unwrap();
        assert_eq!(value_of(&config, "save"), "");
        assert_eq!(config.get(keys::REQUIREPASS).as_deref(), Some("x \"y\""));
    }

    #[test]
    fn argument_after_option_is_its_value() {
        let table: [(&[&str], &str); 6] = [
            (&["--requirepass", "--secret", "--port", "1"], "requirepass \"--secret\"\nport \"1\""),
            (&["--port 7000", "--save", "900 1"], "port 7000\nsave \"900 1\""),
            (&["--save", "--appendonly", "no"], "save \"\"\nappendonly \"no\""),
            (&["--save"], "save \"\""),
            (&["--user", "a", "on", "--user", "b"], "user \"a\" \"on\"\nuser \"b\""),
            (&["--shutdown-on-sigint"], "shutdown-on-sigint"),
        ];
        for (arguments, lines) in table {
            let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(arguments_to_lines(&arguments), lines);
        }
        let config = Config::default();
        let error = config.load_text("shutdown-on-sigint", &ConfigSource::CommandLine).unwrap_err();
        assert!(error.reason.starts_with("argument(s) must be one of"), "{error}");
        let error = config.load_text("replicaof", &ConfigSource::CommandLine).unwrap_err();
        assert_eq!(error.reason, "wrong number of arguments");
    }
}
