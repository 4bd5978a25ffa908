//! Tests of the interpreter's limits, without a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use resp::{Protocol, Request, Value, Writer, parse_value};

use crate::{
    Interpreter, InterpreterOptions, InterpreterState, Invocation, LuaHost, ReplicationTargets, Script,
    ScriptFailure, Scripts, StopReason,
};

/// A server that knows no commands.
struct NoCommandsHost;

impl LuaHost for NoCommandsHost {
    fn call(&mut self, _: &Request, _: Protocol) -> Result<&[u8], StopReason> {
        Ok(b"+OK\r\n")
    }

    fn set_replication_targets(&mut self, _: ReplicationTargets) {}

    fn is_permitted(&mut self, _: &Request) -> Option<bool> {
        Some(true)
    }
}

pub(crate) fn new_interpreter() -> Interpreter {
    let options = InterpreterOptions {
        version: "7.4.0",
        version_number: 0x0007_0400,
        server_name: "redoubt",
        deprecated_api: false,
        nanos: || 1,
        log_line: |_, _| {},
        on_busy: || {},
    };
    Interpreter::new(&Scripts::default(), &options)
}

fn failure_text(failure: ScriptFailure) -> String {
    match failure {
        ScriptFailure::Error { text, .. } => String::from_utf8_lossy(&text).into_owned(),
        ScriptFailure::Memory => "ERR not enough memory".to_owned(),
        failure => format!("{failure:?}"),
    }
}

fn run_script(interpreter: &mut Interpreter, text: &str) -> Result<Value, String> {
    run_with_host(interpreter, text, &mut NoCommandsHost)
}

/// Runs a script with this host.
pub(crate) fn run_with_host(
    interpreter: &mut Interpreter,
    text: &str,
    host: &mut dyn LuaHost,
) -> Result<Value, String> {
    let script = Arc::new(Script::new(text.as_bytes()).expect("the first line is fine"));
    interpreter.compile(&script).map_err(|error| format!("{error:?}"))?;
    let mut words = Request::new();
    ["eval", text, "0"].iter().for_each(|word| words.push(word.as_bytes()));
    let call = Invocation { command: words.args(), key_count: 0, busy_timeout_millis: 0 };
    match interpreter.run(&script, &call, host) {
        Ok(outcome) => {
            let mut reply = Vec::new();
            let mut reply_to = Writer::new(&mut reply, Protocol::Resp2);
            interpreter.write(&outcome, &mut reply_to, &mut |_, _| {}).map_err(failure_text)?;
            Ok(parse_value(&reply).expect("it is RESP").expect("it is whole").0)
        }
        Err(failure) => Err(failure_text(failure)),
    }
}

/// The scripts would run for hours, in Lua code or in library functions; each of them is stopped.
#[test]
fn long_running_scripts_can_be_stopped() {
    let endless = [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local c=coroutine.wrap(function() while true do end end) c()",
        // Lua runs the handler of xpcall with hooks disabled.
        "xpcall(function() while true do end end, function() while true do end end)",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        // A coroutine keeps its original hook, which does not run at every instruction.
        "coroutine.wrap(function() while true do pcall(function() while true do end end) end end)()",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        // These tables contain themselves, so the output doubles with each level.
        "local t={} t[1]=t t[2]=t return t",
        "local t={map={}} t.map.a=t t.map.b=t return t",
        "local t={} t[1]=t t[2]=t while true do pcall(cjson.encode, t) end",
        "local t={} for i=1,300 do t[i]=t end while true do pcall(cmsgpack.pack, t) end",
        "local t={} for i=1,20000 do t[i]=i end while true do table.sort(t, rawequal) end",
        "return string.find(('a'):rep(60), ('.-'):rep(30)..'b')",
        "return string.match(('a'):rep(60), ('a*'):rep(30)..'b')",
        "return string.gsub(('a'):rep(60), ('a*'):rep(30)..'b', 'x')",
        "return string.gsub(('a'):rep(60), ('a*'):rep(30)..'b', function() end)",
        "for _ in string.gmatch(('a'):rep(60), ('a*'):rep(30)..'b') do end",
        "return string.find(('a'):rep(500000), ('(a*)'):rep(20)..'b')",
        "while true do string.rep('x', 1000000) end",
        "table.insert({}, -2147483647, 1)",
        "local t={} for i=1,200000 do t[i]=i%7 end while true do table.sort(t, function(a,b) return true end) end",
        "local t=setmetatable({}, {__index=function(t) return t.x end}) while true do pcall(function() return t.x end) end",
    ];
    for script in endless {
        let mut interpreter = new_interpreter();
        let (running, done) = (interpreter.interpreter_state().clone(), AtomicBool::new(false));
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    running.stop_at_once();
                    std::thread::yield_now();
                }
            });
            let ended = run_script(&mut interpreter, script);
            done.store(true, Ordering::Relaxed);
            ended
        });
        assert!(ended.is_err(), "{script}: {ended:?}");
        assert_eq!(run_script(&mut interpreter, "return 1"), Ok(Value::Integer(1)), "after {script}");
    }
}

