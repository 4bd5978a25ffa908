//! The interface between a scenario runner and its nodes, scripted or real.

use std::collections::BTreeMap;
use std::path::Path;

use crate::event_log::{LogEntry, LogEvent};
use crate::scenario::NodeEvent;
use crate::simulation::{ExecutedCommand, RefusedCommand};

/// What the nodes recorded: events, executed commands and refused commands.
#[derive(Debug, Default)]
pub(crate) struct NodesRecord {
    pub(crate) log: Vec<LogEntry>,
    pub(crate) executed_commands: Vec<ExecutedCommand>,
    pub(crate) refused_commands: Vec<RefusedCommand>,
}

/// The nodes of a running scenario, which are either scripted or real servers.
pub(crate) trait Nodes {
    /// Returns the milliseconds since the scenario began.
    fn now(&self) -> u64;
    /// Returns the address of each node as `host:port`, by node name.
    fn addresses(&self) -> BTreeMap<String, String>;
    /// Returns the file with the CA certificate that the client should trust; `None` without TLS.
    fn ca_file(&self) -> Option<&Path>;
    /// Appends an event to the log.
    fn log_event(&self, event: LogEvent);
    /// Carries out a scenario event, such as a failover, possibly after a delay.
    fn apply_event(&self, event: &NodeEvent);
    /// Publishes a message as another client would, with SPUBLISH if `sharded` is set.
    fn publish(&self, channel: &str, data: &str, is_sharded: bool);
    /// Returns everything that was recorded, once the scenario is over.
    fn take_record(&self) -> NodesRecord;
}
