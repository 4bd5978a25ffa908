//! Findings: what a check has found, how severe it is, and how to fix it.

use std::fmt;

use serde::Serialize;

/// How severe a finding is, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Nothing needs to be done.
    Fine,
    /// The servers work now, but trouble is likely later.
    Warning,
    /// The problem stops the server, loses data, or gives access to anyone.
    Fault,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) verdict: Severity,
    /// What was checked: a short name, or the address of a node.
    pub(super) about: String,
    /// What the check has observed.
    pub(super) text: String,
    /// How to fix the problem; `None` if there is nothing to fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Finding {
    pub(super) fn fine(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self { verdict: Severity::Fine, about: about.into(), text: text.into(), fix: None }
    }

    pub(super) fn warning(about: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Severity::Warning, about: about.into(), text: text.into(), fix: Some(fix.into()) }
    }

    pub(super) fn fault(about: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Severity::Fault, ..Self::warning(about, text, fix) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Severity::Fine => "ok",
            Severity::Warning => "WARNING",
            Severity::Fault => "FAULT",
        };
        writeln!(f, "{word:<8} {:<16} {}", self.about, self.text)?;
        match &self.fix {
            Some(fix) => writeln!(f, "{:<8} {:<16} fix: {fix}", "", ""),
            None => Ok(()),
        }
    }
}

/// Formats a number of bytes for humans.
pub(super) fn format_size(bytes: u64) -> String {
    let units = ["bytes", "KB", "MB", "GB", "TB"];
    let mut number = bytes as f64;
    let mut unit = 0;
    while number >= 1024.0 && unit + 1 < units.len() {
        number /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{number:.1} {}", units[unit]) }
}
