//! Commands that do not involve the state machine: connections, subscriptions and process information.

use engine::{CommandError, CommandRunner, Flags, NodeFlags, PipelinedRequests, RegisteredCommand};
use process::access::run_acl_genpass;
use resp::{Batch, ParseLimits, Parser, Protocol, Request, Writer, encode_request};

use super::access;
use super::client::Client;
use super::server_state::ServerState;

/// How the sentinel server replies to a request.
pub(super) enum CommandReply {
    /// Send this reply unless the client suppresses replies.
    Reply(Vec<u8>),
    /// Send this reply as it is; the engine has already handled suppression.
    Engine(Vec<u8>),
    /// The state machine answers the request later.
    FromMachine,
    /// CLIENT PAUSE blocks the command; execute it when the pause ends.
    RetryAfterPause,
    /// Shut down the process.
    Shutdown,
}

pub(super) struct CommandCall<'a> {
    pub(super) state: &'a mut ServerState,
    pub(super) client: &'a mut Client,
    pub(super) args: &'a [Vec<u8>],
    pub(super) out: &'a mut Vec<u8>,
}

impl CommandCall<'_> {
    pub(super) fn reply_writer(&mut self) -> Writer<'_> {
        Writer::new(self.out, self.client.session.protocol())
    }

    pub(super) fn argument_text(&self, at: usize) -> String {
        self.args.get(at).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).unwrap_or_default()
    }
}

/// Executes a request or decides which component does. If [`engine::Session::is_closing`] returns true afterwards, the
/// connection is closed after the reply.
pub(super) fn execute(state: &mut ServerState, client: &mut Client, args: &[Vec<u8>]) -> CommandReply {
    if args[0].eq_ignore_ascii_case(b"quit") {
        client.session.close_after_reply();
        return CommandReply::Reply(b"+OK\r\n".to_vec());
    }
    let entry = match find_permitted_command(state, client, args) {
        Ok(entry) => entry,
        Err(error) => return error_reply(&error.to_string()),
    };
    client.session.publish(process::time::now(), entry.index);
    let mut out = Vec::new();
    let mut call = CommandCall { state, client, args, out: &mut out };
    let subscriber = call.client.subscriptions() > 0 && call.client.session.protocol() == Protocol::Resp2;
    if subscriber && !entry.command.flags.contains(Flags::WHILE_SUBSCRIBED) {
        let name = &entry.full_name;
        return error_reply(&format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
             allowed in this context"
        ));
    }
    if is_paused(call.state, entry) {
        return CommandReply::RetryAfterPause;
    }
    match entry.full_name.split('|').next().unwrap_or_default() {
        "acl" if matches!(entry.command.runner, CommandRunner::Shell(_)) => run_acl(&mut call),
        "acl" | "auth" | "client" | "hello" => return run_by_engine(call.state, call.client, args),
        "command" => run_command(&mut call),
        "info" => run_info(&mut call),
        "ping" => run_ping(&mut call),
        "psubscribe" | "subscribe" => run_subscribe(&mut call),
        "punsubscribe" | "unsubscribe" => run_unsubscribe(&mut call),
        "shutdown" => return run_shutdown(args),
        _ => return CommandReply::FromMachine,
    }
    CommandReply::Reply(out)
}

fn error_reply(text: &str) -> CommandReply {
    let mut out = Vec::new();
    Writer::new(&mut out, Protocol::Resp2).error(text);
    CommandReply::Reply(out)
}

/// Looks up the command of a request, and checks that the client's user may run it.
fn find_permitted_command(
    state: &ServerState,
    client: &mut Client,
    args: &[Vec<u8>],
) -> Result<&'static RegisteredCommand, CommandError> {
    let request: Request = args.iter().collect();
    let entry = ::commands::sentinel_registry().resolve(request.args())?;
    if !entry.command.accepts_word_count(args.len()) {
        return Err(CommandError::WrongArity(entry.full_name.clone()));
    }
    if !state.engine.access.refresh_user(&mut client.session) {
        // Deleting a user closes its connections, so the current reply is the last one.
        client.session.close_after_reply();
    }
    if !client.session.is_authenticated() && !entry.command.flags.contains(Flags::NO_AUTH) {
        return Err(CommandError::NoAuth);
    }
    state.engine.check_access(&client.session, entry, request.args(), process::time::now())?;
    Ok(entry)
}

/// Returns whether CLIENT PAUSE currently blocks this command.
fn is_paused(state: &ServerState, entry: &RegisteredCommand) -> bool {
    let settings = &state.engine.settings;
    state.engine.scheduling.pauses.end_expired(settings, process::time::now());
    let gate = settings.node_flags();
    gate.contains(NodeFlags::ALL_PAUSED)
        || gate.contains(NodeFlags::WRITES_PAUSED) && entry.command.flags.contains(Flags::MAY_REPLICATE)
}

