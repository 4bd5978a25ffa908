//! Rules on words: one for one thing, and comments that name the thing they are about.

use crate::File;

/// The page whose last column has the words that are not used.
const GLOSSARY: &str = "docs/GLOSSARY.md";

/// A comment begins with the thing that it is about.
const OPENINGS: &[&str] = &["What", "Who", "Whom", "Whose", "Whoever"];

/// Complaints about words that the glossary has another for, and about comments that begin with a question word.
#[must_use]
pub fn check_words(files: &[File]) -> Vec<String> {
    let glossary = files.iter().find(|file| file.path == GLOSSARY);
    let refused: Vec<&str> = glossary.into_iter().flat_map(|page| refused_words(&page.text)).collect();
    if refused.is_empty() {
        return vec![format!("{GLOSSARY}: no word is refused")];
    }
    let mut complaints = Vec::new();
    // The rule's own tests name what it refuses.
    let is_source = |file: &&File| file.path.ends_with(".rs") && !file.path.ends_with("tidy/src/words.rs");
    for file in files.iter().filter(is_source) {
        for (index, line) in file.text.lines().enumerate() {
            let place = format!("{}:{}", file.path, index + 1);
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(word) = words.find(|word| refused.contains(word)) {
                complaints.push(format!("{place}: '{word}': {GLOSSARY} has another word for it"));
            }
            if let Some(word) = opening(line).filter(|word| OPENINGS.contains(word)) {
                complaints.push(format!("{place}: a comment that begins with '{word}'"));
            }
        }
    }
    complaints
}

/// The words in backticks in the last column of the page's tables.
fn refused_words(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    columns.flat_map(|column| column.split('`').skip(1).step_by(2))
}

/// The first word of a comment that begins on this line: not of one that goes on from the line before, which has no
/// capital letter there but by chance.
fn opening(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    comment.trim_start_matches(['/', '!', ' ']).split(|c: char| !c.is_alphanumeric()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_word_and_a_question_are_found() {
        let page = File::new(
            GLOSSARY,
            "| word | meaning | not |\n| --- | --- | --- |\n| timeout | x | `patience`, `Seat` |\n",
        );
        let text = "/// What it is.\nlet patience = 1;\n/// Whatever else, a patience_of_mine or a seat.\nSeat::new();\n";
        let files = [page, File::new("crates/acl/src/a.rs", text)];
        assert_eq!(
            check_words(&files),
            [
                "crates/acl/src/a.rs:1: a comment that begins with 'What'",
                "crates/acl/src/a.rs:2: 'patience': docs/GLOSSARY.md has another word for it",
                "crates/acl/src/a.rs:4: 'Seat': docs/GLOSSARY.md has another word for it",
            ]
        );
        assert_eq!(check_words(&files[1..]), ["docs/GLOSSARY.md: no word is refused"]);
    }
}
