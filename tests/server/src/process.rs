//! The process: command line, configuration, signals, crashes, DEBUG.

mod command_line;
mod crashing;
mod debug;
mod environment;
