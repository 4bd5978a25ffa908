//! Going through a table, one entry at a time: a reference to each would take a slot of its own on a stack that has
//! eight thousand.

use mlua::{FromLua, Table, Value};

use super::Returned;

/// Tables within each other that are walked in one call of Lua's each; those within them cost a call for each element.
/// Lua bears two hundred calls within each other, of which the script has its own.
const WALKED_AT_ONCE: usize = 8;

/// Visits each entry of a table until `visit` returns false; returns whether it never did. `depth`: how many tables
/// within each other are being visited.
pub(crate) fn walk<V: FromLua>(
    table: &Table,
    depth: usize,
    mut visit: impl FnMut(Value, V) -> Returned<bool>,
) -> Returned<bool> {
    if depth > WALKED_AT_ONCE {
        for pair in table.pairs() {
            let (key, value) = pair?;
            if !visit(key, value)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let mut outcome = Ok(true);
    // An error of its own ends the walk.
    let enough = || mlua::Error::runtime("enough");
    let walked = table.for_each(|key, value| {
        outcome = visit(key, value);
        if matches!(outcome, Ok(true)) { Ok(()) } else { Err(enough()) }
    });
    match outcome {
        Ok(true) => Ok(walked.map(|()| true)?),
        other => other,
    }
}
