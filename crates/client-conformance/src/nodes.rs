//! The view that a player has of a scenario's nodes, scripted or real.

use std::collections::BTreeMap;
use std::path::Path;

use crate::log::{Entry, Happened};
use crate::scenario::Event;
use crate::stage::{Executed, Refusal};

/// The record of the nodes.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) log: Vec<Entry>,
    pub(crate) executed: Vec<Executed>,
    pub(crate) refused: Vec<Refusal>,
}

/// A scenario's nodes.
pub(crate) trait Nodes {
    /// Milliseconds since the scenario began.
    fn now(&self) -> u64;
    /// `host:port` by name.
    fn addresses(&self) -> BTreeMap<String, String>;
    /// The file with the certificate of the authority that the client is to trust, if the nodes speak TLS.
    fn authority(&self) -> Option<&Path>;
    /// Notes something in the log.
    fn note(&self, what: Happened);
    /// Has something happen to a node.
    fn event(&self, event: &Event);
    /// Publishes a message.
    fn publish(&self, channel: &str, data: &str, sharded: bool);
    /// All that was seen; it is the end.
    fn seen(&self) -> Seen;
}
