//! Tests of masters and replicas outside of a cluster, with Redoubt, Redis or Valkey as the peer.
#![forbid(unsafe_code)]

#[cfg(test)]
mod acknowledged_writes;
#[cfg(test)]
mod diskless_load;
#[cfg(test)]
mod dual_channel;
#[cfg(test)]
mod hashes;
#[cfg(test)]
mod lagging_replicas;
#[cfg(test)]
mod real_servers;
#[cfg(test)]
mod standalone;
