//! The handshake and reset of a connection: AUTH, HELLO, QUIT, RESET, READONLY and others.

use engine::{CommandError, Context, quote};
use resp::{Protocol, REDIS_VERSION};

use super::client::check_name;

/// Handles `AUTH [username] password`.
pub(super) fn auth(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (name, password) = match context.args.len() {
        2 if context.engine.access.users.read().default_user().has_no_password() => {
            return Err(CommandError::text(
                "ERR AUTH <password> called without any password configured for the default user. Are you \
                 sure your configuration is correct?",
            ));
        }
        2 => (acl::DEFAULT_USER_NAME, context.arg(1)),
        3 => (context.arg(1), context.arg(2)),
        _ => return Err(CommandError::Syntax),
    };
    context.publish_last_command();
    context.engine.access.log_in(context.session, context.now, context.arg(0), name, password)?;
    context.reply.ok();
    Ok(())
}

/// Handles `HELLO [version [AUTH username password] [SETNAME name]]`.
pub(super) fn hello(context: &mut Context<'_>) -> Result<(), CommandError> {
    let protocol = match context.args.get(1).map(resp::parse_i64) {
        None => context.session.protocol(),
        Some(Some(2)) => Protocol::Resp2,
        Some(Some(3)) => Protocol::Resp3,
        Some(Some(_)) => return Err(CommandError::text("NOPROTO unsupported protocol version")),
        Some(None) => {
            return Err(CommandError::text("ERR Protocol version is not an integer or out of range"));
        }
    };
    let (mut login, mut name) = (None, None);
    let mut index = 2;
    while let Some(word) = context.args.get(index) {
        let left = context.args.len() - index - 1;
        if word.eq_ignore_ascii_case(b"auth") && left >= 2 {
            login = Some((context.arg(index + 1), context.arg(index + 2)));
            index += 3;
        } else if word.eq_ignore_ascii_case(b"setname") && left >= 1 {
            name = Some(check_name(context.arg(index + 1))?);
            index += 2;
        } else {
            let text = format!("ERR Syntax error in HELLO option '{}'", quote(word, word.len()));
            return Err(CommandError::Text(text.into()));
        }
    }
    // If AUTH or SETNAME is repeated, the last one wins.
    if let Some((user, password)) = login {
        context.publish_last_command();
        context.engine.access.log_in(context.session, context.now, context.arg(0), user, password)?;
    }
    if !context.session.is_authenticated() {
        return Err(CommandError::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
             AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
             version at the same time",
        ));
    }
    if let Some(name) = name {
        context.session.client().names.lock().name = name.to_vec();
    }
    context.session.set_protocol(protocol);
    context.reply.set_protocol(protocol);
    reply_server_info(context);
    Ok(())
}

fn reply_server_info(context: &mut Context<'_>) {
    let settings = &context.engine.settings;
    let (mode, role) = match (context.commands.registry().is_sentinel_registry(), &context.engine.topology) {
        (true, _) => ("sentinel", None),
        (false, Some(_)) => ("cluster", Some(settings.is_replica())),
        (false, None) => ("standalone", Some(settings.is_replica())),
    };
    let (id, reply) = (context.session.id(), &mut context.reply);
    let protocol = if reply.protocol() == Protocol::Resp3 { 3 } else { 2 };
    let zone = settings.routing.availability_zone.load();
    reply.map(6 + usize::from(role.is_some()) + usize::from(!zone.is_empty()));
    // Client libraries check that the name of this field is `server`.
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.integer(protocol);
    reply.bulk(b"id");
    reply.integer(id as i64);
    reply.bulk(b"mode");
    reply.bulk(mode.as_bytes());
    if let Some(is_replica) = role {
        reply.bulk(b"role");
        reply.bulk(if is_replica { b"replica" } else { b"master" });
    }
    reply.bulk(b"modules");
    reply.array(0);
    if !zone.is_empty() {
        reply.bulk(b"availability_zone");
        reply.bulk(zone.as_bytes());
    }
}

pub(super) fn quit(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.session.close_after_reply();
    context.reply.ok();
    Ok(())
}

pub(super) fn reset(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mut waiting = Vec::new();
    context.engine.reset_session(context.session, &mut waiting);
    context.reply.raw(&waiting);
    context.reply.set_protocol(Protocol::Resp2);
    context.reply.simple("RESET");
    Ok(())
}

fn require_cluster_mode(context: &Context<'_>) -> Result<(), CommandError> {
    match context.engine.topology {
        Some(_) => Ok(()),
        None => Err(CommandError::text("ERR This instance has cluster support disabled")),
    }
}

pub(super) fn asking(context: &mut Context<'_>) -> Result<(), CommandError> {
    require_cluster_mode(context)?;
    context.session.set_asking();
    context.reply.ok();
    Ok(())
}

pub(super) fn readonly(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.session.set_readonly(true);
    context.reply.ok();
    Ok(())
}

