//! Where a kind of value is named: in the files that are its own and in few others, which docs/keyspace.md lists.

use std::collections::BTreeSet;

use crate::File;

const DOCS: &str = "docs/keyspace.md";
const SECTION: &str = "## How a kind is added";

/// The crates that store, write and serve values.
const CRATES: [&str; 5] = ["keyspace", "persistence", "engine", "commands", "node"];

/// The kinds that have elements, and what their own files and folders are called.
const KINDS: [(&str, &str); 5] =
    [("List", "list"), ("Set", "set"), ("SortedSet", "sorted_set"), ("Hash", "hash"), ("Stream", "stream")];

/// Complaints about files that name a kind and are not in the list, and about the list's that name none.
#[must_use]
pub fn check_kinds(files: &[File]) -> Vec<String> {
    let listed = listed(files);
    let shared = files.iter().filter(|file| is_shared(file));
    let naming: BTreeSet<&str> =
        shared.filter(|file| names_a_kind(file)).map(|file| file.path.as_str()).collect();
    let unlisted = naming.iter().filter(|path| !listed.contains(**path));
    let unlisted = unlisted.map(|path| format!("{path}: names a kind of value, and {DOCS} does not list it"));
    let idle = listed.iter().filter(|path| !naming.contains(path.as_str()));
    let idle = idle.map(|path| format!("{DOCS}: lists {path}, which names no kind of value"));
    unlisted.chain(idle).collect()
}

/// The paths in the list.
fn listed(files: &[File]) -> BTreeSet<String> {
    let docs = files.iter().find(|file| file.path == DOCS).map_or("", |file| file.text.as_str());
    let section = docs.lines().skip_while(|line| *line != SECTION).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    let quoted = section.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|word| word.starts_with("crates/") && !word.contains('<')).map(str::to_owned).collect()
}

/// Whether the file belongs to no kind.
fn is_shared(file: &File) -> bool {
    let parts = file.path.split('/').map(|part| part.trim_end_matches(".rs"));
    let own = |part: &str| KINDS.iter().any(|(_, module)| *module == part);
    file.path.ends_with(".rs")
        && file.crate_name().is_some_and(|name| CRATES.contains(&name))
        && !parts.into_iter().any(own)
}

fn names_a_kind(file: &File) -> bool {
    let name = |word: &str| KINDS.iter().any(|(kind, _)| is_name(word, kind));
    file.shipped_lines().any(|(_, line)| words(line).any(name))
}

/// Paths and names in a line of code.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
}

/// Whether a word stands for a kind: one of the enums' variants, or a type that is the kind's own.
fn is_name(word: &str, kind: &str) -> bool {
    let last = word.rsplit("::").next().unwrap_or_default();
    let owner = word.strip_suffix(last).unwrap_or_default().trim_end_matches(':').rsplit("::").next();
    let of_enum = ["Kind", "Value", "Large", "Elements"].map(Some).contains(&owner) && last == kind;
    let of_form = owner == Some("Form") && last.ends_with(kind);
    let is_own = |name: &str| {
        let own = [("", "Ref"), ("Of", ""), ("", "Codec")];
        own.iter().any(|(before, after)| {
            name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) == Some(kind)
        })
    };
    of_enum || of_form || word.split("::").any(is_own)
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
    fn a_file_that_names_a_kind_is_listed_and_a_listed_file_names_one() {
        let list = docs("- `crates/keyspace/src/value.rs`: and `crates/keyspace/src/<kind>.rs`");
        let value = File::new("crates/keyspace/src/value.rs", "    Value::Hash(hash) => hash.len(),\n");
        let own = File::new("crates/commands/src/hash/get.rs", "Kind::Hash\n");
        let other = File::new("crates/engine/src/engine.rs", "// Kind::Hash\nlet hash = Value::HashMap;\n");
        assert_eq!(check_kinds(&[list.clone(), value.clone(), own, other]), [""; 0]);
        for line in
            ["Kind::SortedSet", "x as &SetRef<'_>", "Fields<OfHash>", "Form::TableHash", "ListCodec::read"]
        {
            let stranger = File::new("crates/engine/src/expiry.rs", line);
            let complaints = check_kinds(&[list.clone(), value.clone(), stranger]);
            assert_eq!(complaints.len(), 1, "{line}: {complaints:?}");
        }
        assert_eq!(check_kinds(&[list]).len(), 1, "the listed file is not there");
    }
}
