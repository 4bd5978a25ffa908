//! `redoubt convert`: explains each line of a redis.conf or valkey.conf for this server, and writes a converted file.
//!
//! The explanation comes from the configuration parser (`config::explain`), so it cannot differ from a real start. In the
//! converted file, supported lines stay unchanged. Lines that would stop a start or have no effect become comments with
//! the reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use config::{ExplainedLine, LineEffect, explain_configuration};

/// Arguments of `redoubt convert`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if the server would start with this file, 1 if some lines would stop the start, 2 if the file \
                  cannot be read."
)]
pub(crate) struct ConvertOptions {
    /// The configuration file, or - for standard input.
    file: PathBuf,
    /// Write the converted file here.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show only lines that behave differently than in Redis and Valkey.
    #[arg(long, short)]
    quiet: bool,
}

/// Prints the explanation and writes the converted file if `--output` asks for one.
pub(crate) fn run_convert(options: &ConvertOptions) -> ExitCode {
    match convert(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{}", crate::error_text(&error));
            ExitCode::from(2)
        }
    }
}

/// Explains the file and returns how many of its lines would stop a start.
fn convert(options: &ConvertOptions) -> Result<usize> {
    let shown = options.file.display();
    let text = if options.file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(&options.file)
    };
    let text = text.with_context(|| format!("Cannot read {shown}"))?;
    let explained = explain_configuration(&text);
    print!("{}", format_report(&explained, options.quiet));
    if let Some(output) = &options.output {
        std::fs::write(output, convert_text(&text, &explained))
            .with_context(|| format!("Cannot write {}", output.display()))?;
        println!("Written to {}", output.display());
    }
    Ok(explained.iter().filter(|line| matches!(line.effect, LineEffect::Refused(_))).count())
}

/// Returns the label and the explanation of a line.
fn label_and_text(line: &ExplainedLine) -> (&'static str, String) {
    match &line.effect {
        LineEffect::SetsParameter(name, value) => ("ok", format!("{name} is '{value}'")),
        LineEffect::Directive => ("ok", "works as in Redis".to_owned()),
        LineEffect::WithoutEffect => {
            ("NO EFFECT", "not implemented; the server logs a warning at startup".to_owned())
        }
        LineEffect::NotNeeded(reason) => ("not needed", (*reason).to_owned()),
        LineEffect::Obsolete => ("not needed", "Redis has removed this setting, too".to_owned()),
        LineEffect::Refused(reason) => {
            ("REFUSED", format!("the server does not start with this line: {reason}"))
        }
    }
}

fn format_report(explained: &[ExplainedLine], quiet: bool) -> String {
    let mut report = String::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in explained {
        let (word, text) = label_and_text(line);
        *counts.entry(word).or_default() += 1;
        if quiet && word == "ok" && line.advice.is_none() {
            continue;
        }
        let _ = writeln!(report, "{:>5}  {}\n       {word}: {text}", line.line, line.text);
        if let Some(advice) = line.advice {
            let _ = writeln!(report, "       {}: {advice}", if word == "ok" { "note" } else { "instead" });
        }
    }
    let counts: Vec<_> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    let _ = writeln!(report, "{} lines: {}", explained.len(), counts.join(", "));
    report
}

/// Returns the file with unsupported lines turned into comments.
fn convert_text(text: &str, explained: &[ExplainedLine]) -> String {
    let mut explained = explained.iter().peekable();
    let mut converted = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(meaning) = explained.next_if(|known| known.line == number) else {
            let _ = writeln!(converted, "{line}");
            continue;
        };
        if matches!(meaning.effect, LineEffect::SetsParameter(..) | LineEffect::Directive) {
            let _ = writeln!(converted, "{line}");
            continue;
        }
        let (word, text) = label_and_text(meaning);
        let _ = writeln!(converted, "# {word}: {text}");
        if let Some(advice) = meaning.advice {
            let _ = writeln!(converted, "# instead: {advice}");
        }
        let _ = writeln!(converted, "# {}", meaning.text);
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD_CONFIGURATION: &str =
        "# mine\nport 7000\n\nloadmodule /x.so\nactivedefrag yes\nio-threads 2\ndynamic-hz no\n";

    #[test]
    fn report_explains_each_line_and_quiet_hides_unchanged_ones() {
        let explained = explain_configuration(OLD_CONFIGURATION);
        let all = format_report(&explained, false);
        assert!(all.contains("    2  port 7000\n       ok: port is '7000'\n"), "{all}");
        assert!(
            all.contains("REFUSED: the server does not start with this line: modules are not supported\n       instead: "),
            "{all}"
        );
        assert!(all.ends_with("5 lines: 1 NO EFFECT, 1 REFUSED, 1 not needed, 2 ok\n"), "{all}");
        let quiet = format_report(&explained, true);
        assert!(!quiet.contains("port 7000") && quiet.contains("io-threads 2"), "{quiet}");
    }

    /// The converted file starts a server with the same values, and converting it again changes nothing.
    #[test]
    fn converted_file_starts_without_warnings() {
        let new = convert_text(OLD_CONFIGURATION, &explain_configuration(OLD_CONFIGURATION));
        assert!(new.starts_with("# mine\nport 7000\n\n# REFUSED"), "{new}");
        let config = config::Config::default();
        config.load_text(&new, &config::ConfigSource::StandardInput).unwrap();
        assert_eq!((config.get(config::keys::PORT), config.get(config::keys::IO_THREADS)), (7000, 2));
        assert_eq!(config::unsupported_warnings(&config), [""; 0]);
        assert_eq!(convert_text(&new, &explain_configuration(&new)), new);
    }
}
