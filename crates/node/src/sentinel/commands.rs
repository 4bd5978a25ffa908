//! Commands that need no machine: who a client is, what it subscribes to, what this process is.

use resp::{Protocol, Writer};

use super::center::Center;
use super::clients::Client;

/// What to do with a request.
pub(super) enum Answer {
    /// Send this.
    Reply(Vec<u8>),
    /// Send this, then end the connection.
    Last(Vec<u8>),
    /// The machine answers.
    Machine,
    /// End the process.
    Shutdown,
}

/// A command of a sentinel, with its arity as COMMAND shows it. Those without a handler here are the
/// machine's.
struct Command {
    name: &'static str,
    arity: i32,
    run: Option<fn(&mut Call<'_>)>,
    /// Allowed before a client has said who it is.
    open: bool,
}

struct Call<'a> {
    center: &'a Center,
    client: &'a mut Client,
    id: u64,
    args: &'a [Vec<u8>],
    out: &'a mut Vec<u8>,
}

impl Call<'_> {
    fn reply(&mut self) -> Writer<'_> {
        Writer::new(self.out, self.client.protocol)
    }

    /// Says that this command has no such subcommand.
    fn unknown_subcommand(&mut self, command: &str) {
        let asked: String = String::from_utf8_lossy(&self.args[1]).chars().take(128).collect();
        self.reply().error(&format!("ERR unknown subcommand '{asked}'. Try {command} HELP."));
    }

    fn word(&self, at: usize) -> String {
        self.args.get(at).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).unwrap_or_default()
    }
}

const fn command(name: &'static str, arity: i32, run: Option<fn(&mut Call<'_>)>) -> Command {
    Command { name, arity, run, open: false }
}

static COMMANDS: &[Command] = &[
    command("acl", -2, Some(acl)),
    Command { name: "auth", arity: -2, run: Some(auth), open: true },
    command("client", -2, Some(client)),
    command("command", -1, Some(list)),
    Command { name: "hello", arity: -1, run: Some(hello), open: true },
    command("info", -1, Some(info)),
    command("ping", -1, Some(ping)),
    command("psubscribe", -2, Some(subscribe)),
    command("publish", 3, None),
    command("punsubscribe", -1, Some(unsubscribe)),
    Command { name: "quit", arity: -1, run: None, open: true },
    command("role", 1, None),
    command("sentinel", -2, None),
    command("shutdown", -1, None),
    command("subscribe", -2, Some(subscribe)),
    command("unsubscribe", -1, Some(unsubscribe)),
];

/// Answers a request, or says who does.
pub(super) fn answer(center: &Center, client: &mut Client, id: u64, args: &[Vec<u8>]) -> Answer {
    let mut out = Vec::new();
    let asked = args.first().map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
    let name = asked.to_ascii_lowercase();
    let error = |text: &str| {
        let mut out = Vec::new();
        Writer::new(&mut out, Protocol::Resp2).error(text);
        Answer::Reply(out)
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        return error(&unknown(&asked, &args[1.min(args.len())..]));
    };
    let words = args.len() as i32;
    if (command.arity > 0 && words != command.arity) || words < -command.arity {
        return error(&format!("ERR wrong number of arguments for '{name}' command"));
    }
    if !client.authenticated && !command.open {
        return error("NOAUTH Authentication required.");
    }
    let subscriber = client.subscriptions() > 0 && client.protocol == Protocol::Resp2;
    let listening = ["subscribe", "psubscribe", "unsubscribe", "punsubscribe", "ping", "quit"];
    if subscriber && !listening.contains(&command.name) {
        return error(&format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        ));
    }
    match (command.name, command.run) {
        ("quit", _) => Answer::Last(b"+OK\r\n".to_vec()),
        ("shutdown", _) => Answer::Shutdown,
        (_, None) => Answer::Machine,
        (_, Some(run)) => {
            run(&mut Call { center, client, id, args, out: &mut out });
            Answer::Reply(out)
        }
    }
}

