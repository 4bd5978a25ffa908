//! Checks that only the files listed in docs/keyspace.md name several value types. All other files
//! deal with at most one type.

use std::collections::BTreeSet;

use crate::SourceFile;

const KEYSPACE_DOC_PATH: &str = "docs/keyspace.md";
const LIST_HEADING: &str = "## How a kind is added";

/// The maximum number of shared files that a new value type may need to change.
const MAX_SHARED_FILES: usize = 6;

/// The names of value types that consist of elements.
const TYPE_NAMES: [&str; 5] = ["List", "Set", "SortedSet", "Hash", "Stream"];

/// Reports unlisted files that name several value types, listed files that name at most one, and a list that is too
/// long.
#[must_use]
pub fn check_value_type_files(files: &[SourceFile]) -> Vec<String> {
    let listed = listed_paths(files);
    let code = files.iter().filter(|file| file.crate_name().is_some() && file.path.ends_with(".rs"));
    let shared: BTreeSet<&str> =
        code.filter(|file| names_several_value_types(file)).map(|file| file.path.as_str()).collect();
    let unlisted = shared.iter().filter(|path| !listed.contains(**path));
    let unlisted = unlisted
        .map(|path| format!("{path}: names several value types, but {KEYSPACE_DOC_PATH} does not list it"));
    let idle = listed.iter().filter(|path| !shared.contains(path.as_str()));
    let idle =
        idle.map(|path| format!("{KEYSPACE_DOC_PATH}: lists {path}, which names at most one value type"));
    let count = shared.len();
    let many = (count > MAX_SHARED_FILES)
        .then(|| format!("{count} files name several value types; at most {MAX_SHARED_FILES}"));
    unlisted.chain(idle).chain(many).collect()
}

fn listed_paths(files: &[SourceFile]) -> BTreeSet<String> {
    let docs = files.iter().find(|file| file.path == KEYSPACE_DOC_PATH).map_or("", |file| file.text.as_str());
    let section = docs.lines().skip_while(|line| *line != LIST_HEADING).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    let quoted = section.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|word| word.starts_with("crates/") && !word.contains('<')).map(str::to_owned).collect()
}

fn names_several_value_types(file: &SourceFile) -> bool {
    let kinds: BTreeSet<&str> = file
        .shipped_lines()
        .flat_map(|(_, line)| paths_and_names(line))
        .filter_map(value_type_name)
        .collect();
    kinds.len() > 1
}

/// Returns the paths and names in a line of code.
fn paths_and_names(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
}

/// Returns the value type that a word refers to: an enum variant or a type's own struct.
fn value_type_name(word: &str) -> Option<&'static str> {
    let last = word.rsplit("::").next().unwrap_or_default();
    let owner = word.strip_suffix(last).unwrap_or_default().trim_end_matches(':').rsplit("::").next();
    let of_enum = ["Kind", "Value", "Large", "Elements", "Type"].map(Some).contains(&owner);
    // `SortedSet` also ends with `Set`; the longest match decides.
    let of_form = || TYPE_NAMES.into_iter().filter(|kind| last.ends_with(kind)).max_by_key(|kind| kind.len());
    let is_own = |name: &str, kind: &str| {
        let own = [("", "Ref"), ("Of", ""), ("", "Codec")];
        own.iter().any(|(before, after)| {
            name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) == Some(kind)
        })
    };
    match owner {
        Some("Form") => of_form(),
        _ if of_enum => TYPE_NAMES.into_iter().find(|kind| *kind == last),
        _ => TYPE_NAMES.into_iter().find(|kind| word.split("::").any(|name| is_own(name, kind))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyspace_doc(list: &str) -> SourceFile {
        SourceFile::new(
            KEYSPACE_DOC_PATH,
            &format!("# Keyspace\n`crates/engine/src/a.rs`\n{LIST_HEADING}\n{list}\n## Next\n`crates/x.rs`"),
        )
    }

    #[test]
    fn reports_unlisted_and_wrongly_listed_files() {
        let list = keyspace_doc("- `crates/keyspace/src/value.rs`: and `crates/keyspace/src/<kind>.rs`");
        let value = SourceFile::new(
            "crates/keyspace/src/value.rs",
            "    Value::Hash(hash) => hash.len(),\n    Value::List(list) => list.len(),\n",
        );
        let own =
            SourceFile::new("crates/x/src/y.rs", "Kind::SortedSet\nForm::SkiplistSortedSet\nOfSortedSet\n");
        let other =
            SourceFile::new("crates/z/src/a.rs", "// Kind::Hash\nKind::Set\nlet hash = Value::HashMap;\n");
        assert_eq!(check_value_type_files(&[list.clone(), value.clone(), own, other]), [""; 0]);
        for line in
            ["Kind::SortedSet", "x as &SetRef<'_>", "Fields<OfHash>", "Form::TableHash", "ListCodec::read"]
        {
            // The name of the file itself does not affect the result.
            let stranger =
                SourceFile::new("crates/engine/src/stream/hash.rs", &format!("Value::Stream\n{line}"));
            let violations = check_value_type_files(&[list.clone(), value.clone(), stranger]);
            assert_eq!(violations.len(), 1, "{line}: {violations:?}");
        }
        assert_eq!(check_value_type_files(&[list]).len(), 1, "the listed file is not there");
    }

    #[test]
    fn reports_too_long_list() {
        let file = |number: usize| format!("crates/a/src/{number}.rs");
        let files =
            (0..=MAX_SHARED_FILES).map(|number| SourceFile::new(&file(number), "(Kind::List, Kind::Set)"));
        let list =
            (0..=MAX_SHARED_FILES).map(|number| format!("- `{}`: all.\n", file(number))).collect::<String>();
        let violations = check_value_type_files(&files.chain([keyspace_doc(&list)]).collect::<Vec<_>>());
        assert_eq!(violations, ["7 files name several value types; at most 6"]);
    }
}
