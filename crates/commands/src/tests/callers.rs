//! Tests that each command behaves the same for all callers: clients, transactions, scripts and the master. Most are
//! regression tests from the time when each caller had its own copy of the dispatch code.

use std::sync::{Arc, Weak};

use engine::{
    CommandError, CommandOrigin, CommandOutcome, Context, DispatchStatus, NodeCommand, NodeFlags, PauseMode,
    PausePurpose, Session, Shell, ShellCommand, UnblockReason,
};
use keyspace::LockedSlots;
use resp::Value;

use crate::testing::Client;

/// Stands in for the server: executes INFO and ROLE immediately, refuses LASTSAVE, and defers all other commands.
#[derive(Debug)]
struct ImmediateShell;

impl Shell for ImmediateShell {
    fn run_command(
        &self,
        command: ShellCommand,
        context: &mut Context<'_>,
    ) -> Result<CommandOutcome, CommandError> {
        match command {
            ShellCommand::Info => {
                let mut keys = 0;
                context.each_slot(|_, data| keys += data.existing_table(0).map_or(0, |table| table.len()));
                context.reply.integer(keys as i64);
                Ok(CommandOutcome::Done)
            }
            ShellCommand::Role => {
                context.reply.simple("master");
                Ok(CommandOutcome::Done)
            }
            ShellCommand::Lastsave => Err(CommandError::text("ERR never")),
            _ => Ok(CommandOutcome::Defer(NodeCommand::Wait)),
        }
    }
}

fn attach_shell(client: &Client) -> Arc<dyn Shell> {
    let shell: Arc<dyn Shell> = Arc::new(ImmediateShell);
    let weak: Weak<dyn Shell> = Arc::downgrade(&shell);
    client.commands.set_shell(weak);
    shell
}

/// Completes the remaining commands of an EXEC with `deferred_reply` each, and appends them to `executed`. Returns the
/// whole reply to EXEC.
fn finish_exec(client: &mut Client, deferred_reply: &str, executed: &mut Vec<NodeCommand>) -> String {
    let (mut out, mut reply) = (Vec::new(), None);
    loop {
        let (engine, worker, session) = (&client.engine, &mut client.worker, &mut client.session);
        let dispatcher = client.commands.dispatcher(engine);
        let Some((command, _)) = dispatcher.resume_exec(worker, session, client.now, reply, &mut out) else {
            break;
        };
        // No slot is locked while the command is executed outside of the engine.
        drop(LockedSlots::lock_all(&engine.keyspace.acquire_global_lock()));
        executed.push(command);
        reply = Some(deferred_reply.as_bytes().to_vec());
    }
    String::from_utf8(out).expect("text").replace("\r\n", "|")
}

/// Regression test: EXEC announced two replies but contained one, and the script never ran, because its restart request
/// was ignored.
#[test]
fn script_in_transaction_accesses_undeclared_keys() {
    for mut client in [Client::with_recording_log(), Client::in_cluster()] {
        client.run_to_text("set other{t} there");
        let script = "redis.call('append','more{t}','x') return redis.call('get','other{t}')";
        for _ in 0..2 {
            client.run_to_text("multi\nset a{t} 1");
            client.call(&["eval", script, "0"]);
            client.call(&[
                "eval",
                "return redis.call('get',KEYS[1])..redis.call('get','other{t}')",
                "1",
                "a{t}",
            ]);
            client.run_to_text("get a{t}");
            client.check_replies(&[("exec", "*4|+OK|$5|there|$6|1there|$1|1")]);
        }
        client.check_replies(&[("get more{t}", "$2|xx")]);
        drop(LockedSlots::lock_all(&client.engine.keyspace.acquire_global_lock()));
    }
}

/// Regression test: the watched keys were checked, the slots unlocked, and the queue executed one by one, so that
/// writes of other clients could interleave.
#[test]
fn transaction_with_shell_commands_is_atomic() {
    let mut client = Client::with_recording_log();
    let _shell = attach_shell(&client);
    client.check_replies(&[
        ("set k 1", "+OK"),
        ("info", ":1"),
        ("watch k", "+OK"),
        ("multi", "+OK"),
        ("role", "+QUEUED"),
        ("incr k", "+QUEUED"),
        ("info", "+QUEUED"),
        ("set l 1", "+QUEUED"),
        ("info", "+QUEUED"),
        ("lastsave", "+QUEUED"),
        ("exec", "*6|+master|:2|:1|+OK|:2|-ERR never"),
    ]);
    assert_eq!(client.logged_commands(), ["0 set k 1", "0 MULTI", "0 incr k", "0 set l 1", "0 EXEC"]);
}

