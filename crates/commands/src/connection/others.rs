//! CLIENT subcommands that act on other connections.

use clock::Millis;
use engine::{CommandError, Context, PauseMode, PausePurpose, UnblockReason};

use super::client::eq_ignore_case_until_nul;
use super::filter::ClientFilters;

/// Handles `CLIENT LIST [filter value [filter value ...]]`.
pub(super) fn list(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (me, now) = (context.session.id(), context.now);
    let filter = ClientFilters::parse(context, false)?;
    context.publish_last_command();
    context.engine.log.update_unsent_output();
    let mut text = Vec::new();
    for client in context.engine.clients.list().into_iter().filter(|client| filter.matches(client, me, now)) {
        text.extend_from_slice(&client.format_line(now, &context.engine.access.catalogue));
        text.push(b'\n');
    }
    context.reply.verbatim(b"txt", &text);
    Ok(())
}

/// Handles `CLIENT KILL address` and `CLIENT KILL filter value [filter value ...]`.
pub(super) fn kill(context: &mut Context<'_>) -> Result<(), CommandError> {
    let old_form = context.args.len() == 3;
    let filter = if old_form {
        ClientFilters::by_address(context.arg(2))
    } else {
        ClientFilters::parse(context, true)?
    };
    let me = context.session.id();
    let mut killed = 0;
    for client in context.engine.clients.list() {
        if !filter.matches(&client, me, context.now) {
            continue;
        }
        killed += 1;
        if client.id == me {
            context.session.close_after_reply();
        } else {
            client.kill();
            context.register_revoked([client]);
        }
    }
    match (old_form, killed) {
        (true, 0) => return Err(CommandError::text("ERR No such client")),
        (true, _) => context.reply.ok(),
        (false, killed) => context.reply.integer(killed),
    }
    Ok(())
}

