//! Runs real servers for tests: starts them on free ports, sends requests, kills, freezes and restarts them, and always
//! cleans up.
//!
//! ```no_run
//! use harness::{Cluster, Program};
//!
//! let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
//! cluster.nodes[0].kill();
//! let successor = cluster.wait_for_owner(0, |port| port != cluster.nodes[0].port);
//! ```
//!
//! A failing test panics. When a [`Node`] is dropped during a panic, it prints the end of its log; in any case it ends
//! its process and removes its folder. All servers belong to the test's process group, so a test runner that kills the
//! group also kills them.
//!
//! [`Connection`] is an independent RESP client, so that a bug in the server's codec cannot go unnoticed.
#![forbid(unsafe_code)]

mod cluster;
mod cluster_data;
pub mod counters;
mod disk;
mod faketime;
mod folders;
mod group;
mod impairment;
mod local_servers;
mod namespace;
mod network;
mod node;
mod ports;
mod program;
mod relay;
mod skipped;
mod slot_move;
mod slots;
mod wait;
mod wire;

pub use cluster::{Cluster, cluster_info_field, info_field, slot_owner};
pub use cluster_data::{cpu_ticks, fill_cluster, find_lost_keys, keys_for_all_slots, slot_owner_index};
pub use folders::set_folders_root;
pub use group::{MASTER_NAME, SentinelGroup, field_map, wait_for_event};
pub use impairment::LinkImpairment;
pub use local_servers::{LocalServers, LocalSetup};
pub use network::{TestHost, TestNetwork};
pub use node::{Endpoint, Node};
pub use ports::{PortClaim, claim_port, claim_ports};
pub use program::{Program, redis_cli, run_to_end};
pub use relay::{RelayNetwork, RelayedProcess};
pub use skipped::{report_skipped, value_or_skip};
pub use slot_move::move_slot;
pub use slots::{SLOT_COUNT, slot_of};
pub use wait::{eventually, eventually_within, never_within};
pub use wire::{Connection, Reply};
