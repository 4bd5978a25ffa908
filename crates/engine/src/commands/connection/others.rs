//! CLIENT, as far as it concerns other connections too.

use std::sync::Arc;

use clock::Millis;

use crate::clients::{Client, ClientKind, Unblock};
use crate::context::Context;
use crate::error::{CommandError, quoted};
use crate::pause::{PauseMode, PausePurpose};

fn parse_kind(name: &[u8]) -> Result<ClientKind, CommandError> {
    ClientKind::parse(name).ok_or_else(|| {
        let text = format!("ERR Unknown client type '{}'", quoted(name, name.len()));
        CommandError::Text(text.into())
    })
}

/// CLIENT LIST [TYPE kind | ID id [id ...]]
pub(super) fn list(context: &mut Context<'_>) -> Result<(), CommandError> {
    let args = context.args;
    let is = |index: usize, word: &[u8]| args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word));
    let chosen: Vec<Arc<Client>> = if args.len() == 2 {
        context.engine.clients.all()
    } else if is(2, b"type") && args.len() == 4 {
        let kind = parse_kind(context.arg(3))?;
        context.engine.clients.all().into_iter().filter(|client| client.kind() == kind).collect()
    } else if is(2, b"id") && args.len() > 3 {
        let mut chosen = Vec::new();
        for arg in args.from(3).iter() {
            let id = resp::parse_i64(arg).ok_or(CommandError::text("ERR Invalid client ID"))?;
            chosen.extend(u64::try_from(id).ok().and_then(|id| context.engine.clients.find(id)));
        }
        chosen
    } else {
        return Err(CommandError::Syntax);
    };
    context.publish();
    let mut text = Vec::new();
    for client in chosen {
        text.extend_from_slice(&client.describe(context.now, context.engine.registry));
        text.push(b'\n');
    }
    context.reply.verbatim(b"txt", &text);
    Ok(())
}

/// Which connections CLIENT KILL means.
#[derive(Default)]
struct Filter<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    kind: Option<ClientKind>,
    user: Option<&'a [u8]>,
    include_me: bool,
    /// Longer connected than this many seconds.
    min_age: Option<i64>,
}

impl<'a> Filter<'a> {
    fn parse(context: &Context<'a>) -> Result<Self, CommandError> {
        let mut filter = Self::default();
        let mut index = 2;
        while index < context.args.len() {
            let word = context.arg(index);
            let value = context.args.get(index + 1).ok_or(CommandError::Syntax)?;
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            if is(b"id") {
                let id = resp::parse_i64(value).filter(|id| *id > 0);
                let id = id.ok_or(CommandError::text("ERR client-id should be greater than 0"))?;
                filter.id = Some(id as u64);
            } else if is(b"type") {
                filter.kind = Some(parse_kind(value)?);
            } else if is(b"addr") {
                filter.address = Some(value);
            } else if is(b"laddr") {
                filter.local_address = Some(value);
            } else if is(b"user") {
                if context.engine.users.read().find(value).is_none() {
                    let text = format!("ERR No such user '{}'", quoted(value, value.len()));
                    return Err(CommandError::Text(text.into()));
                }
                filter.user = Some(value);
            } else if is(b"maxage") {
                let age = resp::parse_i64(value)
                    .ok_or(CommandError::text("ERR maxage is not an integer or out of range"))?;
                if age <= 0 {
                    return Err(CommandError::text("ERR maxage should be greater than 0"));
                }
                filter.min_age = Some(age);
            } else if is(b"skipme") && value.eq_ignore_ascii_case(b"yes") {
                filter.include_me = false;
            } else if is(b"skipme") && value.eq_ignore_ascii_case(b"no") {
                filter.include_me = true;
            } else {
                return Err(CommandError::Syntax);
            }
            index += 2;
        }
        Ok(filter)
    }

    fn wants(&self, client: &Client, me: u64, now: Millis) -> bool {
        self.id.is_none_or(|id| id == client.id)
            && self.address.is_none_or(|address| address == client.link.address.as_bytes())
            && self.local_address.is_none_or(|address| address == client.link.local_address.as_bytes())
            && self.kind.is_none_or(|kind| kind == client.kind())
            && self.user.is_none_or(|user| user == client.user.lock().as_slice())
            && (self.include_me || client.id != me)
            && self.min_age.is_none_or(|age| now.0.saturating_sub(client.connected_at.0) / 1000 >= age)
    }
}

/// CLIENT KILL address, or CLIENT KILL option value [option value ...]
pub(super) fn kill(context: &mut Context<'_>) -> Result<(), CommandError> {
    let old_form = context.args.len() == 3;
    let filter = if old_form {
        Filter { address: Some(context.arg(2)), include_me: true, ..Filter::default() }
    } else {
        Filter::parse(context)?
    };
    let me = context.session.id;
    let mut killed = 0;
    for client in context.engine.clients.all() {
        if !filter.wants(&client, me, context.now) {
            continue;
        }
        killed += 1;
        if client.id == me {
            context.session.closing = true;
        } else {
            client.kill();
        }
    }
    match (old_form, killed) {
        (true, 0) => return Err(CommandError::text("ERR No such client")),
        (true, _) => context.reply.ok(),
        (false, killed) => context.reply.integer(killed),
    }
    Ok(())
}

