//! What was refused lately: ACL LOG.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;
use resp::Writer;

/// Entries that are kept unless `acllog-max-len` says otherwise.
const LENGTH: usize = 128;
/// What is refused for the same reason within this time is one entry.
const TOGETHER: Duration = Duration::from_secs(60);

/// Why something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A wrong user name or password.
    Auth,
    /// The command.
    Command,
    /// A key that the command names.
    Key,
    /// A channel that the command names.
    Channel,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Command => "command",
            Self::Key => "key",
            Self::Channel => "channel",
        }
    }
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// What the user lacked.
    pub reason: Reason,
    /// `toplevel`, `multi`, `lua` or `module`.
    pub context: &'static str,
    /// The command, key or channel.
    pub object: Vec<u8>,
    /// The user, or the name that a failed login gave.
    pub username: Vec<u8>,
    /// The client's line of CLIENT LIST.
    pub client: String,
}

impl Incident {
    fn is_like(&self, other: &Self) -> bool {
        (self.reason, self.context, &self.object, &self.username)
            == (other.reason, other.context, &other.object, &other.username)
    }
}

#[derive(Debug)]
struct Entry {
    count: u64,
    at: Instant,
    incident: Incident,
}

/// The latest refusals, the newest first.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
}

impl Log {
    /// Takes an incident down, together with a like one of the last minute if there is one.
    pub fn add(&mut self, now: Instant, incident: Incident) {
        let like = |entry: &Entry| now.since(entry.at) <= TOGETHER && entry.incident.is_like(&incident);
        let before = self.entries.iter().position(like).and_then(|place| self.entries.remove(place));
        let count = before.map_or(0, |entry| entry.count) + 1;
        self.entries.push_front(Entry { count, at: now, incident });
        self.entries.truncate(LENGTH);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn reply(&self, now: Instant, count: usize, reply: &mut Writer<'_>) {
        reply.array(count.min(self.entries.len()));
        for Entry { count, at, incident } in self.entries.iter().take(count) {
            reply.map(7);
            reply.bulk(b"count");
            reply.integer(i64::try_from(*count).unwrap_or(i64::MAX));
            reply.bulk(b"reason");
            reply.bulk(incident.reason.name().as_bytes());
            reply.bulk(b"context");
            reply.bulk(incident.context.as_bytes());
            reply.bulk(b"object");
            reply.bulk(&incident.object);
            reply.bulk(b"username");
            reply.bulk(&incident.username);
            reply.bulk(b"age-seconds");
            reply.double(now.since(*at).as_millis() as f64 / 1000.0);
            reply.bulk(b"client-info");
            reply.bulk(incident.client.as_bytes());
        }
    }
}
