//! HSCAN.

use crate::commands::scanning::{Found, Options, Words, parse_cursor, reply_page};
use crate::context::Context;
use crate::error::CommandError;

/// HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]. A cursor is a position in hash order.
pub(super) fn hscan(context: &mut Context<'_>) -> Result<(), CommandError> {
    let cursor = parse_cursor(context.arg(2))?;
    let (key, now) = (context.key(1), context.fields_now());
    let mut page = Found::default();
    let Some(place) = context.read_hash(&key)? else {
        reply_page(&mut context.reply, 0, &page);
        return Ok(());
    };
    let options = Options::parse(context, 3, Words::NOVALUES)?;
    let next = context.hash(&key, place).scan(cursor, options.count, &mut |field| {
        if field.lives_at(now) && options.matches(field.name) {
            page.push(field.name);
            if options.values {
                page.push(field.value);
            }
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

    #[test]
    fn a_large_hash_comes_in_pages_while_it_changes() {
        let mut client = Client::new();
        for field in 0..3000 {
            client.call(&["hset", "h", &format!("f{field}"), "v"]);
        }
        let (mut cursor, mut seen, mut calls) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            let reply = client.call(&["hscan", "h", &cursor, "count", "50", "novalues"]);
            let [next, names] = reply.as_array().expect("two") else { panic!("{reply:?}") };
            for name in names.as_array().expect("names") {
                seen.insert(String::from_utf8(name.as_bytes().expect("a name").to_vec()).unwrap());
            }
            cursor = String::from_utf8(next.as_bytes().expect("a cursor").to_vec()).unwrap();
            calls += 1;
            if cursor == "0" {
                break;
            }
            client.call(&["hset", "h", &format!("other{calls}"), "v"]);
            client.call(&["hdel", "h", &format!("f{}", 2999 - calls % 100)]);
        }
        assert!(calls > 20);
        assert!((0..2900).all(|field| seen.contains(&format!("f{field}"))));
    }
}
