//! Iterates over a table one entry at a time, since mlua references occupy slots of a stack with only eight thousand
//! slots.

use mlua::{FromLua, Table, Value};

use super::LibraryResult;

/// Nesting depth up to which a table is iterated within a single Lua call. Deeper tables use one call per element,
/// because Lua allows only two hundred nested C calls, some of which the script uses itself.
const MAX_SINGLE_CALL_DEPTH: usize = 8;

/// Visits each entry until `visit` returns false. Returns whether all entries were visited. `depth` is the number of
/// enclosing tables being visited.
pub(crate) fn visit_entries<V: FromLua>(
    table: &Table,
    depth: usize,
    mut visit: impl FnMut(Value, V) -> LibraryResult<bool>,
) -> LibraryResult<bool> {
    if depth > MAX_SINGLE_CALL_DEPTH {
        for pair in table.pairs() {
            let (key, value) = pair?;
            if !visit(key, value)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let mut outcome = Ok(true);
    // This error only ends the iteration early and does not reach the script.
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
