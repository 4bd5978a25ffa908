//! The event log of a scenario, which is the evidence for its verdict.

use serde::Serialize;

/// An event with its time, node and connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// Milliseconds since the scenario began.
    pub ms: u64,
    /// The node's name; empty if the event concerns no node.
    pub node: String,
    /// The connection's number; 0 if the event concerns no connection.
    pub connection: u64,
    /// What happened, with the command, reply or request concerned.
    #[serde(flatten)]
    pub event: LogEvent,
}

/// The kinds of events. They can prove or disprove that the library is at fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", content = "text", rename_all = "kebab-case")]
pub enum LogEvent {
    /// A client connected, and the node accepted the connection.
    #[serde(rename = "opened")]
    ConnectionOpened,
    /// A client connected to a node that closes connections at once.
    #[serde(rename = "slammed")]
    ConnectionRejected,
    /// The client closed the connection, or the connection broke.
    #[serde(rename = "closed")]
    ClientClosed,
    /// The node closed the connection because of its state or an injected fault.
    #[serde(rename = "ended")]
    NodeClosed,
    /// The node received this command from the client.
    #[serde(rename = "asked")]
    CommandReceived(String),
    /// The node sent this reply, shown on one line.
    #[serde(rename = "answered")]
    ReplySent(String),
    /// A fault rule of the scenario changed or replaced the node's reply.
    #[serde(rename = "fault")]
    FaultInjected(String),
    /// A scenario event, such as a failover, changed the nodes.
    #[serde(rename = "event")]
    NodesChanged(String),
    /// The test program sent this request to the adapter.
    #[serde(rename = "step")]
    RequestSent(String),
    /// The adapter gave this answer to the last request.
    #[serde(rename = "said")]
    AdapterAnswered(String),
}

impl LogEntry {
    /// Formats the entry as one line of the evidence that is printed for people.
    #[must_use]
    pub fn to_line(&self) -> String {
        let at = if self.connection == 0 {
            self.node.clone()
        } else {
            format!("{}#{}", self.node, self.connection)
        };
        let text = match &self.event {
            LogEvent::ConnectionOpened => "connected".to_owned(),
            LogEvent::ConnectionRejected => "connected, and was closed at once".to_owned(),
            LogEvent::ClientClosed => "closed".to_owned(),
            LogEvent::NodeClosed => "ended by the node".to_owned(),
            LogEvent::CommandReceived(text) => format!("< {text}"),
            LogEvent::ReplySent(text) => format!("> {text}"),
            LogEvent::FaultInjected(text) | LogEvent::NodesChanged(text) => format!("! {text}"),
            LogEvent::RequestSent(text) => format!("adapter < {text}"),
            LogEvent::AdapterAnswered(text) => format!("adapter > {text}"),
        };
        format!("{:>6} ms {at:<6} {text}", self.ms)
    }
}