/// CLIENT UNBLOCK id [TIMEOUT | ERROR]
pub(super) fn unblock(context: &mut Context<'_>) -> Result<(), CommandError> {
    let how = match context.args.get(3) {
        None => Unblock::Timeout,
        Some(word) if word.eq_ignore_ascii_case(b"timeout") => Unblock::Timeout,
        Some(word) if word.eq_ignore_ascii_case(b"error") => Unblock::Error,
        Some(_) => {
            return Err(CommandError::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    };
    let id = context.integer(2)?;
    let client = u64::try_from(id).ok().and_then(|id| context.engine.clients.find(id));
    let done = client.is_some_and(|client| client.unblock(how));
    context.reply.integer(i64::from(done));
    Ok(())
}

/// CLIENT PAUSE milliseconds [WRITE | ALL]
pub(super) fn pause(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mode = match context.args.get(3) {
        None => PauseMode::All,
        Some(_) if context.args.len() > 4 => {
            return Err(CommandError::text(
                "ERR unknown subcommand or wrong number of arguments for 'pause'. Try CLIENT HELP.",
            ));
        }
        Some(word) if word.eq_ignore_ascii_case(b"write") => PauseMode::Writes,
        Some(word) if word.eq_ignore_ascii_case(b"all") => PauseMode::All,
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
    engine.pauses.pause(&engine.settings, PausePurpose::Client, mode, Millis(until));
    context.reply.ok();
    Ok(())
}

pub(super) fn unpause(context: &mut Context<'_>) -> Result<(), CommandError> {
    let engine = context.engine;
    engine.pauses.unpause(&engine.settings, PausePurpose::Client);
    context.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clock::Millis;

    use crate::clients::{Link, Unblock};
    use crate::session::{Origin, Session};
    use crate::testing::Client;

    /// A client that is registered as the first, and its address.
    fn connected() -> Client {
        let mut client = Client::new();
        let link = Link { address: "127.0.0.1:1".to_owned(), ..Link::default() };
        let shared = client.engine.clients.connect(link, client.now, Box::new(|| {}));
        client.session = Session::of(shared, Origin::Client, true);
        client
    }

    #[test]
    fn connections_are_listed() {
        let mut client = connected();
        client.now = Millis(client.now.0 + 5000);
        let list = client.wire("client list");
        assert!(
            list.contains("id=1 addr=127.0.0.1:1 laddr= fd=0 name= age=5 idle=0 flags=N db=0 "),
            "{list}"
        );
        assert!(
            list.contains(" cmd=client|list user=default redir=-1 resp=2 lib-name= lib-ver=\n"),
            "{list}"
        );
        client.table(&[
            ("client list type master", "$0|"),
            ("client list id 7", "$0|"),
            ("client list type nosuch", "-ERR Unknown client type 'nosuch'"),
            ("client list id x", "-ERR Invalid client ID"),
            ("client list id", "-ERR syntax error"),
            ("client list nosuch", "-ERR syntax error"),
        ]);
        assert_eq!(client.wire("client list id 1 1").matches("id=1 ").count(), 2);
    }

    #[test]
    fn connections_are_killed_and_woken() {
        let mut client = connected();
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let wake = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let link = Link { address: "10.0.0.1:2".to_owned(), ..Link::default() };
        let other = client.engine.clients.connect(link, client.now, wake);
        client.table(&[
            ("client kill 10.0.0.1:3", "-ERR No such client"),
            ("client kill id 0", "-ERR client-id should be greater than 0"),
            ("client kill type nosuch", "-ERR Unknown client type 'nosuch'"),
            ("client kill user nosuch", "-ERR No such user 'nosuch'"),
            ("client kill skipme x", "-ERR syntax error"),
            ("client kill id 1", ":0"),
            ("client kill type pubsub", ":0"),
        ]);
        assert!(!other.is_killed());
        client.table(&[("client kill addr 10.0.0.1:2 type normal", ":1")]);
        assert!(other.is_killed());
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        client.table(&[("client kill 127.0.0.1:1", "+OK")]);
        assert!(client.session.closing);
    }

    #[test]
    fn a_blocked_connection_is_unblocked() {
        let mut client = connected();
        let other = client.engine.clients.connect(Link::default(), client.now, Box::new(|| {}));
        client.table(&[("client unblock 2", ":0")]);
        other.set_blocked(true);
        client.table(&[
            ("client unblock 2 nosuch", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
            ("client unblock x", "-ERR value is not an integer or out of range"),
            ("client unblock 2 error", ":1"),
            ("client unblock 9", ":0"),
        ]);
        assert_eq!(other.take_unblock(), Some(Unblock::Error));
    }

    #[test]
    fn a_pause_holds_back_writes_until_its_end() {
        let mut client = connected();
        client.table(&[
            ("client pause x", "-ERR timeout is not an integer or out of range"),
            ("client pause -1", "-ERR timeout is negative"),
            ("client pause 10 nosuch", "-ERR CLIENT PAUSE mode must be WRITE or ALL"),
            ("client pause 10 write", "+OK"),
            ("get k", "$-1"),
        ]);
        assert_eq!(client.flow("set k v"), crate::Flow::Paused);
        client.now.0 += 10;
        client.table(&[("set k v", "+OK"), ("client pause 10 write", "+OK"), ("client unpause", "+OK")]);
        client.table(&[("set k v", "+OK"), ("client pause 10", "+OK")]);
        assert_eq!(client.flow("get k"), crate::Flow::Paused);
    }
}
