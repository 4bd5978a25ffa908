use clock::Millis;
use engine::NodeFlags;
use slot_routing::{Ownership, Slot};

use crate::testing::Client;

/// Runs scripts without keys and compares each reply with the expected text.
fn check_script_replies(client: &mut Client, table: &[(&str, &str)]) {
    for (script, reply) in table {
        let shown = format_reply(&client.call(&["eval", script, "0"]));
        assert_eq!(shown, *reply, "{script}");
    }
}

/// Formats a reply as one line.
fn format_reply(value: &resp::Value) -> String {
    match value {
        resp::Value::Null => "nil".to_owned(),
        resp::Value::Error(text) => format!("-{text}"),
        resp::Value::Simple(text) => format!("+{text}"),
        resp::Value::Integer(number) => format!(":{number}"),
        resp::Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        resp::Value::Array(items) => {
            format!("[{}]", items.iter().map(format_reply).collect::<Vec<_>>().join(" "))
        }
        other => format!("{other:?}"),
    }
}

const AT_LINE_1: &str = "script: on @user_script:1.";

#[test]
fn lua_values_convert_to_replies_and_back() {
    check_script_replies(
        &mut Client::new(),
        &[
            ("return 3.99", ":3"),
            ("return -5.9", ":-5"),
            ("return 1e300", ":-9223372036854775808"),
            ("return {1,nil,3}", "[:1]"),
            ("return {1,false,'a',true,{}}", "[:1 nil a :1 []]"),
            ("return {ok='fine\\r\\nx'}", "+fine  x"),
            ("return {err='CODE a\\r\\nb'}", "-CODE a  b"),
            ("return {err=1}", "[]"),
            ("return {double=3.5}", "3.5"),
            ("return {map={a=1}}", "[a :1]"),
            ("return {set={a=true}}", "[a]"),
            ("return {big_number='123'}", "123"),
            ("return {verbatim_string={format='txt',string='hi'}}", "hi"),
            ("return redis.error_reply('My')", "-ERR My"),
            ("return redis.error_reply('-MY err')", "-MY err"),
            ("return redis.error_reply(1)", "-ERR wrong number or type of arguments"),
            ("return redis.status_reply('x\\r\\ny')", "+x  y"),
            ("redis.call('set','x',0.1) return redis.call('get','x')", "0.1"),
            ("redis.call('set','x',99999999999999984) return redis.call('get','x')", "99999999999999984"),
            ("redis.call('set','x',-7) return redis.call('get','x')", "-7"),
            ("redis.call('set','x',1e17) return redis.call('get','x')", "100000000000000000"),
            ("return redis.call('echo',12.0)", "12"),
            ("return tostring(redis.call('get','nosuch'))", "false"),
            ("redis.setresp(3) return tostring(redis.call('get','nosuch'))", "nil"),
            ("redis.setresp(3) return {true,false}", "[:1 :0]"),
            ("return redis.call('set','x','y').ok", "OK"),
            ("local t={} for i=1,2000 do t={t} end return type(t)", "table"),
        ],
    );
}

