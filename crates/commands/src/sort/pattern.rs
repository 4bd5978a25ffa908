//! BY and GET patterns: `weight_*` is a string, `object_*->field` a field of a hash, `#` the element itself.

use engine::{CommandError, Context};
use slot_routing::Slot;

use crate::hash::fields::HashAccess;
use crate::kinds::{ElementBytes, as_any_value};

/// The value that the pattern names for this element, or `None` if it does not exist.
pub(super) fn pattern_value(
    context: &mut Context<'_>,
    pattern: &[u8],
    element: &[u8],
) -> Result<Option<ElementBytes>, CommandError> {
    if pattern == b"#" {
        return Ok(Some(element.into()));
    }
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else { return Ok(None) };
    let behind = &pattern[star + 1..];
    let arrow = behind.windows(2).position(|two| two == b"->").filter(|at| at + 2 < behind.len());
    let (postfix, field) = match arrow {
        Some(at) => (&behind[..at], Some(&behind[at + 2..])),
        None => (behind, None),
    };
    let name = [&pattern[..star], element, postfix].concat();
    context.lock_undeclared_slot(Slot::of_key(&name))?;
    let key = context.engine.keyspace.key(&name);
    let Some(place) = context.find_for_read(&key) else { return Ok(None) };
    let now = context.field_expiry_cutoff();
    Ok(as_any_value(&context.table_ref(&key).value(place)).string_for_sort(field, now))
}
