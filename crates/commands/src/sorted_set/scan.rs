//! Implements ZSCAN.

use engine::{CommandError, Context};
use keyspace::SortedSetRef;
use resp::Double;

use crate::scanning::{AcceptedOptions, scan_elements};

/// Handles `ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]`.
pub(super) fn zscan(context: &mut Context<'_>) -> Result<(), CommandError> {
    scan_elements::<SortedSetRef<'_>>(context, AcceptedOptions::NOSCORES, |set, cursor, options, page| {
        set.scan(cursor, options.count, &mut |member| {
            if options.matches(member.name) {
                page.push(member.name);
                if options.includes_values {
                    page.push(Double(member.score).to_string().as_bytes());
                }
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn zscan_applies_options_and_reports_errors() {
        Client::new().check_replies(&[
            ("zadd z 1 a 2.5 b", ":2"),
            ("zscan z 0", "*2|$1|0|*4|$1|a|$1|1|$1|b|$3|2.5"),
            ("zscan z 0 match b* noscores", "*2|$1|0|*1|$1|b"),
            ("zscan z x", "-ERR invalid cursor"),
            ("zscan nosuch 0", "*2|$1|0|*0"),
            ("zscan z 0 bla", "-ERR syntax error"),
            ("zscan z 0 count 0", "-ERR syntax error"),
        ]);
    }
}
