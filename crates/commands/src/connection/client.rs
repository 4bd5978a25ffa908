//! CLIENT subcommands that concern only the client's own connection.

use engine::{CommandError, Context, NodeFlags, ReplySuppression, quote, truncate_at_nul};

use crate::help::reply_help;

/// Refuses names with characters that would break a line of CLIENT LIST.
pub(super) fn check_name(name: &[u8]) -> Result<&[u8], CommandError> {
    if is_printable_without_spaces(name) {
        return Ok(name);
    }
    Err(CommandError::text("ERR Client names cannot contain spaces, newlines or special characters."))
}

/// Case-insensitive comparison. As in Valkey, the arguments of CLIENT are cut at the first NUL.
pub(super) fn eq_ignore_case_until_nul(word: &[u8], name: &[u8]) -> bool {
    truncate_at_nul(word).eq_ignore_ascii_case(name)
}

/// Whether the text is printable without spaces. Only the text before a NUL is checked, because CLIENT LIST shows only
/// that part.
fn is_printable_without_spaces(text: &[u8]) -> bool {
    truncate_at_nul(text).iter().all(u8::is_ascii_graphic)
}

pub(super) fn reply_client_id(context: &mut Context<'_>) -> Result<(), CommandError> {
    let id = context.session.id();
    context.reply.integer(id as i64);
    Ok(())
}

pub(super) fn getname(context: &mut Context<'_>) -> Result<(), CommandError> {
    let names = context.session.client().names.lock();
    if names.name.is_empty() {
        context.reply.null();
    } else {
        context.reply.bulk(&names.name);
    }
    Ok(())
}

pub(super) fn setname(context: &mut Context<'_>) -> Result<(), CommandError> {
    let name = check_name(context.arg(2))?;
    context.session.client().names.lock().name = name.to_vec();
    context.reply.ok();
    Ok(())
}

/// Handles `CLIENT CAPA capability [capability ...]`. Unknown capabilities are ignored, because newer clients may
/// announce capabilities that this server does not know.
pub(super) fn capa(context: &mut Context<'_>) -> Result<(), CommandError> {
    let redirect = context.args.skip(2).iter().any(|word| eq_ignore_case_until_nul(word, b"redirect"));
    if redirect {
        context.session.set_supports_redirect(true);
    }
    context.reply.ok();
    Ok(())
}

pub(super) fn setinfo(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (what, text) = (context.arg(2), context.arg(3));
    let mut names = context.session.client().names.lock();
    let field = match () {
        () if eq_ignore_case_until_nul(what, b"lib-name") => &mut names.library,
        () if eq_ignore_case_until_nul(what, b"lib-ver") => &mut names.version,
        () => {
            let text = format!("ERR Unrecognized option '{}'", quote(what, what.len()));
            return Err(CommandError::Text(text.into()));
        }
    };
    if !is_printable_without_spaces(text) {
        let name = String::from_utf8_lossy(what);
        let text = format!("ERR {name} cannot contain spaces, newlines or special characters.");
        return Err(CommandError::Text(text.into()));
    }
    *field = text.to_vec();
    context.reply.ok();
    Ok(())
}

pub(super) fn reply_client_info(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.publish_last_command();
    let mut line = context.session.client().format_line(context.now, &context.engine.access.catalogue);
    line.push(b'\n');
    context.reply.verbatim(b"txt", &line);
    Ok(())
}

/// Parses an ON or OFF argument.
fn parse_on_off(context: &Context<'_>) -> Result<bool, CommandError> {
    match context.arg(2) {
        word if eq_ignore_case_until_nul(word, b"on") => Ok(true),
        word if eq_ignore_case_until_nul(word, b"off") => Ok(false),
        _ => Err(CommandError::Syntax),
    }
}

pub(super) fn no_evict(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = parse_on_off(context)?;
    context.session.set_no_evict(on);
    context.reply.ok();
    Ok(())
}

/// Handles `CLIENT IMPORT-SOURCE ON|OFF`.
pub(super) fn import_source(context: &mut Context<'_>) -> Result<(), CommandError> {
    if !context.engine.settings.node_flags().contains(NodeFlags::IMPORTING)
        && !eq_ignore_case_until_nul(context.arg(2), b"off")
    {
        return Err(CommandError::text("ERR Server is not in import mode"));
    }
    let on = parse_on_off(context)?;
    context.session.set_import_source(on);
    context.reply.ok();
    Ok(())
}

pub(super) fn no_touch(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = parse_on_off(context)?;
    context.session.set_no_touch(on);
    context.reply.ok();
    Ok(())
}

