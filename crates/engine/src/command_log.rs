//! Commands that took long, and requests and replies that were large: SLOWLOG, COMMANDLOG.
//!
//! A command that runs compares three numbers; only what is over a threshold takes a lock and is kept,
//! shortened, in a log of limited length.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clock::Millis;
use parking_lot::Mutex;
use resp::Args;

use crate::clients::Client;

/// An entry shows at most so many arguments, the last of which says how many more there were.
const MAX_ARGS: usize = 32;
/// Of each argument so many bytes are kept.
const MAX_ARG_LEN: usize = 128;
/// Stands in the place of a secret argument.
const REDACTED: &[u8] = b"(redacted)";
const NEVER: u64 = u64::MAX;
/// Parameters whose values are secrets.
const SECRETS: &[&str] = &[
    "requirepass",
    "masteruser",
    "primaryuser",
    "masterauth",
    "primaryauth",
    "metrics-password",
    "tls-key-file-pass",
    "tls-client-key-file-pass",
];

/// The logs, by what is measured.
#[derive(Debug, Default)]
pub struct CommandLogs {
    /// Time, in microseconds.
    pub slow: CommandLog,
    /// Bytes of the request.
    pub large_request: CommandLog,
    /// Bytes of the reply.
    pub large_reply: CommandLog,
}

impl CommandLogs {
    /// The log that COMMANDLOG knows under that name.
    pub fn named(&self, name: &[u8]) -> Option<&CommandLog> {
        let logs = [
            ("slow", &self.slow),
            ("large-request", &self.large_request),
            ("large-reply", &self.large_reply),
        ];
        logs.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|(_, log)| log)
    }
}

/// One log.
#[derive(Debug)]
pub struct CommandLog {
    threshold: AtomicU64,
    max_len: AtomicUsize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The newest first.
    entries: VecDeque<Entry>,
    next_id: u64,
}

/// A command that was over the threshold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Rises with each.
    pub id: u64,
    /// When it ran.
    pub at: Millis,
    /// Microseconds or bytes.
    pub measure: u64,
    /// Its words, shortened, without passwords.
    pub args: Vec<Vec<u8>>,
    /// Where its client is.
    pub address: String,
    /// The name that its client has given itself.
    pub name: Vec<u8>,
    /// It ran on a background worker.
    pub in_background: bool,
}

impl Default for CommandLog {
    fn default() -> Self {
        Self { threshold: AtomicU64::new(NEVER), max_len: AtomicUsize::new(128), kept: Mutex::default() }
    }
}

impl CommandLog {
    /// From now on keeps what is at least `threshold` (negative: nothing), the last `max_len` of them.
    pub fn configure(&self, threshold: i64, max_len: usize) {
        self.threshold.store(u64::try_from(threshold).unwrap_or(NEVER), Ordering::Relaxed);
        self.max_len.store(max_len, Ordering::Relaxed);
    }

    /// Whether this much is worth an entry.
    #[inline]
    pub(crate) fn wants(&self, measure: u64) -> bool {
        measure >= self.threshold.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn add(&self, client: &Client, now: Millis, measure: u64, args: Args<'_>) {
        let mut kept = self.kept.lock();
        let id = kept.next_id;
        kept.next_id += 1;
        kept.entries.push_front(Entry {
            id,
            at: now,
            measure,
            args: shortened(args),
            address: client.link.address.clone(),
            name: client.names.lock().name.clone(),
            in_background: client.is_in_background(),
        });
        kept.entries.truncate(self.max_len.load(Ordering::Relaxed));
    }

    /// At most so many entries, the newest first.
    pub fn newest(&self, count: usize) -> Vec<Entry> {
        self.kept.lock().entries.iter().take(count).cloned().collect()
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        self.kept.lock().entries.len()
    }

    /// Forgets all entries.
    pub fn reset(&self) {
        self.kept.lock().entries.clear();
    }
}

fn shortened(args: Args<'_>) -> Vec<Vec<u8>> {
    let shown = if args.len() > MAX_ARGS { MAX_ARGS - 1 } else { args.len() };
    let mut kept: Vec<Vec<u8>> = (0..shown)
        .map(|index| if is_secret(args, index) { REDACTED.to_vec() } else { shortened_arg(&args[index]) })
        .collect();
    if args.len() > MAX_ARGS {
        kept.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    kept
}

fn shortened_arg(arg: &[u8]) -> Vec<u8> {
    if arg.len() <= MAX_ARG_LEN {
        return arg.to_vec();
    }
    let mut kept = arg[..MAX_ARG_LEN].to_vec();
    kept.extend_from_slice(format!("... ({} more bytes)", arg.len() - MAX_ARG_LEN).as_bytes());
    kept
}

/// Whether an argument is a password, or a name that comes with one.
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
            index % 2 == 1 && SECRETS.iter().any(|name| is(index - 1, name))
        }
        () => false,
    }
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;

    #[test]
    fn long_commands_are_shortened_and_passwords_left_out() {
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
            let kept = shortened(request.args());
            let kept: Vec<_> = kept.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
            assert_eq!(kept.join(" "), expected);
        }
        let long = "x".repeat(130);
        let request: Request = std::iter::repeat_n(long.as_str(), 40).collect();
        let kept = shortened(request.args());
        assert_eq!(kept.len(), 32);
        assert_eq!(kept[30], [&[b'x'; 128][..], b"... (2 more bytes)"].concat());
        assert_eq!(kept[31], b"... (9 more arguments)");
    }
}
