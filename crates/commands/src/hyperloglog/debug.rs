//! Implements PFDEBUG and PFSELFTEST.

use std::fmt::Write;

use engine::{CommandError, Context, quote};
use keyspace::StringRef;

use super::{sketch, sketch_at, store_sketch};
use crate::sketch::{Registers, Sketch};

/// Handles `PFDEBUG GETREG | DECODE | ENCODING | TODENSE key` and `PFDEBUG SIMD ON | OFF`.
pub(super) fn pfdebug(context: &mut Context<'_>) -> Result<(), CommandError> {
    let word = context.arg(1);
    if word.eq_ignore_ascii_case(b"simd") {
        return pfdebug_simd(context);
    }
    let key = context.key(2)?;
    let found = context.find_typed::<StringRef<'_>>(&key)?;
    let place = found.ok_or(CommandError::text("ERR The specified key does not exist"))?;
    let seen = sketch_at(context, &key, place)?;
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if is("encoding") {
        let name = if seen.is_dense() { "dense" } else { "sparse" };
        context.reply.simple(name);
    } else if is("decode") {
        if seen.is_dense() {
            return Err(CommandError::text("ERR HLL encoding is not sparse"));
        }
        let shown = format_opcodes(seen);
        context.reply.bulk(shown.as_bytes());
    } else if is("todense") || is("getreg") {
        let changes = !seen.is_dense();
        let mut registers = Registers::default();
        registers.merge(seen)?;
        if changes {
            let mut bytes = context.string_value(&key, place)?.bytes.to_vec();
            sketch::make_dense(&mut bytes)?;
            store_sketch(context, &key, Some(place), &bytes);
        }
        if is("todense") {
            context.reply.integer(i64::from(changes));
        } else {
            context.reply.array(sketch::REGISTER_COUNT);
            registers.register_values().iter().for_each(|value| context.reply.integer(i64::from(*value)));
        }
    } else {
        let text = format!("ERR Unknown PFDEBUG subcommand '{}'", quote(word, word.len()));
        return Err(CommandError::Text(text.into()));
    }
    Ok(())
}

/// Handles `PFDEBUG SIMD ON | OFF`, which has no effect, since there is only one implementation of the merge.
fn pfdebug_simd(context: &mut Context<'_>) -> Result<(), CommandError> {
    let word = context.arg(2);
    let reply = match () {
        () if word.eq_ignore_ascii_case(b"on") => "enabled",
        () if word.eq_ignore_ascii_case(b"off") => "disabled",
        () => return Err(CommandError::text("ERR Argument must be ON or OFF")),
    };
    context.reply.simple(reply);
    Ok(())
}

/// Formats the opcodes of a sparse sketch: `z:` and `Z:` are zero runs of one and two bytes, `v:` is a value with its
/// run length.
fn format_opcodes(sketch: Sketch<'_>) -> String {
    let mut shown = String::new();
    for run in sketch.runs() {
        let gap = if shown.is_empty() { "" } else { " " };
        let _ = match (run.value, run.encoded_len) {
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
