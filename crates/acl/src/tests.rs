//! Table tests of rules and what they permit.

use clock::Millis;
use resp::{Protocol, Writer};

use super::*;

fn test_catalogue() -> CommandCatalogue {
    let rows = [
        ("acl", Categories::SLOW),
        ("acl|list", Categories::ADMIN | Categories::DANGEROUS | Categories::SLOW),
        ("acl|whoami", Categories::SLOW),
        ("get", Categories::READ | Categories::STRING | Categories::FAST),
        ("ping", Categories::CONNECTION | Categories::FAST),
        ("select", Categories::CONNECTION | Categories::FAST),
        ("set", Categories::WRITE | Categories::STRING | Categories::SLOW),
        ("subscribe", Categories::PUBSUB | Categories::SLOW),
    ];
    CommandCatalogue::new(rows.map(|(name, categories)| (name.to_owned(), categories)))
}

struct TestResolver(CommandCatalogue);

impl CommandResolver for TestResolver {
    fn resolve<'a>(&self, request: resp::Args<'a>) -> Result<AclRequest<'a>, ResolveError> {
        let command = self.0.find(&request[0]).ok_or(ResolveError::NoSuchCommand)?;
        let words: Vec<&'a [u8]> = request.iter().skip(1).collect();
        let mut resolved = AclRequest { command: Some(command), ..AclRequest::default() };
        resolved.first_argument = words.first().copied();
        match self.0.name(command) {
            "get" if words.len() != 1 => return Err(ResolveError::WrongArity("get".to_owned())),
            name @ ("get" | "set") => {
                let access = KeyAccess { reads: name == "get", writes: name == "set" };
                resolved.keys = std::iter::once(AccessedKey { name: words[0], access }).collect();
            }
            "select" => {
                let number = resp::parse_i64(words[0]).and_then(|number| u32::try_from(number).ok());
                resolved.databases = AccessedDatabases::Some(number.into_iter().collect());
            }
            "subscribe" => {
                resolved.channels =
                    words.iter().map(|name| AccessedChannel { name, is_pattern: false }).collect();
            }
            _ => {}
        }
        Ok(resolved)
    }
}

/// A user list with an ACL log, and the change that the last command made.
struct TestServer {
    users: Users,
    log: AclLog,
    now: Millis,
    last_change: UserChange,
}

impl TestServer {
    fn new() -> Self {
        let users = Users::new(test_catalogue());
        Self { users, log: AclLog::default(), now: Millis(0), last_change: UserChange::Unchanged }
    }

    /// The reply to `ACL line`, with line breaks as `|`.
    fn execute(&mut self, line: &str) -> String {
        let words: resp::Request =
            std::iter::once(&b"acl"[..]).chain(line.split(' ').map(str::as_bytes)).collect();
        let mut out = Vec::new();
        let client = AclClient { user: DEFAULT_USER_NAME, now: self.now };
        let reply = &mut Writer::new(&mut out, Protocol::Resp2);
        let answered = execute_acl(
            &mut self.users,
            &mut self.log,
            client,
            &TestResolver(test_catalogue()),
            words.args(),
            reply,
        );
        self.last_change = answered.unwrap_or_else(|error| {
            reply.error(&error);
            UserChange::Unchanged
        });
        String::from_utf8(out).unwrap().trim_end().replace("\r\n", "|")
    }

    fn run_table(&mut self, cases: &[(&str, &str)]) {
        for (line, expected) in cases {
            assert_eq!(self.execute(line), *expected, "{line}");
        }
    }

    fn format_rules(&self, name: &str) -> String {
        String::from_utf8(self.users.find(name.as_bytes()).expect("a user").format_rules()).unwrap()
    }
}