#[test]
fn script_errors_contain_position() {
    let at = |text: &str| format!("-{text} {AT_LINE_1}");
    let table = [
        ("return redis.call('nosuch')", at("ERR Unknown command called from script")),
        ("return redis.call('config','nosuch')", at("ERR unknown subcommand 'nosuch'. Try CONFIG HELP.")),
        ("return redis.call('debug','nosuch')", at("ERR This Valkey command is not allowed from script")),
        ("return redis.call('get')", at("ERR Wrong number of args calling command from script")),
        ("return redis.call()", at("ERR Please specify at least one argument for this call")),
        ("return redis.call('get',{})", at("ERR Command arguments must be strings or integers")),
        ("redis.call('multi')", at("ERR This Valkey command is not allowed from script")),
        ("redis.call('eval','return 1',0)", at("ERR This Valkey command is not allowed from script")),
        ("error('x')", at("ERR user_script:1: x")),
        ("error({err='MY err'})", at("MY err")),
        ("error()", at("ERR nil")),
        ("x=1", at("ERR user_script:1: Attempt to modify a readonly table")),
        ("return y", at("ERR user_script:1: Script attempted to access nonexistent global variable 'y'")),
        ("redis.x=1", at("ERR user_script:1: Attempt to modify a readonly table")),
        ("rawset(_G,'x',1) return 1", at("ERR Attempt to modify a readonly table")),
        ("setmetatable(redis,{}) return 1", at("ERR Attempt to modify a readonly table")),
        ("table.insert(redis,1) return 1", at("ERR Attempt to modify a readonly table")),
        ("local t={} t.x.y=1", at("ERR user_script:1: attempt to index field 'x' (a nil value)")),
        ("local function f() return f() + 1 end return f()", at("ERR user_script:1: stack overflow")),
        (
            "return cjson.decode('[1,')",
            at("ERR user_script:1: Expected value but found T_END at character 4"),
        ),
        (
            "return select(2,pcall(redis.call,'get'))",
            "ERR Wrong number of args calling command from script".to_owned(),
        ),
        ("return redis.pcall('get')", "-ERR Wrong number of args calling command from script".to_owned()),
        ("return select(2,pcall(error,{1}))[1]", ":1".to_owned()),
        (
            "return select(2,xpcall(function() return cjson.decode('x') end,function(e) return 'h:'..e end))",
            "h:user_script:1: Expected value but found invalid token at character 1".to_owned(),
        ),
        (
            "local ok,e=coroutine.resume(coroutine.create(function() redis.call('get') end)) return e.err",
            "ERR Wrong number of args calling command from script".to_owned(),
        ),
    ];
    let mut client = Client::new();
    for (script, reply) in &table {
        check_script_replies(&mut client, &[(script, reply)]);
    }
}

#[test]
fn script_without_permission_is_refused() {
    let mut client = Client::new();
    client.check_replies(&[
        ("eval \"return 1\" -1", "-ERR Number of keys can't be negative"),
        ("eval \"return 1\" 2 x", "-ERR Number of keys can't be greater than number of args"),
        ("eval \"return 1\" a", "-ERR value is not an integer or out of range"),
        ("evalsha 1234 0", "-NOSCRIPT No matching script."),
        (
            "script load if",
            "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'",
        ),
    ]);
    let shebang = ["eval", "#!lua flags=no-writes\nreturn redis.call('set','x',1)", "0"];
    let reply = format_reply(&client.call(&shebang));
    assert!(
        reply.starts_with("-ERR Write commands are not allowed from read-only scripts. script: "),
        "{reply}"
    );
    let reply = format_reply(&client.call(&["eval_ro", "return redis.call('set',KEYS[1],1)", "1", "k"]));
    assert!(
        reply.starts_with("-ERR Write commands are not allowed from read-only scripts. script: "),
        "{reply}"
    );
}

/// The scripts try sandbox escapes that are known from other servers, and variations of them.
#[test]
fn script_cannot_escape_sandbox() {
    check_script_replies(
        &mut Client::new(),
        &[
            ("return type(loadstring('\\27Lua'))", "nil"),
            ("return type(loadstring(string.dump(function() return 1 end)))", "nil"),
            ("return type(load(function() return nil end))", "function"),
            ("local n=0 return type(load(function() n=n+1 return n==1 and '\\27Lua' or nil end))", "nil"),
            ("return loadstring('return 1')()", ":1"),
            ("return pcall(loadstring('x=1')) and 1 or 0", ":0"),
            ("return pcall(function() return getfenv end) and 1 or 0", ":0"),
            ("return pcall(function() return debug end) and 1 or 0", ":0"),
            ("return pcall(function() return io end) and 1 or 0", ":0"),
            ("return pcall(function() return require end) and 1 or 0", ":0"),
            ("return pcall(function() return dofile end) and 1 or 0", ":0"),
            ("return pcall(function() return newproxy end) and 1 or 0", ":0"),
            ("return tostring(os.execute)", "nil"),
            ("return pcall(function() getmetatable('').__index = nil end) and 1 or 0", ":0"),
            ("return getmetatable('').__index == string and 1 or 0", ":1"),
            ("return pcall(setmetatable, '', {}) and 1 or 0", ":0"),
            ("return ('x'):rep(3)", "xxx"),
            ("for k,v in pairs(_G) do if k == 'redis' then return 1 end end", ":1"),
            ("collectgarbage('stop') return collectgarbage('count') > 0 and 1 or 0", ":1"),
            ("return pcall(function() string.rep = nil end) and 1 or 0", ":0"),
            ("return pcall(table.sort, redis) and 1 or 0", ":0"),
            ("KEYS[1]='a' return KEYS[1]", "a"),
            ("return #KEYS", ":0"),
        ],
    );
}