pub(super) fn set_reply_mode(context: &mut Context<'_>) -> Result<(), CommandError> {
    let word = context.arg(2);
    if eq_ignore_case_until_nul(word, b"on") {
        context.session.set_reply_suppression(ReplySuppression::None);
        context.reply.ok();
    } else if eq_ignore_case_until_nul(word, b"off") {
        context.session.set_reply_suppression(ReplySuppression::All);
    } else if eq_ignore_case_until_nul(word, b"skip") {
        if context.session.reply_suppression() != ReplySuppression::All {
            context.session.set_reply_suppression(ReplySuppression::Next);
        }
    } else {
        return Err(CommandError::Syntax);
    }
    Ok(())
}

pub(super) fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    // A sentinel has fewer subcommands than a server. Unindented help lines start with a subcommand's name, so show
    // only the lines of subcommands that exist.
    let commands = context.commands.registry();
    let has = |name: &str| {
        let name = format!("client|{}", name.to_ascii_lowercase());
        commands.commands().iter().any(|entry| entry.full_name == name)
    };
    let mut shown = true;
    let mut lines = CLIENT_HELP.to_vec();
    lines.retain(|line| {
        if !line.starts_with(' ') {
            shown = line.split(' ').next().is_some_and(has);
        }
        shown
    });
    reply_help(context, "CLIENT", &lines);
    Ok(())
}

/// The lines of CLIENT HELP for a server; a sentinel shows a subset.
const CLIENT_HELP: &[&str] = &[
    "CACHING (YES|NO)",
    "    Makes the next command an exception in OPTIN or OPTOUT mode.",
    "GETREDIR",
    "    Returns who is told of changed keys in this connection's place.",
    "GETNAME",
    "    Returns the name of this connection.",
    "ID",
    "    Returns the number of this connection.",
    "INFO",
    "    Returns facts about this connection.",
    "KILL <ip:port>",
    "    Closes the connection from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Closes connections. Options are:",
    "    * ADDR (<ip:port>|<unixsocket>:0)",
    "      Those from this address.",
    "    * LADDR (<ip:port>|<unixsocket>:0)",
    "      Those to this local address.",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Those of this kind.",
    "    * USER <username>",
    "      Those logged in as <username>.",
    "    * ID <id>",
    "      The one with this number.",
    "    * SKIPME (YES|NO)",
    "      Leave this connection alone (default: yes).",
    "    and those of LIST, each also with NOT- before it.",
    "LIST [options ...]",
    "    Returns facts about connections. Options:",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Those of this kind.",
    "    * ID <id> [<id> ...]",
    "      Those with these numbers.",
    "    * ADDR, LADDR, IP, USER, NAME, LIB-NAME, LIB-VER, FLAGS, CAPA, DB <value>",
    "      Those of which this is true; with NOT- before it, the others.",
    "    * MAXAGE, IDLE <seconds>",
    "      Those that have been connected, or silent, for so long.",
    "    * SKIPME (YES|NO)",
    "      Leave this connection out (default: no).",
    "NO-EVICT (ON|OFF)",
    "    Protects this connection from being closed for memory.",
    "CAPA <option> [<option> ...]",
    "    Says what this client can do: redirect.",
    "IMPORT-SOURCE (ON|OFF)",
    "    Keys whose time has come are there for this connection, while the server is in import mode.",
    "NO-TOUCH (ON|OFF)",
    "    Reads of this connection leave no trace in how recently keys were used.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Makes all commands, or only writes, wait for <timeout> milliseconds.",
    "REPLY (ON|OFF|SKIP)",
    "    Says which replies this connection wants.",
    "SETINFO <option> <value>",
    "    Says which library the client uses. Options are:",
    "    * LIB-NAME: the library's name.",
    "    * LIB-VER: the library's version.",
    "SETNAME <name>",
    "    Gives this connection a name.",
    "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
    "         [OPTIN] [OPTOUT] [NOLOOP]",
    "    Tells this connection when keys change that it has read.",
    "TRACKINGINFO",
    "    Returns how this connection tracks keys.",
    "UNBLOCK <clientid> [TIMEOUT|ERROR]",
    "    Ends the wait of a blocked connection.",
    "UNPAUSE",
    "    Ends what PAUSE began.",
];

#[cfg(test)]
mod tests {
    use engine::NodeFlags;

    use crate::testing::Client;

