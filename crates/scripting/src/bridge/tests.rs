//! Compares the bridge with a naive conversion of the same replies, and tests its failure modes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use resp::Value;

use super::*;
use crate::interpreter::ReplicationTargets;
use crate::tests::{new_interpreter, run_with_host};

/// A server that gives the same reply to every command and records the requests.
#[derive(Default)]
struct FixedReply {
    wire: Vec<u8>,
    requests: Vec<Vec<u8>>,
    stops_script: bool,
    panics_in_call: bool,
}

impl LuaHost for FixedReply {
    fn call(&mut self, request: &Request, _: Protocol) -> Result<&[u8], StopReason> {
        assert!(!self.panics_in_call, "the server panics");
        self.requests = request.args().iter().map(<[u8]>::to_vec).collect();
        if self.stops_script { Err(StopReason::Killed) } else { Ok(&self.wire) }
    }

    fn set_replication_targets(&mut self, _: ReplicationTargets) {}

    fn is_permitted(&mut self, _: &Request) -> Option<bool> {
        None
    }
}

/// Lua code that formats a value, in the notation that `random_reply` returns.
const FORMAT_VALUE: &str = "
    local function show(value)
      if type(value) ~= 'table' then return type(value) .. ':' .. tostring(value) end
      for _, kind in ipairs({'ok', 'err', 'double', 'big_number'}) do
        if value[kind] then return kind .. '(' .. tostring(value[kind]) .. ')' end
      end
      if value.verbatim_string then
        return 'verbatim(' .. value.verbatim_string.format .. ',' .. value.verbatim_string.string .. ')'
      end
      local parts = {}
      local pairs_of = value.map or value.set
      if pairs_of then
        for key, other in pairs(pairs_of) do parts[#parts + 1] = show(key) .. '=' .. show(other) end
        table.sort(parts)
        return (value.map and 'map{' or 'set{') .. table.concat(parts, ';') .. '}'
      end
      for index = 1, value.n or #value do parts[index] = show(value[index]) end
      return 'list[' .. table.concat(parts, ';') .. ']'
    end
    return show(redis.call('x'))";

/// Generates a random reply in wire format and in the notation of `FORMAT_VALUE`. `random_below` returns a number below
/// its argument.
fn random_reply(random_below: &mut dyn FnMut(usize) -> usize, depth: usize) -> (Vec<u8>, String) {
    let kinds = if depth < 4 { 12 } else { 9 };
    let text = ["", "a", "two words", "\u{e9}\0\r\n", "12"][random_below(5)];
    let line = ["OK", "two words", "7"][random_below(3)];
    let number = random_below(2000) as i64 - 1000;
    match random_below(kinds) {
        0 => (format!(":{number}\r\n").into(), format!("number:{number}")),
        1 => (b"$-1\r\n".to_vec(), "boolean:false".to_owned()),
        2 => (b"*-1\r\n".to_vec(), "boolean:false".to_owned()),
        3 => (format!("+{line}\r\n").into(), format!("ok({line})")),
        4 => (format!("${}\r\n{text}\r\n", text.len()).into(), format!("string:{text}")),
        5 => (b"#t\r\n".to_vec(), "boolean:true".to_owned()),
        6 => (format!(",{number}.5\r\n").into(), format!("double({number}.5)")),
        7 => (format!("({number}\r\n").into(), format!("big_number({number})")),
        8 => {
            let wire = format!("={}\r\ntxt:{text}\r\n", text.len() + 4);
            (wire.into(), format!("verbatim(txt,{text})"))
        }
        // Lists must not contain nil, because a nil ends a list in Lua.
        9 => {
            let items: Vec<_> = (0..random_below(4)).map(|_| random_reply(random_below, depth + 1)).collect();
            let wire: Vec<u8> = items.iter().flat_map(|(wire, _)| wire.clone()).collect();
            let shown: Vec<&str> = items.iter().map(|(_, shown)| &**shown).collect();
            let head = format!("{}{}\r\n", ["*", ">"][random_below(2)], items.len());
            ([head.into_bytes(), wire].concat(), format!("list[{}]", shown.join(";")))
        }
        which => {
            let is_map = which == 10;
            let (mut wire, mut parts) = (Vec::new(), Vec::new());
            let count = random_below(4);
            for index in 0..count {
                wire.extend(format!("$2\r\nk{index}\r\n").bytes());
                let (value, shown) = match is_map {
                    true => random_reply(random_below, depth + 1),
                    false => (Vec::new(), "boolean:true".to_owned()),
                };
                wire.extend(value);
                parts.push(format!("string:k{index}={shown}"));
            }
            parts.sort();
            let (sign, name) = if is_map { ('%', "map") } else { ('~', "set") };
            let head = format!("{sign}{count}\r\n");
            ([head.into_bytes(), wire].concat(), format!("{name}{{{}}}", parts.join(";")))
        }
    }
}

#[test]
fn replies_match_naive_conversion() {
    let mut interpreter = new_interpreter();
    let mut state = 1_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..2000 {
        let (wire, expected) = random_reply(&mut draw, 0);
        let mut host = FixedReply { wire: wire.clone(), ..FixedReply::default() };
        let seen = run_with_host(&mut interpreter, FORMAT_VALUE, &mut host);
        let expected = Ok(Value::Bulk(expected.into_bytes()));
        assert_eq!(seen, expected, "round {round}: {}", String::from_utf8_lossy(&wire));
    }
}

#[test]
fn command_arguments_are_passed_unchanged() {
    let mut interpreter = new_interpreter();
    let mut host = FixedReply { wire: b"+OK\r\n".to_vec(), ..FixedReply::default() };
    let script = "return redis.call('a\\0b', 12, -0.0, 1.5, 2^53, 1e300, '', -7)";
    run_with_host(&mut interpreter, script, &mut host).expect("it runs");
    let words = [&b"a\0b"[..], b"12", b"0", b"1.5", b"9007199254740992", b"1e+300", b"", b"-7"];
    assert_eq!(host.requests, words);
    let complaint = "Command arguments must be strings or integers";
    for (script, expected) in [
        ("return redis.call('a', {})", complaint),
        ("return redis.call('a', nil)", complaint),
        ("return redis.call({})", complaint),
        ("return redis.call()", "Please specify at least one argument"),
        ("return redis.pcall('a', true)['err']", complaint),
        ("return redis.pcall()['err']", "Please specify at least one argument"),
        ("local ok, text = pcall(redis.call, 'a', {}) return text", complaint),
    ] {
        let seen = format!("{:?}", run_with_host(&mut interpreter, script, &mut host));
        let bytes = format!("{:?}", expected.as_bytes());
        let is_told = seen.contains(expected) || seen.contains(bytes.trim_matches(['[', ']']));
        assert!(is_told, "{script}: {seen}");
    }
}

#[test]
fn call_raises_and_pcall_returns_errors() {
    let mut interpreter = new_interpreter();
    let mut host = FixedReply { wire: b"-ERR no luck\r\n".to_vec(), ..FixedReply::default() };
    let raised = run_with_host(&mut interpreter, "return redis.call('x')", &mut host);
    assert!(
        raised.as_ref().is_err_and(|text| text.starts_with("ERR no luck script: on @user_script:1.")),
        "{raised:?}"
    );
    for script in [
        "return redis.pcall('x')['err']",
        "local ok, error = pcall(redis.call, 'x') return error",
        "return coroutine.wrap(function() return redis.pcall('x')['err'] end)()",
    ] {
        assert_eq!(
            run_with_host(&mut interpreter, script, &mut host),
            Ok(Value::Bulk(b"ERR no luck".to_vec()))
        );
    }
    host.wire = b"-BROKEN\r\n".to_vec();
    let given = run_with_host(&mut interpreter, "return redis.pcall('x')['err']", &mut host);
    assert_eq!(given, Ok(Value::Bulk(b"ERR BROKEN".to_vec())));
}

/// A script that the server stops ends even if the script catches errors, and a panic of the server propagates through
/// Lua. In both cases the next script runs normally.
#[test]
fn stops_and_panics_leave_clean_state() {
    let mut interpreter = new_interpreter();
    for script in ["redis.call('x')", "while true do pcall(redis.call, 'x') end", "redis.pcall('x') return 1"]
    {
        let mut host = FixedReply { stops_script: true, ..FixedReply::default() };
        let stopped = run_with_host(&mut interpreter, script, &mut host);
        assert!(stopped.as_ref().is_err_and(|text| text.contains("killed")), "{script}: {stopped:?}");
        host = FixedReply { panics_in_call: true, ..FixedReply::default() };
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let panicked = catch_unwind(AssertUnwindSafe(|| run_with_host(&mut interpreter, script, &mut host)));
        std::panic::set_hook(hook);
        assert!(panicked.is_err(), "{script}");
        let mut fine = FixedReply { wire: b":7\r\n".to_vec(), ..FixedReply::default() };
        assert_eq!(
            run_with_host(&mut interpreter, "return redis.call('x')", &mut fine),
            Ok(Value::Integer(7))
        );
    }
}

/// A reply that exceeds Lua's memory limit fails the script and has no other effect.
#[test]
fn oversized_reply_fails_script() {
    let mut interpreter = new_interpreter();
    interpreter.limit_memory(Some(1));
    let large = [&b"$20000000\r\n"[..], &vec![b'x'; 20_000_000], b"\r\n"].concat();
    let many = [&b"*2000000\r\n"[..], &b":1\r\n".repeat(2_000_000)].concat();
    for wire in [large, many] {
        let mut host = FixedReply { wire, ..FixedReply::default() };
        let failed = run_with_host(&mut interpreter, "return #redis.call('x')", &mut host);
        assert!(failed.as_ref().is_err_and(|text| text.contains("not enough memory")), "{failed:?}");
        let mut fine = FixedReply { wire: b":7\r\n".to_vec(), ..FixedReply::default() };
        assert_eq!(
            run_with_host(&mut interpreter, "return redis.call('x')", &mut fine),
            Ok(Value::Integer(7))
        );
    }
}
