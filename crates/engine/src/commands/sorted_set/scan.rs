//! ZSCAN.

use resp::Double;

use crate::commands::scanning::{Found, Options, Words, parse_cursor, reply_page};
use crate::context::Context;
use crate::error::CommandError;

/// ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]. A cursor is a position in hash order.
pub(super) fn zscan(context: &mut Context<'_>) -> Result<(), CommandError> {
    let cursor = parse_cursor(context.arg(2))?;
    let key = context.key(1);
    let mut page = Found::default();
    let Some(place) = context.read_sorted_set(&key)? else {
        reply_page(&mut context.reply, 0, &page);
        return Ok(());
    };
    let options = Options::parse(context, 3, Words::NOSCORES)?;
    let next = context.sorted_set(&key, place).scan(cursor, options.count, &mut |member| {
        if options.matches(member.name) {
            page.push(member.name);
            if options.values {
                page.push(Double(member.score).to_string().as_bytes());
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
            ("zadd z 1 a 2.5 b", ":2"),
            ("zscan z 0", "*2|$1|0|*4|$1|a|$1|1|$1|b|$3|2.5"),
            ("zscan z 0 match b* noscores", "*2|$1|0|*1|$1|b"),
            ("zscan z x", "-ERR invalid cursor"),
            ("zscan nosuch 0", "*2|$1|0|*0"),
            ("zscan z 0 bla", "-ERR syntax error"),
            ("zscan z 0 count 0", "-ERR syntax error"),
        ]);
    }

    #[test]
    fn what_stays_is_seen() {
        let mut client = Client::new();
        for member in 0..3000 {
            client.call(&["zadd", "z", &(member % 7).to_string(), &format!("m{member}")]);
        }
        let (mut cursor, mut seen) = ("0".to_owned(), BTreeSet::new());
        for call in 0.. {
            let reply = client.call(&["zscan", "z", &cursor, "count", "50", "noscores"]);
            let [next, names] = reply.as_array().expect("two") else { panic!("{reply:?}") };
            for name in names.as_array().expect("names") {
                seen.insert(String::from_utf8(name.as_bytes().expect("a name").to_vec()).unwrap());
            }
            cursor = String::from_utf8(next.as_bytes().expect("a cursor").to_vec()).unwrap();
            if cursor == "0" {
                break;
            }
            client.call(&["zadd", "z", "1", &format!("other{call}")]);
            client.call(&["zrem", "z", &format!("m{}", 2999 - call % 100)]);
        }
        assert!((0..2900).all(|member| seen.contains(&format!("m{member}"))));
    }
}