    #[test]
    fn import_source_sees_expired_keys() {
        let mut client = Client::new();
        client.check_replies(&[
            ("client import-source on", "-ERR Server is not in import mode"),
            ("client import-source off", "+OK"),
            ("set k v px 100", "+OK"),
            ("hset {k}h a 1 b 2", ":2"),
            ("hpexpire {k}h 100 fields 1 a", "*1|:1"),
        ]);
        client.engine.settings.set_node_flag(NodeFlags::IMPORTING, true);
        client.now.0 += 200;
        client.check_replies(&[
            ("get k", "$-1"),
            ("client import-source x", "-ERR syntax error"),
            ("client import-source on", "+OK"),
            ("get k", "$1|v"),
            ("keys k", "*1|$1|k"),
            ("scan 0 match k count 9", "*2|$1|0|*1|$1|k"),
            ("hget {k}h a", "$1|1"),
            ("hkeys {k}h", "*2|$1|a|$1|b"),
            ("hrandfield {k}h 3", "*2|$1|a|$1|b"),
            ("hpttl {k}h fields 2 a b", "*2|:0|:-1"),
            ("del {k}h", ":1"),
            ("randomkey", "$1|k"),
            ("client import-source off", "+OK"),
            ("get k", "$-1"),
            ("keys k", "*0"),
            ("scan 0 match k count 9", "*2|$1|0|*0"),
            ("randomkey", "$-1"),
            ("dbsize", ":1"),
        ]);
        client.engine.settings.set_node_flag(NodeFlags::IMPORTING, false);
        client.check_replies(&[("get k", "$-1"), ("dbsize", ":0")]);
    }

    #[test]
    fn redirect_capable_client_is_redirected_to_master() {
        let mut client = Client::new();
        let settings = &client.engine.settings;
        settings.routing.redirect_to.store(std::sync::Arc::new("10.0.0.1:6379".to_owned()));
        settings.set_node_flag(NodeFlags::REDIRECTS | NodeFlags::READ_ONLY_REPLICA, true);
        client.check_replies(&[
            ("get k", "$-1"),
            ("set k v", "-READONLY You can't write against a read only replica."),
            ("asking", "-ERR This instance has cluster support disabled"),
            ("client capa", "-ERR wrong number of arguments for 'client|capa' command"),
            ("client capa nosuch", "+OK"),
            ("get k", "$-1"),
            ("client capa Nosuch REDIRECT", "+OK"),
            ("get k", "-REDIRECT 10.0.0.1:6379"),
            ("set k v", "-REDIRECT 10.0.0.1:6379"),
            ("ping", "+PONG"),
            ("multi", "+OK"),
            ("get k", "-REDIRECT 10.0.0.1:6379"),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
            ("readonly", "+OK"),
            ("get k", "$-1"),
            ("set k v", "-REDIRECT 10.0.0.1:6379"),
            ("readwrite", "+OK"),
            ("get k", "-REDIRECT 10.0.0.1:6379"),
            ("reset", "+RESET"),
            ("get k", "$-1"),
        ]);
    }

    #[test]
    fn client_setname_and_setinfo_validate_text() {
        let mut client = Client::new();
        client.check_replies(&[
            ("client id", ":1"),
            ("client getname", "$-1"),
            ("client setname me", "+OK"),
            ("client getname", "$2|me"),
            (
                "client setname \"a b\"",
                "-ERR Client names cannot contain spaces, newlines or special characters.",
            ),
            ("client setname \"\"", "+OK"),
            ("client getname", "$-1"),
            ("client setname \"\\x00\"", "+OK"),
            ("client getname", "$1|\0"),
            ("client setname \"ab\\x00 b\"", "+OK"),
            ("client getname", "$5|ab\0 b"),
            (
                "client setname \"a b\\x00\"",
                "-ERR Client names cannot contain spaces, newlines or special characters.",
            ),
            ("client setinfo lib-name jedis", "+OK"),
            ("client setinfo LIB-VER \"5.1\\x00 b\"", "+OK"),
            (
                "client setinfo lib-ver \"a b\"",
                "-ERR lib-ver cannot contain spaces, newlines or special characters.",
            ),
            (
                "client setinfo Lib-Name \"a b\"",
                "-ERR Lib-Name cannot contain spaces, newlines or special characters.",
            ),
            ("client setinfo nosuch x", "-ERR Unrecognized option 'nosuch'"),
            ("client no-evict on", "+OK"),
            ("client no-evict x", "-ERR syntax error"),
            ("client no-touch on", "+OK"),
            ("client nosuch", "-ERR unknown subcommand 'nosuch'. Try CLIENT HELP."),
            ("client", "-ERR wrong number of arguments for 'client' command"),
        ]);
        let info = client.run_to_text("client info");
        assert!(info.contains(" flags=eT "), "{info}");
        assert!(info.contains(" name=ab age="), "{info}");
        assert!(info.contains(" cmd=client|info "), "{info}");
        assert!(info.contains(" lib-name=jedis lib-ver=5.1 tot-net-in="), "{info}");
    }

    #[test]
    fn reply_off_and_skip_suppress_replies() {
        Client::new().check_replies(&[
            ("client reply skip\nping\nping", "+PONG"),
            ("client reply off\nping\nget\nclient reply skip\nping", ""),
            ("ping\nclient reply on\nping", "+OK|+PONG"),
            ("client reply x", "-ERR syntax error"),
        ]);
    }
}