/// The scripts are published attacks on the Lua engines of other servers, and variations of the attacks.
#[test]
fn known_attacks_fail_as_script_errors() {
    let mut interpreter = new_interpreter();
    let attacks = [
        // CVE-2025-46817: the number of values overflows.
        "return unpack({}, 0, 2147483647)",
        "return unpack({}, -2147483648, 2147483647)",
        "return unpack({'a','b'}, 1, 2147483646)",
        "return {unpack({}, 1, 1e9)}",
        // CVE-2024-31449: a width below the minimum.
        "return bit.tohex(1, -2147483648) + {}",
        // CVE-2022-24834: lengths that overflow.
        "return cjson.encode(string.rep('\\1', 5e8))",
        "return cmsgpack.unpack('\\219\\255\\255\\255\\255')",
        "return cmsgpack.unpack('\\221\\255\\255\\255\\255')",
        "return cmsgpack.unpack('\\223\\255\\255\\255\\255')",
        // CVE-2020-14147, CVE-2018-11219: sizes in struct formats.
        "return struct.pack('>I2147483648', 10)",
        "return struct.unpack('>I4294967295', 'xxxx')",
        "return struct.unpack('B', 'x', -1)",
        "return struct.unpack('B', 'x', 2147483648)",
        "return struct.unpack('c4294967295', 'x')",
        // CVE-2018-11218: nesting and argument counts in cmsgpack.
        "return cmsgpack.pack(unpack({}, 1, 8000))",
        "local t={} for i=1,100000 do t={t} end return cjson.encode(t)",
        "return cmsgpack.unpack_limit('\\1', -1, 0)",
        // CVE-2022-24735, CVE-2025-46818: changes that affect later scripts of other users.
        "getmetatable('').__index = function() return 1 end",
        "getmetatable('').__metatable = nil",
        "setmetatable('', {})",
        "string.upper = function() end",
        "redis.call = function() end",
        "cjson.encode = function() end",
        "cjson.null.x = 1",
        "_G.x = 1",
        "rawset(redis, 'call', nil)",
        "rawset(getmetatable(''), 'x', 1) error('no such door')",
        // CVE-2015-4335: crafted bytecode.
        "return loadstring(string.dump(function() end))()",
        "return loadstring('\\27Lua')()",
        // CVE-2022-0543: access to libraries of the host.
        "return package.loadlib('/lib/libc.so', '*')",
        "return require('io')",
        "return io.popen('id')",
        "return os.execute('id')",
        "return dofile('/etc/passwd')",
        "return debug.getregistry()",
        // Deep recursion: patterns, calls, errors, coroutines, syntax.
        "return string.find(('a'):rep(300000), ('a?'):rep(300000))",
        "return string.match(('('):rep(40), ('()'):rep(40))",
        "local function f() return f() + 1 end return f()",
        "local function f() return coroutine.wrap(f)() end return f()",
        "return loadstring(('('):rep(100000)..'1'..(')'):rep(100000))()",
        "return loadstring('return '..('{'):rep(100000))()",
        "local t=setmetatable({}, {}) getmetatable(t).__index=t return t.x.y",
        "local function f() error(setmetatable({}, {__tostring=f})) end f()",
        "return string.format('%1000d', 1)",
        "return ('x'):rep(2^31)..('x'):rep(2^31)",
        "return string.char(256)",
        "return table.concat({{}})",
        "return string.gsub('x', 'x', '%9')",
    ];
    for attack in attacks {
        let ended = run_script(&mut interpreter, attack);
        assert!(ended.is_err(), "{attack}: {ended:?}");
        let whole = run_script(
            &mut interpreter,
            "return (('x'):upper()):rep(2) .. #redis.sha1hex('') .. cjson.encode({1})",
        );
        assert_eq!(whole, Ok(Value::Bulk(b"XX40[1]".to_vec())), "after {attack}");
    }
}