#[test]
fn rules_keep_their_wording_unless_overridden() {
    let cases = [
        ("", "off resetchannels -@all"),
        ("on +get +set -get", "on resetchannels -@all +set -get"),
        ("+@read -get +@read", "off resetchannels -@all -get +@read"),
        ("+acl|list -acl|whoami +acl", "off resetchannels -@all +acl"),
        ("+acl -acl|list", "off resetchannels -@all +acl -acl|list"),
        ("+get allcommands -SET", "off resetchannels +@all -set"),
        ("+select|0 +select|1 +select|0", "off resetchannels -@all +select|1 +select|0"),
        ("+select|0 -select", "off resetchannels -@all -select"),
        ("~a %R~b %W~b %R~c allchannels", "off ~a ~b %R~c &* -@all"),
        ("~a resetkeys allkeys &x &y &x", "off ~* resetchannels &x &y -@all"),
        (
            "nopass on (+get ~a) (%R~* +@all)",
            "on nopass resetchannels -@all (~a resetchannels -@all +get) (%R~* resetchannels +@all)",
        ),
        ("on nopass ~* (+get) reset", "off resetchannels -@all"),
        (
            "db=3,1,3 (db=2) (resetdbs)",
            "off resetchannels db=1,3 -@all (resetchannels db=2 -@all) (resetchannels resetdbs -@all)",
        ),
        ("db=3 alldbs", "off resetchannels -@all"),
        ("( +get ~x ) clearselectors (+ping)", "off resetchannels -@all (resetchannels -@all +ping)"),
    ];
    for (rules, described) in cases {
        let mut server = TestServer::new();
        assert_eq!(server.execute(&format!("setuser u {rules}")), "+OK", "{rules}");
        assert_eq!(server.format_rules("u"), described, "{rules}");
        // A user created from the description is equal to the original user.
        assert_eq!(server.execute(&format!("setuser again {described}")), "+OK");
        assert_eq!(server.users.find(b"again"), server.users.find(b"u"), "{described}");
    }
}

#[test]
fn rejected_rules_change_nothing_and_are_reported() {
    let modifier =
        |rule: &str, reason: &str| format!("-ERR Error in ACL SETUSER modifier '{rule}': {reason}");
    let (unknown, syntax) = ("Unknown command or category name in ACL", "Syntax error");
    let hash =
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters";
    let cases = [
        ("+foo", unknown),
        ("+@foo", unknown),
        ("+", unknown),
        ("-select|0", unknown),
        ("+acl|foo", unknown),
        ("+select|", syntax),
        ("+acl|list|x", "Allowing first-arg of a subcommand is not supported"),
        ("foo", syntax),
        ("%~x", syntax),
        ("%X~x", syntax),
        ("db=", syntax),
        ("db=1,", syntax),
        ("db=1a", syntax),
        ("db=-1", "The provided database ID is out of range"),
        ("db=2147483648", "The provided database ID is out of range"),
        ("(on)", syntax),
        ("(+foo)", unknown),
        ("#zz", hash),
        ("!zz", hash),
        ("<nope", "The password you are trying to remove from the user does not exist"),
    ];
    for (rule, reason) in cases {
        let mut server = TestServer::new();
        assert_eq!(server.execute(&format!("setuser u on {rule}")), modifier(rule, reason));
        assert!(server.users.find(b"u").is_none(), "{rule}");
    }
    let mut server = TestServer::new();
    server.run_table(&[
        ("setuser u (+get ~a", "-ERR Unmatched parenthesis in acl selector starting at '(+get'."),
        ("setuser u\0 on", "-ERR Usernames can't contain spaces or null characters"),
    ]);
    assert!(
        server
            .execute("setuser u ~* ~a")
            .contains("Adding a pattern after the * pattern (or the 'allkeys' flag)")
    );
    assert!(server.execute("setuser u &* &a").contains("(or the 'allchannels' flag)"));
}

#[test]
fn any_stored_password_authenticates() {
    let mut server = TestServer::new();
    let hash = "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";
    server.run_table(&[("setuser u on >p >q >p", "+OK")]);
    assert!(server.format_rules("u").starts_with(&format!("on #{hash} #")));
    assert!(server.users.can_authenticate(b"u", b"p") && server.users.can_authenticate(b"u", b"q"));
    assert!(!server.users.can_authenticate(b"u", b"r") && !server.users.can_authenticate(b"nobody", b"p"));
    server.run_table(&[("setuser u <q", "+OK"), (&format!("setuser u !{hash}"), "+OK")]);
    assert!(!server.users.can_authenticate(b"u", b"p"));
    server.run_table(&[(&format!("setuser u #{hash} off"), "+OK")]);
    assert!(!server.users.can_authenticate(b"u", b"p"), "it is disabled");
    server.run_table(&[("setuser u nopass on", "+OK")]);
    assert!(server.users.can_authenticate(b"u", b"anything"));
    server.users.set_default_password(b"secret");
    assert!(
        !server.users.default_user().can_skip_authentication()
            && server.users.can_authenticate(DEFAULT_USER_NAME, b"secret")
    );
    server.users.set_default_password(b"");
    assert!(server.users.default_user().can_skip_authentication());
}