/// As Redis words it: the first arguments, quoted, up to 128 bytes.
fn unknown(asked: &str, args: &[Vec<u8>]) -> String {
    let asked: String = asked.chars().take(128).collect();
    let mut shown = String::new();
    for arg in args {
        if shown.len() >= 128 {
            break;
        }
        let arg: String = String::from_utf8_lossy(arg).chars().take(128 - shown.len()).collect();
        shown.push_str(&format!("'{arg}' "));
    }
    format!("ERR unknown command '{asked}', with args beginning with: {shown}")
}

fn ping(call: &mut Call<'_>) {
    let subscriber = call.client.subscriptions() > 0 && call.client.protocol == Protocol::Resp2;
    let text = call.args.get(1).cloned();
    if call.args.len() > 2 {
        call.reply().error("ERR wrong number of arguments for 'ping' command");
    } else if subscriber {
        let mut reply = call.reply();
        reply.array(2);
        reply.bulk(b"pong");
        reply.bulk(&text.unwrap_or_default());
    } else if let Some(text) = text {
        call.reply().bulk(&text);
    } else {
        call.reply().simple("PONG");
    }
}

/// Signs a client in; says what is wrong if it cannot be.
fn sign_in(call: &mut Call<'_>, user: &[u8], pass: &[u8]) -> Result<(), &'static str> {
    let wanted = call.center.password();
    if user == b"default" && (wanted.is_empty() || same(pass, wanted.as_bytes())) {
        call.client.authenticated = true;
        Ok(())
    } else {
        Err("WRONGPASS invalid username-password pair or user is disabled.")
    }
}

/// Compares without telling by its time how much is right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

fn auth(call: &mut Call<'_>) {
    let (user, pass) = match call.args {
        [_, _] if call.center.password().is_empty() => {
            call.reply().error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            );
            return;
        }
        [_, pass] => (b"default".to_vec(), pass.clone()),
        [_, user, pass] => (user.clone(), pass.clone()),
        _ => {
            call.reply().error("ERR syntax error");
            return;
        }
    };
    match sign_in(call, &user, &pass) {
        Ok(()) => call.reply().ok(),
        Err(text) => call.reply().error(text),
    }
}

