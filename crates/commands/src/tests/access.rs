//! Tests of ACL checks before and during the execution of commands.

use engine::{ChannelKind, CommandOrigin, DispatchStatus, Session};

use crate::testing::Client;

const KEY_DENIED: &str = "-NOPERM No permissions to access a key";
const CHANNEL_DENIED: &str = "-NOPERM No permissions to access a channel";
const DATABASE_DENIED: &str = "-NOPERM No permissions to access database";

fn command_denied(name: &str) -> String {
    format!("-NOPERM User u has no permissions to run the '{name}' command")
}

/// Creates a client that is authenticated as a user with these rules.
fn client_of_user_with_rules(rules: &str) -> Client {
    let mut client = Client::new();
    client.check_replies(&[(&format!("acl setuser u on nopass {rules}"), "+OK"), ("auth u x", "+OK")]);
    client
}

/// Changes the rules of a user, as if another client did.
fn set_user_rules(client: &Client, name: &str, rules: &str) {
    let rules: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
    client.engine.access.change_users(|users| users.set_rules(name.as_bytes(), &rules)).unwrap();
}

#[test]
fn acl_rules_match_name_subcommand_and_first_argument() {
    let mut client = client_of_user_with_rules("~* &* +get +acl|whoami +config|get +select|1 +@hash -hdel");
    client.check_replies(&[
        ("get k", "$-1"),
        ("set k v", &command_denied("set")),
        ("set", "-ERR wrong number of arguments for 'set' command"),
        ("nosuch", "-ERR unknown command 'nosuch', with args beginning with: "),
        ("acl whoami", "$1|u"),
        ("acl list", &command_denied("acl|list")),
        ("config set a b", &command_denied("config|set")),
        ("select 1", "+OK"),
        ("select 2", &command_denied("select")),
        ("hset h f v", ":1"),
        ("hdel h f", &command_denied("hdel")),
        ("ping", &command_denied("ping")),
        ("get a\nset b c\nget d", &format!("$-1|{}|$-1", command_denied("set"))),
        ("auth nobody x", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("get k", "$-1"),
        ("reset", "+RESET"),
        ("acl whoami", "$7|default"),
        ("ping", "+PONG"),
    ]);
    assert_eq!(client.run_status("config set port 1"), DispatchStatus::Node(engine::NodeCommand::ConfigSet));
}

#[test]
fn key_permissions_distinguish_read_and_write() {
    let mut client = client_of_user_with_rules("+@all ~b:* %R~r:* %W~w:* (+get ~s:*)");
    client.check_replies(&[
        ("mget b:1 r:1", "*2|$-1|$-1"),
        ("mget b:1 w:1", KEY_DENIED),
        ("set w:1 v", "+OK"),
        ("set w:1 v get", KEY_DENIED),
        ("set r:1 v", KEY_DENIED),
        ("get s:1", "$-1"),
        ("set s:1 v", KEY_DENIED),
        ("exists r:1 w:1 b:1", ":1"),
        ("exists other", KEY_DENIED),
        ("copy r:1 w:1", ":0"),
        ("copy w:1 r:1", KEY_DENIED),
        ("append w:1 x", ":2"),
        ("getdel w:1", KEY_DENIED),
        ("dbsize", ":1"),
        ("object help x", "-ERR wrong number of arguments for 'object|help' command"),
    ]);
}

#[test]
fn acl_restricts_channels() {
    let mut client = client_of_user_with_rules("+@all ~* resetchannels &news:* &exact");
    client.check_replies(&[
        ("publish news:a x", ":0"),
        ("publish other x", CHANNEL_DENIED),
        ("spublish news:a x", ":0"),
        ("spublish other x", CHANNEL_DENIED),
        ("psubscribe news:a*", CHANNEL_DENIED),
        ("psubscribe news:*", "*3|$10|psubscribe|$6|news:*|:1"),
        ("subscribe exact other", CHANNEL_DENIED),
        ("ssubscribe exact", "*3|$10|ssubscribe|$5|exact|:1"),
        ("subscribe exact", "*3|$9|subscribe|$5|exact|:2"),
        ("unsubscribe other", "*3|$11|unsubscribe|$5|other|:2"),
    ]);
}

#[test]
fn acl_restricts_databases() {
    let mut client = client_of_user_with_rules("+@all ~* &* db=1,2");
    client.check_replies(&[
        ("get a", DATABASE_DENIED),
        ("ping", "+PONG"),
        ("publish c x", ":0"),
        ("select 3", DATABASE_DENIED),
        ("dbsize", DATABASE_DENIED),
        ("object help", DATABASE_DENIED),
        ("select 1", "+OK"),
        ("set a 1", "+OK"),
        ("move a 2", ":1"),
        ("move a 3", DATABASE_DENIED),
        ("swapdb 1 2", "+OK"),
        ("swapdb 0 1", DATABASE_DENIED),
        ("copy a b", ":1"),
        ("copy a b db 0", DATABASE_DENIED),
        ("flushdb", "+OK"),
        ("flushall", DATABASE_DENIED),
    ]);
    let refused: Vec<_> =
        client.engine.access.acl_log.lock().denials_by_reason().filter(|(_, count)| *count > 0).collect();
    assert_eq!(refused, [("db", 8)]);
}

#[test]
fn acl_is_checked_on_queueing_and_on_exec() {
    let mut client = client_of_user_with_rules("+@all ~* &*");
    client.check_replies(&[("multi\nset a 1\nget a\nping", "+OK|+QUEUED|+QUEUED|+QUEUED")]);
    set_user_rules(&client, "u", "-set");
    client.check_replies(&[(
        "exec",
        "*3|-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
         This command is no longer allowed for the following reason: no permission to execute the command or \
         subcommand|$-1|+PONG",
    )]);
    let aborted = "-EXECABORT Transaction discarded because of previous errors.";
    client.check_replies(&[
        ("multi", "+OK"),
        ("set a 1", &command_denied("set")),
        ("ping", "+QUEUED"),
        ("exec", aborted),
        ("multi", "+OK"),
    ]);
    set_user_rules(&client, "u", "-exec");
    client.check_replies(&[(
        "exec",
        "-EXECABORT Transaction discarded because of: NOPERM User u has no permissions to run the 'exec' \
         command",
    )]);
    set_user_rules(&client, "u", "+@all");
    // A queued command may itself revoke permissions of the transaction's user.
    client.check_replies(&[(
        "multi\nacl setuser u -get\nget a\nexec",
        &format!("+OK|+QUEUED|+QUEUED|*2|+OK|{EXEC_DENIED}"),
    )]);
}

const EXEC_DENIED: &str = "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC \
                        call. This command is no longer allowed for the following reason: no permission to execute \
                        the command or subcommand";

#[test]
fn acl_change_applies_from_next_command() {
    let mut client = Client::new();
    client.check_replies(&[
        // Within one pipeline, a client changes its own rules.
        (
            "set a 1\nacl setuser default -set\nset a 2\nget a",
            &format!("+OK|+OK|{}|$1|1", command_denied("set").replace("User u", "User default")),
        ),
        ("acl setuser default +set\nset a 2", "+OK|+OK"),
        ("acl setuser v on nopass ~* +@all &*", "+OK"),
        ("auth v x\nset a 3", "+OK|+OK"),
    ]);
    set_user_rules(&client, "v", "-@write");
    client
        .check_replies(&[("set a 4", &command_denied("set").replace("User u", "User v")), ("get a", "$1|3")]);
    // A disabled user stays authenticated; a deleted one is disconnected.
    set_user_rules(&client, "v", "off");
    client.check_replies(&[
        ("get a", "$1|3"),
        ("auth v x", "-WRONGPASS invalid username-password pair or user is disabled."),
    ]);
    client.check_replies(&[("acl deluser v\nget a", ":1")]);
    assert!(client.session.is_closing());
}

#[test]
fn acl_log_records_user_command_and_context() {
    let mut client = client_of_user_with_rules("+get +multi ~a");
    client.check_replies(&[
        ("get b", KEY_DENIED),
        ("get b", KEY_DENIED),
        ("multi\nset a 1", &format!("+OK|{}", command_denied("set"))),
    ]);
    set_user_rules(&client, "u", "+@all");
    client.check_replies(&[
        ("discard", "+OK"),
        ("hello 2 auth u2 x", "-WRONGPASS invalid username-password pair or user is disabled."),
    ]);
    let log = client.run_to_text("acl log").replace("\r\n", "|");
    for expected in [
        "|:1|$6|reason|$4|auth|$7|context|$8|toplevel|$6|object|$5|hello|$8|username|$2|u2|",
        "|:1|$6|reason|$7|command|$7|context|$5|multi|$6|object|$3|set|$8|username|$1|u|",
        "|:2|$6|reason|$3|key|$7|context|$8|toplevel|$6|object|$1|b|$8|username|$1|u|",
        " cmd=set user=u ",
    ] {
        assert!(log.contains(expected), "{expected} in {log}");
    }
    client.check_replies(&[("acl log reset", "+OK"), ("acl log", "*0")]);
}

/// A script has only the permissions of the user whose client runs the script.
#[test]
fn script_has_permissions_of_its_client() {
    let mut client = client_of_user_with_rules("+@all -set ~x resetchannels");
    let run = |client: &mut Client, body: &str| client.call(&["eval", body, "0"]);
    for (body, error) in [
        ("return redis.pcall('set', 'x', '1')", "User u has no permissions to run the 'set' command"),
        ("return redis.pcall('get', 'y')", "No permissions to access a key"),
        ("return redis.pcall('publish', 'c', 'm')", "No permissions to access a channel"),
    ] {
        let reply = format!("{:?}", run(&mut client, body));
        assert!(reply.contains(&format!("ERR ACL failure in script: {error}")), "{body}: {reply}");
    }
    set_user_rules(&client, "u", "+@all");
    let log = client.run_to_text("acl log").replace("\r\n", "|");
    assert!(log.contains("|$7|context|$3|lua|$6|object|$1|y|"), "{log}");
    assert_eq!(log.matches("|lua|").count(), 3, "{log}");
}

/// If authentication is required, a new client may only authenticate.
#[test]
fn unauthenticated_client_can_only_authenticate() {
    let mut client = Client::new();
    set_user_rules(&client, "u", "on >p ~* +@all");
    client.require_password(b"secret");
    client.check_replies(&[
        ("get a", "-NOAUTH Authentication required."),
        ("acl whoami", "-NOAUTH Authentication required."),
        ("auth u q", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("auth u p", "+OK"),
        ("acl whoami", "$1|u"),
        ("auth secret", "+OK"),
        ("acl whoami", "$7|default"),
        ("reset", "+RESET"),
        ("acl whoami", "-NOAUTH Authentication required."),
    ]);
    set_user_rules(&client, "default", "nopass");
    client.check_replies(&[("acl whoami", "$7|default")]);
}

#[test]
fn subscriber_without_channel_permission_is_disconnected() {
    let mut client = Client::new();
    set_user_rules(&client, "u", "on nopass +@all ~* &a &b");
    let connect =
        || client.engine.clients.connect(engine::ConnectionInfo::default(), client.now, Box::new(|| {}));
    let (_, other) = (connect(), connect());
    *other.user.lock() = b"u".to_vec();
    client.engine.notifications.subscribe(
        &mut Session::for_client(other.clone(), CommandOrigin::Client, true),
        ChannelKind::Channel,
        b"a",
    );
    client.check_replies(&[("acl setuser u -get", "+OK")]);
    assert!(!other.is_killed());
    client.check_replies(&[("acl setuser u resetchannels &b", "+OK")]);
    assert!(other.is_killed());
}

/// ACL checks apply to clients only, not to the stream of a master.
#[test]
fn acl_does_not_apply_to_master_stream() {
    let mut client = Client::new();
    set_user_rules(&client, "default", "off -@all resetkeys");
    client.session = Session::new(1, CommandOrigin::Master, true);
    client.check_replies(&[("set k v", "+OK")]);
}

/// Regression test: a replica executed DEBUG PANIC from its master, although its own clients were not allowed to use
/// DEBUG.
#[test]
fn replica_refuses_debug_from_master() {
    let mut client = Client::new();
    client.session = Session::new(1, CommandOrigin::Master, true);
    for line in ["debug sleep 0", "config set maxmemory 1", "acl deluser u", "client kill id 1", "shutdown"] {
        let name = &line[..line.find(' ').unwrap_or(line.len())];
        let refusal = client.run_to_text(line);
        assert!(
            refusal.starts_with('-') && refusal.contains(name) && refusal.contains("own clients"),
            "{line}: {refusal}"
        );
    }
    client.check_replies(&[("set k v", "+OK")]);
}

/// Regression test: a user with only write permission could read a key by BITFIELD, because the argument GET was
/// mistaken for SET's option.
#[test]
fn bitfield_get_requires_read_permission() {
    let mut client = client_of_user_with_rules("+bitfield ~nosuch %W~w %R~r");
    client.check_replies(&[
        ("bitfield w get u8 0", KEY_DENIED),
        ("bitfield w set u8 0 1", KEY_DENIED),
        ("bitfield r get u8 0", "*1|:0"),
        ("bitfield r overflow sat get u8 0", "*1|:0"),
        ("bitfield r set u8 0 1", KEY_DENIED),
        ("bitfield r incrby u8 0 1", KEY_DENIED),
    ]);
}

/// A user with the category @read may not run scripts, since a script may call any command.
#[test]
fn read_category_does_not_allow_scripts() {
    let mut client = client_of_user_with_rules("+@read ~*");
    client.check_replies(&[
        ("get k", "$-1"),
        ("eval_ro \"return 1\" 0", &command_denied("eval_ro")),
        ("fcall_ro f 0", &command_denied("fcall_ro")),
    ]);
}

/// Regression test: GEORADIUS with several STORE options checked the key of the first option but wrote to the key of
/// the last one.
#[test]
fn georadius_checks_permissions_of_stored_key() {
    let mut client = client_of_user_with_rules("%R~{a}src %W~{a}ok %RW~g ~s +@all");
    client.check_replies(&[
        ("georadius {a}src 13 38 200 km store {a}ok store {a}no", KEY_DENIED),
        ("georadius {a}src 13 38 200 km store {a}no store {a}ok", ":0"),
        ("georadius {a}src 13 38 200 km count 1 storedist {a}ok any storedist {a}no", KEY_DENIED),
        ("georadiusbymember {a}src m 200 km store {a}ok store {a}no", KEY_DENIED),
        ("sort {a}src store {a}ok store {a}no", KEY_DENIED),
        ("sort {a}src store {a}no store {a}ok", ":0"),
        (
            "xreadgroup count 1 group g streams streams s >",
            "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option",
        ),
        ("xreadgroup count 1 group g streams streams no >", KEY_DENIED),
        ("xreadgroup group streams c streams no >", KEY_DENIED),
    ]);
}

/// Regression test: COPY with several DB options was checked for the database of the first option but copied to the
/// database of the last one.
#[test]
fn copy_checks_every_named_database() {
    let mut client = client_of_user_with_rules("~* +@all db=0,1");
    client.check_replies(&[
        ("copy a b db 1 db 2", DATABASE_DENIED),
        ("copy a b db 2 db 1", DATABASE_DENIED),
        ("copy db x db 2", DATABASE_DENIED),
        ("copy a db db 2", DATABASE_DENIED),
        ("copy a b replace DB 2", DATABASE_DENIED),
        ("copy db x db 1", ":0"),
        ("copy a b db 99", "-ERR DB index is out of range"),
        ("copy a b db 2 bogus", "-ERR syntax error"),
        ("copy a b bogus db 2", "-ERR syntax error"),
        ("move a 99", "-ERR DB index is out of range"),
        ("move a 2", DATABASE_DENIED),
        ("select 99", "-ERR DB index is out of range"),
        ("swapdb 0 2", DATABASE_DENIED),
        ("swapdb 0 99", "-ERR DB index is out of range"),
    ]);
}

#[test]
fn queued_select_determines_checked_database() {
    let mut client = client_of_user_with_rules("(db=0,1 ~a +@all) (db=2,3 ~b +@all)");
    client.check_replies(&[
        ("multi\nselect 2\nget b", "+OK|+QUEUED|+QUEUED"),
        ("get a", KEY_DENIED),
        ("select 9", &command_denied("select")),
        ("discard", "+OK"),
        ("multi\nselect 2\nget b\nexec", "+OK|+QUEUED|+QUEUED|*2|+OK|$-1"),
        ("get b", "$-1"),
        ("select 0", "+OK"),
        ("multi\nselect 2\ndiscard\nget a", "+OK|+QUEUED|+OK|$-1"),
        ("multi\nselect 99\nget a\nexec", "+OK|+QUEUED|+QUEUED|*2|-ERR DB index is out of range|$-1"),
    ]);
}

/// ACL LOG reports the context of the refused command, a script or EXEC, and not that of the previous command.
#[test]
fn acl_log_shows_refused_command() {
    let shown = |client: &mut Client| {
        let log = client.run_to_text("acl log");
        let at = log.find(" cmd=").expect("the client is described");
        let command = log[at + 5..].split(' ').next().unwrap_or_default().to_owned();
        client.run_to_text("acl log reset");
        command
    };
    let mut client = client_of_user_with_rules("~* &* +@all -get");
    client.run_to_text("set a 1\nget a");
    assert_eq!(shown(&mut client), "get");
    client.call(&["set", "a", "1"]);
    client.call(&["eval", "return redis.pcall('get', 'a')", "0"]);
    assert_eq!(shown(&mut client), "eval");
    client.run_to_text("multi\nset a 1\nllen a");
    set_user_rules(&client, "u", "-llen");
    client.run_to_text("exec");
    assert_eq!(shown(&mut client), "exec");
}
