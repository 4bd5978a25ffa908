//! A short list of metaphors that the code does not use.

use crate::File;

/// Standard terms for them: delete, lazy-free queue, background worker, connection slot, timeout, use undeclared keys.
const BANNED: &[&str] = &["bury", "Bin", "Aside", "Seat", "patience", "roams"];

/// Complaints about banned words in Rust files.
#[must_use]
pub fn check_words(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    // This file contains the list itself.
    let is_checked = |file: &&File| file.path.ends_with(".rs") && !file.path.ends_with("tidy/src/words.rs");
    for file in files.iter().filter(is_checked) {
        for (index, line) in file.text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(word) = words.find(|word| BANNED.contains(word)) {
                complaints.push(format!("{}:{}: use a standard term for '{word}'", file.path, index + 1));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_words_are_found_as_whole_words() {
        let file = File::new("crates/acl/src/a.rs", "let a = 1;\n// its patience\nfn patience_of() {}\n");
        assert_eq!(check_words(&[file]), ["crates/acl/src/a.rs:2: use a standard term for 'patience'"]);
    }
}
