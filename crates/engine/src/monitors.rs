//! MONITOR: clients that are shown every command before it runs.
//!
//! Without monitors a command costs nothing more: [`Gate::MONITORED`] takes commands off the short path. So it does for
//! the moments in which the keys of commands are counted ([`crate::sampling`]).
//! Commands that administer the server are not shown, nor are passwords. A monitor that does not read is cut off at the
//! output limit of its class, as any other client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use resp::SharedBytes;

use crate::clients::{Client, ClientFlags};
use crate::sampling::{KeySample, KeySampler};
use crate::settings::{Gate, Settings};

/// The clients that are shown commands.
#[derive(Debug, Default)]
pub struct Monitors {
    clients: RwLock<BTreeMap<u64, Arc<Client>>>,
    /// So many bytes may wait for one of them; 0 is no limit (`client-output-buffer-limit normal`).
    pub output_limit: AtomicUsize,
    pub(crate) sampler: KeySampler,
}

impl Monitors {
    /// From now on the client is shown every command.
    pub(crate) fn start(&self, settings: &Settings, client: &Arc<Client>) {
        client.set_flag(ClientFlags::MONITOR, true);
        client.keep_inbox_for_monitor(true);
        let mut clients = self.clients.write();
        clients.insert(client.id, client.clone());
        settings.set_gate(Gate::MONITORED, true);
    }

    /// RESET, or its client has left.
    pub(crate) fn stop(&self, settings: &Settings, client: &Client) {
        if !client.flags().contains(ClientFlags::MONITOR) {
            return;
        }
        client.set_flag(ClientFlags::MONITOR, false);
        client.keep_inbox_for_monitor(false);
        let mut clients = self.clients.write();
        clients.remove(&client.id);
        settings.set_gate(Gate::MONITORED, !clients.is_empty() || self.sampler.is_on());
    }

    /// Counts from now on which keys are named, by clients and scripts, until [`Self::end_key_sample`].
    pub fn begin_key_sample(&self, settings: &Settings) {
        // The lock under which the gate is set.
        let _clients = self.clients.write();
        self.sampler.begin();
        settings.set_gate(Gate::MONITORED, true);
    }

    /// Ends the count.
    pub fn end_key_sample(&self, settings: &Settings) -> KeySample {
        let clients = self.clients.write();
        settings.set_gate(Gate::MONITORED, !clients.is_empty());
        self.sampler.end()
    }

    /// How many clients are shown commands.
    pub fn clients(&self) -> usize {
        self.clients.read().len()
    }

    /// Shows a command in its written form to all of them.
    pub(crate) fn show(&self, line: Vec<u8>) {
        let line = SharedBytes::from(line);
        let limit = self.output_limit.load(Ordering::Relaxed);
        for client in self.clients.read().values() {
            client.push_message(&line, limit);
        }
    }
}
