//! Where several kinds of values are named: in few files, which docs/keyspace.md lists. Code about one kind is in files
//! of its own, and names no other.

use std::collections::BTreeSet;

use crate::File;

const DOCS: &str = "docs/keyspace.md";
const SECTION: &str = "## How a kind is added";

/// So many places are touched for a new kind, besides its own files.
const MOST_PLACES: usize = 6;

/// The kinds that have elements.
const KINDS: [&str; 5] = ["List", "Set", "SortedSet", "Hash", "Stream"];

/// Complaints about files that name several kinds and are not in the list, about the list's that do not, and about too
/// long a list.
#[must_use]
pub fn check_kinds(files: &[File]) -> Vec<String> {
    let listed = listed(files);
    let code = files.iter().filter(|file| file.crate_name().is_some() && file.path.ends_with(".rs"));
    let shared: BTreeSet<&str> =
        code.filter(|file| names_several(file)).map(|file| file.path.as_str()).collect();
    let unlisted = shared.iter().filter(|path| !listed.contains(**path));
    let unlisted =
        unlisted.map(|path| format!("{path}: names several kinds of values, and {DOCS} does not list it"));
    let idle = listed.iter().filter(|path| !shared.contains(path.as_str()));
    let idle = idle.map(|path| format!("{DOCS}: lists {path}, which does not name several kinds of values"));
    let count = shared.len();
    let many = (count > MOST_PLACES)
        .then(|| format!("{count} files name several kinds of values; at most {MOST_PLACES}"));
    unlisted.chain(idle).chain(many).collect()
}

/// The paths in the list.
fn listed(files: &[File]) -> BTreeSet<String> {
    let docs = files.iter().find(|file| file.path == DOCS).map_or("", |file| file.text.as_str());
    let section = docs.lines().skip_while(|line| *line != SECTION).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    let quoted = section.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|word| word.starts_with("crates/") && !word.contains('<')).map(str::to_owned).collect()
}

fn names_several(file: &File) -> bool {
    let kinds: BTreeSet<&str> =
        file.shipped_lines().flat_map(|(_, line)| words(line)).filter_map(kind_of).collect();
    kinds.len() > 1
}

/// Paths and names in a line of code.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
}

/// The kind that a word stands for: one of an enum's variants, or a type that is the kind's own.
fn kind_of(word: &str) -> Option<&'static str> {
    let last = word.rsplit("::").next().unwrap_or_default();
    let owner = word.strip_suffix(last).unwrap_or_default().trim_end_matches(':').rsplit("::").next();
    let of_enum = ["Kind", "Value", "Large", "Elements", "Type"].map(Some).contains(&owner);
    // A sorted set is no set.
    let of_form = || KINDS.into_iter().filter(|kind| last.ends_with(kind)).max_by_key(|kind| kind.len());
    let is_own = |name: &str, kind: &str| {
        let own = [("", "Ref"), ("Of", ""), ("", "Codec")];
        own.iter().any(|(before, after)| {
            name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) == Some(kind)
        })
    };
    match owner {
        Some("Form") => of_form(),
        _ if of_enum => KINDS.into_iter().find(|kind| *kind == last),
        _ => KINDS.into_iter().find(|kind| word.split("::").any(|name| is_own(name, kind))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docs(list: &str) -> File {
        File::new(
            DOCS,
            &format!("# Keyspace\n`crates/engine/src/a.rs`\n{SECTION}\n{list}\n## Next\n`crates/x.rs`"),
        )
    }

    #[test]
    fn a_file_that_names_several_kinds_is_listed_and_a_listed_file_does() {
        let list = docs("- `crates/keyspace/src/value.rs`: and `crates/keyspace/src/<kind>.rs`");
        let value = File::new(
            "crates/keyspace/src/value.rs",
            "    Value::Hash(hash) => hash.len(),\n    Value::List(list) => list.len(),\n",
        );
        let own = File::new("crates/x/src/y.rs", "Kind::SortedSet\nForm::SkiplistSortedSet\nOfSortedSet\n");
        let other = File::new("crates/z/src/a.rs", "// Kind::Hash\nKind::Set\nlet hash = Value::HashMap;\n");
        assert_eq!(check_kinds(&[list.clone(), value.clone(), own, other]), [""; 0]);
        for line in
            ["Kind::SortedSet", "x as &SetRef<'_>", "Fields<OfHash>", "Form::TableHash", "ListCodec::read"]
        {
            // Whatever the file is called.
            let stranger = File::new("crates/engine/src/stream/hash.rs", &format!("Value::Stream\n{line}"));
            let complaints = check_kinds(&[list.clone(), value.clone(), stranger]);
            assert_eq!(complaints.len(), 1, "{line}: {complaints:?}");
        }
        assert_eq!(check_kinds(&[list]).len(), 1, "the listed file is not there");
    }

    #[test]
    fn there_are_few_such_files() {
        let file = |number: usize| format!("crates/a/src/{number}.rs");
        let files = (0..=MOST_PLACES).map(|number| File::new(&file(number), "(Kind::List, Kind::Set)"));
        let list =
            (0..=MOST_PLACES).map(|number| format!("- `{}`: all.\n", file(number))).collect::<String>();
        let complaints = check_kinds(&files.chain([docs(&list)]).collect::<Vec<_>>());
        assert_eq!(complaints, ["7 files name several kinds of values; at most 6"]);
    }
}
