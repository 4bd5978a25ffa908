//! MONITOR: clients that are shown every command before it runs.
//!
//! While nobody is shown anything a command costs nothing more: [`Gate::MONITORED`] takes commands off the short path.
//! What administers the server is not shown, nor are passwords. Who does not read is cut off at the output limit of
//! its class, as any other client.

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
use crate::session::{Origin, Session};
use crate::settings::Gate;

/// Who is shown commands.
#[derive(Debug, Default)]
pub struct Monitors {
    clients: RwLock<BTreeMap<u64, Arc<Client>>>,
    /// So many bytes may wait for one of them; 0 is no limit (`client-output-buffer-limit normal`).
    pub output_limit: AtomicUsize,
}

impl Engine {
    /// MONITOR
    pub(crate) fn start_monitor(&self, session: &mut Session) {
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
        self.settings.set_gate(Gate::MONITORED, !clients.is_empty());
    }

    /// How many clients are shown commands.
    pub fn monitoring_clients(&self) -> usize {
        self.monitors.clients.read().len()
    }
}

impl Context<'_> {
    /// Shows a command that is about to run, if there is anybody to see it; `from_script`: a script calls it.
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

#[cfg(test)]
mod tests {
    use clock::Millis;

    use super::*;
    use crate::clients::Link;
    use crate::testing::Client as Tester;

    /// Another client, who is shown every command.
    fn monitor(client: &Tester) -> Session {
        let connect = || client.engine.clients.connect(Link::default(), Millis(0), Box::new(|| ()));
        // The tester has the first number.
        let (_, seen) = (connect(), connect());
        let mut session = Session::of(seen, Origin::Client, true);
        client.engine.start_monitor(&mut session);
        session
    }

    /// What it was shown since it last looked, without the times.
    fn shown(monitor: &Session) -> Vec<String> {
        let mut seen = Vec::new();
        monitor.take_messages(&mut seen);
        let lines = String::from_utf8(seen).unwrap();
        lines.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn every_command_is_shown_but_those_of_administrators_and_no_password() {
        let mut client = Tester::new();
        let monitor = monitor(&client);
        let table: &[(&str, &[&str])] = &[
            ("set a \"x\\\"\\n\\x01\"", &[r#"[0 ] "set" "a" "x\"\n\x01""#]),
            ("GET a", &[r#"[0 ] "GET" "a""#]),
            ("set b 1\nget b", &[r#"[0 ] "set" "b" "1""#, r#"[0 ] "get" "b""#]),
            ("auth secret", &[r#"[0 ] "auth" "(redacted)""#]),
            ("slowlog get", &[]),
            ("nosuch x", &[]),
            ("get", &[]),
            ("select 3", &[r#"[0 ] "select" "3""#]),
            ("client id", &[r#"[3 ] "client" "id""#]),
        ];
        for (line, expected) in table {
            client.wire(line);
            assert_eq!(shown(&monitor), *expected, "{line}");
        }
    }

    #[test]
    fn transactions_and_scripts_are_shown_as_they_run() {
        let mut client = Tester::new();
        let monitor = monitor(&client);
        for line in ["multi", "set a 1", "monitor"] {
            client.wire(line);
        }
        assert_eq!(shown(&monitor), [r#"[0 ] "multi""#]);
        let reply = client.wire("exec");
        assert_eq!(reply, "*2\r\n+OK\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n");
        assert_eq!(shown(&monitor), [r#"[0 ] "set" "a" "1""#, r#"[0 ] "exec""#]);
        let script = "redis.call('set',KEYS[1],'2') redis.call('select',3) redis.pcall('get',1)";
        client.call(&["eval", script, "1", "a"]);
        let seen = shown(&monitor);
        assert!(seen[0].starts_with("[0 ] \"eval\" "), "{seen:?}");
        let calls = [r#"[0 lua] "set" "a" "2""#, r#"[0 lua] "select" "3""#, r#"[3 lua] "get" "1""#];
        assert_eq!(seen[1..], calls);
    }

    #[test]
    fn nobody_is_shown_anything_once_the_last_has_left() {
        let mut client = Tester::new();
        let mut first = monitor(&client);
        assert!(client.wire("monitor").starts_with("+OK\r\n"));
        assert_eq!(client.engine.monitoring_clients(), 2);
        assert!(client.wire("reset").ends_with("+RESET\r\n"));
        assert!(client.engine.settings.gate().contains(Gate::MONITORED));
        client.engine.disconnect(&mut first);
        assert!(!client.engine.settings.gate().contains(Gate::MONITORED));
        assert_eq!(client.wire("get a"), "$-1\r\n");
    }

    #[test]
    fn who_does_not_read_is_cut_off() {
        let mut client = Tester::new();
        client.engine.monitors.output_limit.store(200, Ordering::Relaxed);
        let monitor = monitor(&client);
        for _ in 0..20 {
            client.wire("get some-key");
        }
        assert!(monitor.client.is_overflown());
    }
}
