//! Who a client is and what it may do: AUTH, HELLO, ACL, and the question before every command.

use acl::{Asker, Channel, CommandId, DEFAULT, Denial, Effect, Host, Incident, Reason, Request, Unresolved};
use engine::{Channels, Flags, Registered, Registry};
use resp::{Protocol, REDIS_VERSION, Writer};

use super::client::Client;
use super::commands::Call;

const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// What a request is about. A sentinel has no keys.
fn subject<'a>(entry: &Registered, args: &[&'a [u8]]) -> Request<'a> {
    let open = entry.command.flags.contains(Flags::NO_AUTH);
    let (names, is_pattern) = match entry.command.channels {
        Channels::None => (&args[..0], false),
        Channels::First => (&args[1..2], false),
        Channels::All => (&args[1..], false),
        Channels::Patterns => (&args[1..], true),
    };
    let words = 1 + usize::from(entry.full_name.contains('|'));
    Request {
        command: (!open).then_some(CommandId(entry.index)),
        first_argument: args.get(words).copied(),
        keys: Vec::new(),
        channels: names.iter().map(|name| Channel { name, is_pattern }).collect(),
    }
}

fn words(args: &[Vec<u8>]) -> Vec<&[u8]> {
    args.iter().map(Vec::as_slice).collect()
}

/// The error that keeps this client's user from that command, if one does. It is noted in the log.
pub(super) fn objection(call: &mut Call<'_>, entry: &Registered) -> Option<String> {
    let args = words(call.args);
    let subject = subject(entry, &args);
    let name = call.client.user();
    let user = call.center.engine.users.read().find(&name)?.clone();
    let (reason, object, text) = match user.check(&subject).err()? {
        Denial::Command => {
            let name = &entry.full_name;
            let text = format!("NOPERM this user has no permissions to run the '{name}' command");
            (Reason::Command, name.clone().into_bytes(), text)
        }
        Denial::Key(_) => unreachable!("a sentinel has no keys"),
        Denial::Channel(place) => {
            let text = "NOPERM this user has no permissions to access one of the channels used as arguments";
            (Reason::Channel, subject.channels[place].name.to_vec(), text.to_owned())
        }
    };
    note(call, reason, object, name);
    Some(text)
}

fn note(call: &mut Call<'_>, reason: Reason, object: Vec<u8>, username: Vec<u8>) {
    let line = call.client.session.client.describe(crate::process::time::now(), Registry::of_sentinel());
    let client = String::from_utf8_lossy(&line).into_owned();
    let incident = Incident { reason, context: "toplevel", object, username, client };
    call.center.acl_log.add(crate::process::time::instant(), incident);
}

/// Logs a client in; says what is wrong if it cannot be.
fn log_in(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Result<(), &'static str> {
    if call.center.engine.users.read().admits(user, password) {
        call.client.log_in(user);
        return Ok(());
    }
    note(call, Reason::Auth, call.args[0].clone(), user.to_vec());
    Err(WRONG_PASS)
}

pub(super) fn auth(call: &mut Call<'_>) {
    let (user, password) = match call.args {
        [_, _] if call.center.engine.users.read().default_user().has_no_password() => {
            call.reply().error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            );
            return;
        }
        [_, password] => (DEFAULT, password),
        [_, user, password] => (user.as_slice(), password),
        _ => return call.reply().error("ERR syntax error"),
    };
    match log_in(call, user, password) {
        Ok(()) => call.reply().ok(),
        Err(text) => call.reply().error(text),
    }
}

pub(super) fn hello(call: &mut Call<'_>) {
    let protocol = match take_hello(call) {
        Ok(protocol) => protocol,
        Err(text) => return call.reply().error(&text),
    };
    call.client.session.set_protocol(protocol);
    let id = call.client.session.id as i64;
    let mut reply = call.reply();
    reply.map(6);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(id);
    reply.bulk(b"mode");
    reply.bulk(b"sentinel");
    reply.bulk(b"modules");
    reply.array(0);
}

