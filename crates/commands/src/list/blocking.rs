//! Implements BLPOP, BRPOP, BLMPOP, BLMOVE and BRPOPLPUSH.
//!
//! Each command is replicated as its non-blocking form, because a replica or the AOF loader must neither block nor take
//! a different element.

use engine::{CommandError, CommandOutcome, Context, KeyWait};
use keyspace::{Kind, ListEnd};

use super::elements::ListAccess;
use super::elements::{pop_command, reply_item};
use super::moving::move_element;
use super::options::{MultiPopArguments, parse_list_end};
use crate::time_arg::parse_timeout;

pub(super) fn blpop(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    pop_or_block(context, ListEnd::Head)
}

pub(super) fn brpop(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    pop_or_block(context, ListEnd::Tail)
}

/// Handles `BLPOP key [key ...] timeout`.
fn pop_or_block(context: &mut Context<'_>, end: ListEnd) -> Result<CommandOutcome, CommandError> {
    let keys = 1..context.args.len() - 1;
    let until = parse_timeout(context, keys.end)?;
    for index in keys.clone() {
        let key = context.key(index)?;
        let Some(place) = context.find_list(&key)? else { continue };
        let (table, reply) = context.table_and_reply(&key);
        let list = table.list(place).expect("a list was found there");
        let index = if end == ListEnd::Head { 0 } else { list.len() - 1 };
        reply.array(2);
        reply.bulk(key.bytes());
        reply_item(reply, list.get(index).expect("no list is empty"));
        context.pop(&key, place, end, 1);
        context.log_effect(&[pop_command(end), key.bytes()]);
        return Ok(CommandOutcome::Done);
    }
    Ok(CommandOutcome::Block(KeyWait::new(keys, Kind::List, until, |reply| reply.null_array())))
}

/// Handles `BLMPOP timeout numkeys key [key ...] LEFT | RIGHT [COUNT count]`.
pub(super) fn blmpop(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    let options = MultiPopArguments::parse(context, 2)?;
    let until = parse_timeout(context, 1)?;
    if super::ends::pop_from_first_list(context, &options)? {
        return Ok(CommandOutcome::Done);
    }
    let keys = options.keys;
    Ok(CommandOutcome::Block(KeyWait::new(keys, Kind::List, until, |reply| reply.null_array())))
}

/// Handles `BLMOVE source destination LEFT | RIGHT LEFT | RIGHT timeout`.
pub(super) fn blmove(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    let (from, to) = (context.arg(3), context.arg(4));
    let (source_end, target_end) = (parse_list_end(from)?, parse_list_end(to)?);
    move_or_block(context, source_end, target_end, 5, &[b"LMOVE", context.arg(1), context.arg(2), from, to])
}

/// Handles `BRPOPLPUSH source destination timeout`.
pub(super) fn brpoplpush(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    move_or_block(context, ListEnd::Tail, ListEnd::Head, 3, &[b"RPOPLPUSH", context.arg(1), context.arg(2)])
}

fn move_or_block(
    context: &mut Context<'_>,
    from: ListEnd,
    to: ListEnd,
    timeout_index: usize,
    replicated_command: &[&[u8]],
) -> Result<CommandOutcome, CommandError> {
    let until = parse_timeout(context, timeout_index)?;
    if move_element(context, from, to)? {
        context.log_effect(replicated_command);
        return Ok(CommandOutcome::Done);
    }
    if !context.can_block() {
        // Where blocking is not allowed (in a transaction), the reply is null as from LMOVE. Only a timeout gives a
        // null array.
        context.reply.null();
        return Ok(CommandOutcome::Done);
    }
    let nothing = |reply: &mut resp::Writer<'_>| reply.null_array();
    Ok(CommandOutcome::Block(KeyWait::new(1..2, Kind::List, until, nothing)))
}

#[cfg(test)]
mod tests {
    use engine::DispatchStatus;

    use crate::testing::Client;

    #[test]
    fn blocking_pop_takes_existing_element_at_once() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("rpush b 1 2 3 4 5 6", ":6"),
            ("blpop a b c 0", "*2|$1|b|$1|1"),
            ("brpop a b c 0.5", "*2|$1|b|$1|6"),
            ("blmpop 0 2 a b right count 2", "*2|$1|b|*2|$1|5|$1|4"),
            ("blmove b c left right 0", "$1|2"),
            ("brpoplpush b c 0", "$1|3"),
            ("lrange c 0 -1", "*2|$1|3|$1|2"),
            ("exists b", ":0"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 rpush b 1 2 3 4 5 6",
                "0 LPOP b",
                "0 RPOP b",
                "0 RPOP b 2",
                "0 LMOVE b c left right",
                "0 RPOPLPUSH b c",
            ]
        );
    }

    #[test]
    fn blocking_commands_do_not_block_in_transactions() {
        let mut client = Client::new();
        client.check_replies(&[
            ("multi", "+OK"),
            ("blpop a 0", "+QUEUED"),
            ("blmpop 0 1 a left", "+QUEUED"),
            ("blmove a b left right 0", "+QUEUED"),
            ("brpoplpush a b 0", "+QUEUED"),
            ("exec", "*4|*-1|*-1|$-1|$-1"),
        ]);
    }

    #[test]
    fn invalid_timeouts_and_arguments_are_refused() {
        const NEGATIVE_TIMEOUT: &str = "-ERR timeout is negative";
        const INVALID_TIMEOUT: &str = "-ERR timeout is not a float or out of range";
        const TIMEOUT_OUT_OF_RANGE: &str = "-ERR timeout is out of range";
        const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        let mut client = Client::new();
        client.check_replies(&[
            ("set s x", "+OK"),
            ("rpush l x", ":1"),
            ("blpop a -1", NEGATIVE_TIMEOUT),
            ("blpop a x", INVALID_TIMEOUT),
            ("blpop a nan", INVALID_TIMEOUT),
            ("blpop a inf", TIMEOUT_OUT_OF_RANGE),
            ("blpop a 1e100", TIMEOUT_OUT_OF_RANGE),
            ("blpop a 9223372036854775", TIMEOUT_OUT_OF_RANGE),
            ("blpop s 0", WRONG_TYPE),
            ("blpop a s l 0", WRONG_TYPE),
            ("blmove l s left left 0", WRONG_TYPE),
            ("blmove s l left left 0", WRONG_TYPE),
            ("blmove a b left middle 0", "-ERR syntax error"),
            ("blmove a b left left x", INVALID_TIMEOUT),
            ("brpoplpush a b -1", NEGATIVE_TIMEOUT),
            ("blmpop -1 1 a left", NEGATIVE_TIMEOUT),
            ("blmpop -1 1 a left count x", "-ERR count should be greater than 0"),
            ("blmpop 0 0 a left", "-ERR numkeys should be greater than 0"),
            ("lrange l 0 -1", "*1|$1|x"),
        ]);
    }

    /// The key expires during the transaction that pushes to it, so the blocked client is not served.
    #[test]
    fn key_expiring_in_transaction_is_not_served() {
        let mut client = Client::new();
        assert_eq!(client.run_status("blpop l 0"), DispatchStatus::Blocked);
        let waiter = client.detach_blocked_client();
        client.check_replies(&[("multi\nrpush l a\npexpire l 100", "+OK|+QUEUED|+QUEUED")]);
        client.engine.set_wall_clock(0, (client.now.0 + 200) * 1000);
        client.check_replies(&[("exec", "*2|:1|:1")]);
        assert!(!waiter.is_served());
        client.now.0 += 200;
        client.check_replies(&[("rpush l b", ":1")]);
        assert!(waiter.is_served());
    }
}
