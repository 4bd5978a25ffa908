//! Table tests of rules and what they permit.

use clock::Millis;
use resp::{Protocol, Writer};

use super::*;

fn catalogue() -> Catalogue {
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
    Catalogue::new(rows.map(|(name, categories)| (name.to_owned(), categories)))
}

struct Commands(Catalogue);

impl Host for Commands {
    fn resolve<'a>(&self, request: resp::Args<'a>) -> Result<Request<'a>, Unresolved> {
        let command = self.0.find(&request[0]).ok_or(Unresolved::NoSuchCommand)?;
        let words: Vec<&'a [u8]> = request.iter().skip(1).collect();
        let mut resolved = Request { command: Some(command), ..Request::default() };
        resolved.first_argument = words.first().copied();
        match self.0.name(command) {
            "get" if words.len() != 1 => return Err(Unresolved::Arity("get".to_owned())),
            name @ ("get" | "set") => {
                let need = Need { read: name == "get", write: name == "set" };
                resolved.keys = std::iter::once(Key { name: words[0], need }).collect();
            }
            "select" => {
                let number = resp::parse_i64(words[0]).and_then(|number| u32::try_from(number).ok());
                resolved.databases = Touched::Some(number.into_iter().collect());
            }
            "subscribe" => {
                resolved.channels = words.iter().map(|name| Channel { name, is_pattern: false }).collect();
            }
            _ => {}
        }
        Ok(resolved)
    }
}

/// Users and a log, with the effect of the last command.
struct World {
    users: Users,
    log: Log,
    now: Millis,
    effect: Effect,
}

impl World {
    fn new() -> Self {
        let users = Users::new(catalogue());
        Self { users, log: Log::default(), now: Millis(0), effect: Effect::Nothing }
    }

    /// The reply to `ACL line`, with line breaks as `|`.
    fn ask(&mut self, line: &str) -> String {
        let words: resp::Request =
            std::iter::once(&b"acl"[..]).chain(line.split(' ').map(str::as_bytes)).collect();
        let mut out = Vec::new();
        let asker = Asker { user: DEFAULT, now: self.now };
        let reply = &mut Writer::new(&mut out, Protocol::Resp2);
        let answered =
            answer(&mut self.users, &mut self.log, asker, &Commands(catalogue()), words.args(), reply);
        self.effect = answered.unwrap_or_else(|error| {
            reply.error(&error);
            Effect::Nothing
        });
        String::from_utf8(out).unwrap().trim_end().replace("\r\n", "|")
    }

    fn table(&mut self, rows: &[(&str, &str)]) {
        for (line, expected) in rows {
            assert_eq!(self.ask(line), *expected, "{line}");
        }
    }

    fn rules(&self, name: &str) -> String {
        String::from_utf8(self.users.find(name.as_bytes()).expect("a user").describe()).unwrap()
    }
}

#[test]
fn rules_are_kept_in_words_less_what_is_overridden() {
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
        let mut world = World::new();
        assert_eq!(world.ask(&format!("setuser u {rules}")), "+OK", "{rules}");
        assert_eq!(world.rules("u"), described, "{rules}");
        // Parsing the description gives an equal user.
        assert_eq!(world.ask(&format!("setuser again {described}")), "+OK");
        assert_eq!(world.users.find(b"again"), world.users.find(b"u"), "{described}");
    }
}

#[test]
fn what_is_no_rule_changes_nothing_and_is_named() {
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
        let mut world = World::new();
        assert_eq!(world.ask(&format!("setuser u on {rule}")), modifier(rule, reason));
        assert!(world.users.find(b"u").is_none(), "{rule}");
    }
    let mut world = World::new();
    world.table(&[
        ("setuser u (+get ~a", "-ERR Unmatched parenthesis in acl selector starting at '(+get'."),
        ("setuser u\0 on", "-ERR Usernames can't contain spaces or null characters"),
    ]);
    assert!(
        world.ask("setuser u ~* ~a").contains("Adding a pattern after the * pattern (or the 'allkeys' flag)")
    );
    assert!(world.ask("setuser u &* &a").contains("(or the 'allchannels' flag)"));
}

