//! `math.random` and `math.randomseed` as in Redis.

use std::rc::Rc;

use mlua::{Lua, Table};

use super::{LibraryResult, argument_error, create_function};
use crate::number::to_integer;
use crate::random::Random;

pub(super) fn create_library(lua: &Lua, random: &Rc<Random>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let state = random.clone();
    table.set(
        "random",
        create_function(lua, move |_, args| -> LibraryResult<f64> {
            let chance = state.next_f64();
            // Redis converts the arguments to a C int, so values that do not fit are truncated to the low 32 bits.
            let integer = |index| args.number(index, "random").map(|number| to_integer(number) as i32);
            let empty = |index| argument_error(index, "random", "interval is empty");
            match args.len() {
                0 => Ok(chance),
                1 => {
                    let upper = integer(1)?;
                    if upper < 1 {
                        return Err(empty(1));
                    }
                    Ok((chance * f64::from(upper)).floor() + 1.0)
                }
                2 => {
                    let (lower, upper) = (integer(1)?, integer(2)?);
                    if lower > upper {
                        return Err(empty(2));
                    }
                    let count = upper.wrapping_sub(lower).wrapping_add(1);
                    Ok((chance * f64::from(count)).floor() + f64::from(lower))
                }
                _ => Err("wrong number of arguments".into()),
            }
        })?,
    )?;
    let state = random.clone();
    table.set(
        "randomseed",
        create_function(lua, move |_, args| -> LibraryResult<()> {
            state.set_seed(to_integer(args.number(1, "randomseed")?) as i32);
            Ok(())
        })?,
    )?;
    Ok(table)
}
