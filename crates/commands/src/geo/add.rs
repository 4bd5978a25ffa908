//! Implements GEOADD.

use engine::{CommandError, Context};
use smallvec::SmallVec;

use super::query::parse_point;
use crate::sorted_set::add::{ZaddOptions, add_scored_members};

/// Handles `GEOADD key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]`.
pub(super) fn geoadd(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (mut options, mut first) = (ZaddOptions::empty(), 2);
    let allowed = ZaddOptions::NX | ZaddOptions::XX | ZaddOptions::CH;
    while let Some(option) = context
        .args
        .get(first)
        .and_then(ZaddOptions::parse_option_word)
        .filter(|option| allowed.contains(*option))
    {
        options |= option;
        first += 1;
    }
    let words = context.args.len() - first;
    if !words.is_multiple_of(3) || options.contains(ZaddOptions::NX | ZaddOptions::XX) {
        return Err(CommandError::Syntax);
    }
    let mut members = SmallVec::<[(usize, f64); 8]>::new();
    for index in (first..context.args.len()).step_by(3) {
        members.push((
            index + 2,
            parse_point(context.double_arg(index), context.double_arg(index + 1))?.score(),
        ));
    }
    add_scored_members(context, options, members.into_iter())
}
