//! Fuzzes scripts, with and without the debugger: every script must end, return a well-formed reply, and leave no state
//! behind for the next script.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use resp::{Protocol, Request, Writer, parse_value};
use scripting::{
    DebugConsole, Interpreter, InterpreterOptions, InterpreterState, Invocation, LuaHost, ReplicationTargets,
    Script, ScriptFailure, ScriptValue, Scripts, StopReason,
};

/// A script that lists the members of every library by name and type.
const LIST_LIBRARIES_SCRIPT: &str = "local names = {}\nfor _, at in ipairs({'_G', 'string', 'table', 'math', 'redis', 'cjson', 'bit', \
                     'struct', 'cmsgpack'}) do\n  local library = at == '_G' and _G or _G[at]\n  for name, value in \
                     pairs(library) do names[#names + 1] = at .. '.' .. name .. ':' .. type(value) end\nend\n\
                     table.sort(names)\nreturn table.concat(names, ' ')";

/// The replies that commands called by a script get, in rotation.
const FAKE_REPLIES: [&[u8]; 6] =
    [b"+OK\r\n", b":7\r\n", b"$3\r\na\0b\r\n", b"*2\r\n$-1\r\n*1\r\n:1\r\n", b"-ERR no\r\n", b"*0\r\n"];

/// The commands that the debugger's user sends, in rotation.
const DEBUGGER_COMMANDS: [&str; 8] =
    ["step", "print", "trace", "step", "print a", "break 2", "eval 1", "step"];

thread_local! {
    /// A clock that advances with every read, so that endless scripts exceed their time limit after a fixed number of
    /// instructions.
    static FAKE_CLOCK: Cell<u64> = const { Cell::new(0) };
    static RUNNING_INTERPRETER: RefCell<Option<Arc<InterpreterState>>> = const { RefCell::new(None) };
    static INTERPRETER_AND_LIBRARIES: RefCell<Option<(Interpreter, Vec<u8>)>> = const { RefCell::new(None) };
}

fn fake_nanos() -> u64 {
    FAKE_CLOCK.set(FAKE_CLOCK.get() + 1_000_000);
    FAKE_CLOCK.get()
}

fn stop_script() {
    RUNNING_INTERPRETER.with_borrow(|running| running.iter().for_each(|running| running.stop_at_once()));
}

/// A host that returns fixed replies to every command.
#[derive(Default)]
struct FakeServer {
    call_count: usize,
}

impl LuaHost for FakeServer {
    fn call(&mut self, _request: &Request, _protocol: Protocol) -> Result<&[u8], StopReason> {
        self.call_count += 1;
        Ok(FAKE_REPLIES[self.call_count % FAKE_REPLIES.len()])
    }

    fn set_replication_targets(&mut self, _targets: ReplicationTargets) {}

    fn is_permitted(&mut self, _request: &Request) -> Option<bool> {
        Some(true)
    }
}

/// A debugger user who sends fixed commands and leaves after a while.
#[derive(Debug, Default)]
struct DebuggerUser {
    message_count: usize,
}

impl DebugConsole for DebuggerUser {
    fn send(&mut self, bytes: Vec<u8>) {
        assert!(matches!(parse_value(&bytes), Ok(Some((_, len))) if len == bytes.len()), "an array of lines");
    }

    fn receive(&mut self, _stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        self.message_count += 1;
        let line = DEBUGGER_COMMANDS.get(self.message_count % (DEBUGGER_COMMANDS.len() + 1))?;
        (self.message_count < 100).then(|| line.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }
}

/// Runs `bytes` as a script, without and with the debugger.
pub fn fuzz_scripts(bytes: &[u8]) {
    INTERPRETER_AND_LIBRARIES.with_borrow_mut(|state| {
        let (interpreter, world) = state.get_or_insert_with(|| {
            let mut interpreter = new_interpreter();
            let world = run_text(&mut interpreter, LIST_LIBRARIES_SCRIPT.as_bytes(), false).expect("it runs");
            (interpreter, world)
        });
        // Errors are expected, so the results are ignored. A debugged script runs in a separate interpreter.
        let _ = (run_text(interpreter, bytes, false), run_text(&mut new_interpreter(), bytes, true));
        let after = run_text(interpreter, LIST_LIBRARIES_SCRIPT.as_bytes(), false);
        assert!(after.as_ref() == Ok(&*world), "{} left behind {after:?}", bytes.escape_ascii());
    });
}

fn new_interpreter() -> Interpreter {
    let options = InterpreterOptions {
        version: "7.2.4",
        version_number: 0x0007_0204,
        server_name: "redis",
        deprecated_api: false,
        nanos: fake_nanos,
        log_line: |_, _| {},
        on_busy: stop_script,
    };
    Interpreter::new(&Scripts::default(), &options)
}

/// Runs a script; returns its reply or the text of its error.
fn run_text(interpreter: &mut Interpreter, text: &[u8], with_debugger: bool) -> Result<Vec<u8>, String> {
    RUNNING_INTERPRETER.set(Some(interpreter.interpreter_state().clone()));
    let script = Arc::new(Script::new(text).map_err(|error| error.to_string())?);
    interpreter.compile(&script).map_err(|failure| format!("{failure:?}"))?;
    let mut request = Request::new();
    for word in [&b"EVAL"[..], text, b"1", b"key", b"argument"] {
        request.push(word);
    }
    let (call, mut server) =
        (Invocation { command: request.args(), key_count: 1, busy_timeout_millis: 5 }, FakeServer::default());
    let outcome = if with_debugger {
        interpreter.debug(&script, &call, &mut server, Box::new(DebuggerUser::default()))
    } else {
        interpreter.run(&script, &call, &mut server)
    };
    match outcome.and_then(|outcome| encode_reply(interpreter, &outcome, text)) {
        Ok(reply) => Ok(reply),
        Err(ScriptFailure::Error { text, .. }) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(!text.contains(['\r', '\n', '\0']), "an error is one line: {text:?}");
            Err(text)
        }
        Err(failure) => Err(format!("{failure:?}")),
    }
}

/// Encodes the reply and checks that it is well formed. The length of the script selects the protocol version, because
/// the result can be encoded only once.
fn encode_reply(
    interpreter: &mut Interpreter,
    outcome: &ScriptValue,
    text: &[u8],
) -> Result<Vec<u8>, ScriptFailure> {
    let protocol = if text.len().is_multiple_of(2) { Protocol::Resp3 } else { Protocol::Resp2 };
    let mut out = Vec::new();
    interpreter.write(outcome, &mut Writer::new(&mut out, protocol), &mut |_, _| {})?;
    // A reply nested deeper than a client would read is still well formed.
    if !out.starts_with(b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n") {
        assert!(
            matches!(parse_value(&out), Ok(Some((_, len))) if len == out.len()),
            "{:?}",
            out.escape_ascii().to_string()
        );
    }
    Ok(out)
}