#[test]
fn request_needs_one_permitting_selector() {
    let mut server = TestServer::new();
    server.run_table(&[
        ("setuser u +get ~a* (+set %W~b*) +select|1 +subscribe &news.*", "+OK"),
        ("dryrun u get a1", "+OK"),
        ("dryrun u get b1", "$48|User u has no permissions to access the 'b1' key"),
        ("dryrun u set b1 x", "+OK"),
        ("dryrun u set a1 x", "$48|User u has no permissions to access the 'a1' key"),
        ("dryrun u ping", "$51|User u has no permissions to run the 'ping' command"),
        ("dryrun u select 1", "+OK"),
        ("dryrun u select 2", "$53|User u has no permissions to run the 'select' command"),
        ("dryrun u subscribe news.a", "+OK"),
        ("dryrun u subscribe news.a x", "$51|User u has no permissions to access the 'x' channel"),
        ("dryrun u get", "-ERR wrong number of arguments for 'get' command"),
        ("dryrun u nosuch", "-ERR Command 'nosuch' not found"),
        ("dryrun nobody ping", "-ERR User 'nobody' not found"),
    ]);
    let user = server.users.find(b"u").unwrap();
    assert!(user.may_subscribe(AccessedChannel { name: b"news.*", is_pattern: true }));
    assert!(
        !user.may_subscribe(AccessedChannel { name: b"news.a*", is_pattern: true }),
        "only what was given"
    );
}

#[test]
fn acl_list_and_getuser_describe_users_until_deluser() {
    let mut server = TestServer::new();
    server.run_table(&[
        ("setuser u on +get ~a (&x)", "+OK"),
        ("list", "*2|$34|user default on nopass ~* &* +@all|$62|user u on ~a resetchannels -@all +get (resetchannels &x -@all)"),
        ("users", "*2|$7|default|$1|u"),
        ("whoami", "$7|default"),
        (
            "getuser u",
            "*14|$5|flags|*1|$2|on|$9|passwords|*0|$8|commands|$10|-@all +get|$4|keys|$2|~a|$8|channels|$0|\
             |$9|databases|$6|alldbs|$9|selectors|*1|*8|$8|commands|$5|-@all|$4|keys|$0||$8|channels|$2|&x\
             |$9|databases|$6|alldbs",
        ),
        ("getuser nobody", "$-1"),
        ("deluser default u", "-ERR The 'default' user cannot be removed"),
        ("deluser u nobody", ":1"),
    ]);
    assert_eq!(server.last_change, UserChange::UsersDeleted(vec![b"u".to_vec()]));
    server.run_table(&[
        ("deluser u", ":0"),
        ("cat string", "*2|$3|get|$3|set"),
        ("cat nosuch", "-ERR Unknown category 'nosuch'"),
    ]);
    assert!(server.execute("cat").starts_with("*21|$8|keyspace|$4|read|"));
}

#[test]
fn file_line_replaces_user_and_rejects_duplicates() {
    let mut users = Users::new(test_catalogue());
    users.load_user(DEFAULT_USER_NAME, &[b"on", b">p"]).unwrap();
    assert!(!users.default_user().can_skip_authentication());
    users.load_user(b"u", &[b"on"]).unwrap();
    assert_eq!(users.load_user(b"u", &[b"off"]), Err(UserRulesError::DuplicateUser));
}

#[test]
fn repeated_denials_are_merged_within_a_minute() {
    let mut server = TestServer::new();
    let denial = |object: &[u8]| AclDenial {
        reason: DenialReason::Command,
        context: "toplevel",
        object: object.to_vec(),
        username: b"u".to_vec(),
        client: "id=1".to_owned(),
    };
    server.log.record(server.now, denial(b"get"));
    server.log.record(server.now, denial(b"set"));
    server.now.0 += 1500;
    server.log.record(server.now, denial(b"get"));
    let entry = |count, object, age, id, (first, last)| {
        format!(
            "*20|$5|count|:{count}|$6|reason|$7|command|$7|context|$8|toplevel|$6|object|$3|{object}\
             |$8|username|$1|u|$11|age-seconds|{age}|$11|client-info|$4|id=1|$8|entry-id|:{id}\
             |$17|timestamp-created|:{first}|$22|timestamp-last-updated|:{last}"
        )
    };
    let (get, set) = (entry(2, "get", "$1|0", 0, (0, 1500)), entry(1, "set", "$3|1.5", 1, (0, 0)));
    assert_eq!(server.execute("log"), format!("*2|{get}|{set}"));
    assert_eq!(server.execute("log 1"), format!("*1|{get}"));
    server.run_table(&[("log x", "-ERR value is not an integer or out of range"), ("log -1", "*0")]);
    server.now.0 += 61_000;
    server.log.record(server.now, denial(b"get"));
    assert!(server.execute("log").starts_with("*3|"));
    let refused: Vec<_> = server.log.denials_by_reason().filter(|(_, count)| *count > 0).collect();
    assert_eq!(refused, [("cmd", 4)]);
    server.run_table(&[("log reset", "+OK"), ("log", "*0")]);
    server.log.set_max_len(1);
    server.log.record(server.now, denial(b"get"));
    server.log.record(server.now, denial(b"set"));
    assert!(server.execute("log").starts_with("*1|"));
}

