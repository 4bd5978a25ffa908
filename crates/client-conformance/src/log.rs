//! The events on the wire and on the stage, in order: the evidence of a verdict.

use serde::Serialize;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Milliseconds since the scenario began.
    pub ms: u64,
    /// The node's name; empty where no node is concerned.
    pub node: String,
    /// The number of the connection; 0 where none is concerned.
    pub connection: u64,
    /// The event itself.
    #[serde(flatten)]
    pub what: Happened,
}

/// Kinds of things that happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", content = "text", rename_all = "kebab-case")]
pub enum Happened {
    /// A client connected.
    Opened,
    /// A client connected to a node that closes at once.
    Slammed,
    /// The client closed, or its connection broke.
    Closed,
    /// The node ended the connection.
    Ended,
    /// The client sent this.
    Asked(String),
    /// It was answered this.
    Answered(String),
    /// The node did something that no healthy one does.
    Fault(String),
    /// Something happened to nodes.
    Event(String),
    /// The adapter was asked this.
    Step(String),
    /// The adapter said this.
    Said(String),
}

impl Entry {
    /// The entry as a line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let at = if self.connection == 0 {
            self.node.clone()
        } else {
            format!("{}#{}", self.node, self.connection)
        };
        let text = match &self.what {
            Happened::Opened => "connected".to_owned(),
            Happened::Slammed => "connected, and was closed at once".to_owned(),
            Happened::Closed => "closed".to_owned(),
            Happened::Ended => "ended by the node".to_owned(),
            Happened::Asked(text) => format!("< {text}"),
            Happened::Answered(text) => format!("> {text}"),
            Happened::Fault(text) | Happened::Event(text) => format!("! {text}"),
            Happened::Step(text) => format!("adapter < {text}"),
            Happened::Said(text) => format!("adapter > {text}"),
        };
        format!("{:>6} ms {at:<6} {text}", self.ms)
    }
}