/// A script that exceeds the memory limit fails, and the server and later scripts are unaffected.
#[test]
fn script_over_memory_limit_fails_alone() {
    let mut client = Client::new();
    let greedy = [
        "local s='x' while true do s=s..s end",
        "local t={} for i=1,1e9 do t[i]=('x'):rep(1000000)..i end",
        "return string.rep('x', 1e10)",
        "return cjson.encode(string.rep('x', 5e8)..'y'..string.rep('z', 5e8))",
        "local t={} for i=1,2000 do t={t} end return cjson.encode(t)",
        "return cjson.decode(string.rep('[', 100000))",
        "return cmsgpack.unpack(string.rep('\\145', 100000))",
        "local function f() return select(2, pcall(f)) end error(f())",
        "return table.sort({3,1,2,5,4,9,8,7,6,10,11,12,13}, function() return true end)",
    ];
    for script in greedy {
        let reply = client.call(&["eval", script, "0"]);
        assert!(matches!(reply, resp::Value::Error(_)), "{script}: {reply:?}");
        check_script_replies(&mut client, &[("return 1", ":1")]);
    }
    check_script_replies(&mut client, &[("return string.rep('', 1e15)", "")]);
}

#[test]
fn script_effects_are_replicated_as_transaction() {
    let mut client = Client::with_recording_log();
    let script = "redis.call('set',KEYS[1],ARGV[1]) redis.call('hincrby',KEYS[2],'f',2) return redis.call('get',KEYS[1])";
    let reply = client.call(&["eval", script, "2", "{k}1", "{k}2", "v"]);
    assert_eq!(format_reply(&reply), "v");
    assert_eq!(client.logged_commands(), ["0 MULTI", "0 set {k}1 v", "0 hincrby {k}2 f 2", "0 EXEC"]);
    let one = "return redis.call('set',KEYS[1],'x','px',100)";
    client.call(&["eval", one, "1", "a"]);
    let until = client.now.0 + 100;
    assert_eq!(client.logged_commands().last().unwrap().to_lowercase(), format!("0 set a x pxat {until}"));
    let quiet =
        "redis.set_repl(redis.REPL_NONE) redis.call('set',KEYS[1],'y') redis.set_repl(redis.REPL_ALL)";
    let before = client.logged_commands().len();
    client.call(&["eval", quiet, "1", "a"]);
    assert_eq!(client.logged_commands().len(), before);
    client.call(&["eval", "redis.call('select',3) redis.call('set',KEYS[1],'y')", "1", "a"]);
    let all = client.logged_commands();
    assert!(all[before..].iter().any(|line| line == "0 SELECT 3" || line == "0 select 3"), "{all:?}");
    client.check_replies(&[("get a", "$1|y")]);
    client.now = Millis(client.now.0 + 1);
}

#[test]
fn scripts_can_access_undeclared_keys() {
    let mut client = Client::new();
    check_script_replies(
        &mut client,
        &[
            ("redis.call('set','a',1) redis.call('set','b',2) return redis.call('get','a')", "1"),
            ("redis.call('mset','c',1,'d',2) return redis.call('dbsize')", ":4"),
            ("redis.call('flushall') return redis.call('dbsize')", ":0"),
        ],
    );
    let script = "redis.call('set',KEYS[1],1) redis.call('set','other',2) return redis.call('get','other')";
    for _ in 0..2 {
        assert_eq!(format_reply(&client.call(&["eval", script, "1", "k"])), "2");
    }
    let reads =
        "local x=redis.call('get','other') redis.call('set',KEYS[1],x) return redis.call('get',KEYS[1])";
    for _ in 0..2 {
        assert_eq!(format_reply(&client.call(&["eval", reads, "1", "k"])), "2");
    }
    client.check_replies(&[
        ("multi", "+OK"),
        ("eval \"redis.call('set',KEYS[1],7) return redis.call('get','other')\" 1 k", "+QUEUED"),
        ("exec", "*1|$1|2"),
        ("get k", "$1|7"),
    ]);
}

