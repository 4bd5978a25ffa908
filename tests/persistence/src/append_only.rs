//! The append-only file: kills, failed rewrites, files of other servers.

mod failed_rewrites;
mod file_forms;
mod writing;