/// CVE-2025-49844, CVE-2024-46981: use after free when the chunk name is collected during compilation.
#[test]
fn compilation_survives_garbage_collection() {
    let script = "local made = 0 for i = 1, 300 do \
                    local text = 'local a' .. i .. ' = \"' .. ('x'):rep(2000) .. i .. '\" return ' .. i \
                    local f = loadstring(text, '@n' .. i .. '\\0tail') \
                    local garbage = ('y'):rep(10000) .. i \
                    if i % 10 == 0 then collectgarbage('collect') end \
                    local g = load((function() local n = 0 return function() n = n + 1 collectgarbage('step') return n == 1 and text or nil end end)(), 'm' .. i .. '\\0x') \
                    made = made + (f() == g() and 1 or 0) \
                  end return made";
    assert_eq!(run_script(&mut new_interpreter(), script), Ok(Value::Integer(300)));
}

/// An interpreter lives as long as its thread, so failures must not leave values on Lua's stack.
#[test]
fn failures_leave_lua_stack_empty() {
    let ways = [
        "error('x')",
        "return nosuch",
        "foo(",
        "return redis.call()",
        "return ('x'):find({})",
        "return unpack()",
        "return {pcall(error, {err = 'x'})}",
        "return cjson.decode('[1,')",
        "return cjson.encode(cjson.nosuch)",
        "local t = {} return t.x.y",
        "return ('x'):rep(-1, {})",
        "error({err = 'x'})",
        "return coroutine and 1 or cjson.encoqe({1})",
        "return struct.unpack('>I4', 'x')",
        "return (function() end)().x",
        "return 1",
        "local a = 1 return a",
        "local a = 1\nlocal b = redis.call('x')\nreturn {cjson.decode('[1,{\"a\":2}]'), cjson.encoqe({1,'x'})}",
    ];
    let mut worst = Vec::new();
    for text in ways {
        let mut interpreter = new_interpreter();
        let failed = (0..9000).find(|_| {
            let _ = run_script(&mut interpreter, text);
            run_script(&mut interpreter, "return 1") != Ok(Value::Integer(1))
        });
        worst.extend(failed.map(|round| format!("{text} after {round}")));
    }
    assert!(worst.is_empty(), "{worst:?}");
}

