//! ACL LOG: recent access denials.

use std::collections::VecDeque;

use clock::Millis;
use resp::Writer;

/// Default of `acllog-max-len`.
const DEFAULT_MAX_LEN: usize = 128;
/// Denials that match within this time in milliseconds are merged into one entry.
const MERGE_WINDOW_MS: i64 = 60_000;

/// Why access was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenialReason {
    /// Wrong user name or password.
    Auth,
    /// The user may not run the command.
    Command,
    /// The user may not access one of the command's keys.
    Key,
    /// The user may not access one of the command's channels.
    Channel,
    /// The user may not access one of the command's databases.
    Database,
    /// The name in the client's certificate is not a user.
    Certificate,
}

impl DenialReason {
    /// All reasons with their names in INFO, in INFO's order.
    pub const REASON_NAMES: [(Self, &'static str); 6] = [
        (Self::Auth, "auth"),
        (Self::Command, "cmd"),
        (Self::Key, "key"),
        (Self::Channel, "channel"),
        (Self::Certificate, "tls_cert"),
        (Self::Database, "db"),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Command => "command",
            Self::Key => "key",
            Self::Channel => "channel",
            Self::Database => "database",
            Self::Certificate => "tls-cert",
        }
    }
}

/// One denied request or failed login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclDenial {
    /// Which permission was missing, or why the login failed.
    pub reason: DenialReason,
    /// Where the denied command was called: `toplevel`, `multi`, `lua` or `module`.
    pub context: &'static str,
    /// The name of the denied command, key or channel.
    pub object: Vec<u8>,
    /// The user, or the name given in a failed login.
    pub username: Vec<u8>,
    /// The client's line of CLIENT LIST.
    pub client: String,
}

impl AclDenial {
    fn matches(&self, other: &Self) -> bool {
        (self.reason, self.context, &self.object, &self.username)
            == (other.reason, other.context, &other.object, &other.username)
    }
}

#[derive(Debug)]
struct LogEntry {
    id: u64,
    count: u64,
    first_denied_at: Millis,
    last_denied_at: Millis,
    denial: AclDenial,
}

/// The most recent denials, newest first.
#[derive(Debug)]
pub struct AclLog {
    entries: VecDeque<LogEntry>,
    max_len: usize,
    next_id: u64,
    /// Number of denials since the server started, per reason in the order of [`DenialReason::REASON_NAMES`].
    denials_by_reason: [u64; DenialReason::REASON_NAMES.len()],
}

impl Default for AclLog {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            max_len: DEFAULT_MAX_LEN,
            next_id: 0,
            denials_by_reason: [0; DenialReason::REASON_NAMES.len()],
        }
    }
}

impl AclLog {
    /// Records a denial, merging it with a matching one of the last minute.
    pub fn record(&mut self, now: Millis, denial: AclDenial) {
        if let Some(place) =
            DenialReason::REASON_NAMES.iter().position(|(reason, _)| *reason == denial.reason)
        {
            self.denials_by_reason[place] += 1;
        }
        let like = |entry: &LogEntry| {
            now.0 - entry.last_denied_at.0 <= MERGE_WINDOW_MS && entry.denial.matches(&denial)
        };
        let before = self.entries.iter().position(like).and_then(|place| self.entries.remove(place));
        let entry = match before {
            Some(entry) => LogEntry { count: entry.count + 1, last_denied_at: now, denial, ..entry },
            None => {
                self.next_id += 1;
                LogEntry { id: self.next_id - 1, count: 1, first_denied_at: now, last_denied_at: now, denial }
            }
        };
        self.entries.push_front(entry);
        self.entries.truncate(self.max_len);
    }

    /// Sets the maximum number of entries (`acllog-max-len`).
    pub fn set_max_len(&mut self, max_len: usize) {
        self.max_len = max_len;
        self.entries.truncate(max_len);
    }

    /// The number of denials since the server started for each reason, with the reason's name in INFO.
    pub fn denials_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DenialReason::REASON_NAMES.iter().zip(self.denials_by_reason).map(|((_, name), count)| (*name, count))
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn reply_entries(&self, now: Millis, count: usize, reply: &mut Writer<'_>) {
        reply.array(count.min(self.entries.len()));
        for LogEntry { id, count, first_denied_at: first, last_denied_at: last, denial } in
            self.entries.iter().take(count)
        {
            reply.map(10);
            reply.bulk(b"count");
            reply.integer(i64::try_from(*count).unwrap_or(i64::MAX));
            reply.bulk(b"reason");
            reply.bulk(denial.reason.name().as_bytes());
            reply.bulk(b"context");
            reply.bulk(denial.context.as_bytes());
            reply.bulk(b"object");
            reply.bulk(&denial.object);
            reply.bulk(b"username");
            reply.bulk(&denial.username);
            reply.bulk(b"age-seconds");
            reply.double((now.0 - last.0).max(0) as f64 / 1000.0);
            reply.bulk(b"client-info");
            reply.bulk(denial.client.as_bytes());
            reply.bulk(b"entry-id");
            reply.integer(i64::try_from(*id).unwrap_or(i64::MAX));
            reply.bulk(b"timestamp-created");
            reply.integer(first.0);
            reply.bulk(b"timestamp-last-updated");
            reply.integer(last.0);
        }
    }
}
