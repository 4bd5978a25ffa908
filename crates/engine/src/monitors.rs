//! MONITOR: streams every command to the monitoring clients before it runs.
//!
//! Without monitors this costs nothing: [`NodeFlags::MONITORED`] takes commands off the fast path. The same flag is set
//! while the keys of commands are sampled ([`crate::sampling`]). Administrative commands and passwords are not shown. A
//! monitor that does not read its messages is disconnected at the output limit of its class, like any other client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use resp::SharedBytes;

use crate::clients::{Client, ClientFlags};
use crate::sampling::{KeySample, KeySampler};
use crate::settings::{NodeFlags, Settings};

/// The clients that run MONITOR.
#[derive(Debug, Default)]
pub struct Monitors {
    clients: RwLock<BTreeMap<u64, Arc<Client>>>,
    /// Maximum number of bytes queued for one monitor; 0 means unlimited (`client-output-buffer-limit normal`).
    pub output_limit: AtomicUsize,
    pub(crate) key_sampler: KeySampler,
}

impl Monitors {
    pub(crate) fn start(&self, settings: &Settings, client: &Arc<Client>) {
        client.set_flag(ClientFlags::MONITOR, true);
        client.set_monitoring(true);
        let mut clients = self.clients.write();
        clients.insert(client.id, client.clone());
        settings.set_node_flag(NodeFlags::MONITORED, true);
    }

    /// Stops MONITOR for a client: on RESET, or when it disconnects.
    pub(crate) fn stop(&self, settings: &Settings, client: &Client) {
        if !client.flags().contains(ClientFlags::MONITOR) {
            return;
        }
        client.set_flag(ClientFlags::MONITOR, false);
        client.set_monitoring(false);
        let mut clients = self.clients.write();
        clients.remove(&client.id);
        settings.set_node_flag(NodeFlags::MONITORED, !clients.is_empty() || self.key_sampler.is_sampling());
    }

    /// Starts counting how often clients and scripts use each key, until [`Self::end_key_sample`].
    pub fn begin_key_sample(&self, settings: &Settings) {
        // The flag is only changed while the client list is locked.
        let _clients = self.clients.write();
        self.key_sampler.begin();
        settings.set_node_flag(NodeFlags::MONITORED, true);
    }

    /// Ends the sampling and returns its counts.
    pub fn end_key_sample(&self, settings: &Settings) -> KeySample {
        let clients = self.clients.write();
        settings.set_node_flag(NodeFlags::MONITORED, !clients.is_empty());
        self.key_sampler.finish()
    }

    /// Returns the number of monitoring clients.
    pub fn client_count(&self) -> usize {
        self.clients.read().len()
    }

    /// Sends a formatted command to all monitors.
    pub(crate) fn send_line(&self, line: Vec<u8>) {
        let line = SharedBytes::from(line);
        let limit = self.output_limit.load(Ordering::Relaxed);
        for client in self.clients.read().values() {
            client.push_message(&line, limit);
        }
    }
}