thread_local! {
    static STOPPED_STATE: std::cell::RefCell<Option<Arc<crate::InterpreterState>>> = const { std::cell::RefCell::new(None) };
    static CLOCK_NANOS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A stopped script must not leave values on Lua's stack, wherever it was stopped.
#[test]
fn stopped_scripts_leave_lua_stack_empty() {
    let options = InterpreterOptions {
        version: "7.4.0",
        version_number: 0x0007_0400,
        server_name: "redoubt",
        deprecated_api: false,
        nanos: || {
            CLOCK_NANOS.set(CLOCK_NANOS.get() + 10_000_000);
            CLOCK_NANOS.get()
        },
        log_line: |_, _| {},
        on_busy: || {
            STOPPED_STATE.with_borrow(|running| running.iter().for_each(|running| running.stop_at_once()));
        },
    };
    let ways = [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local c = coroutine and coroutine.wrap(function() while true do end end) if c then c() end",
        "local function f(n) return f(n + 1) end return f(1)",
        "local function f(n) return 1 + f(n + 1) end return f(1)",
        "while true do local t = {} table.sort({3, 2, 1}, function(a, b) while true do end end) end",
        "return ('x'):rep(100):gsub('x', function() while true do end end)",
        "return string.gsub(('a'):rep(60), ('a*'):rep(30)..'b', 'x')",
    ];
    let mut worst = Vec::new();
    for text in ways {
        let mut interpreter = Interpreter::new(&Scripts::default(), &options);
        STOPPED_STATE.set(Some(interpreter.interpreter_state().clone()));
        let failed = (0..1000).find(|_| {
            let script = Arc::new(Script::new(text.as_bytes()).expect("the first line is fine"));
            interpreter.compile(&script).expect("it is Lua");
            let mut words = Request::new();
            ["eval", text, "0"].iter().for_each(|word| words.push(word.as_bytes()));
            let call = Invocation { command: words.args(), key_count: 0, busy_timeout_millis: 5 };
            let _ = interpreter.run(&script, &call, &mut NoCommandsHost);
            run_script(&mut interpreter, "return 1") != Ok(Value::Integer(1))
        });
        worst.extend(failed.map(|round| format!("{text} after {round}")));
    }
    assert!(worst.is_empty(), "{worst:?}");
}

/// Regression test: every function that iterated over a table held a reference per element, and only eight thousand
/// references are available. Each compiled script also took one.
#[test]
fn tables_can_have_any_number_of_elements() {
    let mut interpreter = new_interpreter();
    let filled = |key: &str, value: &str, end: &str| {
        format!("local t={{}} for i=1,20000 do t[{key}]={value} end return {end}")
    };
    let numbers = [
        (filled("i", "{i}", "#cmsgpack.pack(t)"), 79_621),
        (filled("'k'..i", "'s'..i", "#cmsgpack.pack(t)"), 257_791),
        (filled("i", "{i}", "#cjson.encode(t)"), 148_895),
        (filled("i", "'s'..i", "#cjson.decode(cjson.encode(t))"), 20_000),
        (filled("i", "'s'..i", "#cmsgpack.unpack(cmsgpack.pack(t))"), 20_000),
        ("local t={} for i=1,7900 do t[i]='k' end return select('#',unpack(t))".to_owned(), 7900),
    ];
    for (script, number) in numbers {
        assert_eq!(run_script(&mut interpreter, &script), Ok(Value::Integer(number)), "{script}");
    }
    for element in ["{i}", "'s'..i", "{{{}}}"] {
        let Ok(Value::Array(all)) = run_script(&mut interpreter, &filled("i", element, "t")) else {
            panic!("{element}")
        };
        assert_eq!(all.len(), 20_000, "{element}");
    }
    let Ok(Value::Array(all)) = run_script(&mut interpreter, &filled("i", "'s'..i", "{map=t}")) else {
        panic!("map")
    };
    assert_eq!(all.len(), 40_000);
    for number in 0..9000 {
        let text = format!("return {number}");
        assert_eq!(run_script(&mut interpreter, &text), Ok(Value::Integer(number)));
        let known = Scripts::default().add(Arc::new(Script::new(text.as_bytes()).expect("it is one")), true);
        interpreter.compile(&known).expect("it is Lua");
    }
}

/// In Valkey the array part of a frozen table is empty, so `table.remove` has no effect; the same holds here.
#[test]
fn table_remove_ignores_frozen_tables() {
    let mut interpreter = new_interpreter();
    for call in
        ["table.remove(redis)", "table.remove(redis, 1)", "table.remove(_G)", "table.remove(string, -1)"]
    {
        let text = format!("return select('#', {call}) .. type(redis.call) .. type(string.rep)");
        assert_eq!(
            run_script(&mut interpreter, &text),
            Ok(Value::Bulk(b"0functionfunction".to_vec())),
            "{text}"
        );
    }
}

/// Regression test: API checks of Lua failed when `pcall` returned more results than the stack had reserved.
#[test]
fn pcall_returns_many_results() {
    let mut interpreter = new_interpreter();
    for count in [1, 19, 20, 21, 300, 7000] {
        for call in ["pcall(unpack, {}, 1, N)", "xpcall(function() return unpack({}, 1, N) end, error)"] {
            let text = format!("return select('#', {})", call.replace('N', &count.to_string()));
            assert_eq!(run_script(&mut interpreter, &text), Ok(Value::Integer(count + 1)), "{text}");
        }
    }
}

/// Regression test: with `maxmemory` 50 MB, a script allocated 1.8 GB.
#[test]
fn script_memory_is_limited_to_half_of_maxmemory() {
    let mut interpreter = new_interpreter();
    interpreter.limit_memory(Some(50 << 20));
    let greedy = [
        "local t={} for i=1,1e7 do t[i]={i} end return #t",
        "local s=('x'):rep(10000000) for i=1,8 do s=s..s end return #s",
        "return #cjson.encode({('x'):rep(20000000), ('y'):rep(20000000)})",
        "local s=('x'):rep(1000000) local t={} for i=1,100 do t[i]=s end return t",
        "local s=('x'):rep(1000000) local t={} for i=1,100 do t[i]=s end return #cjson.encode(t)",
        "return #cjson.decode('[' .. ('[],'):rep(500000) .. '[]]')",
        "return #cmsgpack.unpack('\\221\\0\\7\\161\\32' .. ('\\144'):rep(500000))",
    ];
    for script in greedy {
        let ended = run_script(&mut interpreter, script);
        assert!(!matches!(ended, Ok(Value::Integer(_) | Value::Array(_))), "{script}");
        assert!(interpreter.memory_bytes() < 30 << 20, "{} bytes after {script}", interpreter.memory_bytes());
        assert_eq!(run_script(&mut interpreter, "return 1"), Ok(Value::Integer(1)), "after {script}");
    }
}

/// Regression test: with `maxmemory` 60 MB, no script could run after about three thousand libraries were loaded and
/// deleted.
#[test]
fn deleted_libraries_free_memory() {
    let (mut interpreter, functions) = (new_interpreter(), &Scripts::default().functions);
    let fresh = interpreter.memory_bytes();
    let text = |number: usize, name: &str| {
        let filler = "x".repeat(1500);
        format!(
            "#!lua name={name}\n local text = '{filler}{number}' \
             redis.register_function('f', function() return #text end)"
        )
    };
    for number in 0..2000 {
        let library = interpreter.load_library(text(number, "l").as_bytes(), true).expect("it is one");
        functions.add(library, true).expect("it replaces the one before");
        assert!(interpreter.load_library(b"#!lua name=l\n error('x')", true).is_err());
        if number % 10 == 0 {
            let (library, _) = functions.find(b"f").expect("it is loaded");
            interpreter.compile_library(&library).expect("it is one");
        }
        if number % 100 == 0 {
            interpreter.drop_released();
        }
    }
    assert!(interpreter.memory_bytes() < 4 << 20, "{} bytes", interpreter.memory_bytes());
    for number in 0..500 {
        let library = interpreter.load_library(text(number, &format!("l{number}")).as_bytes(), true);
        functions.flush();
        functions.add(library.expect("it is one"), false).expect("there is no other");
        let (library, _) = functions.find(b"f").expect("it is loaded");
        interpreter.compile_library(&library).expect("it is one");
    }
    functions.flush();
    interpreter.drop_released();
    let left = interpreter.memory_bytes();
    assert!(left < fresh + (200 << 10), "{fresh} bytes became {left}");
}

/// A thread frees evicted compiled scripts once they take enough memory, and frees all scripts after a flush.
#[test]
fn evicted_and_flushed_scripts_free_memory() {
    let (mut interpreter, scripts) = (new_interpreter(), Scripts::default());
    let mut seen = 0;
    for number in 0..3000 {
        let text = format!("return '{}{number}'", "x".repeat(3000));
        let script = scripts.add(Arc::new(Script::new(text.as_bytes()).expect("it is one")), false);
        script.record_use(number);
        if scripts.announced_release_count() != seen {
            seen = scripts.announced_release_count();
            interpreter.drop_released();
        }
        interpreter.compile(&script).expect("it is Lua");
    }
    assert!(seen > 0 && interpreter.memory_bytes() < 8 << 20, "{} bytes", interpreter.memory_bytes());
    scripts.flush();
    assert!(scripts.announced_release_count() > seen);
    interpreter.drop_released();
    assert!(interpreter.memory_bytes() < 1 << 20, "{} bytes", interpreter.memory_bytes());
}

/// The scripts create large temporary strings in every possible way.
#[test]
fn garbage_does_not_count_against_the_limit() {
    let mut interpreter = new_interpreter();
    interpreter.limit_memory(Some(100 << 20));
    let mut server = LargeReplyHost(format!("$4000000\r\n{}\r\n", "x".repeat(4_000_000)).into_bytes());
    let at_once = [
        "local s for i=1,30 do s=('x'):rep(4000000) end return #s",
        "local s for i=1,30 do s=redis.call('GET', 'k') end return #s",
        "local s=('x'):rep(4000000) local t for i=1,30 do t=cjson.encode({s}) end return #t-4",
        "local s=('x'):rep(4000000) local t for i=1,30 do t=cmsgpack.pack(s) end return #t-5",
        "local t for i=1,30 do t={} for j=1,50000 do t[j]={} end end return #t*80",
    ];
    for script in at_once {
        assert_eq!(
            run_with_host(&mut interpreter, script, &mut server),
            Ok(Value::Integer(4_000_000)),
            "{script}"
        );
    }
    // Scripts of pure Lua code without library calls, whose garbage would outgrow Lua's small collector steps.
    let by_lua = [
        "local s=('x'):rep(3999999) local t for i=1,30 do t=s..(i%10) end return #t",
        "local s=('x'):rep(4000000) local t for i=1,30 do t=s:upper() s=t:lower() end return #t",
        "local s=('x'):rep(2000000) local t for i=1,30 do t=table.concat({s,s}) end return #t",
    ];
    for script in by_lua {
        assert_eq!(run_script(&mut interpreter, script), Ok(Value::Integer(4_000_000)), "{script}");
        let collected = interpreter.with_full_collection(|interpreter| run_script(interpreter, script));
        assert_eq!(collected, Ok(Value::Integer(4_000_000)), "{script}");
    }
    let alive = "local t={} for i=1,100 do t[i]=('x'):rep(4000000)..i end return #t";
    assert_eq!(run_script(&mut interpreter, alive), Err("ERR not enough memory".to_owned()));
    let collected = interpreter.with_full_collection(|interpreter| run_script(interpreter, alive));
    assert_eq!(collected, Err("ERR not enough memory".to_owned()));
}

/// A script that has written cannot be repeated with full collections, whatever its live memory.
#[test]
fn garbage_of_writing_script_does_not_count_against_limit() {
    let mut interpreter = new_interpreter();
    interpreter.limit_memory(Some(100 << 20));
    let mut server = WritingHost(interpreter.interpreter_state().clone());
    for script in [
        "redis.call('SET') local s=('x'):rep(3999999) local t for i=1,60 do t=s..(i%10) end return #t",
        "local l={} for i=1,150000 do l[i]={} end redis.call('SET') \
         local s=('x'):rep(3999999) local t for i=1,60 do t=s..(i%10) end return #t",
        "redis.call('SET') local l={} for i=1,150000 do l[i]={} end \
         local s=('x'):rep(3999999) local t for i=1,60 do t=s..(i%10) end return #t",
    ] {
        let ran = run_with_host(&mut interpreter, script, &mut server);
        assert_eq!(ran, Ok(Value::Integer(4_000_000)), "{script}");
    }
    let alive = "redis.call('SET') local t={} for i=1,100 do t[i]=('x'):rep(4000000)..i end return #t";
    assert_eq!(run_with_host(&mut interpreter, alive, &mut server), Err("ERR not enough memory".to_owned()));
}

/// A server on which every call counts as a write.
struct WritingHost(Arc<InterpreterState>);

impl LuaHost for WritingHost {
    fn call(&mut self, _: &Request, _: Protocol) -> Result<&[u8], StopReason> {
        self.0.mark_written();
        Ok(b"+OK\r\n")
    }

    fn set_replication_targets(&mut self, _: ReplicationTargets) {}

    fn is_permitted(&mut self, _: &Request) -> Option<bool> {
        Some(true)
    }
}

/// A server that always gives the same reply.
struct LargeReplyHost(Vec<u8>);

impl LuaHost for LargeReplyHost {
    fn call(&mut self, _: &Request, _: Protocol) -> Result<&[u8], StopReason> {
        Ok(&self.0)
    }

    fn set_replication_targets(&mut self, _: ReplicationTargets) {}

    fn is_permitted(&mut self, _: &Request) -> Option<bool> {
        Some(true)
    }
}

thread_local! {
    static LOGGED_LINES: std::cell::RefCell<Vec<(u8, String)>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Monitoring tools search the log for these lines.
#[test]
fn slow_script_is_logged() {
    let options = InterpreterOptions {
        version: "7.4.0",
        version_number: 0x0007_0400,
        server_name: "redoubt",
        deprecated_api: false,
        nanos: || {
            CLOCK_NANOS.set(CLOCK_NANOS.get() + 10_000_000);
            CLOCK_NANOS.get()
        },
        log_line: |level, text| LOGGED_LINES.with_borrow_mut(|lines| lines.push((level, text.to_owned()))),
        on_busy: || {
            STOPPED_STATE.with_borrow(|running| running.iter().for_each(|running| running.stop_at_once()));
        },
    };
    let mut interpreter = Interpreter::new(&Scripts::default(), &options);
    STOPPED_STATE.set(Some(interpreter.interpreter_state().clone()));
    let script = Arc::new(Script::new(b"while true do end").expect("it is one"));
    interpreter.compile(&script).expect("it is Lua");
    let mut words = Request::new();
    ["EVAL", "while true do end", "0"].iter().for_each(|word| words.push(word.as_bytes()));
    let call = Invocation { command: words.args(), key_count: 0, busy_timeout_millis: 5 };
    assert!(interpreter.run(&script, &call, &mut NoCommandsHost).is_err());
    let lines = LOGGED_LINES.take();
    let sha = String::from_utf8_lossy(&script.sha);
    let [(3, slow), (2, killed)] = &lines[..] else { panic!("{lines:?}") };
    let begins = "Slow script detected: still in execution after ";
    let ends = format!(
        " milliseconds. You can try killing the script using the SCRIPT KILL command. Script name is: {sha}."
    );
    assert!(slow.starts_with(begins) && slow.ends_with(&ends), "{slow}");
    assert_eq!(killed, "Script killed by user with SCRIPT KILL.");
}
