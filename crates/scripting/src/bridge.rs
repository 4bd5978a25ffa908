//! The way from a script to its server: what `redis.call` is, on Lua's own stack.
//!
//! This is the crate's only unsafe code. Through mlua's safe interface a call takes references to its arguments, a vector of
//! them and a guard for each allocation: half of what a short script takes in all.
//!
//! Two things are to be seen to. Lua leaves a function by a jump when memory is short, so no value that would have to be
//! dropped lives in a function from which Lua's allocator is called: [`Bridge::answer`] has such values and calls none that
//! can fail, what pushes onto the stack has none. And a host is lent for the time of one run ([`Bridge::lend`]).
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::rc::Rc;

use mlua::ffi::{self, lua_State};
use mlua::{Function, IntoLuaMulti, Lua, Table, Value};
use resp::{Args, Protocol, Request};

use crate::collector::Collector;
use crate::debugger::Debugger;
use crate::interpreter::{Ending, Host, LARGE_COMMAND, Stop, Watch, stopped};
use crate::libraries::Raised;
use crate::libraries::server::question;
use crate::number::{as_word, is_exact};
use crate::reply::Reader;

/// Garbage is collected before a reply of this many bytes becomes a value, if that is due.
const LARGE_REPLY: usize = 64 << 10;

/// The way that a script's calls go.
pub(crate) struct Bridge {
    /// The server, while a script runs and it is not at work for it.
    host: Cell<Option<NonNull<dyn Host>>>,
    /// The version that the script speaks with the server.
    pub(crate) spoken: Cell<Protocol>,
    /// While a script is debugged.
    pub(crate) debugger: RefCell<Option<Rc<Debugger>>>,
    watch: Rc<Watch>,
    /// Memory for the words of a command.
    request: RefCell<Request>,
    /// The first argument of a call that is a question, by number, and not a plain command.
    mark: Cell<*const c_void>,
    /// The error that the last call is to raise, if it is not the end of the script.
    raised: RefCell<Option<Raised>>,
    panicked: RefCell<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge").field("spoken", &self.spoken).finish_non_exhaustive()
    }
}

/// The answer to a call. It lies where it is and is not dropped.
#[derive(Clone, Copy)]
enum Answer {
    /// A value, as it is on the wire.
    Value(*const [u8]),
    /// An error, which the script gets as a value, and whether the server's statistics have it.
    Error(*const [u8], bool),
    /// An error that is raised.
    Raise,
    /// It was a question: it is asked again where questions are.
    Question,
}

impl Bridge {
    pub(crate) fn new(watch: Rc<Watch>) -> Rc<Self> {
        Rc::new(Self {
            host: Cell::new(None),
            spoken: Cell::new(Protocol::Resp2),
            debugger: RefCell::default(),
            watch,
            request: RefCell::default(),
            mark: Cell::new(std::ptr::null()),
            raised: RefCell::default(),
            panicked: RefCell::default(),
        })
    }

    /// The function that scripts call, from then on. `mark` comes first in questions, which `asked` answers.
    pub(crate) fn function(
        self: &Rc<Self>,
        lua: &Lua,
        mark: &Table,
        asked: Function,
    ) -> mlua::Result<Function> {
        self.mark.set(mark.to_pointer());
        let own = self.clone();
        let raise = lua.create_function(move |lua, ()| -> mlua::Result<()> {
            Err(own.raised.take().map_or_else(|| stopped(lua, &own.watch), mlua::Error::external))
        })?;
        let own: *const Self = Rc::as_ptr(self);
        let make = |state: *mut lua_State| {
            // SAFETY: the two functions are on the stack, which has room for a pointer more. `raise` keeps what that points
            // to for as long as Lua has the closure.
            unsafe {
                ffi::lua_pushlightuserdata(state, own.cast_mut().cast());
                ffi::lua_insert(state, 1);
                ffi::lua_pushcclosure(state, call, 3);
            }
        };
        // SAFETY: what was given is on the stack, and the closure is left there.
        unsafe { lua.exec_raw((raise, asked), make) }
    }