#[test]
fn flagged_script_stays_in_one_slot_in_cluster_mode() {
    let mut client = Client::in_cluster();
    let mut run = |words: &[&str]| format_reply(&client.call(words));
    let (other_slot, not_local) = (
        "-ERR Script attempted to access keys that do not hash to the same slot",
        "-ERR Attempted to access a non local key in a cluster node",
    );
    let both = "redis.call('set','a',1) redis.call('set','b',2) return redis.call('get','b')";
    let pinned = format!("#!lua\n{both}");
    let free = format!("#!lua flags=allow-cross-slot-keys\n{both}");
    for words in [&["0"][..], &["1", "a"]] {
        for (text, expected) in [(both, "2"), (&pinned, other_slot), (&free, "2")] {
            let reply = run(&[&["eval", text], words].concat());
            assert!(reply.starts_with(expected), "{text} {words:?}: {reply}");
        }
    }
    let undeclared = "#!lua\nreturn redis.pcall('get','b')";
    assert_eq!(run(&["eval", undeclared, "1", "a"]), other_slot);
    assert_eq!(run(&["eval", undeclared, "1", "b"]), "2");
    assert_eq!(run(&["eval", undeclared, "0"]), "2");
    // A script without a shebang, or with declared keys, stays within one slot whatever its flags are.
    for line in ["", "#!lua\n", "#!lua flags=allow-cross-slot-keys\n"] {
        let text = format!("{line}return redis.pcall('mget','a','b')");
        assert_eq!(run(&["eval", &text, "0"]), not_local, "{text}");
        for _ in 0..2 {
            let text = format!("{line}return redis.call('get','a')");
            assert_eq!(run(&["eval", &text, "1", "b"]) == "1", line != "#!lua\n", "{text}");
            assert!(run(&["eval", &text, "2", "a", "b"]).starts_with("-CROSSSLOT"), "{text}");
        }
    }
    let library = "#!lua name=l\nserver.register_function('one', function() return redis.pcall('get','b') end)\n\
        server.register_function{function_name='any', callback=function() return redis.pcall('get','b') end, \
        flags={'allow-cross-slot-keys'}}";
    assert_eq!(run(&["function", "load", library]), "l");
    assert_eq!(run(&["fcall", "one", "1", "a"]), other_slot);
    assert_eq!(run(&["fcall", "one", "0"]), "2");
    assert_eq!(run(&["fcall", "any", "1", "a"]), "2");
}

/// As in Valkey, a READONLY client of a replica may run any script that does not declare that it writes; writes by the
/// script are refused.
#[test]
fn readonly_client_of_a_replica_runs_scripts_that_may_read() {
    const MOVED: &str = "-MOVED 15495 127.0.0.1:6379";
    let mut client = Client::in_cluster();
    client.check_replies(&[("set a 1", "+OK")]);
    let library = "#!lua name=l\nserver.register_function('put', function(k) return server.call('set', k[1], 1) end)\n\
        server.register_function{function_name='get', callback=function(k) return server.call('get', k[1]) end, \
        flags={'no-writes'}}";
    client.call(&["function", "load", library]);
    client.engine.keyspace.lock(Slot::of_key(b"a")).set_ownership(Ownership::MasterOwned);
    client.engine.settings.set_node_flag(NodeFlags::REPLICA | NodeFlags::READ_ONLY_REPLICA, true);
    let get = "return redis.call('get', KEYS[1])";
    let (declared, writes) = (format!("#!lua flags=no-writes\n{get}"), format!("#!lua\n{get}"));
    let put = "return redis.call('set', KEYS[1], 1)";
    let undeclared = "#!lua\nreturn redis.call('get', 'a')";
    let (read_only, not_local, unknown) =
        ("-READONLY", "-ERR Attempted to access a non local key", "-NOSCRIPT");
    let sha = "0000000000000000000000000000000000000000";
    for (words, readonly, readwrite) in [
        (&["eval", get, "1", "a"][..], "1", MOVED),
        (&["eval", &declared, "1", "a"], "1", MOVED),
        (&["eval", &writes, "1", "a"], MOVED, MOVED),
        (&["eval", put, "1", "a"], not_local, MOVED),
        (&["eval_ro", get, "1", "a"], "1", MOVED),
        (&["eval_ro", &writes, "1", "a"], MOVED, MOVED),
        (&["eval", undeclared, "0"], read_only, read_only),
        (&["evalsha", sha, "1", "a"], unknown, MOVED),
        (&["fcall", "get", "1", "a"], "1", MOVED),
        (&["fcall", "put", "1", "a"], MOVED, MOVED),
        (&["fcall_ro", "put", "1", "a"], MOVED, MOVED),
        (&["pfcount", "{a}h"], ":0", MOVED),
        (&["watch", "a"], "+OK", MOVED),
    ] {
        for (mode, expected) in [("readonly", readonly), ("readwrite", readwrite)] {
            client.run_to_text(mode);
            let reply = format_reply(&client.call(words));
            assert!(reply.starts_with(expected), "{mode} {words:?}: {reply}");
        }
    }
    client.run_to_text("readonly");
    client.check_replies(&[
        ("multi", "+OK"),
        ("get a", "+QUEUED"),
        ("eval \"return redis.call('get', KEYS[1])\" 1 a", "+QUEUED"),
        ("exec", "*2|$1|1|$1|1"),
    ]);
}

