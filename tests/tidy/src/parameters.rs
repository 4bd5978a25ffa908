//! Checks that a parameter is one thing: no function takes several values as a tuple. A tuple keeps the number of
//! parameters under the limit without saying what its values have in common; a struct with a name says it.

use crate::SourceFile;

/// Reports parameters that are tuples in functions of the crates. A function with a single parameter may take a tuple,
/// because it is passed to iterators of tuples. Closures and tests are exempt.
#[must_use]
pub fn check_tuple_parameters(files: &[SourceFile]) -> Vec<String> {
    let sources = files.iter().filter(|file| {
        file.crate_name().is_some() && file.path.ends_with(".rs") && file.path_in_crate().starts_with("src/")
    });
    sources.flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<String> {
    let (mut code, mut line_ends) = (String::new(), Vec::new());
    for (number, line) in file.shipped_lines() {
        code.push_str(line);
        code.push('\n');
        line_ends.push((code.len(), number));
    }
    let mut violations = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].ends_with(is_identifier) {
            continue;
        }
        let Some((name, parameters)) = parse_signature(&code[at + 3..]) else { continue };
        if parameters.len() > 1
            && let Some(tuple) = parameters.iter().find(|parameter| is_tuple(parameter))
        {
            let line = line_ends.partition_point(|(end, _)| *end <= at);
            let number = line_ends.get(line).map_or(0, |(_, number)| *number);
            let tuple = tuple.split_whitespace().collect::<Vec<_>>().join(" ");
            violations.push(format!("{}:{number}: {name} has a tuple parameter: {tuple}", file.path));
        }
    }
    violations
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the name and the parameters of the function whose text follows `fn`; `None` if it is not a function.
fn parse_signature(text: &str) -> Option<(&str, Vec<&str>)> {
    let name_end = text.find(|c| !is_identifier(c))?;
    let (name, rest) = text.split_at(name_end);
    let generics_end = if rest.starts_with('<') { end_of_group(rest)? } else { 0 };
    let rest = &rest[generics_end..];
    let parameters = rest.strip_prefix('(')?.get(..end_of_group(rest)?.checked_sub(2)?)?;
    (!name.is_empty()).then(|| (name, split_at_commas(parameters)))
}

/// Returns the position after the bracket that closes the one at the start of `text`.
fn end_of_group(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        depth = next_depth(depth, text, at, c);
        if depth == 0 {
            return Some(at + c.len_utf8());
        }
    }
    None
}

/// Returns how many brackets are open after the character at a position. The `>` of an arrow closes none.
fn next_depth(depth: usize, text: &str, at: usize, c: char) -> usize {
    match c {
        '(' | '[' | '{' | '<' => depth + 1,
        '>' if text[..at].ends_with(['-', '=']) => depth,
        ')' | ']' | '}' | '>' => depth.saturating_sub(1),
        _ => depth,
    }
}

fn split_at_commas(list: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        depth = next_depth(depth, list, at, c);
        if c == ',' && depth == 0 {
            parts.push(list[begin..at].trim());
            begin = at + 1;
        }
    }
    parts.push(list[begin..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns whether the pattern or the type of a parameter is a tuple or a reference to one.
fn is_tuple(parameter: &str) -> bool {
    let kind = parameter.split_once(':').map_or("", |(_, kind)| kind);
    [parameter, kind].into_iter().map(without_reference).any(|text| {
        let inner = text.strip_prefix('(').zip(end_of_group(text));
        inner.is_some_and(|(inner, end)| split_at_commas(&inner[..end - 2]).len() > 1)
    })
}

fn without_reference(text: &str) -> &str {
    let mut text = text.trim_start();
    while let Some(rest) = text.strip_prefix('&') {
        text = rest.trim_start();
        if text.starts_with('\'') {
            text = text.split_once(' ').map_or("", |(_, rest)| rest.trim_start());
        }
        text = text.strip_prefix("mut ").unwrap_or(text).trim_start();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(text: &str) -> usize {
        check_tuple_parameters(&[SourceFile::new("crates/a/src/b.rs", text)]).len()
    }

    #[test]
    fn reports_tuple_patterns_and_tuple_types() {
        for text in [
            "fn f(&self, (a, b): (u8, u8)) {}",
            "pub(crate) async fn f<T: Fn(u8) -> u8>(\n    x: T,\n    (a, b): (Vec<u8>, &str),\n) {}",
            "fn f(x: u8, pair: (u8, u8)) {}",
            "fn f(x: u8, pair: &'a mut (u8, u8)) {}",
            "const fn f<'a>((a, mut b): (u8, u8), x: impl Iterator<Item = (u8, u8)>) {}",
        ] {
            assert_eq!(violations(text), 1, "{text}");
        }
        let file = SourceFile::new("crates/a/src/b.rs", "// x\n\nfn f(x: u8,\n  (a, b): (u8, u8)) {}");
        assert_eq!(
            check_tuple_parameters(&[file]),
            ["crates/a/src/b.rs:3: f has a tuple parameter: (a, b): (u8, u8)"]
        );
    }

    #[test]
    fn accepts_other_parameters() {
        for text in [
            "fn f((a, b): &(u8, u8)) {}",
            "fn f(x: u8, y: Vec<(u8, u8)>, z: &[(u8, u8)], unit: ()) {}",
            "fn f(x: u8, y: impl Fn((u8, u8)) -> u8, z: &(dyn Any + Send)) -> (u8, u8) {}",
            "fn f(x: u8, Point { x, y }: Point) { let g = |a, (b, c): (u8, u8)| a; }",
            "type Handler = fn(u8, (u8, u8));",
            "#[cfg(test)]\nmod tests {\n    fn f(x: u8, (a, b): (u8, u8)) {}\n}",
        ] {
            assert_eq!(violations(text), 0, "{text}");
        }
        let file = SourceFile::new("tests/a/src/b.rs", "fn f(x: u8, (a, b): (u8, u8)) {}");
        assert_eq!(check_tuple_parameters(&[file]), [""; 0]);
    }
}
