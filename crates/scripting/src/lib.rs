//! Lua scripting: the sandbox, its libraries, and conversions between Lua values and RESP.
//!
//! An [`Interpreter`] is the Lua 5.1 state of one thread. It compiles each [`Script`] once and runs it on every call;
//! commands of the script go through a [`LuaHost`]. Scripts are untrusted: the sandbox (`prelude.lua`) removes all
//! access to the outside, memory is limited, and other threads can stop a script ([`InterpreterState`]).
#![deny(unsafe_code)]

mod answer;
mod bridge;
mod cache;
mod collector;
mod debugger;
mod functions;
mod interpreter;
mod libraries;
mod number;
mod random;
mod releases;
mod reply;
mod running;
mod script;

pub use cache::Scripts;
pub use debugger::DebugConsole;
pub use functions::{Function, FunctionError, Functions, Library, RestorePolicy};
pub use interpreter::{
    Interpreter, InterpreterOptions, Invocation, LuaHost, ReplicationTargets, ScriptFailure, ScriptValue,
    StopReason, lua_memory_limit,
};
pub use running::{InterpreterState, KillResult};
pub use script::{Script, ScriptFlags, Shebang, ShebangError, sha1_hex};

#[cfg(test)]
mod tests;
