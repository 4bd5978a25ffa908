//! MONITOR: clients that are shown every command before it runs.
//!
//! Without monitors a command costs nothing more: [`Gate::MONITORED`] takes commands off the short path. So it does for
//! the moments in which the keys of commands are counted ([`crate::sampling`]).
//! Commands that administer the server are not shown, nor are passwords. A monitor that does not read is cut off at the
//! output limit of its class, as any other client.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use resp::Args;

use crate::clients::{Client, ClientFlags};
use crate::command::Flags;
use crate::command_log::is_secret;
use crate::context::Context;
use crate::engine::Engine;
use crate::lookup::Registered;
use crate::sampling::{KeySample, KeySampler};
use crate::session::{Origin, Session};
use crate::settings::Gate;

/// The clients that are shown commands.
#[derive(Debug, Default)]
pub struct Monitors {
    clients: RwLock<BTreeMap<u64, Arc<Client>>>,
    /// So many bytes may wait for one of them; 0 is no limit (`client-output-buffer-limit normal`).
    pub output_limit: AtomicUsize,
    sampler: KeySampler,
}

impl Engine {
    /// MONITOR
    pub fn start_monitor(&self, session: &mut Session) {
        session.subscriber = true;
        session.client.set_flag(ClientFlags::MONITOR, true);
        session.client.keep_inbox_for_monitor(true);
        let mut clients = self.monitors.clients.write();
        clients.insert(session.id, session.client.clone());
        self.settings.set_gate(Gate::MONITORED, true);
    }

    /// RESET, or its client has left.
    pub(crate) fn stop_monitor(&self, client: &Client) {
        if !client.flags().contains(ClientFlags::MONITOR) {
            return;
        }
        client.set_flag(ClientFlags::MONITOR, false);
        client.keep_inbox_for_monitor(false);
        let mut clients = self.monitors.clients.write();
        clients.remove(&client.id);
        self.settings.set_gate(Gate::MONITORED, !clients.is_empty() || self.monitors.sampler.is_on());
    }

    /// Counts from now on which keys are named, by clients and scripts, until [`Engine::end_key_sample`].
    pub fn begin_key_sample(&self) {
        // The lock under which the gate is set.
        let _clients = self.monitors.clients.write();
        self.monitors.sampler.begin();
        self.settings.set_gate(Gate::MONITORED, true);
    }

    /// Ends the count.
    pub fn end_key_sample(&self) -> KeySample {
        let clients = self.monitors.clients.write();
        self.settings.set_gate(Gate::MONITORED, !clients.is_empty());
        self.monitors.sampler.end()
    }

    /// How many clients are shown commands.
    pub fn monitoring_clients(&self) -> usize {
        self.monitors.clients.read().len()
    }
}

impl Context<'_> {
    /// Shows a command that is about to run, if there are monitors; `from_script`: a script calls it.
    #[inline]
    pub(crate) fn show(&self, entry: &Registered, args: Args<'_>, from_script: bool) {
        if self.engine.settings.gate().contains(Gate::MONITORED) {
            self.show_to_monitors(entry, args, from_script);
        }
    }

    #[cold]
    fn show_to_monitors(&self, entry: &Registered, args: Args<'_>, from_script: bool) {
        if entry.command.flags.contains(Flags::ADMIN) || self.session.origin == Origin::Master && !from_script
        {
            return;
        }
        let monitors = &self.engine.monitors;
        if monitors.sampler.is_on() {
            entry.command.visit_keys(args, &mut |index, _| {
                let key = self.engine.keyspace.key(&args[index]);
                monitors.sampler.count(key.bytes(), key.slot().number());
            });
        }
        if monitors.clients.read().is_empty() {
            return;
        }
        let (line, limit) = (self.line(args, from_script), monitors.output_limit.load(Ordering::Relaxed));
        for client in monitors.clients.read().values() {
            client.push_message(&line, limit);
        }
    }

    /// `+1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`
    fn line(&self, args: Args<'_>, from_script: bool) -> Vec<u8> {
        let (micros, link) = (self.wall_micros(), &self.session.client.link);
        let source = match (from_script, link.unix_socket) {
            (true, _) => "lua",
            (false, true) => link.local_address.trim_end_matches(":0"),
            (false, false) => &link.address,
        };
        let (secs, rest) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        let family = if link.unix_socket && !from_script { "unix:" } else { "" };
        let mut line = format!("+{secs}.{rest:06} [{} {family}{source}]", self.session.db).into_bytes();
        for index in 0..args.len() {
            line.push(b' ');
            quote(if is_secret(args, index) { b"(redacted)" } else { &args[index] }, &mut line);
        }
        line.extend_from_slice(b"\r\n");
        line
    }
}

/// A word in quotes, so that it stands in one line.
fn quote(word: &[u8], line: &mut Vec<u8>) {
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