/// Runs CLIENT, AUTH, HELLO and ACL in the engine, which manages connections and users.
fn run_by_engine(state: &mut ServerState, client: &mut Client, args: &[Vec<u8>]) -> CommandReply {
    let mut buffer = Vec::new();
    encode_request(&mut buffer, args.iter().map(Vec::as_slice));
    let mut batch = Batch::default();
    Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
    client.session.client().set_subscriptions(client.channels.len(), client.patterns.len());
    for other in state.clients.values() {
        other.session.client().set_subscriptions(other.channels.len(), other.patterns.len());
    }
    // The engine handles CLIENT REPLY itself, so the state before this request is restored.
    client.unmute();
    let users = state.engine.access.users_version();
    let mut out = Vec::new();
    let (now, requests) =
        (process::time::now(), PipelinedRequests { buffer: &buffer, batch: &batch, first_pending: 0 });
    let dispatcher = state.engine_commands.dispatcher(&state.engine);
    dispatcher.run(&mut state.worker, &mut client.session, now, requests, &mut out);
    client.mark_authenticated();
    if state.engine.access.users_version() != users {
        access::on_changed_users(state, client);
    }
    CommandReply::Engine(out)
}

/// Executes SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] and SHUTDOWN ABORT. A sentinel has nothing to save and shuts down at
/// once, so there is nothing to abort.
fn run_shutdown(args: &[Vec<u8>]) -> CommandReply {
    let words: Vec<Vec<u8>> = args[1..].iter().map(|word| word.to_ascii_lowercase()).collect();
    let has = |word: &[u8]| words.iter().any(|said| said == word);
    let known =
        |word: &Vec<u8>| [&b"nosave"[..], b"save", b"now", b"force", b"abort"].contains(&word.as_slice());
    let alone = words.iter().all(|word| word == b"abort");
    match () {
        () if !words.iter().all(known) || has(b"save") && has(b"nosave") || has(b"abort") && !alone => {
            error_reply("ERR syntax error")
        }
        () if has(b"abort") => error_reply("ERR No shutdown in progress."),
        () => CommandReply::Shutdown,
    }
}

fn run_ping(call: &mut CommandCall<'_>) {
    let subscriber = call.client.subscriptions() > 0 && call.client.session.protocol() == Protocol::Resp2;
    let text = call.args.get(1).cloned();
    if call.args.len() > 2 {
        call.reply_writer().error("ERR wrong number of arguments for 'ping' command");
    } else if subscriber {
        let mut reply = call.reply_writer();
        reply.array(2);
        reply.bulk(b"pong");
        reply.bulk(&text.unwrap_or_default());
    } else if let Some(text) = text {
        call.reply_writer().bulk(&text);
    } else {
        call.reply_writer().simple("PONG");
    }
}

/// Executes the ACL subcommands that the engine leaves to the process. A sentinel stores its users in the configuration
/// file.
fn run_acl(call: &mut CommandCall<'_>) {
    if call.argument_text(1) != "genpass" {
        return call.reply_writer().error(acl::NO_FILE_ERROR);
    }
    let request: Request = call.args.iter().collect();
    if let Err(text) = run_acl_genpass(request.args(), &mut call.reply_writer()) {
        call.reply_writer().error(&text);
    }
}

fn run_command(call: &mut CommandCall<'_>) {
    let request: Request = call.args.iter().collect();
    let mut reply = Writer::new(call.out, call.client.session.protocol());
    if let Err(error) =
        ::commands::execute_command(::commands::sentinel_registry(), request.args(), &mut reply)
    {
        reply.error(&error.to_string());
    }
}

fn run_info(call: &mut CommandCall<'_>) {
    let asked: Vec<String> = (1..call.args.len()).map(|at| call.argument_text(at)).collect();
    let text = super::info::format_info(call.state, &asked);
    call.reply_writer().verbatim(b"txt", text.as_bytes());
}

fn run_subscribe(call: &mut CommandCall<'_>) {
    let pattern = call.argument_text(0) == "psubscribe";
    for name in &call.args[1..] {
        let of = if pattern { &mut call.client.patterns } else { &mut call.client.channels };
        of.insert(name.clone());
        confirm_subscription(call, if pattern { b"psubscribe" } else { b"subscribe" }, Some(name));
    }
}

fn run_unsubscribe(call: &mut CommandCall<'_>) {
    let pattern = call.argument_text(0) == "punsubscribe";
    let word: &[u8] = if pattern { b"punsubscribe" } else { b"unsubscribe" };
    let all = if pattern { &call.client.patterns } else { &call.client.channels };
    let names = if call.args.len() > 1 { call.args[1..].to_vec() } else { all.iter().cloned().collect() };
    if names.is_empty() {
        confirm_subscription(call, word, None);
    }
    for name in names {
        let of = if pattern { &mut call.client.patterns } else { &mut call.client.channels };
        of.remove(&name);
        confirm_subscription(call, word, Some(&name));
    }
}

fn confirm_subscription(call: &mut CommandCall<'_>, word: &[u8], name: Option<&[u8]>) {
    let count = call.client.subscriptions() as i64;
    let mut reply = call.reply_writer();
    reply.push(3);
    reply.bulk(word);
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(count);
}

#[cfg(test)]
mod tests {
    /// COMMAND must list exactly the subcommands of SENTINEL that the state machine implements.
    #[test]
    fn command_table_and_state_machine_have_the_same_subcommands() {
        let container = ::commands::sentinel_registry().find(b"sentinel").unwrap();
        let shown: Vec<&str> = container.subcommands().iter().map(|entry| entry.command.name).collect();
        let mut own: Vec<&str> = sentinel::subcommands().collect();
        own.sort_unstable();
        assert_eq!(shown, own);
    }
}
