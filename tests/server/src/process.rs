//! Tests of the server process: command line, configuration, signals, crashes and DEBUG.

mod command_line;
mod crashing;
mod debug;
mod environment;
