//! Lua scripting: the sandbox, its libraries, and conversions between Lua values and RESP.
//!
//! An [`Interpreter`] is the Lua 5.1 state of one thread. It compiles each [`Script`] once and runs it on every call;
//! commands of the script go through a [`Host`]. Scripts are untrusted: the sandbox (`prelude.lua`) removes all access
//! to the outside, memory is limited, and other threads can stop a script ([`Running`]).
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
pub use debugger::Console;
pub use functions::{Function, FunctionError, Functions, Library, Restore};
pub use interpreter::{Call, Failure, Host, Interpreter, Options, Outcome, Stop, memory_bound};
pub use running::{Running, Verdict};
pub use script::{Script, ScriptFlags, Shebang, ShebangError, sha1_hex};

#[cfg(test)]
mod tests;
