//! Where clients are sent, and what is served while the cluster is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use arc_swap::ArcSwap;
use config::{Values, keys};
use slot_routing::EndpointType;

/// Settings for redirections and for cluster mode.
#[derive(Debug)]
pub struct RoutingSettings {
    /// Whether reads are served while the cluster is down (`cluster-allow-reads-when-down`).
    pub cluster_allow_reads_when_down: AtomicBool,
    /// Whether shard channels work while the cluster is down (`cluster-allow-pubsubshard-when-down`).
    pub cluster_allow_pubsubshard_when_down: AtomicBool,
    /// Kind of address in redirections, as a number (`cluster-preferred-endpoint-type`).
    endpoint_type: AtomicU8,
    /// The master's `host:port`, while [`NodeFlags::REDIRECTS`](crate::NodeFlags::REDIRECTS) is set.
    pub redirect_to: ArcSwap<String>,
    /// Availability zone of this server, for clients that prefer nearby nodes; empty if unset.
    pub availability_zone: ArcSwap<String>,
}

impl Default for RoutingSettings {
    fn default() -> Self {
        Self {
            cluster_allow_reads_when_down: AtomicBool::new(false),
            cluster_allow_pubsubshard_when_down: AtomicBool::new(true),
            endpoint_type: AtomicU8::new(EndpointType::Ip as u8),
            redirect_to: ArcSwap::default(),
            availability_zone: ArcSwap::default(),
        }
    }
}

impl RoutingSettings {
    pub(super) fn configure(&self, values: &Values) {
        let (reads, shard_channels) =
            (values[keys::CLUSTER_ALLOW_READS_WHEN_DOWN], values[keys::CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN]);
        self.cluster_allow_reads_when_down.store(reads, Ordering::Relaxed);
        self.cluster_allow_pubsubshard_when_down.store(shard_channels, Ordering::Relaxed);
        self.set_endpoint_type(values[keys::CLUSTER_PREFERRED_ENDPOINT_TYPE]);
        self.availability_zone.store(Arc::new(values[keys::AVAILABILITY_ZONE].to_string()));
    }

    /// Returns the kind of address used in redirections.
    #[must_use]
    pub fn endpoint_type(&self) -> EndpointType {
        let kind = self.endpoint_type.load(Ordering::Relaxed);
        let kinds = [EndpointType::Ip, EndpointType::Hostname, EndpointType::Unknown];
        kinds.into_iter().find(|each| *each as u8 == kind).unwrap_or_default()
    }

    /// Sets the kind of address used in redirections.
    fn set_endpoint_type(&self, kind: EndpointType) {
        self.endpoint_type.store(kind as u8, Ordering::Relaxed);
    }
}
