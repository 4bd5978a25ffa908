//! A finding: one thing that was looked at.

use std::fmt;

use serde::Serialize;

/// How well it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Fine,
    /// It works, and will do harm one day.
    Warning,
    /// It stops the server, loses data, or lets strangers in.
    Fault,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// The thing, in a word or two.
    pub(super) about: String,
    /// How it is.
    pub(super) text: String,
    /// How to mend it, where it is to be mended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Finding {
    pub(super) fn fine(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fine, about: about.into(), text: text.into(), fix: None }
    }

    pub(super) fn warning(about: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, about: about.into(), text: text.into(), fix: Some(fix.into()) }
    }

    pub(super) fn fault(about: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fault, ..Self::warning(about, text, fix) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Verdict::Fine => "ok",
            Verdict::Warning => "WARNING",
            Verdict::Fault => "FAULT",
        };
        writeln!(f, "{word:<8} {:<16} {}", self.about, self.text)?;
        match &self.fix {
            Some(fix) => writeln!(f, "{:<8} {:<16} mend it: {fix}", "", ""),
            None => Ok(()),
        }
    }
}

/// A number of bytes for people.
pub(super) fn size(bytes: u64) -> String {
    let units = ["bytes", "KB", "MB", "GB", "TB"];
    let mut number = bytes as f64;
    let mut unit = 0;
    while number >= 1024.0 && unit + 1 < units.len() {
        number /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{number:.1} {}", units[unit]) }
}
