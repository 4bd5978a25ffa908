//! Renders the scorecard as JUnit XML, which CI systems display as tests.

use std::fmt::Write as _;

use super::{Scorecard, render_evidence};
use crate::verdict::Grade;

/// Renders the scorecard as JUnit XML. Failing and harmful scenarios are reported as failures; a costly scenario passes
/// with a note.
#[must_use]
pub fn render_junit(scorecard: &Scorecard) -> String {
    let failures = scorecard.cases.iter().filter(|case| case.verdict.grade >= Grade::Fails).count();
    let skipped = scorecard.cases.iter().filter(|case| case.verdict.grade == Grade::Unsupported).count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">\n",
        escape_xml(&scorecard.title()),
        scorecard.cases.len()
    );
    for case in &scorecard.cases {
        let seconds = case.verdict.costs.ms as f64 / 1000.0;
        let reasons: Vec<&str> = case.verdict.findings.iter().map(|finding| finding.text.as_str()).collect();
        let reasons = escape_xml(&reasons.join("; "));
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\" time=\"{seconds:.3}\">",
            escape_xml(case.theme.name()),
            escape_xml(&case.name)
        );
        let _ = match case.verdict.grade {
            Grade::Good => Ok(()),
            Grade::Unsupported => writeln!(out, "    <skipped message=\"{reasons}\"/>"),
            Grade::Costly => writeln!(out, "    <system-out>{reasons}</system-out>"),
            Grade::Fails | Grade::Harmful => writeln!(
                out,
                "    <failure type=\"{}\" message=\"{reasons}\">{}</failure>",
                case.verdict.grade.name(),
                escape_xml(&render_evidence(case))
            ),
        };
        out.push_str("  </testcase>\n");
    }
    out.push_str("</testsuite>\n");
    out
}

/// Escapes text for XML and drops control characters, which XML 1.0 cannot represent.
fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(letter),
            letter if letter.is_control() => out.push('?'),
            letter => out.push(letter),
        }
    }
    out
}
