//! The rooms of a crate, which are the modules of its root with all that is in them, use each other in one direction: no
//! room uses another that leads back to it.

use std::collections::{BTreeMap, BTreeSet};

use crate::File;

/// The crates that are looked at, each with the rooms that still lie in a circle. A room may leave its list, and none may
/// join it.
const CRATES: &[(&str, &[&str])] = &[
    ("capacity", &[]),
    ("commands", &[]),
    ("durability", &[]),
    ("engine", &[]),
    ("net", &[]),
    ("node", &[]),
    ("persistence", &[]),
    ("process", &[]),
    ("sentinel-server", &[]),
];

/// Which rooms of a crate use which.
type Uses<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Complaints about rooms in a circle that are not listed, and about listed ones that lie in none.
#[must_use]
pub fn check_circles(files: &[File]) -> Vec<String> {
    CRATES.iter().flat_map(|(name, left)| check_crate(name, files, left)).collect()
}

fn check_crate(name: &str, files: &[File], left: &[&str]) -> Vec<String> {
    let uses = uses(name, files);
    let circle: BTreeSet<&str> =
        uses.keys().copied().filter(|room| reached(&uses, room).contains(room)).collect();
    let joined = circle.iter().filter(|room| !left.contains(room));
    let joined = joined.map(|room| format!("crates/{name}: {room} uses what leads back to it"));
    let open = left.iter().filter(|room| !circle.contains(*room));
    let open =
        open.map(|room| format!("crates/{name}: {room} lies in no circle any more; take it off the list"));
    joined.chain(open).collect()
}

/// All rooms that this one uses, and that these use, and so on.
fn reached<'a>(uses: &Uses<'a>, room: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![room]);
    while let Some(room) = next.pop() {
        for used in uses.get(room).into_iter().flatten() {
            if reached.insert(*used) {
                next.push(used);
            }
        }
    }
    reached
}

fn uses<'a>(name: &str, files: &'a [File]) -> Uses<'a> {
    let own = files.iter().filter(|file| file.crate_name() == Some(name) && file.path.ends_with(".rs"));
    let rooms: Vec<(&str, &File)> = own.filter_map(|file| Some((room(file)?, file))).collect();
    let names: BTreeSet<&str> = rooms.iter().map(|(room, _)| *room).collect();
    let mut uses = Uses::new();
    for (room, file) in rooms {
        let is_top = !file.path_in_crate().trim_start_matches("src/").contains('/');
        let code = file.shipped_lines().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
        let mut named = behind("crate::", &code);
        if is_top {
            named.extend(behind("super::", &code));
        }
        let named = named.into_iter().filter_map(|used| names.get(used.as_str()).copied());
        uses.entry(room).or_default().extend(named.filter(|used| *used != room));
    }
    uses
}

/// The room that a file belongs to; the root of the crate belongs to none.
fn room(file: &File) -> Option<&str> {
    let path = file.path_in_crate().strip_prefix("src/")?;
    let room = path.split('/').next()?.trim_end_matches(".rs");
    let is_root = ["lib", "main", "bin", "testing"].contains(&room);
    (!is_root && !file.is_test()).then_some(room)
}

/// The names that stand behind this path, alone or in braces.
fn behind(path: &str, code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(path) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == ':' || c == '$' || c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(first_words(group)),
            None => names.push(word(rest)),
        }
    }
    names
}

/// The first words of the paths in a group, of which the opening brace is left out.
fn first_words(group: &str) -> Vec<String> {
    let (mut names, mut depth, mut begins) = (Vec::new(), 0_usize, true);
    for (at, c) in group.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && !c.is_whitespace() => {
                names.push(word(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Vec<File> {
        files.iter().map(|(path, text)| File::new(&format!("crates/a/src/{path}"), text)).collect()
    }

    #[test]
    fn a_circle_is_found_in_every_form_of_a_path() {
        for back in [
            "use crate::one::X;",
            "use crate::{\n    three::Y,\n    one::{X, Z},\n};",
            "fn f(x: crate::one::X) {}",
        ] {
            let files = crate_of(&[
                ("lib.rs", "mod one;\nmod two;\nmod three;\nuse crate::one::X;"),
                ("one.rs", "use super::two::part::X;"),
                ("two/part.rs", "use crate::three::Y;"),
                ("three.rs", back),
            ]);
            let complaints = check_crate("a", &files, &[]);
            assert_eq!(complaints.len(), 3, "{back}: {complaints:?}");
            assert_eq!(check_crate("a", &files, &["one", "two", "three"]), [""; 0]);
        }
    }

    #[test]
    fn one_direction_is_no_circle_nor_is_what_tests_and_comments_say() {
        let files = crate_of(&[
            ("one.rs", "use crate::two::X;\nuse crate::one::part::Y;\n"),
            ("one/part.rs", "use super::two::X;\nuse crate::one::Z;\n"),
            ("two.rs", "// crate::one\n\n#[cfg(test)]\nmod tests {\n    use crate::one::X;\n}"),
            ("two/tests.rs", "use crate::one::X;"),
        ]);
        assert_eq!(check_crate("a", &files, &[]), [""; 0]);
        assert_eq!(check_crate("a", &files, &["one"]).len(), 1, "it is listed and lies in none");
    }
}
