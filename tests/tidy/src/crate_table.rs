//! Reads the table of crates in docs/ARCHITECTURE.md, which says for each crate its layer and whether it is pure.

use crate::SourceFile;

pub(crate) const ARCHITECTURE_PATH: &str = "docs/ARCHITECTURE.md";

/// Whether a crate gets time and input from its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purity {
    /// The crate may use sockets, threads, clocks and OS randomness.
    Impure,
    /// The crate is pure, except that it waits for locks for a limited time.
    PureWithTimedWaits,
    /// The crate uses none of them.
    Pure,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CrateRow<'a> {
    pub(crate) name: &'a str,
    pub(crate) layer: u8,
    pub(crate) purity: Purity,
}

/// Returns the rows of the table; none if the page is missing.
pub(crate) fn crate_rows(files: &[SourceFile]) -> Vec<CrateRow<'_>> {
    let page = files.iter().find(|file| file.path == ARCHITECTURE_PATH).map_or("", |file| &file.text);
    let rows = page.lines().filter_map(parse_row);
    rows.flatten().collect()
}

/// Parses `| layer | crate, crate | purpose | purity |`; other lines are no rows.
fn parse_row(line: &str) -> Option<Vec<CrateRow<'_>>> {
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let [layer, names, _, purity] = cells[..] else { return None };
    let layer = layer.parse().ok()?;
    let purity = match purity {
        "yes" => Purity::Pure,
        "with timed waits" => Purity::PureWithTimedWaits,
        _ => Purity::Impure,
    };
    let names = names.split(", ").map(|name| name.trim_matches('`'));
    Some(names.map(|name| CrateRow { name, layer, purity }).collect())
}

#[cfg(test)]
pub(crate) fn test_page(rows: &str) -> SourceFile {
    let head = "# Architecture\n| floor | crate | purpose | pure |\n| ---: | --- | --- | --- |\n";
    SourceFile::new(ARCHITECTURE_PATH, &format!("{head}{rows}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_table_are_parsed() {
        let page = test_page(
            "| 8 | `redoubt`, `sim` | programs | |\n| 1 | `keyspace` | slots | with timed waits |\n\
             | 0 | `resp` | RESP | yes |\n| library | reason |",
        );
        let row = |name, layer, purity| CrateRow { name, layer, purity };
        assert_eq!(
            crate_rows(&[page]),
            [
                row("redoubt", 8, Purity::Impure),
                row("sim", 8, Purity::Impure),
                row("keyspace", 1, Purity::PureWithTimedWaits),
                row("resp", 0, Purity::Pure),
            ]
        );
        assert_eq!(crate_rows(&[]), []);
    }
}
