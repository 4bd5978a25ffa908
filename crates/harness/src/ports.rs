//! Reserves free ports for one test at a time. The bus port, which is 10000 higher, must be free as well.
//!
//! If a test asked the system for a free port and released it, another test could get the same port before the server
//! listens on it. Therefore a reservation is a locked file per port, shared by all tests on this machine. The lock ends
//! with its process. All ports are below the range for outgoing connections.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST_PORT: u16 = 19_000;
const PORT_COUNT: u16 = 3_500;

/// A port that is reserved for this test until this value is dropped.
#[derive(Debug)]
pub struct PortClaim {
    /// The client port. The bus port `port + 10000` is also reserved.
    pub port: u16,
    _lock: File,
}

/// Reserves a port and its bus port.
///
/// # Panics
/// No port is free.
#[must_use]
pub fn claim_port() -> PortClaim {
    claim_ports(1).remove(0)
}

/// Reserves consecutive ports.
///
/// # Panics
/// There are not enough consecutive free ports.
#[must_use]
pub fn claim_ports(count: u16) -> Vec<PortClaim> {
    // Each process starts its search at a different port, to avoid contention.
    static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() * 37 % u32::from(PORT_COUNT)) as u16;
    for _ in 0..PORT_COUNT {
        let first =
            FIRST_PORT + (own + NEXT_PORT.fetch_add(count, Ordering::Relaxed) % PORT_COUNT) % PORT_COUNT;
        let claims: Option<Vec<PortClaim>> = (first..first + count).map(try_claim).collect();
        if let Some(claims) = claims {
            return claims;
        }
    }
    panic!("no {count} free ports between {FIRST_PORT} and {}", FIRST_PORT + PORT_COUNT);
}

fn try_claim(port: u16) -> Option<PortClaim> {
    let lock = File::create(lock_folder().join(port.to_string())).ok()?;
    let free = lock.try_lock().is_ok() && is_port_free(port) && is_port_free(port + 10_000);
    free.then_some(PortClaim { port, _lock: lock })
}

fn lock_folder() -> PathBuf {
    let folder = std::env::temp_dir().join("redoubt-test-ports");
    fs::create_dir_all(&folder).expect("the temporary folder can be written to");
    folder
}

fn is_port_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
