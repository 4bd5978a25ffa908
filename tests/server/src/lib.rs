//! Tests of a single server as clients and operators see it: connections, keys, memory, scripts, the process, INFO and
//! the log.
#![forbid(unsafe_code)]

#[cfg(test)]
mod clients;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod observability;
#[cfg(test)]
mod process;
#[cfg(test)]
mod scripts;
