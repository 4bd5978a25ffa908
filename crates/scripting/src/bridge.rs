//! Implements `redis.call` directly on Lua's stack.
//!
//! This is the crate's only unsafe code. With mlua's safe interface, each call would need references to its arguments,
//! a vector of them and a guard per allocation, which took half of the run time of a short script.
//!
//! Invariants: Lua leaves a C function by `longjmp` when memory is short. Values with destructors must therefore not be
//! live in a function that calls Lua's allocator: [`HostBridge::run_catching_panics`] has such values and calls nothing
//! that allocates, and the functions that push onto the stack have none. The host is available only while a script runs
//! ([`HostBridge::with_host_lent`]).
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

use crate::collector::GarbageCollector;
use crate::debugger::Debugger;
use crate::interpreter::{HookState, LARGE_REQUEST_BYTES, LuaHost, StopCause, StopReason, stopped_error};
use crate::libraries::RaisedError;
use crate::libraries::server::question;
use crate::number::{format_argument, is_exact_integer};
use crate::reply::Reader;

/// Replies of at least this many bytes trigger a due garbage collection before their conversion.
const LARGE_REPLY_BYTES: usize = 64 << 10;

/// The connection between a state of Lua and the server that runs a script.
pub(crate) struct HostBridge {
    /// The server, while a script runs. A call takes the host out of this cell, so that the host cannot be used twice
    /// at the same time.
    host: Cell<Option<NonNull<dyn LuaHost>>>,
    /// The protocol version that the script selected.
    pub(crate) protocol: Cell<Protocol>,
    /// The debugger, while a script is being debugged.
    pub(crate) debugger: RefCell<Option<Rc<Debugger>>>,
    hook_state: Rc<HookState>,
    /// Reused buffer for the arguments of commands.
    request: RefCell<Request>,
    /// A call whose first argument is this pointer is an internal query; its next argument is the number of the query.
    query_marker: Cell<*const c_void>,
    /// The error that the last call raises. `None` if the call stops the script instead.
    last_error: RefCell<Option<RaisedError>>,
    panic_payload: RefCell<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for HostBridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// The result of a call. The type must not have a destructor, see the module documentation.
#[derive(Clone, Copy)]
enum CallResult {
    /// A reply in wire format, valid until the host's next call.
    Value(*const [u8]),
    /// An error returned to the script as a value, and whether the error statistics include it.
    Error(*const [u8], bool),
    /// The call raises the error in [`HostBridge::last_error`].
    Raise,
    /// The call is an internal query, which a separate function handles.
    Query,
}

impl HostBridge {
    pub(crate) fn new(hook_state: Rc<HookState>) -> Rc<Self> {
        Rc::new(Self {
            host: Cell::new(None),
            protocol: Cell::new(Protocol::Resp2),
            debugger: RefCell::default(),
            hook_state,
            request: RefCell::default(),
            query_marker: Cell::new(std::ptr::null()),
            last_error: RefCell::default(),
            panic_payload: RefCell::default(),
        })
    }

    /// Creates the Lua function behind `redis.call`. A call whose first argument is `query_marker` is an internal
    /// query, which the function `query_handler` handles.
    pub(crate) fn create_call_function(
        self: &Rc<Self>,
        lua: &Lua,
        query_marker: &Table,
        query_handler: Function,
    ) -> mlua::Result<Function> {
        self.query_marker.set(query_marker.to_pointer());
        let own = self.clone();
        let raise = lua.create_function(move |lua, ()| -> mlua::Result<()> {
            Err(own
                .last_error
                .take()
                .map_or_else(|| stopped_error(lua, &own.hook_state), mlua::Error::external))
        })?;
        let own: *const Self = Rc::as_ptr(self);
        let make = |state: *mut lua_State| {
            // SAFETY: the two functions are on the stack and there is space for one more value. `raise` keeps the
            // pointee alive for as long as Lua has the closure.
            unsafe {
                ffi::lua_pushlightuserdata(state, own.cast_mut().cast());
                ffi::lua_insert(state, 1);
                ffi::lua_pushcclosure(state, call, 3);
            }
        };
        // SAFETY: `make` consumes the two values on the stack and leaves the closure.
        unsafe { lua.exec_raw((raise, query_handler), make) }
    }

    /// Makes `host` available to scripts until `run` returns.
    pub(crate) fn with_host_lent<R>(&self, host: &mut dyn LuaHost, run: impl FnOnce() -> R) -> R {
        struct ReclaimOnDrop<'a>(&'a HostBridge);
        impl Drop for ReclaimOnDrop<'_> {
            fn drop(&mut self) {
                self.0.host.set(None);
            }
        }
        let host = NonNull::from(host);
        // SAFETY: this only erases the lifetime. `ReclaimOnDrop` removes the pointer before the lifetime ends.
        let host = unsafe { std::mem::transmute::<NonNull<dyn LuaHost + '_>, NonNull<dyn LuaHost>>(host) };
        self.host.set(Some(host));
        let _lent = ReclaimOnDrop(self);
        run()
    }

