//! Tests of the append-only file: kills, failed rewrites and files of other servers.

mod failed_rewrites;
mod file_formats;
mod writing;