pub(super) fn readwrite(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.session.set_readonly(false);
    context.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    const HELLO_REPLY: &str = "*14|$6|server|$5|redis|$7|version|$5|7.4.0|$5|proto|:2|$2|id|:1|$4|mode|$10|standalone\
                         |$4|role|$6|master|$7|modules|*0";

    const INVALID_NAME: &str = "-ERR Client names cannot contain spaces, newlines or special characters.";
    const WRONG_PASSWORD: &str = "-WRONGPASS invalid username-password pair or user is disabled.";

    #[test]
    fn hello_reports_availability_zone() {
        let mut client = Client::new();
        client.engine.settings.routing.availability_zone.store(std::sync::Arc::new("eu-1a".to_owned()));
        let in_zone = format!("{}|$17|availability_zone|$5|eu-1a", HELLO_REPLY.replace("*14", "*16"));
        client.check_replies(&[("hello", &in_zone)]);
    }

    #[test]
    fn hello_replies_in_requested_protocol() {
        let mut client = Client::new();
        let resp3 = HELLO_REPLY.replace("*14", "%7").replace(":2|", ":3|");
        client.check_replies(&[
            ("hello", HELLO_REPLY),
            ("hello 2", HELLO_REPLY),
            ("hello 3 setname me", &resp3),
            ("client getname", "$2|me"),
            ("get nosuch", "_"),
            ("hello", &resp3),
            ("hello 2", HELLO_REPLY),
            ("hello 4", "-NOPROTO unsupported protocol version"),
            ("hello x", "-ERR Protocol version is not an integer or out of range"),
            ("hello 2 auth default", "-ERR Syntax error in HELLO option 'auth'"),
            ("hello 2 setname a setname b", HELLO_REPLY),
            ("client getname", "$1|b"),
            ("hello 2 setname c auth nobody x", WRONG_PASSWORD),
            ("hello 2 setname c auth default x setname", "-ERR Syntax error in HELLO option 'setname'"),
            ("client getname", "$1|b"),
            ("hello 2 auth nobody x auth default x", HELLO_REPLY),
            ("hello 2 setname", "-ERR Syntax error in HELLO option 'setname'"),
            // HELLO validates the client name while parsing, before authentication.
            ("hello 2 setname \"a\\n\" nosuch", INVALID_NAME),
            ("hello 2 nosuch setname \"a\\n\"", "-ERR Syntax error in HELLO option 'nosuch'"),
            ("hello 2 setname \"a\\n\" setname b", INVALID_NAME),
            ("hello 2 auth nobody x setname \"a\\n\"", INVALID_NAME),
            ("hello 4 setname \"a\\n\"", "-NOPROTO unsupported protocol version"),
            ("client getname", "$1|b"),
            ("hello 2 nosuch", "-ERR Syntax error in HELLO option 'nosuch'"),
            ("reset", "+RESET"),
            ("client getname", "$-1"),
        ]);
    }

    #[test]
    fn hello_in_transaction_affects_following_replies() {
        let mut client = Client::new();
        client.check_replies(&[("hello 3", &HELLO_REPLY.replace("*14", "%7").replace(":2|", ":3|"))]);
        client.check_replies(&[(
            "multi\nget a\nhello 2\nget a\nexec\nget a\nmulti\nhello 3\nexec\nget a",
            &format!(
                "+OK|+QUEUED|+QUEUED|+QUEUED|*3|_|{HELLO_REPLY}|$-1|$-1|+OK|+QUEUED|*1|{}|_",
                HELLO_REPLY.replace("*14", "%7").replace(":2|", ":3|")
            ),
        )]);
    }

    #[test]
    fn password_is_required() {
        let mut client = Client::new();
        client.require_password(b"secret");
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
        client.check_replies(&[
            ("get k", "-NOAUTH Authentication required."),
            ("auth wrong", wrong),
            ("auth secrets", wrong),
            ("auth nobody secret", wrong),
            ("auth a b c", "-ERR syntax error"),
            ("get k", "-NOAUTH Authentication required."),
            ("auth secret", "+OK"),
            ("get k", "$-1"),
            ("reset", "+RESET"),
            ("get k", "-NOAUTH Authentication required."),
            ("hello 2 auth default wrong", wrong),
            ("hello 2 auth default secret", HELLO_REPLY),
        ]);
        client.check_replies(&[("reset", "+RESET")]);
        assert!(client.run_to_text("hello 3").starts_with("-NOAUTH HELLO must be called with"));
    }

    #[test]
    fn auth_and_cluster_commands_fail_when_disabled() {
        let disabled = "-ERR This instance has cluster support disabled";
        Client::new().check_replies(&[
            ("auth default any", "+OK"),
            ("auth nobody any", "-WRONGPASS invalid username-password pair or user is disabled."),
            (
                "auth any",
                "-ERR AUTH <password> called without any password configured for the default user. Are you \
                 sure your configuration is correct?",
            ),
            ("readonly", "+OK"),
            ("readwrite", "+OK"),
            ("asking", disabled),
            ("ping", "+PONG"),
            ("ping hi", "$2|hi"),
            ("ping a b", "-ERR wrong number of arguments for 'ping' command"),
            ("select 15", "+OK"),
            ("select 16", "-ERR DB index is out of range"),
            ("select x", "-ERR value is not an integer or out of range"),
            ("quit", "+OK"),
        ]);
    }
}