fn hello(call: &mut Call<'_>) {
    let protocol = match take_hello(call) {
        Ok(protocol) => protocol,
        Err(text) => return call.reply().error(&text),
    };
    call.client.protocol = protocol;
    let id = call.id as i64;
    let mut reply = call.reply();
    reply.map(6);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(b"7.2.4");
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
    let protocol = match call.args.get(1).map(Vec::as_slice) {
        None => call.client.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(word) if word.iter().all(u8::is_ascii_digit) => {
            return Err("NOPROTO unsupported protocol version".into());
        }
        Some(_) => return Err("ERR Protocol version is not an integer or out of range".into()),
    };
    let mut at = 2;
    while at < call.args.len() {
        let rest = call.args.len() - at - 1;
        match call.word(at).as_str() {
            "auth" if rest >= 2 => {
                let (user, pass) = (call.args[at + 1].clone(), call.args[at + 2].clone());
                sign_in(call, &user, &pass)?;
                at += 3;
            }
            "setname" if rest >= 1 => {
                call.client.name = String::from_utf8_lossy(&call.args[at + 1]).into_owned();
                at += 2;
            }
            _ => {
                let option = String::from_utf8_lossy(&call.args[at]);
                return Err(format!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
    }
    if call.client.authenticated {
        return Ok(protocol);
    }
    Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
         <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
         the same time"
        .into())
}

fn acl(call: &mut Call<'_>) {
    match (call.word(1).as_str(), call.args.len()) {
        ("whoami", 2) => call.reply().bulk(b"default"),
        _ => call.unknown_subcommand("ACL"),
    }
}

fn client(call: &mut Call<'_>) {
    match (call.word(1).as_str(), call.args.len()) {
        ("setname", 3) => {
            let name = &call.args[2];
            if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
                call.reply().error("ERR Client names cannot contain spaces, newlines or special characters.");
            } else {
                call.client.name = String::from_utf8_lossy(name).into_owned();
                call.reply().ok();
            }
        }
        ("getname", 2) if call.client.name.is_empty() => call.reply().null(),
        ("getname", 2) => {
            let name = call.client.name.clone();
            call.reply().bulk(name.as_bytes());
        }
        ("id", 2) => {
            let id = call.id as i64;
            call.reply().integer(id);
        }
        ("setinfo", 4) if matches!(call.word(2).as_str(), "lib-name" | "lib-ver") => call.reply().ok(),
        ("list", 2) => {
            let own = describe(call.id, call.client);
            let text = call.center.client_list(call.id, own);
            call.reply().bulk(text.as_bytes());
        }
        ("info", 2) => {
            let text = describe(call.id, call.client);
            call.reply().bulk(text.as_bytes());
        }
        ("setname" | "getname" | "id" | "setinfo" | "list" | "info", _) => {
            let text = format!("ERR wrong number of arguments for 'client|{}' command", call.word(1));
            call.reply().error(&text);
        }
        _ => call.unknown_subcommand("CLIENT"),
    }
}

/// A client's line in CLIENT LIST.
pub(super) fn describe(id: u64, client: &Client) -> String {
    let (channels, patterns) = (client.channels.len(), client.patterns.len());
    let flags = if channels + patterns > 0 { "P" } else { "N" };
    let resp = if client.protocol == Protocol::Resp3 { 3 } else { 2 };
    format!(
        "id={id} addr={} name={} flags={flags} db=0 sub={channels} psub={patterns} user=default resp={resp}\n",
        client.peer, client.name
    )
}

fn list(call: &mut Call<'_>) {
    match (call.word(1).as_str(), call.args.len()) {
        ("", 1) => {
            let mut reply = call.reply();
            reply.array(COMMANDS.len());
            for command in COMMANDS {
                reply.array(6);
                reply.bulk(command.name.as_bytes());
                reply.integer(i64::from(command.arity));
                reply.set(0);
                (0..3).for_each(|_| reply.integer(0));
            }
        }
        ("count", 2) => call.reply().integer(COMMANDS.len() as i64),
        ("list", 2) => {
            let mut reply = call.reply();
            reply.array(COMMANDS.len());
            for command in COMMANDS {
                reply.bulk(command.name.as_bytes());
            }
        }
        ("docs", _) => call.reply().map(0),
        _ => call.unknown_subcommand("COMMAND"),
    }
}

fn info(call: &mut Call<'_>) {
    let asked: Vec<String> = (1..call.args.len()).map(|at| call.word(at)).collect();
    let text = call.center.info(&asked);
    let mut reply = call.reply();
    reply.verbatim(b"txt", text.as_bytes());
}

fn subscribe(call: &mut Call<'_>) {
    let pattern = call.word(0) == "psubscribe";
    for name in &call.args[1..] {
        let of = if pattern { &mut call.client.patterns } else { &mut call.client.channels };
        of.insert(name.clone());
        confirm(call, if pattern { b"psubscribe" } else { b"subscribe" }, Some(name));
    }
}

fn unsubscribe(call: &mut Call<'_>) {
    let pattern = call.word(0) == "punsubscribe";
    let word: &[u8] = if pattern { b"punsubscribe" } else { b"unsubscribe" };
    let all = if pattern { &call.client.patterns } else { &call.client.channels };
    let names = if call.args.len() > 1 { call.args[1..].to_vec() } else { all.iter().cloned().collect() };
    if names.is_empty() {
        confirm(call, word, None);
    }
    for name in names {
        let of = if pattern { &mut call.client.patterns } else { &mut call.client.channels };
        of.remove(&name);
        confirm(call, word, Some(&name));
    }
}

fn confirm(call: &mut Call<'_>, word: &[u8], name: Option<&[u8]>) {
    let count = call.client.subscriptions() as i64;
    let mut reply = call.reply();
    reply.push(3);
    reply.bulk(word);
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(count);
}
