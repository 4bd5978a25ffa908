//! Free ports, also free 10000 above (the bus), and not given to two tests at once.
//!
//! Asking the system for a free port and letting go of it leaves a gap in which another test, in another process,
//! gets the same. So a claim is a locked file per port, shared by all tests of this machine; the lock goes with the
//! process that holds it. The ports and their bus ports lie below those that systems give to outgoing connections.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 19_000;
const COUNT: u16 = 3_500;

/// A port that no other test of this machine gets while this lives.
#[derive(Debug)]
pub struct PortClaim {
    /// The client port; `port + 10000` is claimed with it.
    pub port: u16,
    _lock: File,
}

/// Claims a port.
///
/// # Panics
/// If none is free.
#[must_use]
pub fn claim_port() -> PortClaim {
    claim_ports(1).remove(0)
}

/// Claims ports in a row.
///
/// # Panics
/// If there is no such row.
#[must_use]
pub fn claim_ports(count: u16) -> Vec<PortClaim> {
    // Start somewhere else in each process, so that they do not all try the same ones first.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() * 37 % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let first = FIRST + (own + NEXT.fetch_add(count, Ordering::Relaxed) % COUNT) % COUNT;
        let claims: Option<Vec<PortClaim>> = (first..first + count).map(try_claim).collect();
        if let Some(claims) = claims {
            return claims;
        }
    }
    panic!("no {count} free ports between {FIRST} and {}", FIRST + COUNT);
}

fn try_claim(port: u16) -> Option<PortClaim> {
    let lock = File::create(lock_folder().join(port.to_string())).ok()?;
    let free = lock.try_lock().is_ok() && is_free(port) && is_free(port + 10_000);
    free.then_some(PortClaim { port, _lock: lock })
}

fn lock_folder() -> PathBuf {
    let folder = std::env::temp_dir().join("redoubt-test-ports");
    fs::create_dir_all(&folder).expect("the temporary folder can be written to");
    folder
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
