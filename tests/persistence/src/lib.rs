//! Tests of RDB files and append-only files: kills, full disks, files of other servers.
#![forbid(unsafe_code)]

#[cfg(test)]
mod append_only;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod snapshots;