#[test]
fn script_without_keys_stays_in_the_slot_of_its_transaction() {
    let mut client = Client::in_cluster();
    let mut run = |words: &[&str]| format_reply(&client.call(words));
    let other_slot = "-ERR Script attempted to access keys that do not hash to the same slot";
    let reads = "return redis.pcall('get','b')";
    let (pinned, free) = (format!("#!lua\n{reads}"), format!("#!lua flags=allow-cross-slot-keys\n{reads}"));
    assert_eq!(run(&["set", "b", "2"]), "+OK");
    for (text, expected) in [(pinned.as_str(), other_slot), (&free, "2"), (reads, "2")] {
        for (script, set) in [(0, 1), (1, 0)] {
            run(&["multi"]);
            for place in 0..2 {
                let words: &[&str] = if place == script { &["eval", text, "0"] } else { &["set", "a", "1"] };
                assert_eq!(run(words), "+QUEUED");
            }
            let mut replies = ["+OK"; 2];
            replies[script] = expected;
            assert_eq!(run(&["exec"]), format!("[{}]", replies.join(" ")), "{text} {set}");
        }
    }
    assert_eq!(run(&["eval", &pinned, "0"]), "2");
}

/// A reentrant lock as implemented in client libraries.
#[test]
fn reentrant_lock_script_runs() {
    let mut client = Client::new();
    let lock = "if redis.call('exists',KEYS[1])==0 or redis.call('hexists',KEYS[1],ARGV[2])==1 then \
                redis.call('hincrby',KEYS[1],ARGV[2],1) redis.call('pexpire',KEYS[1],ARGV[1]) return nil end \
                return redis.call('pttl',KEYS[1])";
    let unlock = "if redis.call('hexists',KEYS[1],ARGV[3])==0 then return nil end \
                  local left=redis.call('hincrby',KEYS[1],ARGV[3],-1) \
                  if left>0 then redis.call('pexpire',KEYS[1],ARGV[2]) return 0 end \
                  redis.call('del',KEYS[1]) redis.call('publish',KEYS[2],ARGV[1]) return 1";
    let run = |client: &mut Client, words: &[&str]| format_reply(&client.call(words));
    assert_eq!(run(&mut client, &["eval", lock, "1", "l", "1000", "me"]), "nil");
    let sha = run(&mut client, &["script", "load", lock]);
    assert_eq!(run(&mut client, &["evalsha", &sha, "1", "l", "1000", "me"]), "nil");
    assert_eq!(run(&mut client, &["evalsha", &sha, "1", "l", "1000", "you"]), ":1000");
    for (who, expected) in [("you", "nil"), ("me", ":0"), ("me", ":1"), ("me", "nil")] {
        let words = ["eval", unlock, "2", "l", "ch:{l}", "0", "1000", who];
        assert_eq!(run(&mut client, &words), expected);
    }
    assert_eq!(run(&mut client, &["script", "exists", &sha, "x"]), "[:1 :0]");
    client.check_replies(&[
        ("script flush", "+OK"),
        ("script flush x", "-ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
    ]);
    assert!(run(&mut client, &["evalsha", &sha, "0"]).starts_with("-NOSCRIPT"));
}

const LIBRARY: &str = "#!lua name=lib\nlocal n=0\n\
    server.register_function('f1',function(keys,args) n=n+1 return {n,keys[1],args[1]} end)\n\
    server.register_function{function_name='f2',callback=function(k) return redis.call('get',k[1]) end,flags={'no-writes'},description='d'}\n\
    server.register_function('f3',function() local r = redis.call('nosuch') return r end)\n\
    server.register_function('f4',function() return KEYS end)";

#[test]
fn functions_are_loaded_called_listed_and_dumped() {
    let mut client = Client::with_recording_log();
    let run = |client: &mut Client, words: &[&str]| format_reply(&client.call(words));
    assert_eq!(run(&mut client, &["function", "load", LIBRARY]), "lib");
    assert_eq!(run(&mut client, &["function", "load", LIBRARY]), "-ERR Library 'lib' already exists");
    assert_eq!(run(&mut client, &["function", "load", "replace", LIBRARY]), "lib");
    assert_eq!(run(&mut client, &["fcall", "F1", "1", "k", "a"]), "[:1 k a]");
    assert_eq!(run(&mut client, &["fcall_ro", "f2", "1", "k"]), "nil");
    assert_eq!(
        run(&mut client, &["fcall_ro", "f1", "1", "k"]),
        "-ERR Can not execute a script with write flag using *_ro command."
    );
    assert_eq!(
        run(&mut client, &["fcall", "f3", "0"]),
        "-ERR Unknown command called from script script: on @user_function:5."
    );
    assert!(run(&mut client, &["fcall", "f4", "0"]).contains("nonexistent global variable 'KEYS'"));
    assert_eq!(run(&mut client, &["fcall", "nosuch", "0"]), "-ERR Function not found");
    assert_eq!(run(&mut client, &["fcall", "f1", "x"]), "-ERR Bad number of keys provided");
    let listed = run(&mut client, &["function", "list", "libraryname", "l*"]);
    assert!(
        listed.starts_with("[[library_name lib engine LUA functions [[name f1 description nil flags []]"),
        "{listed}"
    );
    let resp::Value::Bulk(dump) = client.call(&["function", "dump"]) else { panic!() };
    client
        .check_replies(&[("function delete lib", "+OK"), ("function delete lib", "-ERR Library not found")]);
    assert_eq!(format_reply(&client.call_bytes(&[b"function", b"restore", &dump])), "+OK");
    assert_eq!(run(&mut client, &["fcall", "f1", "1", "k", "a"]), "[:1 k a]");
    client.check_replies(&[
        ("function restore x", "-ERR DUMP payload version or checksum are wrong"),
        ("function flush", "+OK"),
        ("function list", "*0"),
        ("function kill", "-NOTBUSY No scripts in execution right now."),
        ("script kill", "-NOTBUSY No scripts in execution right now."),
    ]);
    let logged = client.logged_commands();
    assert!(logged[0].starts_with("0 function load #!lua name=lib"), "{logged:?}");
    assert_eq!(logged.last().unwrap(), "0 function flush");
}

#[test]
fn invalid_libraries_are_refused() {
    let mut client = Client::new();
    let table = [
        ("return 1", "Missing library metadata"),
        ("#!lua\nreturn 1", "Library name was not given"),
        ("#!foo name=x\nreturn 1", "Engine 'foo' not found"),
        ("#!lua\tname=x\nreturn 1", "No functions registered"),
        ("#!lua name=x", "Invalid library metadata"),
        ("#!lua name=x y=1\nreturn 1", "Invalid metadata value given: y=1"),
        ("#!lua name=x name=y\nreturn 1", "Invalid metadata value, name argument was given multiple times"),
        ("#!lua name=x\nreturn 1", "No functions registered"),
        ("#!lua name=x\nif", "Error compiling function: user_function:2: unexpected symbol near '<eof>'"),
        (
            "#!lua name=x\nredis.call('get','x')",
            "Error registering functions: ERR user_function:2: Script attempted to access nonexistent global variable 'call'",
        ),
        (
            "#!lua name=x\nserver.register_function()",
            "Error registering functions: ERR wrong number of arguments to server.register_function",
        ),
    ];
    for (code, error) in table {
        assert_eq!(
            format_reply(&client.call(&["function", "load", code])),
            format!("-ERR {error}"),
            "{code}"
        );
    }
}

/// Regression test: each DBSIZE in a script took 50 ms, because every slot was looked up by a linear search.
#[test]
fn keyspace_commands_in_scripts_are_fast() {
    let mut client = Client::new();
    client.call(&["set", "a", "1"]);
    let began = std::time::Instant::now();
    let script = "local n=0 for _=1,200 do n=n+redis.call('dbsize')+#redis.call('keys','*') end return n";
    check_script_replies(&mut client, &[(script, ":400")]);
    // Before the fix, the scripts took twenty seconds.
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "{:?}", began.elapsed());
}