#[test]
fn database_access_can_be_restricted() {
    let mut server = TestServer::new();
    server.run_table(&[
        ("setuser u +@all ~* db=1,2 (+@all db=5)", "+OK"),
        ("dryrun u select 1", "+OK"),
        ("dryrun u select 5", "+OK"),
        ("dryrun u select 3", "$46|User u has no permissions to access database 3"),
        ("dryrun u ping", "+OK"),
    ]);
}

#[test]
fn genpass_length_follows_requested_bits() {
    let execute = |bits: Option<&[u8]>| {
        let mut out = Vec::new();
        let reply = &mut Writer::new(&mut out, Protocol::Resp2);
        if let Err(error) = run_genpass(bits, |bytes| bytes.fill(0xa5), reply) {
            reply.error(error);
        }
        String::from_utf8(out).unwrap()
    };
    assert_eq!(execute(Some(b"5")), "$2\r\na5\r\n");
    assert_eq!(execute(Some(b"9")), "$3\r\na5a\r\n");
    assert_eq!(execute(None), format!("$64\r\n{}\r\n", "a5".repeat(32)));
    assert!(execute(Some(b"0")).starts_with("-ERR ACL GENPASS argument must be the number of bits"));
    assert!(execute(Some(b"4097")).starts_with("-ERR ACL GENPASS argument must be the number of bits"));
    assert_eq!(execute(Some(b"x")), "-ERR value is not an integer or out of range\r\n");
}

#[test]
fn unrestricted_users_are_detected() {
    for (rules, is_unrestricted) in [
        ("+@all ~* &*", true),
        ("+@all allkeys allchannels alldbs", true),
        ("+@all ~*", false),
        ("+@all ~* &* -get", false),
        ("+@all ~* &* db=0", false),
        ("(+@all ~* &*)", true),
        ("+@all %R~* &*", false),
    ] {
        let mut server = TestServer::new();
        assert_eq!(server.execute(&format!("setuser u {rules}")), "+OK");
        assert_eq!(server.users.find(b"u").unwrap().is_unrestricted(), is_unrestricted, "{rules}");
    }
    let mut users = Users::new(test_catalogue());
    users.set_all_channels_by_default(true);
    users.set_rules(b"u", &[b"+@all", b"~*"]).unwrap();
    assert!(users.find(b"u").unwrap().is_unrestricted(), "acl-pubsub-default allchannels");
}

#[test]
fn acl_file_round_trips() {
    let users = Users::new(test_catalogue());
    let text = b"# who may what\n\nuser default on >p +@all ~*\n  user u on (+get ~a) ( +set ~b )\r\n";
    let read = users.parse_file(text).unwrap();
    assert_eq!(read.iter().count(), 2);
    assert_eq!(read.parse_file(&read.format_file()).unwrap().format_file(), read.format_file());
}

/// Regression test: a file that defined `default` twice was accepted, and the last line won.
#[test]
fn acl_file_errors_are_reported_by_line() {
    let users = Users::new(test_catalogue());
    let faults = |text: &[u8]| -> Vec<String> {
        users.parse_file(text).unwrap_err().iter().map(|fault| fault.error_text("f")).collect()
    };
    assert_eq!(
        faults(b"user u on\nuser u off\nhello\nuser v +nosuch\nuser"),
        [
            "WARNING: Duplicate user 'u' found on line 2. ",
            "f:3 should start with user keyword followed by the username. ",
            "f:4: Error in applying operation '+nosuch': Unknown command or category name in ACL. ",
            "f:5 should start with user keyword followed by the username. ",
        ]
    );
    assert_eq!(
        faults(b"user default on\nuser default off\nuser v +nosuch\nuser v on"),
        [
            "WARNING: Duplicate user 'default' found on line 2. ",
            "f:3: Error in applying operation '+nosuch': Unknown command or category name in ACL. ",
            "WARNING: Duplicate user 'v' found on line 4. ",
        ]
    );
}
