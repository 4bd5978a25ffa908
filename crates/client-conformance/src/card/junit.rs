//! The card as JUnit's XML, which CI systems show as tests.

use std::fmt::Write as _;

use super::{Card, evidence};
use crate::verdict::Grade;

/// The card as XML. A scenario that fails or does harm is a failure; a costly one passes and says so.
#[must_use]
pub fn junit(card: &Card) -> String {
    let failures = card.cases.iter().filter(|case| case.verdict.grade >= Grade::Fails).count();
    let skipped = card.cases.iter().filter(|case| case.verdict.grade == Grade::NotOffered).count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">\n",
        escaped(&card.title()),
        card.cases.len()
    );
    for case in &card.cases {
        let seconds = case.verdict.measures.ms as f64 / 1000.0;
        let reasons: Vec<&str> = case.verdict.findings.iter().map(|finding| finding.text.as_str()).collect();
        let reasons = escaped(&reasons.join("; "));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\" time=\"{seconds:.3}\">",
            escaped(case.theme.name()),
            escaped(&case.name)
        );
        let _ = match case.verdict.grade {
            Grade::Good => Ok(()),
            Grade::NotOffered => writeln!(out, "    <skipped message=\"{reasons}\"/>"),
            Grade::Costly => writeln!(out, "    <system-out>{reasons}</system-out>"),
            Grade::Fails | Grade::Harmful => writeln!(
                out,
                "    <failure type=\"{}\" message=\"{reasons}\">{}</failure>",
                case.verdict.grade.name(),
                escaped(&evidence(case))
            ),
        };
        out.push_str("  </testcase>\n");
    }
    out.push_str("</testsuite>\n");
    out
}

/// Text as XML takes it: without control characters, which it has no way to write.
fn escaped(text: &str) -> String {
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