#[test]
fn passwords_are_hashed_and_any_of_them_admits() {
    let mut world = World::new();
    let hash = "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";
    world.table(&[("setuser u on >p >q >p", "+OK")]);
    assert!(world.rules("u").starts_with(&format!("on #{hash} #")));
    assert!(world.users.admits(b"u", b"p") && world.users.admits(b"u", b"q"));
    assert!(!world.users.admits(b"u", b"r") && !world.users.admits(b"nobody", b"p"));
    world.table(&[("setuser u <q", "+OK"), (&format!("setuser u !{hash}"), "+OK")]);
    assert!(!world.users.admits(b"u", b"p"));
    world.table(&[(&format!("setuser u #{hash} off"), "+OK")]);
    assert!(!world.users.admits(b"u", b"p"), "it is disabled");
    world.table(&[("setuser u nopass on", "+OK")]);
    assert!(world.users.admits(b"u", b"anything"));
    world.users.set_default_password(b"secret");
    assert!(!world.users.default_user().is_open() && world.users.admits(DEFAULT, b"secret"));
    world.users.set_default_password(b"");
    assert!(world.users.default_user().is_open());
}

#[test]
fn a_request_is_admitted_by_one_selector_or_refused_for_the_nearest_reason() {
    let mut world = World::new();
    world.table(&[
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
    let user = world.users.find(b"u").unwrap();
    assert!(user.may_hear(Channel { name: b"news.*", is_pattern: true }));
    assert!(!user.may_hear(Channel { name: b"news.a*", is_pattern: true }), "only what was given");
}

#[test]
fn users_are_listed_described_and_deleted() {
    let mut world = World::new();
    world.table(&[
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
    assert_eq!(world.effect, Effect::Deleted(vec![b"u".to_vec()]));
    world.table(&[
        ("deluser u", ":0"),
        ("cat string", "*2|$3|get|$3|set"),
        ("cat nosuch", "-ERR Unknown category 'nosuch'"),
    ]);
    assert!(world.ask("cat").starts_with("*21|$8|keyspace|$4|read|"));
}

#[test]
fn a_line_of_a_file_makes_a_user_anew() {
    let mut users = Users::new(catalogue());
    users.load(DEFAULT, &[b"on", b">p"]).unwrap();
    assert!(!users.default_user().is_open());
    users.load(b"u", &[b"on"]).unwrap();
    assert_eq!(users.load(b"u", &[b"off"]), Err(LineError::Duplicate));
}

#[test]
fn what_is_refused_again_within_a_minute_is_one_entry() {
    let mut world = World::new();
    let incident = |object: &[u8]| Incident {
        reason: Reason::Command,
        context: "toplevel",
        object: object.to_vec(),
        username: b"u".to_vec(),
        client: "id=1".to_owned(),
    };
    world.log.add(world.now, incident(b"get"));
    world.log.add(world.now, incident(b"set"));
    world.now.0 += 1500;
    world.log.add(world.now, incident(b"get"));
    let entry = |count, object, age, id, (first, last)| {
        format!(
            "*20|$5|count|:{count}|$6|reason|$7|command|$7|context|$8|toplevel|$6|object|$3|{object}\
             |$8|username|$1|u|$11|age-seconds|{age}|$11|client-info|$4|id=1|$8|entry-id|:{id}\
             |$17|timestamp-created|:{first}|$22|timestamp-last-updated|:{last}"
        )
    };
    let (get, set) = (entry(2, "get", "$1|0", 0, (0, 1500)), entry(1, "set", "$3|1.5", 1, (0, 0)));
    assert_eq!(world.ask("log"), format!("*2|{get}|{set}"));
    assert_eq!(world.ask("log 1"), format!("*1|{get}"));
    world.table(&[("log x", "-ERR value is not an integer or out of range"), ("log -1", "*0")]);
    world.now.0 += 61_000;
    world.log.add(world.now, incident(b"get"));
    assert!(world.ask("log").starts_with("*3|"));
    let refused: Vec<_> = world.log.refused().filter(|(_, count)| *count > 0).collect();
    assert_eq!(refused, [("cmd", 4)]);
    world.table(&[("log reset", "+OK"), ("log", "*0")]);
    world.log.set_length(1);
    world.log.add(world.now, incident(b"get"));
    world.log.add(world.now, incident(b"set"));
    assert!(world.ask("log").starts_with("*1|"));
}

#[test]
fn a_database_may_be_closed() {
    let mut world = World::new();
    world.table(&[
        ("setuser u +@all ~* db=1,2 (+@all db=5)", "+OK"),
        ("dryrun u select 1", "+OK"),
        ("dryrun u select 5", "+OK"),
        ("dryrun u select 3", "$46|User u has no permissions to access database 3"),
        ("dryrun u ping", "+OK"),
    ]);
}

#[test]
fn a_password_is_as_long_as_asked() {
    let ask = |bits: Option<&[u8]>| {
        let mut out = Vec::new();
        let reply = &mut Writer::new(&mut out, Protocol::Resp2);
        if let Err(error) = genpass(bits, |bytes| bytes.fill(0xa5), reply) {
            reply.error(error);
        }
        String::from_utf8(out).unwrap()
    };
    assert_eq!(ask(Some(b"5")), "$2\r\na5\r\n");
    assert_eq!(ask(Some(b"9")), "$3\r\na5a\r\n");
    assert_eq!(ask(None), format!("$64\r\n{}\r\n", "a5".repeat(32)));
    assert!(ask(Some(b"0")).starts_with("-ERR ACL GENPASS argument must be the number of bits"));
    assert!(ask(Some(b"4097")).starts_with("-ERR ACL GENPASS argument must be the number of bits"));
    assert_eq!(ask(Some(b"x")), "-ERR value is not an integer or out of range\r\n");
}

#[test]
fn who_may_do_everything_need_not_be_asked() {
    for (rules, is_unrestricted) in [
        ("+@all ~* &*", true),
        ("+@all allkeys allchannels alldbs", true),
        ("+@all ~*", false),
        ("+@all ~* &* -get", false),
        ("+@all ~* &* db=0", false),
        ("(+@all ~* &*)", true),
        ("+@all %R~* &*", false),
    ] {
        let mut world = World::new();
        assert_eq!(world.ask(&format!("setuser u {rules}")), "+OK");
        assert_eq!(world.users.find(b"u").unwrap().is_unrestricted(), is_unrestricted, "{rules}");
    }
    let mut users = Users::new(catalogue());
    users.set_open_channels(true);
    users.set(b"u", &[b"+@all", b"~*"]).unwrap();
    assert!(users.find(b"u").unwrap().is_unrestricted(), "acl-pubsub-default allchannels");
}

#[test]
fn a_file_has_a_user_a_line() {
    let users = Users::new(catalogue());
    let text = b"# who may what\n\nuser default on >p +@all ~*\n  user u on (+get ~a) ( +set ~b )\r\n";
    let read = users.parse_file(text).unwrap();
    assert_eq!(read.iter().count(), 2);
    assert_eq!(read.parse_file(&read.file()).unwrap().file(), read.file());
}

/// Regression test: a file that defined `default` twice was accepted, and the last line won.
#[test]
fn what_is_wrong_with_a_file_is_told_line_by_line() {
    let users = Users::new(catalogue());
    let faults = |text: &[u8]| -> Vec<String> {
        users.parse_file(text).unwrap_err().iter().map(|fault| fault.text("f")).collect()
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
