//! PFDEBUG, PFSELFTEST.

use std::fmt::Write;

use engine::{CommandError, Context, quoted};
use keyspace::Str;

use super::{sketch, store};
use crate::sketch::{Registers, Sketch};

/// PFDEBUG (GETREG | DECODE | ENCODING | TODENSE) key
pub(super) fn pfdebug(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (word, key) = (context.arg(1), context.key(2)?);
    let found = context.find_typed::<Str<'_>>(&key)?;
    let place = found.ok_or(CommandError::text("ERR The specified key does not exist"))?;
    let seen = sketch(context, &key, place)?;
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if is("encoding") {
        let name = if seen.is_dense() { "dense" } else { "sparse" };
        context.reply.simple(name);
    } else if is("decode") {
        if seen.is_dense() {
            return Err(CommandError::text("ERR HLL encoding is not sparse"));
        }
        let shown = decoded(seen);
        context.reply.bulk(shown.as_bytes());
    } else if is("todense") || is("getreg") {
        let changes = !seen.is_dense();
        let mut registers = Registers::default();
        registers.merge(seen)?;
        if changes {
            let mut bytes = context.string(&key, place)?.bytes.to_vec();
            sketch::make_dense(&mut bytes)?;
            store(context, &key, Some(place), &bytes);
        }
        if is("todense") {
            context.reply.integer(i64::from(changes));
        } else {
            context.reply.array(sketch::REGISTERS);
            registers.values().iter().for_each(|value| context.reply.integer(i64::from(*value)));
        }
    } else {
        let text = format!("ERR Unknown PFDEBUG subcommand '{}'", quoted(word, word.len()));
        return Err(CommandError::Text(text.into()));
    }
    Ok(())
}

/// The runs of a sparse sketch: `z:` and `Z:` zeros, said in one byte and in two, `v:` a value and how often.
fn decoded(sketch: Sketch<'_>) -> String {
    let mut shown = String::new();
    for run in sketch.runs() {
        let gap = if shown.is_empty() { "" } else { " " };
        let _ = match (run.value, run.bytes) {
            (0, 1) => write!(shown, "{gap}z:{}", run.len),
            (0, _) => write!(shown, "{gap}Z:{}", run.len),
            (value, _) => write!(shown, "{gap}v:{value},{}", run.len),
        };
    }
    shown
}

pub(super) fn pfselftest(context: &mut Context<'_>) -> Result<(), CommandError> {
    match sketch::self_test() {
        Ok(()) => {
            context.reply.ok();
            Ok(())
        }
        Err(text) => Err(CommandError::Text(format!("TESTFAILED {text}").into())),
    }
}