/// Commands that wait for a disk or another node run after the slots are unlocked. The order of the replies stays the
/// same.
#[test]
fn blocking_shell_commands_run_after_rest_of_transaction() {
    let mut client = Client::with_recording_log();
    let _shell = attach_shell(&client);
    client.run_to_text("multi\nset k v\nreplicaof no one\nget k\nconfig set a b\nrole");
    assert_eq!(client.run_status("exec"), DispatchStatus::Node(NodeCommand::Exec));
    assert_eq!(client.logged_commands(), ["0 set k v"]);
    let mut carried_out = Vec::new();
    let reply = finish_exec(&mut client, "+DONE\r\n", &mut carried_out);
    assert_eq!(reply, "*5|+OK|+DONE|$1|v|+DONE|+master|");
    assert_eq!(carried_out, [NodeCommand::Replicaof, NodeCommand::ConfigSet]);
    // A transaction that locks no slots runs all commands in order, so the role has changed when the last ROLE runs.
    client.run_to_text("multi\nrole\nreplicaof no one\necho a\nrole\nselect 3\nconfig set a b");
    assert_eq!(client.run_status("exec"), DispatchStatus::Node(NodeCommand::Exec));
    assert_eq!(client.session.db(), 0, "that comes behind what waits");
    let reply = finish_exec(&mut client, "+DONE\r\n", &mut carried_out);
    assert_eq!(reply, "*6|+master|+DONE|$1|a|+master|+OK|+DONE|");
    assert_eq!((client.session.db(), carried_out.len()), (3, 4));
}

/// In a script, a command that the server executes outside of the engine fails with an error if it would block or if
/// the server does not support it.
#[test]
fn script_can_call_nonblocking_shell_commands() {
    let mut client = Client::with_recording_log();
    let _shell = attach_shell(&client);
    let mut eval = |script: &str| client.call(&["eval", script, "1", "k"]);
    assert_eq!(eval("redis.call('set',KEYS[1],1) return redis.call('info')"), Value::Integer(1));
    assert_eq!(eval("return redis.pcall('lastsave').err"), Value::Bulk(b"ERR never".to_vec()));
    let not_for_scripts = Value::Bulk(b"ERR This Valkey command is not allowed from script".to_vec());
    for call in ["'role'", "'migrate','h','1','k','0','1'", "'wait','0','0'", "'exec'", "'config','get','a'"]
    {
        assert_eq!(eval(&format!("return redis.pcall({call}).err")), not_for_scripts, "{call}");
    }
}

/// Regression test: on a full disk SET failed with MISCONF, but SET within a script succeeded.
#[test]
fn script_write_is_refused_like_client_write() {
    let states = [
        (NodeFlags::AOF_FAILED, "MISCONF Errors writing to the AOF file: No space left on device"),
        (NodeFlags::MISCONF, "MISCONF Valkey is configured to save RDB snapshots"),
        (NodeFlags::NO_REPLICAS, "NOREPLICAS Not enough good replicas to write."),
        (NodeFlags::READ_ONLY_REPLICA, "READONLY You can't write against a read only replica."),
        (NodeFlags::OUT_OF_MEMORY, "OOM command not allowed when used memory > 'maxmemory'."),
    ];
    let mut client = Client::with_recording_log();
    client.engine.settings.dataset.aof_error.store(Arc::new("No space left on device".to_owned()));
    client.run_to_text("function load \"#!lua name=l\\nredis.register_function('f', function(k) return redis.call('set',k[1],'v') end)\"");
    for (state, text) in states {
        client.engine.settings.set_node_flag(state, true);
        let error = |reply: Value| match reply {
            Value::Error(error) => error,
            reply => panic!("{state:?}: {reply:?}"),
        };
        let script = "return redis.call('set',KEYS[1],'v')";
        assert!(error(client.call(&["eval", script, "1", "k"])).starts_with(text), "{state:?}");
        let declared = format!("#!lua\n{script}");
        assert!(error(client.call(&["eval", &declared, "1", "k"])).starts_with(text), "{state:?}");
        assert!(error(client.call(&["fcall", "f", "1", "k"])).starts_with(text), "{state:?}");
        client.engine.settings.set_node_flag(state, false);
        client.run_to_text("multi");
        client.call(&["eval", script, "1", "k"]);
        client.engine.settings.set_node_flag(state, true);
        let replies = client.call(&["exec"]);
        let [Value::Error(error)] = replies.as_array().expect("it is let in") else { panic!("{replies:?}") };
        assert!(error.starts_with(text), "{state:?}: {error}");
        client.engine.settings.set_node_flag(state, false);
    }
    client.check_replies(&[("exists k", ":0")]);
}