    /// Lends scripts their server while `run` runs.
    pub(crate) fn lend<R>(&self, host: &mut dyn Host, run: impl FnOnce() -> R) -> R {
        struct TakenBack<'a>(&'a Bridge);
        impl Drop for TakenBack<'_> {
            fn drop(&mut self) {
                self.0.host.set(None);
            }
        }
        let host = NonNull::from(host);
        // SAFETY: only the lifetime becomes another, and it is taken back before that ends.
        let host = unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host>>(host) };
        self.host.set(Some(host));
        let _lent = TakenBack(self);
        run()
    }

    /// The panic of the server's that a run has ended with.
    pub(crate) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panicked.take()
    }

    /// Gives back the memory of a large call.
    pub(crate) fn release_large_request(&self) {
        let mut request = self.request.borrow_mut();
        if request.bytes() > LARGE_COMMAND {
            *request = Request::new();
        }
    }

    /// Has the server do something, if a script runs.
    pub(crate) fn with_host<R>(&self, work: impl FnOnce(&mut dyn Host) -> R) -> Option<R> {
        let mut host = self.host.take()?;
        // SAFETY: it is lent, and nobody else has it, as it is not there meanwhile.
        let done = work(unsafe { host.as_mut() });
        self.host.set(Some(host));
        Some(done)
    }

    /// Runs the command whose words are on the stack. Nothing that is called here allocates in Lua.
    fn answer(&self, state: *mut lua_State) -> Answer {
        match catch_unwind(AssertUnwindSafe(|| self.serve(state))) {
            Ok(answer) => answer,
            Err(panic) => {
                self.panicked.replace(Some(panic));
                self.watch.ending.set(Some(Ending::Stopped(Stop::Killed)));
                Answer::Raise
            }
        }
    }

    fn serve(&self, state: *mut lua_State) -> Answer {
        let (mut first, mut raises) = (1, true);
        // SAFETY: any place of the stack may be asked about.
        let mark =
            unsafe { (ffi::lua_type(state, 1) == ffi::LUA_TTABLE).then(|| ffi::lua_topointer(state, 1)) };
        if mark == Some(self.mark.get()) {
            // SAFETY: as above.
            if unsafe { ffi::lua_tonumber(state, 2) } as i64 != question::PROTECTED_CALL {
                return Answer::Question;
            }
            (first, raises) = (3, false);
        }
        let mut request = self.request.borrow_mut();
        if let Err(complaint) = words(state, first, &mut request) {
            return self.failed(complaint.as_bytes(), raises, false);
        }
        let Some(called) =
            self.with_host(|host| host.call(&request, self.spoken.get()).map(std::ptr::from_ref))
        else {
            return self.failed(b"ERR This function can only be called from a script", raises, false);
        };
        let reply = match called {
            Ok(reply) => reply,
            Err(stop) => {
                self.watch.ending.set(Some(Ending::Stopped(stop)));
                return Answer::Raise;
            }
        };
        let collector = &self.watch.collector;
        // SAFETY: any state may be asked for the memory in use and told how to collect.
        unsafe {
            let used = (ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0) as usize) << 10;
            if collector.is_to_be_thorough(used) {
                ffi::lua_gc(state, ffi::LUA_GCSETSTEPMUL, Collector::THOROUGH);
                ffi::lua_gc(state, ffi::LUA_GCSETPAUSE, Collector::SHORT_PAUSE);
            }
        }
        // SAFETY: the host keeps it until it is called again.
        let bytes = unsafe { &*reply };
        if let Some(debugger) = &*self.debugger.borrow() {
            debugger.on_call(request.args(), bytes);
        }
        match bytes.strip_prefix(b"-") {
            None => Answer::Value(reply),
            Some(text) => {
                let end = text.iter().position(|byte| *byte == b'\r').unwrap_or(text.len());
                self.failed(&text[..end], raises, true)
            }
        }
    }

    /// Collects garbage if that is due before a reply of `bytes` becomes a value. Nothing else of the bridge is in use
    /// meanwhile.
    fn make_room(&self, state: *mut lua_State, bytes: usize) {
        if bytes < LARGE_REPLY {
            return;
        }
        let collector = &self.watch.collector;
        // SAFETY: any state may be asked for the memory in use, and be collected where no value is half made.
        unsafe {
            let used = || (ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0) as usize) << 10;
            if collector.is_due(used(), bytes) {
                ffi::lua_gc(state, ffi::LUA_GCCOLLECT, 0);
                collector.note_live(used());
            }
            collector.note_used(used() + bytes);
        }
    }

    fn failed(&self, text: &[u8], raises: bool, counted: bool) -> Answer {
        if !raises {
            return Answer::Error(text, counted);
        }
        self.raised.replace(Some(Raised { text: text.to_vec(), table: Some(counted) }));
        Answer::Raise
    }
}

