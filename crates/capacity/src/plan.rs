//! From bytes of a key to servers: how many shards and nodes, and how long a full synchronisation takes.

use serde::Serialize;
use slot_routing::SLOT_COUNT;

use crate::allocator::Quantum;
use crate::data::{Data, Parts};
use crate::kinds::model;
use crate::redis::Version;
use crate::{own, redis, valkey};

/// A server whose structures are reckoned with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// This one.
    Redoubt,
    /// Redis 7.0.
    Redis7,
    /// Redis 8.0.
    Redis8,
    /// Valkey 9.
    Valkey,
}

impl Server {
    /// All of them, this one first.
    pub const ALL: [Self; 4] = [Self::Redoubt, Self::Redis7, Self::Redis8, Self::Valkey];

    /// As it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redoubt => "Redoubt",
            Self::Redis7 => "Redis 7",
            Self::Redis8 => "Redis 8",
            Self::Valkey => "Valkey 9",
        }
    }

    /// The bytes of a key. `all` keys are in the whole cluster, `here` in this shard.
    #[must_use]
    pub fn bytes(self, data: &Data, models: Models, all: u64, here: u64) -> Parts {
        match self {
            Self::Redoubt => own::bytes(data, all, models.heap),
            Self::Redis7 => redis::bytes(data, Version::Seven, models.quantum, here),
            Self::Redis8 => redis::bytes(data, Version::Eight, models.quantum, here),
            Self::Valkey => valkey::bytes(data, models.quantum, here),
        }
    }

    /// The bytes of a server without keys.
    #[must_use]
    pub fn empty(self) -> u64 {
        // Measured, as docs/BENCHMARKS.md has it.
        match self {
            Self::Redoubt => 13_000_000,
            Self::Redis7 | Self::Redis8 => 12_600_000,
            Self::Valkey => 14_900_000,
        }
    }
}

/// The constants that the models depend on.
#[derive(Debug, Clone, Copy)]
pub struct Models {
    /// How Redis and Valkey were built.
    pub quantum: Quantum,
    /// The counter of this process's heap.
    pub heap: own::Heap,
}

/// The requirements that a plan must meet.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Replicas of each master.
    pub replicas: u64,
    /// By how much the data grows until the plan must still hold: 0.6 for 60 %.
    pub growth: f64,
    /// The share of a node's memory that stays free: 0.3 for 30 %.
    pub headroom: f64,
    /// Bytes of memory of a node.
    pub node_memory: u64,
    /// Bytes a second between nodes.
    pub bandwidth: u64,
    /// The constants that the models depend on.
    pub models: Models,
}

/// The memory and the nodes that one server needs for the data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The server's name.
    pub server: &'static str,
    /// Of a key, on the average of all data.
    pub per_key: Parts,
    /// Bytes of one copy, now.
    pub total: f64,
    /// The same after the growth.
    pub grown: f64,
    /// Masters.
    pub shards: u64,
    /// Masters and replicas.
    pub nodes: u64,
    /// Bytes of a node in use, after the growth.
    pub per_node: f64,
    /// Bytes that a full synchronisation of one replica sends, after the growth.
    pub sync_bytes: f64,
    /// How long that takes at the bandwidth, in seconds.
    pub sync_seconds: f64,
}

/// Returns the needs of each server.
#[must_use]
pub fn plan(all: &[Data], demand: &Demand) -> Vec<Answer> {
    Server::ALL.iter().map(|server| answer(*server, all, demand)).collect()
}

fn answer(server: Server, all: &[Data], demand: &Demand) -> Answer {
    let growth = 1.0 + demand.growth;
    let keys: u64 = all.iter().map(|data| data.keys).sum();
    // How full a table is depends on the keys of a shard, and how many shards there are on the bytes.
    let mut shards = 1;
    let mut sum = Parts::default();
    for _ in 0..2 {
        sum = Parts::default();
        for data in all {
            let here = (data.keys / shards).max(1);
            // Tables are shared by all data: their load is that of all keys.
            let of_key = server.bytes(data, demand.models, keys.max(1), here.max(keys / shards));
            sum += of_key.times(data.keys as f64);
        }
        let room = demand.node_memory as f64 * (1.0 - demand.headroom) - server.empty() as f64;
        let wanted = (sum.total() * growth / room.max(1.0)).ceil();
        shards = (wanted as u64).clamp(1, SLOT_COUNT as u64);
        if server == Server::Redoubt {
            break;
        }
    }
    let grown = sum.total() * growth;
    let payload: u64 = all.iter().map(|data| dumped(data) * data.keys).sum();
    let sync_bytes = payload as f64 * growth / shards as f64;
    Answer {
        server: server.name(),
        per_key: sum.times(1.0 / keys.max(1) as f64),
        total: sum.total(),
        grown,
        shards,
        nodes: shards * (1 + demand.replicas),
        per_node: grown / shards as f64 + server.empty() as f64,
        sync_bytes,
        sync_seconds: sync_bytes / demand.bandwidth.max(1) as f64,
    }
}

/// Bytes of a key in an RDB: a byte for its type, a time, and a length in front of each string.
fn dumped(data: &Data) -> u64 {
    fn length(len: u64) -> u64 {
        if len < 64 { 1 } else { 2 }
    }
    let beside = model(data.kind).dumped(data, length);
    let elements = data.elements() * (length(data.value_bytes) + beside);
    1 + if data.expires { 9 } else { 0 } + length(data.key_bytes) + data.payload() + elements
}