/// Regression test: CLIENT PAUSE WRITE blocked EVAL and FCALL of scripts with the no-writes flag.
#[test]
fn script_flags_act_like_command_flags() {
    let mut client = Client::with_recording_log();
    let library = "#!lua name=l\nredis.register_function{function_name='reads', \
                   callback=function(k) return redis.call('get',k[1]) end, flags={'no-writes'}}\n\
                   redis.register_function('writes', function(k) return 1 end)";
    client.call(&["function", "load", library]);
    let script = "#!lua flags=no-writes\nreturn redis.call('get',KEYS[1])";
    client.call(&["script", "load", script]);
    let sha = client.call(&["script", "load", "#!lua flags=no-writes\nreturn 7"]);
    let sha = String::from_utf8(sha.as_bytes().expect("a name").to_vec()).expect("text");
    let until = clock::Millis(client.now.0 + 1000);
    let engine = &client.engine;
    engine.scheduling.pauses.pause(&engine.settings, PausePurpose::Client, PauseMode::Writes, until);
    assert_eq!(client.call(&["eval", script, "1", "k"]), Value::Null);
    // At this call, the script is not in the cache yet.
    assert_eq!(client.call(&["eval", "#!lua flags=no-writes\nreturn 5", "0"]), Value::Integer(5));
    assert_eq!(client.call(&["evalsha", &sha, "0"]), Value::Integer(7));
    assert_eq!(client.call(&["fcall", "reads", "1", "k"]), Value::Null);
    assert_eq!(client.run_status("fcall writes 1 k"), DispatchStatus::Paused);
    assert_eq!(client.run_status("eval \"return 1\" 0"), DispatchStatus::Paused);
    assert_eq!(client.run_status("eval \"#!lua\\nreturn 1\" 0"), DispatchStatus::Paused);
    client.run_to_text("multi\nfcall reads 1 k");
    client.check_replies(&[("exec", "*1|$-1")]);
    client.run_to_text("multi\nfcall writes 1 k");
    assert_eq!(client.run_status("exec"), DispatchStatus::Paused);
    client.run_to_text("discard");
    client.engine.scheduling.pauses.unpause(&client.engine.settings, PausePurpose::Client);
    // The script flags `allow-oom` and `allow-stale` act like command flags as well.
    client.engine.settings.set_node_flag(NodeFlags::OUT_OF_MEMORY, true);
    assert_eq!(client.call(&["fcall", "reads", "1", "k"]), Value::Null);
    assert_eq!(client.call(&["eval", "#!lua flags=allow-oom\nreturn 1", "0"]), Value::Integer(1));
    assert!(matches!(client.call(&["fcall", "writes", "1", "k"]), Value::Error(_)));
    client.engine.settings.set_node_flag(NodeFlags::OUT_OF_MEMORY, false);
    client.engine.settings.set_node_flag(NodeFlags::MASTER_DOWN, true);
    assert_eq!(client.call(&["eval", "#!lua flags=allow-stale\nreturn 1", "0"]), Value::Integer(1));
    for script in ["#!lua\nreturn 1", "return 1"] {
        assert!(matches!(client.call(&["eval", script, "0"]), Value::Error(_)), "{script}");
    }
}

/// Regression test: a blocked client was served although its permissions had been revoked while it waited.
#[test]
fn blocked_client_without_permission_is_not_served() {
    let waits = [
        "blpop k 0",
        "bzpopmin k 0",
        "xread block 0 streams k 0",
        "xreadgroup group g c block 0 streams s >",
    ];
    let gives = ["rpush k v", "zadd k 1 v", "xadd k * f v", "xadd s * f v"];
    for (wait, give) in waits.into_iter().zip(gives) {
        let mut client = Client::with_recording_log();
        client.run_to_text("acl setuser blocked on nopass ~* +@all\nxgroup create s g $ mkstream");
        let connect = || client.engine.clients.connect(Default::default(), client.now, Box::new(|| ()));
        let mut waiter = Session::for_client(connect(), CommandOrigin::Client, true);
        std::mem::swap(&mut client.session, &mut waiter);
        client.check_replies(&[("auth blocked any", "+OK")]);
        assert_eq!(client.run_status(wait), DispatchStatus::Blocked, "{wait}");
        std::mem::swap(&mut client.session, &mut waiter);
        // A change that does not affect the client's permissions leaves it blocked.
        client.run_to_text("acl setuser another");
        let lost = "acl setuser blocked -@all";
        client.check_replies(&[(lost, "+OK")]);
        let before = client.run_to_text("debug digest-value k s");
        client.run_to_text(give);
        assert_ne!(client.run_to_text("debug digest-value k s"), before, "{wait}: what was given is there");
        assert!(!waiter.waiter().expect("it waits").is_served(), "{wait}");
        assert_eq!(waiter.client().take_unblock_reason(), Some(UnblockReason::Retry), "{wait}");
        let mut out = Vec::new();
        let (dispatcher, worker) = (client.commands.dispatcher(&client.engine), &mut client.worker);
        dispatcher.end_wait(worker, &mut waiter, client.now, UnblockReason::Retry, &mut out);
        std::mem::swap(&mut client.session, &mut waiter);
        assert!(client.run_to_text(wait).starts_with("-NOPERM"), "{wait}");
    }
}

/// A change of another user's permissions does not affect a blocked client.
#[test]
fn blocked_client_is_served_after_change_of_other_user() {
    let mut client = Client::with_recording_log();
    let connect = || client.engine.clients.connect(Default::default(), client.now, Box::new(|| ()));
    let mut waiter = Session::for_client(connect(), CommandOrigin::Client, true);
    std::mem::swap(&mut client.session, &mut waiter);
    assert_eq!(client.run_status("blpop k 0"), DispatchStatus::Blocked);
    std::mem::swap(&mut client.session, &mut waiter);
    client.run_to_text("acl setuser another on nopass +@all");
    client.check_replies(&[("rpush k v", ":1"), ("exists k", ":0")]);
    assert!(waiter.waiter().expect("it waits").is_served());
}