/// Handles `CLIENT UNBLOCK id [TIMEOUT | ERROR]`.
pub(super) fn unblock(context: &mut Context<'_>) -> Result<(), CommandError> {
    // As in Valkey, TIMEOUT or ERROR is ignored if more arguments follow.
    let how = match context.args.get(3).filter(|_| context.args.len() == 4) {
        None => UnblockReason::Timeout,
        Some(word) if eq_ignore_case_until_nul(word, b"timeout") => UnblockReason::Timeout,
        Some(word) if eq_ignore_case_until_nul(word, b"error") => UnblockReason::Error,
        Some(_) => {
            return Err(CommandError::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    };
    let id = context.integer_arg(2)?;
    let client = u64::try_from(id).ok().and_then(|id| context.engine.clients.find(id));
    let done = client.is_some_and(|client| client.unblock(how));
    context.reply.integer(i64::from(done));
    Ok(())
}

/// Handles `CLIENT PAUSE milliseconds [WRITE | ALL]`.
pub(super) fn pause(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mode = match context.args.get(3).filter(|_| context.args.len() == 4) {
        None => PauseMode::All,
        Some(word) if eq_ignore_case_until_nul(word, b"write") => PauseMode::Writes,
        Some(word) if eq_ignore_case_until_nul(word, b"all") => PauseMode::All,
        Some(_) => return Err(CommandError::text("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let millis = resp::parse_i64(context.arg(2));
    let millis = millis.ok_or(CommandError::text("ERR timeout is not an integer or out of range"))?;
    if millis < 0 {
        return Err(CommandError::text("ERR timeout is negative"));
    }
    let until = context.now.0.checked_add(millis);
    let until = until.ok_or(CommandError::text("ERR timeout is out of range"))?;
    let engine = context.engine;
    engine.scheduling.pauses.pause(&engine.settings, PausePurpose::Client, mode, Millis(until));
    context.reply.ok();
    Ok(())
}

pub(super) fn unpause(context: &mut Context<'_>) -> Result<(), CommandError> {
    let engine = context.engine;
    engine.scheduling.pauses.unpause(&engine.settings, PausePurpose::Client);
    context.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clock::Millis;
    use engine::{CommandOrigin, ConnectionInfo, Session, UnblockReason};

    use crate::testing::Client;

    /// Returns a test client that is registered with id 1 and has an address.
    fn connected_client() -> Client {
        let mut client = Client::new();
        let link = ConnectionInfo { address: "127.0.0.1:1".to_owned(), ..ConnectionInfo::default() };
        let shared = client.engine.clients.connect(link, client.now, Box::new(|| {}));
        client.session = Session::for_client(shared, CommandOrigin::Client, true);
        client
    }

    #[test]
    fn client_list_shows_connections() {
        let mut client = connected_client();
        client.now = Millis(client.now.0 + 5000);
        let list = client.run_to_text("client list");
        assert!(
            list.contains("id=1 addr=127.0.0.1:1 laddr= fd=0 name= age=5 idle=0 flags=N capa= db=0 "),
            "{list}"
        );
        assert!(
            list.contains(
                " cmd=client|list user=default redir=-1 resp=2 lib-name= lib-ver= tot-net-in=0 tot-net-out=0 tot-cmds=0 tot-usec=0 background=0\n"
            ),
            "{list}"
        );
        client.check_replies(&[
            ("client list type master", "$0|"),
            ("client list id 7", "$0|"),
            ("client list type nosuch", "-ERR Unknown client type 'nosuch'"),
            ("client list id x", "-ERR syntax error"),
            ("client list id 1 x", "-ERR syntax error"),
            ("client list id 0", "-ERR client-id should be greater than 0"),
            ("client list id 1 -1", "-ERR client-id should be greater than 0"),
            ("client list id", "-ERR syntax error"),
            ("client list nosuch", "-ERR syntax error"),
        ]);
        assert_eq!(client.run_to_text("client list id 1 1").matches("id=1 ").count(), 1);
    }

    /// Checks each filter and its negation: exactly one of the two selects the only client.
    #[test]
    fn client_filters_select_connections() {
        let mut client = connected_client();
        client.now.0 += 5000;
        client.check_replies(&[
            ("client setname me", "+OK"),
            ("client setinfo lib-name jedis", "+OK"),
            ("client setinfo lib-ver 5", "+OK"),
            ("client no-touch on", "+OK"),
            ("client capa redirect", "+OK"),
            ("select 3", "+OK"),
        ]);
        let chosen = |client: &mut Client, line: &str| client.run_to_text(line).contains("id=1 ");
        for (fits, fails) in [
            ("id 1 2", "id 2"),
            ("type normal", "type pubsub"),
            ("addr 127.0.0.1:1", "addr 127.0.0.1:2"),
            ("ip 127.0.0.1", "ip 127.0.0.2"),
            ("user default", "user u"),
            ("name me", "name other"),
            ("lib-name jedis", "lib-name lettuce"),
            ("lib-ver 5", "lib-ver 6"),
            ("flags T", "flags Tb"),
            ("flags TT", "flags N"),
            ("capa r", "not-capa r"),
            ("db 3", "db 0"),
            ("maxage 5", "maxage 6"),
        ] {
            client.engine.access.change_users(|users| users.set_rules(b"u", &[])).unwrap();
            assert!(chosen(&mut client, &format!("client list {fits} skipme no")), "{fits}");
            assert!(!chosen(&mut client, &format!("client list {fails} skipme no")), "{fails}");
            if !fits.starts_with("maxage") && !fails.starts_with("not") {
                assert!(chosen(&mut client, &format!("client list not-{fails} skipme no")), "not {fails}");
                assert!(!chosen(&mut client, &format!("client list not-{fits} skipme no")), "not {fits}");
            }
        }
        assert!(client.run_to_text("client list skipme yes").starts_with("$0"));
        client.check_replies(&[
            ("client list flags QxZ", "-ERR Unknown flags found in the provided filter: QZ"),
            ("client list capa x", "-ERR Unknown capa found in the provided filter: x"),
            ("client list not-flags QxZ", "-ERR Unknown flags found in the NOT-FLAGS filter: QZ"),
            ("client list not-capa x", "-ERR Unknown capa found in the NOT-CAPA filter: x"),
            ("client list capa r not-capa rr", "$0|"),
            ("client list db 16", "-ERR DB number should be between 0 and 15"),
            ("client list not-db 16", "-ERR NOT-DB number should be between 0 and 15"),
            ("client list db x", "-ERR DB is not an integer or out of range"),
            ("client list idle 0", "-ERR idle should be greater than 0"),
            ("client list maxage x", "-ERR maxage is not an integer or out of range"),
            ("client list not-user nosuch", "-ERR No such user 'nosuch'"),
            ("client list skipme x", "-ERR syntax error"),
            ("client list flags", "-ERR syntax error"),
            ("client kill id 2 3 db 3", ":0"),
            ("client kill not-id 2 db 3 skipme no", ":1"),
        ]);
        assert!(client.session.is_closing());
    }

    #[test]
    fn client_kill_and_unblock_act_on_selected_client() {
        let mut client = connected_client();
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let wake = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let link = ConnectionInfo { address: "10.0.0.1:2".to_owned(), ..ConnectionInfo::default() };
        let other = client.engine.clients.connect(link, client.now, wake);
        client.check_replies(&[
            ("client kill 10.0.0.1:3", "-ERR No such client"),
            ("client kill id 0", "-ERR client-id should be greater than 0"),
            ("client kill type nosuch", "-ERR Unknown client type 'nosuch'"),
            ("client kill user nosuch", "-ERR No such user 'nosuch'"),
            ("client kill skipme x", "-ERR syntax error"),
            ("client kill id 1", ":0"),
            ("client kill type pubsub", ":0"),
        ]);
        assert!(!other.is_killed());
        client.check_replies(&[("client kill addr 10.0.0.1:2 type normal", ":1")]);
        assert!(other.is_killed());
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        client.check_replies(&[("client kill 127.0.0.1:1", "+OK")]);
        assert!(client.session.is_closing());
    }

    #[test]
    fn client_unblock_wakes_blocked_client() {
        let mut client = connected_client();
        let other = client.engine.clients.connect(ConnectionInfo::default(), client.now, Box::new(|| {}));
        client.check_replies(&[("client unblock 2", ":0")]);
        other.set_blocked(true);
        client.check_replies(&[
            ("client unblock 2 nosuch", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
            ("client unblock x", "-ERR value is not an integer or out of range"),
            ("client unblock 2 error", ":1"),
            ("client unblock 9", ":0"),
        ]);
        assert_eq!(other.take_unblock_reason(), Some(UnblockReason::Error));
    }

    #[test]
    fn client_pause_delays_writes() {
        let mut client = connected_client();
        client.check_replies(&[
            ("client pause x", "-ERR timeout is not an integer or out of range"),
            ("client pause -1", "-ERR timeout is negative"),
            ("client pause 10 nosuch", "-ERR CLIENT PAUSE mode must be WRITE or ALL"),
            ("client pause 10 write", "+OK"),
            ("get k", "$-1"),
        ]);
        assert_eq!(client.run_status("set k v"), engine::DispatchStatus::Paused);
        client.now.0 += 10;
        client.check_replies(&[
            ("set k v", "+OK"),
            ("client pause 10 write", "+OK"),
            ("client unpause", "+OK"),
        ]);
        client.check_replies(&[("set k v", "+OK"), ("client pause 10", "+OK")]);
        assert_eq!(client.run_status("get k"), engine::DispatchStatus::Paused);
    }
}
