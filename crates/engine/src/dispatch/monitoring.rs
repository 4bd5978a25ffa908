//! Formats commands for MONITOR.

use std::fmt::Write as _;

use resp::Args;

use crate::command::{Context, Flags, RegisteredCommand};
use crate::command_log::is_secret;
use crate::session::CommandOrigin;
use crate::settings::NodeFlags;

impl Context<'_> {
    /// Feeds a command to MONITOR clients before it runs; `from_script` marks calls of scripts.
    #[inline]
    pub(crate) fn feed_to_monitors(&self, entry: &RegisteredCommand, args: Args<'_>, from_script: bool) {
        if self.engine.settings.node_flags().contains(NodeFlags::MONITORED) {
            self.send_to_monitors(entry, args, from_script);
        }
    }

    #[cold]
    fn send_to_monitors(&self, entry: &RegisteredCommand, args: Args<'_>, from_script: bool) {
        // Commands of a slot import are not shown, like those of a replication stream.
        let imported = self.session.origin() == CommandOrigin::SlotMigrationSource && !from_script;
        if entry.command.flags.contains(Flags::ADMIN) || imported {
            return;
        }
        let monitors = &self.engine.notifications.monitors;
        if monitors.key_sampler.is_sampling() {
            entry.command.visit_keys(args, &mut |index, _| {
                let key = self.engine.keyspace.key(&args[index]);
                monitors.key_sampler.count_key(key.bytes(), key.slot().number());
            });
        }
        if monitors.client_count() > 0 {
            let db = self.monitored_database(entry, args);
            monitors.send_line(self.format_line(db, args, from_script));
        }
    }

    /// Returns the session's database after the command: as in Valkey, SELECT is shown with its new database.
    fn monitored_database(&self, entry: &RegisteredCommand, args: Args<'_>) -> u16 {
        let selected = || {
            let db = u16::try_from(resp::parse_i64(args.get(1)?)?).ok()?;
            (db < self.engine.keyspace.database_count()).then_some(db)
        };
        match entry.command.name {
            "select" if args.len() == 2 => selected().unwrap_or(self.session.db()),
            "reset" => 0,
            _ => self.session.db(),
        }
    }

    /// Formats a line such as `+1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`.
    fn format_line(&self, db: u16, args: Args<'_>, from_script: bool) -> Vec<u8> {
        let (micros, link) = (self.wall_micros(), &self.session.client().connection);
        let source = match (from_script, link.unix_socket) {
            (true, _) => "lua",
            (false, true) => link.local_address.trim_end_matches(":0"),
            (false, false) => &link.address,
        };
        let (secs, rest) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        let family = if link.unix_socket && !from_script { "unix:" } else { "" };
        let mut line = format!("+{secs}.{rest:06} [{db} {family}{source}]").into_bytes();
        for index in 0..args.len() {
            line.push(b' ');
            append_quoted(if is_secret(args, index) { b"(redacted)" } else { &args[index] }, &mut line);
        }
        line.extend_from_slice(b"\r\n");
        line
    }
}

/// Quotes and escapes an argument, so that it fits in one line.
fn append_quoted(word: &[u8], line: &mut Vec<u8>) {
    line.push(b'"');
    for byte in word {
        match byte {
            b'\\' | b'"' => line.extend_from_slice(&[b'\\', *byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            7 => line.extend_from_slice(b"\\a"),
            8 => line.extend_from_slice(b"\\b"),
            b' '..=b'~' => line.push(*byte),
            other => {
                let mut text = String::new();
                let _ = write!(text, "\\x{other:02x}");
                line.extend_from_slice(text.as_bytes());
            }
        }
    }
    line.push(b'"');
}
