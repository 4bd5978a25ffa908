//! Turns bytes per key into a deployment: the number of shards and nodes, and the duration of a full resync.

use serde::Serialize;
use slot_routing::SLOT_COUNT;

use crate::allocator::Quantum;
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::kinds::memory_model;
use crate::redis::RedisVersion;
use crate::{own, redis, valkey};

/// A server software whose memory use is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedServer {
    /// This server, which is measured by storing sample keys.
    Redoubt,
    /// Redis 7.0, as packaged by Debian.
    Redis7,
    /// Redis 8.0 or later.
    Redis8,
    /// Valkey 9.
    Valkey,
}

impl PlannedServer {
    /// All servers, this one first.
    pub const ALL: [Self; 4] = [Self::Redoubt, Self::Redis7, Self::Redis8, Self::Valkey];

    /// Returns the name shown in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redoubt => "Redoubt",
            Self::Redis7 => "Redis 7",
            Self::Redis8 => "Redis 8",
            Self::Valkey => "Valkey 9",
        }
    }

    /// Returns the bytes of one key of `group`. Redis and Valkey depend on the number of keys per shard, this
    /// server on the number of keys in the cluster.
    #[must_use]
    pub fn bytes_per_key(
        self,
        group: &KeyGroup,
        models: ModelInputs,
        cluster_keys: u64,
        shard_keys: u64,
    ) -> MemoryBreakdown {
        match self {
            Self::Redoubt => own::sampled_memory(group, cluster_keys, models.heap_counter),
            Self::Redis7 => redis::bytes_per_key(group, RedisVersion::V7, models.quantum, shard_keys),
            Self::Redis8 => redis::bytes_per_key(group, RedisVersion::V8, models.quantum, shard_keys),
            Self::Valkey => valkey::bytes_per_key(group, models.quantum, shard_keys),
        }
    }

    /// Returns the resident bytes of a server without keys.
    #[must_use]
    pub fn base_bytes(self) -> u64 {
        // These sizes were measured; see docs/BENCHMARKS.md.
        match self {
            Self::Redoubt => 13_000_000,
            Self::Redis7 | Self::Redis8 => 12_600_000,
            Self::Valkey => 14_900_000,
        }
    }
}

/// Parameters of the memory models that do not depend on the data.
#[derive(Debug, Clone, Copy)]
pub struct ModelInputs {
    /// The jemalloc quantum with which Redis and Valkey were built.
    pub quantum: Quantum,
    /// Returns the net number of bytes that this thread has allocated; used to measure this server.
    pub heap_counter: own::HeapCounter,
}

/// What the planned cluster must satisfy: replicas, growth, headroom and node size.
#[derive(Debug, Clone, Copy)]
pub struct PlanRequirements {
    /// The number of replicas per master.
    pub replicas: u64,
    /// Expected growth of the data: 0.6 means 60 %.
    pub growth: f64,
    /// The fraction of a node's memory to keep free: 0.3 means 30 %.
    pub headroom: f64,
    /// The memory available on one node, in bytes.
    pub node_memory: u64,
    /// The bandwidth between nodes in bytes per second, for the duration of a full resync.
    pub bandwidth: u64,
    /// Parameters of the memory models.
    pub models: ModelInputs,
}

/// The memory and nodes that one server type needs for the data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CapacityPlan {
    /// The server's name, as [`PlannedServer::name`] returns it.
    pub server: &'static str,
    /// The memory of one key, averaged over all groups.
    pub per_key: MemoryBreakdown,
    /// Bytes of one copy of the data before the growth.
    pub total: f64,
    /// Bytes of one copy of the data after the growth.
    pub grown: f64,
    /// The number of masters that can hold the data after the growth.
    pub shards: u64,
    /// The number of masters and replicas together.
    pub nodes: u64,
    /// The bytes in use on each node after the growth.
    pub per_node: f64,
    /// The bytes that a full resync of one replica sends after the growth.
    pub sync_bytes: f64,
    /// The duration of a full resync in seconds, at the required bandwidth.
    pub sync_seconds: f64,
}

/// Computes a plan for each server in [`PlannedServer::ALL`].
#[must_use]
pub fn plan_capacity(groups: &[KeyGroup], requirements: &PlanRequirements) -> Vec<CapacityPlan> {
    PlannedServer::ALL.iter().map(|server| plan_server(*server, groups, requirements)).collect()
}

fn plan_server(server: PlannedServer, groups: &[KeyGroup], requirements: &PlanRequirements) -> CapacityPlan {
    let growth = 1.0 + requirements.growth;
    let keys: u64 = groups.iter().map(|data| data.keys).sum();
    // Bytes per key depend on the keys per shard, and the number of shards depends on the bytes per key, so the plan is
    // computed twice.
    let mut shards = 1;
    let mut sum = MemoryBreakdown::default();
    for _ in 0..2 {
        sum = MemoryBreakdown::default();
        for data in groups {
            let here = (data.keys / shards).max(1);
            // All keys of a server share its hash tables, so the load factor follows their total number.
            let of_key =
                server.bytes_per_key(data, requirements.models, keys.max(1), here.max(keys / shards));
            sum += of_key.multiplied_by(data.keys as f64);
        }
        let room =
            requirements.node_memory as f64 * (1.0 - requirements.headroom) - server.base_bytes() as f64;
        let wanted = (sum.total() * growth / room.max(1.0)).ceil();
        shards = (wanted as u64).clamp(1, SLOT_COUNT as u64);
        if server == PlannedServer::Redoubt {
            break;
        }
    }
    let grown = sum.total() * growth;
    let payload: u64 = groups.iter().map(|data| rdb_bytes(data) * data.keys).sum();
    let sync_bytes = payload as f64 * growth / shards as f64;
    CapacityPlan {
        server: server.name(),
        per_key: sum.multiplied_by(1.0 / keys.max(1) as f64),
        total: sum.total(),
        grown,
        shards,
        nodes: shards * (1 + requirements.replicas),
        per_node: grown / shards as f64 + server.base_bytes() as f64,
        sync_bytes,
        sync_seconds: sync_bytes / requirements.bandwidth.max(1) as f64,
    }
}

/// Returns the RDB bytes of one key: type, expiry time and a length prefix per string.
fn rdb_bytes(data: &KeyGroup) -> u64 {
    fn value_length(len: u64) -> u64 {
        if len < 64 { 1 } else { 2 }
    }
    let beside = memory_model(data.kind).rdb_overhead(data, value_length);
    let elements = data.elements_per_key() * (value_length(data.value_bytes) + beside);
    1 + if data.expires { 9 } else { 0 } + value_length(data.key_bytes) + data.payload_bytes() + elements
}
