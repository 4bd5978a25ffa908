//! Checks that no test passes because one of several rounds passed. A test waits for a condition, or asserts something
//! that holds in every round.

use crate::SourceFile;

/// What repeats a range without looking at its numbers, and keeps the best result.
const BEST_OF: [(&str, &str); 2] = [(".any(|_|", ""), (".map(|_|", ".min()")];

/// Reports statements that repeat something and need only one success, or keep only the best round.
#[must_use]
pub fn check_best_of_rounds(files: &[SourceFile]) -> Vec<String> {
    let sources =
        files.iter().filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("tests/tidy/"));
    sources.flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<String> {
    let mut violations = Vec::new();
    for (line_number, statement) in statements(&file.text) {
        let is_best_of = BEST_OF.iter().any(|(repetition, selection)| {
            let Some((range, rest)) = statement.split_once(repetition) else { return false };
            is_range(range) && rest.contains(selection)
        });
        if is_best_of {
            violations
                .push(format!("{}:{line_number}: passes if the best of several rounds does", file.path));
        }
    }
    violations
}

/// Returns whether the text ends with a range in parentheses, such as `(0..5)`.
fn is_range(text: &str) -> bool {
    text.strip_suffix(')')
        .and_then(|text| text.rsplit_once('('))
        .is_some_and(|(_, range)| range.contains(".."))
}

/// Returns the statements with the numbers of their first lines, without white space, which rustfmt may put into a
/// chain of calls. A statement ends at a semicolon at the end of a line.
fn statements(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut statement, mut begin) = (Vec::new(), String::new(), 1);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("//") {
            continue;
        }
        if statement.is_empty() {
            begin = index + 1;
        }
        statement.extend(line.chars().filter(|c| !c.is_whitespace()));
        if line.ends_with([';', '}']) {
            found.push((begin, std::mem::take(&mut statement)));
        }
    }
    found.push((begin, statement));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(text: &str) -> Vec<String> {
        check_best_of_rounds(&[SourceFile::new("tests/a/src/b.rs", text)])
    }

    #[test]
    fn reports_assertions_that_need_one_of_several_rounds() {
        for text in [
            "assert!((0..5).any(|_| is_fast()));",
            "let passes = (0..ROUNDS)\n    .any(|_| {\n        is_fast()\n    });",
            "let best = |keys| (0..5).map(|_| time(keys)).min().expect(\"several\");",
        ] {
            assert_eq!(violations(text), ["tests/a/src/b.rs:1: passes if the best of several rounds does"]);
        }
    }

    #[test]
    fn accepts_searches_and_rounds_that_all_count() {
        for text in [
            "assert!((0..5).all(|_| is_fast()));",
            "let found = (0..nodes.len()).any(|node| is_master(node));",
            "let total: Duration = (0..5).map(|_| time(keys)).sum();",
            "let is_known = names.iter().any(|_| true);",
        ] {
            assert_eq!(violations(text), [""; 0], "{text}");
        }
    }
}
