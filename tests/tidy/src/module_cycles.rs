//! Checks that the top-level modules of a crate have no cyclic dependencies. A module includes its
//! submodules.

use std::collections::{BTreeMap, BTreeSet};

use crate::SourceFile;

/// Crates with modules that are still part of a cycle. Modules may be removed from a list but not added.
const CYCLE_EXCEPTIONS: &[(&str, &[&str])] = &[
    ("config", &["key", "kind", "parameters", "rewrite"]),
    (
        "keyspace",
        &[
            "captured",
            "entries",
            "fields",
            "global_lock",
            "hash",
            "index",
            "keyspace",
            "kind",
            "large",
            "list",
            "locked_slots",
            "order",
            "overflow",
            "packed",
            "pages",
            "prefetched",
            "purge",
            "set",
            "slot",
            "snapshot",
            "sorted_set",
            "stream",
            "table",
            "tree",
            "value",
        ],
    ),
    ("scripting", &["bridge", "cache", "functions", "interpreter"]),
    ("sentinel", &["link", "machine", "master", "script", "shared", "writes"]),
    // A part of the simulator implements methods of the whole simulation, which owns the part.
    ("sim", &["data", "simulation"]),
];

/// For each module of a crate, the modules that it uses.
type UsesByModule<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Reports modules in a cycle that are not listed, and listed modules that are in no cycle.
#[must_use]
pub fn check_module_cycles(files: &[SourceFile]) -> Vec<String> {
    let names: BTreeSet<&str> = files.iter().filter_map(SourceFile::crate_name).collect();
    let exceptions_of = |name| CYCLE_EXCEPTIONS.iter().find(|(known, _)| *known == name);
    names
        .into_iter()
        .flat_map(|name| check_crate(name, files, exceptions_of(name).map_or(&[], |(_, modules)| *modules)))
        .collect()
}

fn check_crate(name: &str, files: &[SourceFile], exceptions: &[&str]) -> Vec<String> {
    let uses = collect_uses(name, files);
    let cyclic: BTreeSet<&str> =
        uses.keys().copied().filter(|module| reachable_modules(&uses, module).contains(module)).collect();
    let joined = cyclic.iter().filter(|module| !exceptions.contains(module));
    let joined = joined.map(|module| format!("crates/{name}: {module} is part of a dependency cycle"));
    let open = exceptions.iter().filter(|module| !cyclic.contains(*module));
    let open = open.map(|module| format!("crates/{name}: {module} is in no cycle; remove it from the list"));
    joined.chain(open).collect()
}

/// Returns all modules that `module` uses, directly or indirectly.
fn reachable_modules<'a>(uses: &UsesByModule<'a>, module: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        for used in uses.get(module).into_iter().flatten() {
            if reached.insert(*used) {
                next.push(used);
            }
        }
    }
    reached
}

fn collect_uses<'a>(name: &str, files: &'a [SourceFile]) -> UsesByModule<'a> {
    let own = files.iter().filter(|file| file.crate_name() == Some(name) && file.path.ends_with(".rs"));
    let modules: Vec<(&str, &SourceFile)> =
        own.filter_map(|file| Some((top_level_module(file)?, file))).collect();
    let names: BTreeSet<&str> = modules.iter().map(|(module, _)| *module).collect();
    let mut uses = UsesByModule::new();
    for (module, file) in modules {
        let is_top = !file.path_in_crate().trim_start_matches("src/").contains('/');
        let code = file.shipped_lines().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
        let mut named = names_after_path("crate::", &code);
        if is_top {
            named.extend(names_after_path("super::", &code));
        }
        let named = named.into_iter().filter_map(|used| names.get(used.as_str()).copied());
        uses.entry(module).or_default().extend(named.filter(|used| *used != module));
    }
    uses
}

/// Returns the top-level module of a file; `None` for the crate root.
fn top_level_module(file: &SourceFile) -> Option<&str> {
    let path = file.path_in_crate().strip_prefix("src/")?;
    let module = path.split('/').next()?.trim_end_matches(".rs");
    let is_root = ["lib", "main", "bin", "testing"].contains(&module);
    (!is_root && !file.is_test()).then_some(module)
}

/// Returns the names that follow `path` in `code`, single or in braces.
fn names_after_path(path: &str, code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(path) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == ':' || c == '$' || c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(first_segments(group)),
            None => names.push(leading_identifier(rest)),
        }
    }
    names
}

/// Returns the first path segments inside a brace group, given without its opening brace.
fn first_segments(group: &str) -> Vec<String> {
    let (mut names, mut depth, mut begins) = (Vec::new(), 0_usize, true);
    for (at, c) in group.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && !c.is_whitespace() => {
                names.push(leading_identifier(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn leading_identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine_files(files: &[(&str, &str)]) -> Vec<SourceFile> {
        files.iter().map(|(path, text)| SourceFile::new(&format!("crates/a/src/{path}"), text)).collect()
    }

    #[test]
    fn finds_cycles_in_every_path_form() {
        for back in [
            "use crate::one::X;",
            "use crate::{\n    three::Y,\n    one::{X, Z},\n};",
            "fn f(x: crate::one::X) {}",
        ] {
            let files = engine_files(&[
                ("lib.rs", "mod one;\nmod two;\nmod three;\nuse crate::one::X;"),
                ("one.rs", "use super::two::part::X;"),
                ("two/part.rs", "use crate::three::Y;"),
                ("three.rs", back),
            ]);
            let violations = check_crate("a", &files, &[]);
            assert_eq!(violations.len(), 3, "{back}: {violations:?}");
            assert_eq!(check_crate("a", &files, &["one", "two", "three"]), [""; 0]);
        }
    }

    #[test]
    fn ignores_acyclic_uses_tests_and_comments() {
        let files = engine_files(&[
            ("one.rs", "use crate::two::X;\nuse crate::one::part::Y;\n"),
            ("one/part.rs", "use super::two::X;\nuse crate::one::Z;\n"),
            ("two.rs", "// crate::one\n\n#[cfg(test)]\nmod tests {\n    use crate::one::X;\n}"),
            ("two/tests.rs", "use crate::one::X;"),
        ]);
        assert_eq!(check_crate("a", &files, &[]), [""; 0]);
        assert_eq!(check_crate("a", &files, &["one"]).len(), 1, "it is listed and lies in none");
    }
}
