//! Sentinel events, which are written to the log and published to subscribers.
//!
//! Names and payloads are those of Redis: `<type> <name> <ip> <port>`, followed by ` @ <master> <ip> <port>` for
//! replicas and sentinels, and by event-specific text.

/// The level of an event, as in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventLevel {
    /// The event is only logged, at debug level.
    Debug,
    /// The event is published and logged at verbose level.
    Verbose,
    /// The event is published and logged at notice level.
    Notice,
    /// The event is published, logged at warning level, and passed to the notification script.
    Warning,
}

/// The instance that an event refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventSubject {
    /// The kind as in Redis events: `master`, `slave` or `sentinel`.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) ip: String,
    pub(crate) port: u16,
    /// Name, IP address and port of the master that the replica or sentinel belongs to; `None` for a master.
    pub(crate) master: Option<(String, String, u16)>,
}

impl std::fmt::Display for EventSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.kind, self.name, self.ip, self.port)?;
        if let Some((name, ip, port)) = &self.master {
            write!(f, " @ {name} {ip} {port}")?;
        }
        Ok(())
    }
}