/// Calls the first of these with the others, and with a table for each of `lists`.
pub(crate) fn call_with(
    lua: &Lua,
    what: impl IntoLuaMulti,
    lists: [Args<'_>; 2],
) -> mlua::Result<(bool, Value)> {
    // SAFETY: what is called is on the stack, and is replaced by what it returns. Nothing here is to be dropped.
    unsafe {
        lua.exec_raw(what, |state| {
            ffi::luaL_checkstack(state, 4, std::ptr::null());
            for list in lists {
                ffi::lua_createtable(state, c_int::try_from(list.len()).unwrap_or(0), 0);
                for (text, index) in list.iter().zip(1..) {
                    push_text(state, text);
                    ffi::lua_rawseti(state, -2, index);
                }
            }
            ffi::lua_call(state, ffi::lua_gettop(state) - 1, 2);
        })
    }
}

/// The words of a command, from place `first` on. A number is written so that nothing of it is lost.
fn words(state: *mut lua_State, first: c_int, request: &mut Request) -> Result<(), &'static str> {
    request.clear();
    // SAFETY: neither raises an error: they ask about places, and the one that could allocate is for numbers.
    unsafe {
        let last = ffi::lua_gettop(state);
        if last < first {
            return Err("ERR Please specify at least one argument for this call");
        }
        for place in first..=last {
            match ffi::lua_type(state, place) {
                ffi::LUA_TSTRING => {
                    let mut len = 0;
                    let text = ffi::lua_tolstring(state, place, &raw mut len);
                    request.push(std::slice::from_raw_parts(text.cast(), len));
                }
                ffi::LUA_TNUMBER => {
                    let number = ffi::lua_tonumber(state, place);
                    if is_exact(number) {
                        request.push(itoa::Buffer::new().format(number as i64).as_bytes());
                    } else {
                        request.push(as_word(number).as_bytes());
                    }
                }
                _ => return Err("ERR Command arguments must be strings or integers"),
            }
        }
    }
    Ok(())
}

/// `redis.call`: its first value is the bridge, then what raises errors, and what answers questions.
unsafe extern "C-unwind" fn call(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with a state, and room on the stack; the closure was made with these values. From here on
    // nothing is alive that would have to be dropped.
    unsafe {
        let bridge = ffi::lua_touserdata(state, ffi::lua_upvalueindex(1)).cast::<Bridge>();
        match (*bridge).answer(state) {
            Answer::Value(wire) => {
                (*bridge).make_room(state, wire.len());
                push_value(state, &mut Reader::of(&*wire), 0);
                1
            }
            Answer::Error(text, counted) => {
                ffi::lua_pushnil(state);
                push_error(state, &*text, counted);
                2
            }
            Answer::Raise => {
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
                ffi::lua_call(state, 0, 0);
                0
            }
            Answer::Question => {
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(3));
                ffi::lua_insert(state, 1);
                ffi::lua_call(state, ffi::lua_gettop(state) - 1, ffi::LUA_MULTRET);
                ffi::lua_gettop(state)
            }
        }
    }
}

