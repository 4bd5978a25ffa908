//! The slow log and the command log (SLOWLOG, COMMANDLOG): slow commands, large requests and large replies.
//!
//! Each command compares three numbers with thresholds. Only commands over a threshold take a lock. A log stores
//! commands with shortened arguments, and has a maximum number of entries.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clock::Millis;
use parking_lot::Mutex;
use resp::Args;

use crate::clients::Client;

/// Maximum number of arguments in an entry. As in Redis, the last one then states the number of omitted arguments.
const MAX_ARGS: usize = 32;
/// Maximum number of bytes that an entry stores of each argument.
const MAX_ARG_LEN: usize = 128;
/// Text that replaces secret arguments.
const REDACTED: &[u8] = b"(redacted)";
const DISABLED_THRESHOLD: u64 = u64::MAX;
/// Configuration parameters with secret values.
const SECRET_PARAMETERS: &[&str] = &[
    "requirepass",
    "masteruser",
    "primaryuser",
    "masterauth",
    "primaryauth",
    "metrics-password",
    "tls-key-file-pass",
    "tls-client-key-file-pass",
];

/// The three logs of COMMANDLOG.
#[derive(Debug, Default)]
pub struct CommandLogs {
    /// Commands over the execution time threshold, in microseconds.
    pub slow_commands: CommandLog,
    /// Commands over the request size threshold, in bytes.
    pub large_requests: CommandLog,
    /// Commands over the reply size threshold, in bytes.
    pub large_replies: CommandLog,
}

impl CommandLogs {
    /// Finds a log by its name in COMMANDLOG: `slow`, `large-request` or `large-reply`.
    pub fn log_by_name(&self, name: &[u8]) -> Option<&CommandLog> {
        let logs = [
            ("slow", &self.slow_commands),
            ("large-request", &self.large_requests),
            ("large-reply", &self.large_replies),
        ];
        logs.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|(_, log)| log)
    }
}

/// A bounded log of commands over one threshold.
#[derive(Debug)]
pub struct CommandLog {
    threshold: AtomicU64,
    max_len: AtomicUsize,
    state: Mutex<CommandLogState>,
}

#[derive(Debug, Default)]
struct CommandLogState {
    /// The entries, newest first.
    entries: VecDeque<CommandLogEntry>,
    next_id: u64,
}

/// A logged command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLogEntry {
    /// Increases by one with each entry of the log.
    pub id: u64,
    /// When the command ran.
    pub time: Millis,
    /// The measured value: microseconds or bytes, depending on the log.
    pub value: u64,
    /// The arguments with the command's name first, shortened and with secrets redacted.
    pub args: Vec<Vec<u8>>,
    /// The client's address.
    pub client_address: String,
    /// The client's name as set by CLIENT SETNAME.
    pub client_name: Vec<u8>,
    /// Whether the command ran on a background worker.
    pub in_background: bool,
}

impl Default for CommandLog {
    fn default() -> Self {
        Self {
            threshold: AtomicU64::new(DISABLED_THRESHOLD),
            max_len: AtomicUsize::new(128),
            state: Mutex::default(),
        }
    }
}

impl CommandLog {
    /// Sets the threshold and the maximum number of entries. Commands whose value is at least the threshold are logged;
    /// a negative threshold disables the log.
    pub fn configure(&self, threshold: i64, max_len: usize) {
        self.threshold.store(u64::try_from(threshold).unwrap_or(DISABLED_THRESHOLD), Ordering::Relaxed);
        self.max_len.store(max_len, Ordering::Relaxed);
    }

    /// Returns whether the log is enabled and `value` is at least its threshold.
    #[inline]
    pub(crate) fn reaches_threshold(&self, value: u64) -> bool {
        value >= self.threshold.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn add(&self, client: &Client, now: Millis, value: u64, args: Args<'_>) {
        let mut kept = self.state.lock();
        let id = kept.next_id;
        kept.next_id += 1;
        kept.entries.push_front(CommandLogEntry {
            id,
            time: now,
            value,
            args: shorten_args(args),
            client_address: client.connection.address.clone(),
            client_name: client.names.lock().name.clone(),
            in_background: client.is_in_background(),
        });
        kept.entries.truncate(self.max_len.load(Ordering::Relaxed));
    }

    /// Returns up to `count` entries, newest first.
    pub fn newest_entries(&self, count: usize) -> Vec<CommandLogEntry> {
        self.state.lock().entries.iter().take(count).cloned().collect()
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Removes all entries.
    pub fn reset(&self) {
        self.state.lock().entries.clear();
    }
}

fn shorten_args(args: Args<'_>) -> Vec<Vec<u8>> {
    let shown = if args.len() > MAX_ARGS { MAX_ARGS - 1 } else { args.len() };
    let mut kept: Vec<Vec<u8>> = (0..shown)
        .map(|index| if is_secret(args, index) { REDACTED.to_vec() } else { shorten_arg(&args[index]) })
        .collect();
    if args.len() > MAX_ARGS {
        kept.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    kept
}

fn shorten_arg(arg: &[u8]) -> Vec<u8> {
    if arg.len() <= MAX_ARG_LEN {
        return arg.to_vec();
    }
    let mut kept = arg[..MAX_ARG_LEN].to_vec();
    kept.extend_from_slice(format!("... ({} more bytes)", arg.len() - MAX_ARG_LEN).as_bytes());
    kept
}

/// Returns whether an argument is a password, or a user name that is sent together with one.
pub(crate) fn is_secret(args: Args<'_>, index: usize) -> bool {
    let is = |index: usize, word: &str| args[index].eq_ignore_ascii_case(word.as_bytes());
    let after = |word: &str, most: usize| (1..=most).any(|back| index > back && is(index - back, word));
    match () {
        () if index == 0 => false,
        () if is(0, "auth") => true,
        () if is(0, "hello") => after("auth", 2),
        () if is(0, "migrate") => after("auth", 1) || after("auth2", 2),
        () if is(0, "acl") => index > 1 && is(1, "setuser"),
        () if is(0, "config") && index > 2 && is(1, "set") => {
            index % 2 == 1 && SECRET_PARAMETERS.iter().any(|name| is(index - 1, name))
        }
        () => false,
    }
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;

    #[test]
    fn log_entries_are_shortened_and_redacted() {
        let table = [
            ("get a", "get a"),
            ("auth user secret", "auth (redacted) (redacted)"),
            ("hello 3 auth user secret setname x", "hello 3 auth (redacted) (redacted) setname x"),
            ("config set maxclients 5 requirepass x", "config set maxclients 5 requirepass (redacted)"),
            (
                "config set primaryuser u primaryauth p",
                "config set primaryuser (redacted) primaryauth (redacted)",
            ),
            ("migrate h 1 k 0 9 auth x keys", "migrate h 1 k 0 9 auth (redacted) keys"),
        ];
        for (line, expected) in table {
            let request: Request = line.split(' ').collect();
            let kept = shorten_args(request.args());
            let kept: Vec<_> = kept.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
            assert_eq!(kept.join(" "), expected);
        }
        let long = "x".repeat(130);
        let request: Request = std::iter::repeat_n(long.as_str(), 40).collect();
        let kept = shorten_args(request.args());
        assert_eq!(kept.len(), 32);
        assert_eq!(kept[30], [&[b'x'; 128][..], b"... (2 more bytes)"].concat());
        assert_eq!(kept[31], b"... (9 more arguments)");
    }
}