    /// Takes the panic of the server code that ended the last run, if there was one.
    pub(crate) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panic_payload.take()
    }

    /// Frees the argument buffer if a call made it large.
    pub(crate) fn release_large_request(&self) {
        let mut request = self.request.borrow_mut();
        if request.heap_bytes() > LARGE_REQUEST_BYTES {
            *request = Request::new();
        }
    }

    /// Calls `work` with the host. Returns `None` if no script runs or the host is already in use.
    pub(crate) fn with_host<R>(&self, work: impl FnOnce(&mut dyn LuaHost) -> R) -> Option<R> {
        let mut host = self.host.take()?;
        // SAFETY: `with_host_lent` keeps the host alive, and no one else can access it, since it is taken out of the
        // cell.
        let done = work(unsafe { host.as_mut() });
        self.host.set(Some(host));
        Some(done)
    }

    /// Executes the command whose arguments are on the stack. Must not allocate in Lua.
    fn run_catching_panics(&self, state: *mut lua_State) -> CallResult {
        match catch_unwind(AssertUnwindSafe(|| self.run_request(state))) {
            Ok(answer) => answer,
            Err(panic) => {
                self.panic_payload.replace(Some(panic));
                self.hook_state.stop_cause.set(Some(StopCause::Stopped(StopReason::Killed)));
                CallResult::Raise
            }
        }
    }

    fn run_request(&self, state: *mut lua_State) -> CallResult {
        let (mut first, mut raises) = (1, true);
        // SAFETY: any stack index may be inspected.
        let mark =
            unsafe { (ffi::lua_type(state, 1) == ffi::LUA_TTABLE).then(|| ffi::lua_topointer(state, 1)) };
        if mark == Some(self.query_marker.get()) {
            // SAFETY: any stack index may be inspected.
            if unsafe { ffi::lua_tonumber(state, 2) } as i64 != question::PROTECTED_CALL {
                return CallResult::Query;
            }
            (first, raises) = (3, false);
        }
        let mut request = self.request.borrow_mut();
        if let Err(complaint) = read_request(state, first, &mut request) {
            return self.fail(complaint.as_bytes(), raises, false);
        }
        let Some(called) =
            self.with_host(|host| host.call(&request, self.protocol.get()).map(std::ptr::from_ref))
        else {
            return self.fail(b"ERR This function can only be called from a script", raises, false);
        };
        let reply = match called {
            Ok(reply) => reply,
            Err(stop) => {
                self.hook_state.stop_cause.set(Some(StopCause::Stopped(stop)));
                return CallResult::Raise;
            }
        };
        let collector = &self.hook_state.collector;
        // SAFETY: memory usage may be queried and the collector configured on any state.
        unsafe {
            let used = (ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0) as usize) << 10;
            if collector.start_full_collections_if_due(used) {
                ffi::lua_gc(state, ffi::LUA_GCSETSTEPMUL, GarbageCollector::FULL_COLLECTION_STEP);
                ffi::lua_gc(state, ffi::LUA_GCSETPAUSE, GarbageCollector::SHORT_PAUSE_PERCENT);
            }
        }
        // SAFETY: the host keeps the reply valid until its next call.
        let bytes = unsafe { &*reply };
        if let Some(debugger) = &*self.debugger.borrow() {
            debugger.print_call(request.args(), bytes);
        }
        match bytes.strip_prefix(b"-") {
            None => CallResult::Value(reply),
            Some(text) => {
                let end = text.iter().position(|byte| *byte == b'\r').unwrap_or(text.len());
                self.fail(&text[..end], raises, true)
            }
        }
    }

    /// Collects garbage if that is due before a reply of `bytes` is converted. No other part of the bridge is borrowed
    /// during the collection.
    fn collect_garbage_before_reply(&self, state: *mut lua_State, bytes: usize) {
        if bytes < LARGE_REPLY_BYTES {
            return;
        }
        let collector = &self.hook_state.collector;
        // SAFETY: memory usage may be queried on any state, and a collection is allowed while no value is under
        // construction.
        unsafe {
            let used = || (ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0) as usize) << 10;
            if collector.is_collection_due(used(), bytes) {
                ffi::lua_gc(state, ffi::LUA_GCCOLLECT, 0);
                collector.record_live_bytes(used());
            }
            collector.publish_used_bytes(used() + bytes);
        }
    }

    fn fail(&self, text: &[u8], raises: bool, is_counted: bool) -> CallResult {
        if !raises {
            return CallResult::Error(text, is_counted);
        }
        self.last_error
            .replace(Some(RaisedError { text: text.to_vec(), error_table_counted: Some(is_counted) }));
        CallResult::Raise
    }
}

