//! The events of a sentinel: one line to the log, the same to subscribers.
//!
//! Names and payloads are Redis's: `<type> <name> <ip> <port>` and, for replicas and sentinels,
//! ` @ <master> <ip> <port>`, then what the event adds.

/// How loud an event is, as Redis's log levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Only logged.
    Debug,
    /// Published, and logged where much detail is wanted.
    Verbose,
    /// Logged and published.
    Notice,
    /// Logged, published, and given to the notification script.
    Warning,
}

/// The instance that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// `master`, `slave` or `sentinel`.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) ip: String,
    pub(crate) port: u16,
    /// The master that it belongs to: name, ip, port. None for a master itself.
    pub(crate) of: Option<(String, String, u16)>,
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.kind, self.name, self.ip, self.port)?;
        if let Some((name, ip, port)) = &self.of {
            write!(f, " @ {name} {ip} {port}")?;
        }
        Ok(())
    }
}
