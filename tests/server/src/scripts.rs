//! Tests of long-running scripts and commands, and of the script debugger.

mod busy_scripts;
mod long_commands;
mod script_debugger;
