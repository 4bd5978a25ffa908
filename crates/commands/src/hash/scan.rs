//! Implements HSCAN.

use engine::{CommandError, Context};
use keyspace::HashRef;

use super::fields::HashAccess;
use crate::scanning::{AcceptedOptions, scan_elements};

/// Handles `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`.
pub(super) fn hscan(context: &mut Context<'_>) -> Result<(), CommandError> {
    let now = context.field_expiry_cutoff();
    scan_elements::<HashRef<'_>>(context, AcceptedOptions::NOVALUES, |hash, cursor, options, page| {
        hash.scan(cursor, options.count, &mut |field| {
            if field.is_live_at(now) && options.matches(field.name) {
                page.push(field.name);
                if options.includes_values {
                    page.push(field.value);
                }
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn hscan_applies_options_and_reports_errors() {
        Client::new().check_replies(&[
            ("hset h a 1 b 2", ":2"),
            ("hscan h 0", "*2|$1|0|*4|$1|a|$1|1|$1|b|$1|2"),
            ("hscan h 0 match b*", "*2|$1|0|*2|$1|b|$1|2"),
            ("hscan h 0 novalues count 1", "*2|$1|0|*2|$1|a|$1|b"),
            ("hscan h x", "-ERR invalid cursor"),
            ("hscan nosuch x", "-ERR invalid cursor"),
            ("hscan nosuch 0", "*2|$1|0|*0"),
            ("hscan nosuch 0 bla", "*2|$1|0|*0"),
            ("hscan h 0 bla", "-ERR syntax error"),
            ("hscan h 0 count 0", "-ERR syntax error"),
            ("hscan h 0 type hash", "-ERR syntax error"),
            ("hscan h 0 count x", "-ERR value is not an integer or out of range"),
        ]);
    }
}
