//! Implements SSCAN.

use engine::{CommandError, Context};
use keyspace::SetRef;

use crate::scanning::{AcceptedOptions, scan_elements};

/// Handles `SSCAN key cursor [MATCH pattern] [COUNT count]`.
pub(super) fn sscan(context: &mut Context<'_>) -> Result<(), CommandError> {
    scan_elements::<SetRef<'_>>(context, AcceptedOptions::empty(), |set, cursor, options, page| {
        set.scan(cursor, options.count, &mut |member| {
            if options.matches(&member) {
                page.push(&member);
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn sscan_applies_options_and_reports_errors() {
        Client::new().check_replies(&[
            ("sadd s a b", ":2"),
            ("sscan s 0", "*2|$1|0|*2|$1|a|$1|b"),
            ("sscan s 0 match b*", "*2|$1|0|*1|$1|b"),
            ("sscan s 0 count 1", "*2|$1|0|*2|$1|a|$1|b"),
            ("sscan s x", "-ERR invalid cursor"),
            ("sscan nosuch x", "-ERR invalid cursor"),
            ("sscan nosuch 0", "*2|$1|0|*0"),
            ("sscan nosuch 0 bla", "*2|$1|0|*0"),
            ("sscan s 0 bla", "-ERR syntax error"),
            ("sscan s 0 novalues", "-ERR NOVALUES option can only be used in HSCAN"),
            ("sscan s 0 noscores bla", "-ERR NOSCORES option can only be used in ZSCAN"),
            ("scan 0 novalues", "-ERR NOVALUES option can only be used in HSCAN"),
            ("scan 0 bla novalues", "-ERR syntax error"),
            ("sscan s 0 count 0", "-ERR syntax error"),
            ("sscan s 0 count x", "-ERR value is not an integer or out of range"),
        ]);
    }
}