/// Pushes the next value of the wire. Lua's memory may be too short for it: then this does not return.
unsafe fn push_value(state: *mut lua_State, reader: &mut Reader<'_>, depth: usize) {
    let line = reader.line();
    // SAFETY: there is room for what a value takes while it is made, which is asked for first.
    unsafe {
        if depth > Reader::MAX_DEPTH || ffi::lua_checkstack(state, 6) == 0 {
            push_text(state, b"reached lua stack limit");
            ffi::lua_error(state);
        }
        let Some((&kind, rest)) = line.split_first() else { return ffi::lua_pushnil(state) };
        let count = resp::parse_i64(rest).unwrap_or(0);
        match kind {
            b':' => ffi::lua_pushnumber(state, count as f64),
            b'$' | b'*' if count < 0 => ffi::lua_pushboolean(state, 0),
            b'$' => push_text(state, reader.bulk(count)),
            b'-' => push_error(state, rest, true),
            b'*' | b'>' => {
                ffi::lua_createtable(state, count.min(1 << 16) as c_int, 0);
                for index in 1..=count {
                    push_value(state, reader, depth + 1);
                    ffi::lua_rawseti(state, -2, index);
                }
            }
            b'#' => ffi::lua_pushboolean(state, c_int::from(rest == b"t")),
            b'+' | b',' | b'(' | b'=' | b'%' | b'~' => {
                ffi::lua_createtable(state, 0, 1);
                push_named(state, kind, rest, count, reader, depth);
                ffi::lua_rawset(state, -3);
            }
            _ => ffi::lua_pushnil(state),
        }
    }
}

/// Pushes the name and the value of the field by which a script tells a kind of value from others.
unsafe fn push_named(
    state: *mut lua_State,
    kind: u8,
    rest: &[u8],
    count: i64,
    reader: &mut Reader<'_>,
    depth: usize,
) {
    // SAFETY: as of `push_value`, which has asked for the room.
    unsafe {
        match kind {
            b'+' => {
                push_text(state, b"ok");
                push_text(state, rest);
            }
            b',' => {
                push_text(state, b"double");
                ffi::lua_pushnumber(state, Reader::double(rest));
            }
            b'(' => {
                push_text(state, b"big_number");
                push_text(state, rest);
            }
            b'=' => {
                let text = reader.bulk(count);
                let (format, text) = text.split_at(text.len().min(3));
                push_text(state, b"verbatim_string");
                ffi::lua_createtable(state, 0, 2);
                push_text(state, b"format");
                push_text(state, format);
                ffi::lua_rawset(state, -3);
                push_text(state, b"string");
                push_text(state, text.get(1..).unwrap_or_default());
                ffi::lua_rawset(state, -3);
            }
            _ => {
                let is_map = kind == b'%';
                push_text(state, if is_map { b"map" } else { b"set" });
                ffi::lua_createtable(state, 0, 0);
                for _ in 0..count {
                    push_value(state, reader, depth + 1);
                    if is_map {
                        push_value(state, reader, depth + 1);
                    } else {
                        ffi::lua_pushboolean(state, 1);
                    }
                    // Nothing cannot be found again.
                    if ffi::lua_type(state, -2) == ffi::LUA_TNIL {
                        ffi::lua_settop(state, -3);
                    } else {
                        ffi::lua_rawset(state, -3);
                    }
                }
            }
        }
    }
}

/// Pushes an error as scripts know it.
unsafe fn push_error(state: *mut lua_State, text: &[u8], counted: bool) {
    // SAFETY: a function of C has room for so few values.
    unsafe {
        ffi::lua_createtable(state, 0, 4);
        push_text(state, b"err");
        if text.contains(&b' ') {
            push_text(state, text);
        } else {
            push_text(state, b"ERR ");
            push_text(state, text);
            ffi::lua_concat(state, 2);
        }
        ffi::lua_rawset(state, -3);
        if counted {
            push_text(state, b"ignore_error_stats_update");
            ffi::lua_pushboolean(state, 1);
            ffi::lua_rawset(state, -3);
        }
    }
}

unsafe fn push_text(state: *mut lua_State, text: &[u8]) {
    // SAFETY: Lua copies so many bytes from there.
    unsafe { ffi::lua_pushlstring(state, text.as_ptr().cast(), text.len()) };
}

#[cfg(test)]
mod tests;
