//! Implements LPUSH, RPUSH, LPOP, RPOP and LMPOP.

use engine::{CommandError, Context};
use keyspace::ListEnd;

use super::elements::ListAccess;
use super::elements::{pop_command, reply_item};
use super::options::MultiPopArguments;

pub(super) fn lpush(context: &mut Context<'_>) -> Result<(), CommandError> {
    push(context, ListEnd::Head, true)
}

pub(super) fn rpush(context: &mut Context<'_>) -> Result<(), CommandError> {
    push(context, ListEnd::Tail, true)
}

pub(super) fn lpushx(context: &mut Context<'_>) -> Result<(), CommandError> {
    push(context, ListEnd::Head, false)
}

pub(super) fn rpushx(context: &mut Context<'_>) -> Result<(), CommandError> {
    push(context, ListEnd::Tail, false)
}

fn push(context: &mut Context<'_>, end: ListEnd, creates_list: bool) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find_list(&key)?;
    let len = match found {
        None if !creates_list => 0,
        found => context.push(&key, found, end, context.args.skip(2)),
    };
    context.reply.integer(len as i64);
    Ok(())
}

pub(super) fn lpop(context: &mut Context<'_>) -> Result<(), CommandError> {
    pop(context, ListEnd::Head, "lpop")
}

pub(super) fn rpop(context: &mut Context<'_>) -> Result<(), CommandError> {
    pop(context, ListEnd::Tail, "rpop")
}

/// Handles `LPOP key [count]`.
fn pop(context: &mut Context<'_>, end: ListEnd, name: &'static str) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let count = match context.args.len() {
        2 => None,
        3 => {
            let count = resp::parse_i64(context.arg(2)).and_then(|count| usize::try_from(count).ok());
            let negative = CommandError::text("ERR value is out of range, must be positive");
            Some(count.ok_or(negative)?)
        }
        _ => return Err(CommandError::WrongArity(name.to_owned())),
    };
    match (context.find_list(&key)?, count) {
        (None, None) => context.reply.null(),
        (None, Some(_)) => context.reply.null_array(),
        (Some(place), None) => {
            let (table, reply) = context.table_and_reply(&key);
            let list = table.list(place).expect("a list was found there");
            let index = if end == ListEnd::Head { 0 } else { list.len() - 1 };
            if let Some(item) = list.get(index) {
                reply_item(reply, item);
            }
            context.pop(&key, place, end, 1);
        }
        (Some(place), Some(count)) => {
            context.reply_end_elements(&key, place, end, count);
            if count > 0 {
                context.pop(&key, place, end, count);
            }
        }
    }
    Ok(())
}

pub(super) fn lmpop(context: &mut Context<'_>) -> Result<(), CommandError> {
    let options = MultiPopArguments::parse(context, 1)?;
    if !pop_from_first_list(context, &options)? {
        context.reply.null_array();
    }
    Ok(())
}

/// Pops from the first list that is not empty. Returns whether there was such a list.
pub(super) fn pop_from_first_list(
    context: &mut Context<'_>,
    options: &MultiPopArguments,
) -> Result<bool, CommandError> {
    let MultiPopArguments { keys, end, count } = options;
    for index in keys.clone() {
        let key = context.key(index)?;
        let Some(place) = context.find_list(&key)? else { continue };
        context.reply.array(2);
        context.reply.bulk(key.bytes());
        context.reply_end_elements(&key, place, *end, *count);
        let popped = context.pop(&key, place, *end, *count);
        let mut digits = itoa::Buffer::new();
        context.log_effect(&[pop_command(*end), key.bytes(), digits.format(popped).as_bytes()]);
        return Ok(true);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn elements_are_pushed_and_popped_at_both_ends() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("lpushx l a", ":0"),
            ("rpushx l a", ":0"),
            ("rpush l a b", ":2"),
            ("lpush l c d", ":4"),
            ("rpushx l 5", ":5"),
            ("lpushx l 06 7", ":7"),
            ("lrange l 0 -1", "*7|$1|7|$2|06|$1|d|$1|c|$1|a|$1|b|$1|5"),
            ("lpop l", "$1|7"),
            ("rpop l", "$1|5"),
            ("lpop l 0", "*0"),
            ("lpop l 2", "*2|$2|06|$1|d"),
            ("rpop l 2", "*2|$1|b|$1|a"),
            ("rpop l 9", "*1|$1|c"),
            ("exists l", ":0"),
            ("lpop l", "$-1"),
            ("rpop l 0", "*-1"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 rpush l a b",
                "0 lpush l c d",
                "0 rpushx l 5",
                "0 lpushx l 06 7",
                "0 lpop l",
                "0 rpop l",
                "0 lpop l 2",
                "0 rpop l 2",
                "0 rpop l 9",
            ]
        );
    }

    #[test]
    fn invalid_pushes_and_pops_are_refused() {
        const MUST_BE_POSITIVE: &str = "-ERR value is out of range, must be positive";
        const NUMKEYS_NOT_POSITIVE: &str = "-ERR numkeys should be greater than 0";
        const COUNT_NOT_POSITIVE: &str = "-ERR count should be greater than 0";
        const SYNTAX_ERROR: &str = "-ERR syntax error";
        const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("rpush l a b c", ":3"),
            ("set s 1", "+OK"),
            ("lpop l x", MUST_BE_POSITIVE),
            ("lpop l -1", MUST_BE_POSITIVE),
            ("lpop s -1", MUST_BE_POSITIVE),
            ("lpop l 1 2", "-ERR wrong number of arguments for 'lpop' command"),
            ("rpop l 1 2", "-ERR wrong number of arguments for 'rpop' command"),
            ("rpush s 1", WRONG_TYPE),
            ("lpushx s 1", WRONG_TYPE),
            ("rpop s", WRONG_TYPE),
            ("lmpop 0 l left", NUMKEYS_NOT_POSITIVE),
            ("lmpop x l left", NUMKEYS_NOT_POSITIVE),
            ("lmpop 2 l left", SYNTAX_ERROR),
            ("lmpop 9223372036854775807 l left", SYNTAX_ERROR),
            ("lmpop 1 l middle", SYNTAX_ERROR),
            ("lmpop 1 l left count 0", COUNT_NOT_POSITIVE),
            ("lmpop 1 l left count x", COUNT_NOT_POSITIVE),
            ("lmpop 1 l left count", SYNTAX_ERROR),
            ("lmpop 1 l left count 1 count 1", SYNTAX_ERROR),
            ("lmpop 1 l left some 1", SYNTAX_ERROR),
            ("lmpop 2 nosuch s left", WRONG_TYPE),
            ("llen l", ":3"),
        ]);
        assert_eq!(client.logged_commands(), ["0 rpush l a b c", "0 set s 1"]);
    }

    #[test]
    fn lmpop_pops_from_first_nonempty_list() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("lmpop 2 a b left", "*-1"),
            ("rpush b 1 2 3 4 5", ":5"),
            ("lmpop 2 a b left", "*2|$1|b|*1|$1|1"),
            ("LMPOP 2 a b RIGHT COUNT 2", "*2|$1|b|*2|$1|5|$1|4"),
            ("lmpop 1 b left count 9", "*2|$1|b|*2|$1|2|$1|3"),
            ("exists b", ":0"),
        ]);
        assert_eq!(
            client.logged_commands(),
            ["0 rpush b 1 2 3 4 5", "0 LPOP b 1", "0 RPOP b 2", "0 LPOP b 2"]
        );
    }
}
