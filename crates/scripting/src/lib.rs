//! Lua scripts: the sandbox that they run in, its libraries, and values on their way between Lua and RESP.
//!
//! An [`Interpreter`] is one thread's state of Lua 5.1. It compiles a [`Script`] once and runs it as often as it is
//! called; what a script asks of its server goes through a [`Host`]. Scripts are untrusted: what they may use leads
//! nowhere else (`prelude.lua`), the memory of a state is bounded, and other threads can stop one ([`Running`]).
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