/// Does what HELLO's options ask for; says which protocol is to be spoken.
fn take_hello(call: &mut Call<'_>) -> Result<Protocol, String> {
    let protocol = match call.args.get(1).map(|word| resp::parse_i64(word)) {
        None => call.client.session.protocol,
        Some(Some(2)) => Protocol::Resp2,
        Some(Some(3)) => Protocol::Resp3,
        Some(Some(_)) => return Err("NOPROTO unsupported protocol version".into()),
        Some(None) => return Err("ERR Protocol version is not an integer or out of range".into()),
    };
    let mut at = 2;
    while at < call.args.len() {
        let rest = call.args.len() - at - 1;
        match call.word(at).as_str() {
            "auth" if rest >= 2 => {
                log_in(call, &call.args[at + 1], &call.args[at + 2])?;
                at += 3;
            }
            "setname" if rest >= 1 => {
                let name = &call.args[at + 1];
                if !name.iter().all(u8::is_ascii_graphic) {
                    return Err(
                        "ERR Client names cannot contain spaces, newlines or special characters.".into()
                    );
                }
                call.client.session.client.names.lock().name.clone_from(name);
                at += 2;
            }
            _ => {
                let option = String::from_utf8_lossy(&call.args[at]);
                return Err(format!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
    }
    if call.client.session.authenticated {
        return Ok(protocol);
    }
    Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
         <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
         the same time"
        .into())
}

/// What the ACL command asks of a sentinel.
struct Commands;

impl Host for Commands {
    fn resolve<'a>(&self, request: &[&'a [u8]]) -> Result<Request<'a>, Unresolved> {
        let owned: resp::Request = request.iter().collect();
        let entry = Registry::of_sentinel().resolve(owned.args()).map_err(|_| Unresolved::NoSuchCommand)?;
        if !entry.command.accepts(request.len()) {
            return Err(Unresolved::Arity(entry.full_name.clone()));
        }
        Ok(subject(entry, request))
    }

    fn random(&mut self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("a password cannot be made up without random numbers");
    }
}

pub(super) fn acl(call: &mut Call<'_>) {
    if call.word(1) == "help" {
        return engine::write_help(&mut call.reply(), "ACL", acl::HELP);
    }
    let user = call.client.user();
    let asker = Asker { user: &user, now: crate::process::time::instant() };
    let effect = {
        let mut reply = Writer::new(call.out, call.client.session.protocol);
        let mut users = call.center.engine.users.write();
        acl::answer(&mut users, &mut call.center.acl_log, asker, &mut Commands, &words(call.args), &mut reply)
    };
    if effect == Effect::Nothing {
        return;
    }
    call.center.users_changed = true;
    let gone = |client: &Client| match &effect {
        Effect::Deleted(names) => names.contains(&client.user()),
        Effect::Changed(name) => client.user() == *name && hears_too_much(call.center, client),
        Effect::Nothing => false,
    };
    for client in call.center.clients.values().filter(|client| gone(client)) {
        client.session.client.kill();
    }
    if gone(call.client) {
        call.client.session.closing = true;
    }
}

/// Whether a client listens to what its user may no longer hear.
fn hears_too_much(center: &super::center::Center, client: &Client) -> bool {
    let users = center.engine.users.read();
    let Some(user) = users.find(&client.user()) else { return true };
    let hears = |names: &std::collections::BTreeSet<Vec<u8>>, is_pattern| {
        names.iter().any(|name| !user.may_hear(Channel { name, is_pattern }))
    };
    hears(&client.channels, false) || hears(&client.patterns, true)
}

/// The users' lines for the configuration file, each the words after `user`. The user `default` has none as
/// long as `requirepass` alone says what it is.
pub(super) fn lines(engine: &engine::Engine, required: &str, had_default: bool) -> Vec<Vec<Vec<u8>>> {
    let users = engine.users.read();
    let mut plain = acl::Users::new(Registry::of_sentinel().catalogue());
    plain.set_default_password(required.as_bytes());
    let line = |(name, user): (&[u8], &acl::User)| {
        let rules = user.describe();
        std::iter::once(name).chain(rules.split(|byte| *byte == b' ')).map(<[u8]>::to_vec).collect()
    };
    let silent =
        |name: &[u8], user: &acl::User| name == DEFAULT && !had_default && *user == **plain.default_user();
    users.iter().filter(|(name, user)| !silent(name, user)).map(line).collect()
}

/// Makes the users that the configuration describes; the line, and what is wrong with it.
pub(super) fn load(
    engine: &engine::Engine,
    required: &str,
    lines: &[Vec<Vec<u8>>],
) -> Result<(), (usize, String)> {
    let mut users = engine.users.write();
    users.set_default_password(required.as_bytes());
    for (place, line) in lines.iter().enumerate() {
        let rules: Vec<&[u8]> = line[1..].iter().map(Vec::as_slice).collect();
        users.load(&line[0], &rules).map_err(|error| {
            let name = String::from_utf8_lossy(&line[0]);
            (place, format!("Error in user declaration '{name}': {error}"))
        })?;
    }
    Ok(())
}