/// Calls the first stack value with the others and with one table per list in `lists`.
pub(crate) fn call_with_lists(
    lua: &Lua,
    callee: impl IntoLuaMulti,
    lists: [Args<'_>; 2],
) -> mlua::Result<(bool, Value)> {
    // SAFETY: the callee is on the stack and its results replace it. No value with a destructor is live.
    unsafe {
        lua.exec_raw(callee, |state| {
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

/// Reads the arguments of a command from stack index `first` on. Numbers are formatted without loss of precision.
fn read_request(state: *mut lua_State, first: c_int, request: &mut Request) -> Result<(), &'static str> {
    request.clear();
    // SAFETY: neither function raises an error: they inspect stack values, and the one that may allocate is used for
    // numbers only.
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
                    if is_exact_integer(number) {
                        request.push(itoa::Buffer::new().format(number as i64).as_bytes());
                    } else {
                        request.push(format_argument(number).as_bytes());
                    }
                }
                _ => return Err("ERR Command arguments must be strings or integers"),
            }
        }
    }
    Ok(())
}

/// `redis.call`. Its upvalues are the bridge, the function that raises errors, and the one for internal queries.
unsafe extern "C-unwind" fn call(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this function with a valid state and stack space, and the closure was created with these
    // upvalues. From here on, no value with a destructor is live.
    unsafe {
        let bridge = ffi::lua_touserdata(state, ffi::lua_upvalueindex(1)).cast::<HostBridge>();
        match (*bridge).run_catching_panics(state) {
            CallResult::Value(wire) => {
                (*bridge).collect_garbage_before_reply(state, wire.len());
                push_value(state, &mut Reader::new(&*wire), 0);
                1
            }
            CallResult::Error(text, counted) => {
                ffi::lua_pushnil(state);
                push_error(state, &*text, counted);
                2
            }
            CallResult::Raise => {
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
                ffi::lua_call(state, 0, 0);
                0
            }
            CallResult::Query => {
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(3));
                ffi::lua_insert(state, 1);
                ffi::lua_call(state, ffi::lua_gettop(state) - 1, ffi::LUA_MULTRET);
                ffi::lua_gettop(state)
            }
        }
    }
}

/// Parses the next value of a reply and pushes it. Does not return if Lua runs out of memory.
unsafe fn push_value(state: *mut lua_State, reader: &mut Reader<'_>, depth: usize) {
    let line = reader.read_line();
    // SAFETY: `lua_checkstack` has reserved the space that a value needs during its construction.
    unsafe {
        if depth > Reader::MAX_REPLY_DEPTH || ffi::lua_checkstack(state, 6) == 0 {
            push_text(state, b"reached lua stack limit");
            ffi::lua_error(state);
        }
        let Some((&kind, rest)) = line.split_first() else { return ffi::lua_pushnil(state) };
        let count = resp::parse_i64(rest).unwrap_or(0);
        match kind {
            b':' => ffi::lua_pushnumber(state, count as f64),
            b'$' | b'*' if count < 0 => ffi::lua_pushboolean(state, 0),
            b'$' => push_text(state, reader.read_bulk(count)),
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
                push_aggregate(state, kind, rest, count, reader, depth);
                ffi::lua_rawset(state, -3);
            }
            _ => ffi::lua_pushnil(state),
        }
    }
}

/// Pushes a type-tag field (such as `ok`, `map` or `double`) and its value.
unsafe fn push_aggregate(
    state: *mut lua_State,
    kind: u8,
    rest: &[u8],
    count: i64,
    reader: &mut Reader<'_>,
    depth: usize,
) {
    // SAFETY: as in `push_value`, which has reserved the stack space.
    unsafe {
        match kind {
            b'+' => {
                push_text(state, b"ok");
                push_text(state, rest);
            }
            b',' => {
                push_text(state, b"double");
                ffi::lua_pushnumber(state, Reader::read_double(rest));
            }
            b'(' => {
                push_text(state, b"big_number");
                push_text(state, rest);
            }
            b'=' => {
                let text = reader.read_bulk(count);
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
                    // A nil cannot be a key of a table.
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

/// Pushes an error in the form that scripts receive.
unsafe fn push_error(state: *mut lua_State, text: &[u8], is_counted: bool) {
    // SAFETY: Lua guarantees stack space for the few values of a C function.
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
        if is_counted {
            push_text(state, b"ignore_error_stats_update");
            ffi::lua_pushboolean(state, 1);
            ffi::lua_rawset(state, -3);
        }
    }
}

unsafe fn push_text(state: *mut lua_State, text: &[u8]) {
    // SAFETY: the pointer is valid for `len` bytes, and Lua copies them.
    unsafe { ffi::lua_pushlstring(state, text.as_ptr().cast(), text.len()) };
}

#[cfg(test)]
mod tests;
