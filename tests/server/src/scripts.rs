//! Scripts and other commands that run for long, and the script debugger.

mod busy_scripts;
mod long_commands;
mod script_debugger;
