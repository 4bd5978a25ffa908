//! Linux network namespaces.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_namespace(namespace: &Path) -> std::io::Result<()> {
    let namespace = File::open(namespace)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
