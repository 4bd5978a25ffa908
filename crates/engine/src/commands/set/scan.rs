//! SSCAN.

use keyspace::SetRef;

use crate::commands::scanning::{Found, Options, Words, parse_cursor, reply_page};
use crate::context::Context;
use crate::error::CommandError;

/// SSCAN key cursor [MATCH pattern] [COUNT count]. A cursor is a position in hash order.
pub(super) fn sscan(context: &mut Context<'_>) -> Result<(), CommandError> {
    let cursor = parse_cursor(context.arg(2))?;
    let key = context.key(1);
    let mut page = Found::default();
    let Some(place) = context.read_typed::<SetRef<'_>>(&key)? else {
        reply_page(&mut context.reply, 0, &page);
        return Ok(());
    };
    let options = Options::parse(context, 3, Words::empty())?;
    let next = context.typed::<SetRef<'_>>(&key, place)?.scan(cursor, options.count, &mut |member| {
        if options.matches(&member) {
            page.push(&member);
        }
    });
    reply_page(&mut context.reply, next.unwrap_or(0), &page);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::testing::Client;

    #[test]
    fn options_and_errors() {
        Client::new().table(&[
            ("sadd s a b", ":2"),
            ("sscan s 0", "*2|$1|0|*2|$1|a|$1|b"),
            ("sscan s 0 match b*", "*2|$1|0|*1|$1|b"),
            ("sscan s 0 count 1", "*2|$1|0|*2|$1|a|$1|b"),
            ("sscan s x", "-ERR invalid cursor"),
            ("sscan nosuch x", "-ERR invalid cursor"),
            ("sscan nosuch 0", "*2|$1|0|*0"),
            ("sscan nosuch 0 bla", "*2|$1|0|*0"),
            ("sscan s 0 bla", "-ERR syntax error"),
            ("sscan s 0 novalues", "-ERR syntax error"),
            ("sscan s 0 count 0", "-ERR syntax error"),
            ("sscan s 0 count x", "-ERR value is not an integer or out of range"),
        ]);
    }

    #[test]
    fn a_large_set_comes_in_pages_while_it_changes() {
        let mut client = Client::new();
        for member in 0..3000 {
            client.call(&["sadd", "s", &format!("m{member}")]);
        }
        let (mut cursor, mut seen, mut calls) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            let reply = client.call(&["sscan", "s", &cursor, "count", "50"]);
            let [next, members] = reply.as_array().expect("two") else { panic!("{reply:?}") };
            for member in members.as_array().expect("members") {
                seen.insert(String::from_utf8(member.as_bytes().expect("a member").to_vec()).unwrap());
            }
            cursor = String::from_utf8(next.as_bytes().expect("a cursor").to_vec()).unwrap();
            calls += 1;
            if cursor == "0" {
                break;
            }
            client.call(&["sadd", "s", &format!("other{calls}")]);
            client.call(&["srem", "s", &format!("m{}", 2999 - calls % 100)]);
        }
        assert!(calls > 20);
        assert!((0..2900).all(|member| seen.contains(&format!("m{member}"))));
    }
}
