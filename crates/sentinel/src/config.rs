//! Reads sentinel.conf and rewrites it when the sentinel's state changes.
//!
//! The syntax is that of redis.conf: one directive per line, quotes around arguments with blanks, `#` starts a comment
//! line. Rewriting preserves comments and blank lines. A changed directive replaces its old line, an obsolete one is
//! removed, and new ones are appended below a generated comment.

use std::time::Duration;

use ::config::LogLevel;

use crate::addr::{Addr, RunId, is_host, is_ip};
use crate::settings::{
    DEFAULT_DOWN_AFTER, DEFAULT_FAILOVER_TIMEOUT, DEFAULT_PARALLEL_SYNCS, DEFAULT_REFUSED_AFTER,
    GlobalSettings, MasterSettings,
};

mod line;
mod rewrite;

use line::{quoted, split_line};

/// A master as described in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMaster {
    /// The name of the master in client queries.
    pub name: String,
    /// The address of the master when the file was written.
    pub addr: Addr,
    /// The options of this master. An option that is not in the file has its default.
    pub settings: MasterSettings,
    /// The epoch of the last switch to another master that was known when the file was written.
    pub config_epoch: u64,
    /// The epoch in which this sentinel last voted for a leader.
    pub leader_epoch: u64,
    /// The replicas that were known when the file was written.
    pub replicas: Vec<Addr>,
    /// The other sentinels that were known when the file was written, with their run ids.
    pub sentinels: Vec<(Addr, RunId)>,
}

/// The content of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SentinelConfig {
    /// Options of the sentinel itself, which apply to all masters.
    pub global: GlobalSettings,
    /// This sentinel's run id; `None` before the first start.
    pub myid: Option<RunId>,
    /// The highest epoch that this sentinel has seen for any master.
    pub current_epoch: u64,
    /// The monitored masters in the order of their `monitor` lines.
    pub masters: Vec<KnownMaster>,
    /// The `user` lines, split into the words after `user`. The caller applies them.
    pub users: Vec<Vec<Vec<u8>>>,
    /// The directives of the server process (bind, dir, logfile, ...). The caller applies them.
    pub server: Vec<Vec<String>>,
    lines: Vec<Vec<u8>>,
}

/// A rejected line of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Reading the configuration file, at line {line}\n>>> '{text}'\n{reason}")]
pub struct SentinelConfigError {
    /// Line number, starting at 1.
    pub line: usize,
    /// The text of the line, as shown in the error message.
    pub text: String,
    /// A description of the error, in the wording of redis-sentinel if it has one.
    pub reason: String,
}

impl SentinelConfig {
    /// Parses the content of the file.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, SentinelConfigError> {
        let mut config = Self { lines: split_lines(text.as_ref()), ..Self::default() };
        let fault = |number: usize, line: &[u8], reason: &str| SentinelConfigError {
            line: number + 1,
            text: to_display_text(line),
            reason: reason.to_owned(),
        };
        // Lines on which others depend are processed first: the line that enables hostnames, followed by the masters.
        let mut order: Vec<(u8, usize, Vec<Vec<u8>>)> = Vec::new();
        for (number, line) in config.lines.iter().enumerate() {
            let words = split_line(line)
                .ok_or_else(|| fault(number, line, "Unbalanced quotes in configuration line"))?;
            let rank = match words.get(1).map(|word| word.to_ascii_lowercase()).as_deref() {
                Some(b"resolve-hostnames") => 0,
                Some(b"monitor") => 1,
                _ => 2,
            };
            if !words.is_empty() {
                order.push((rank, number, words));
            }
        }
        order.sort();
        for (_, number, words) in order {
            config.apply_line(&words).map_err(|reason| fault(number, &config.lines[number], &reason))?;
        }
        Ok(config)
    }

    fn apply_line(&mut self, words: &[Vec<u8>]) -> Result<(), String> {
        let directive = words[0].to_ascii_lowercase();
        if directive == b"user" && words.len() > 1 {
            self.users.push(words[1..].to_vec());
            return Ok(());
        }
        let texts = words.iter().map(|word| std::str::from_utf8(word).ok());
        let texts: Option<Vec<&str>> = texts.collect();
        if directive == b"sentinel" {
            return self.parse_sentinel_option(&texts.ok_or(UNKNOWN_STATEMENT)?[1..]);
        }
        let texts = texts.ok_or("Bad directive or wrong number of arguments")?;
        if let ("port", [_, port]) = (texts[0].to_ascii_lowercase().as_str(), texts.as_slice()) {
            // The caller reports an invalid port, as it does for all server directives.
            self.global.port = port.parse().unwrap_or(self.global.port);
        }
        if let (true, [_, level]) = (is_log_level(words), texts.as_slice()) {
            // The caller reports an invalid level.
            self.global.log_level = LogLevel::from_word(level).unwrap_or(self.global.log_level);
        }
        self.server.push(texts.into_iter().map(str::to_owned).collect());
        Ok(())
    }

    fn parse_sentinel_option(&mut self, words: &[&str]) -> Result<(), String> {
        let [option, args @ ..] = words else { return Err(UNKNOWN_STATEMENT.into()) };
        match (option.to_ascii_lowercase().as_str(), args) {
            ("monitor", [name, host, port, quorum]) => self.add_master(name, host, port, quorum),
            ("myid", [id]) => {
                self.myid = Some(RunId::parse(id).ok_or("Malformed Sentinel id in myid option.")?);
                Ok(())
            }
            ("current-epoch", [epoch]) => {
                self.current_epoch = self.current_epoch.max(parse_number(epoch)?);
                Ok(())
            }
            ("announce-ip", [ip]) => {
                self.global.announce_ip = (!ip.is_empty()).then(|| (*ip).to_owned());
                Ok(())
            }
            ("announce-port", [port]) => {
                self.global.announce_port = parse_number(port)?;
                Ok(())
            }
            ("deny-scripts-reconfig", [word]) => {
                parse_flag(&mut self.global.deny_scripts_reconfig, word, "deny-scripts-reconfig options")
            }
            ("resolve-hostnames", [word]) => {
                parse_flag(&mut self.global.resolve_hostnames, word, "resolve-hostnames option")
            }
            ("announce-hostnames", [word]) => {
                parse_flag(&mut self.global.announce_hostnames, word, "announce-hostnames option")
            }
            ("sentinel-user", [user]) => {
                self.global.sentinel_user = (*user).to_owned();
                Ok(())
            }
            ("sentinel-pass", [pass]) => {
                self.global.sentinel_pass = (*pass).to_owned();
                Ok(())
            }
            (option, [name, args @ ..]) => {
                if !MASTER_OPTIONS.contains(&option) {
                    return Err(UNKNOWN_STATEMENT.into());
                }
                let place = self.masters.iter().position(|master| master.name == *name);
                let place = place.ok_or("No such master with specified name.")?;
                match (option, args) {
                    ("known-replica" | "known-slave", [host, port]) | ("known-sentinel", [host, port, _]) => {
                        let addr = self.parse_addr(host, port)?;
                        self.masters[place].add_known_instance(addr, args.get(2).copied())
                    }
                    _ => self.masters[place].apply_option(option, args),
                }
            }
            _ => Err(UNKNOWN_STATEMENT.into()),
        }
    }

    /// Parses an address; hostnames are accepted only if they are enabled.
    fn parse_addr(&self, host: &str, port: &str) -> Result<Addr, String> {
        let port = port.parse().map_err(|_| "Invalid port number.")?;
        if !is_host(host) || (!self.global.resolve_hostnames && !is_ip(host)) {
            return Err("Can't resolve instance hostname.".into());
        }
        Ok(Addr { host: host.to_owned(), port })
    }

    fn add_master(&mut self, name: &str, host: &str, port: &str, quorum: &str) -> Result<(), String> {
        let quorum = quorum.parse().ok().filter(|&quorum: &u32| quorum > 0);
        let quorum = quorum.ok_or("Quorum must be 1 or greater.")?;
        if self.masters.iter().any(|master| master.name == name) {
            return Err("Duplicate master name.".into());
        }
        let addr = self.parse_addr(host, port)?;
        if !is_name(name) {
            return Err(
                "A master's name may not be empty or hold blanks, commas or control characters.".into()
            );
        }
        self.masters.push(KnownMaster {
            name: name.to_owned(),
            addr,
            settings: MasterSettings::new(quorum),
            config_epoch: 0,
            leader_epoch: 0,
            replicas: Vec::new(),
            sentinels: Vec::new(),
        });
        Ok(())
    }
}

/// Whether a line sets the log level.
fn is_log_level(words: &[Vec<u8>]) -> bool {
    words.len() == 2 && words[0].eq_ignore_ascii_case(b"loglevel")
}

/// Whether the name contains only characters that hello messages, events and configuration lines can carry.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.bytes().any(|byte| byte <= b' ' || byte == b',' || byte == 127)
}

const UNKNOWN_STATEMENT: &str = "Unrecognized sentinel configuration statement.";

const MASTER_OPTIONS: [&str; 17] = [
    "down-after-milliseconds",
    "refused-after-milliseconds",
    "failover-timeout",
    "parallel-syncs",
    "notification-script",
    "client-reconfig-script",
    "auth-user",
    "auth-pass",
    "master-reboot-down-after-period",
    "primary-reboot-down-after-period",
    "config-epoch",
    "leader-epoch",
    "known-replica",
    "known-slave",
    "known-sentinel",
    "rename-command",
    "leader",
];

impl KnownMaster {
    fn apply_option(&mut self, option: &str, args: &[&str]) -> Result<(), String> {
        let settings = &mut self.settings;
        match (option, args) {
            ("down-after-milliseconds", [ms]) => settings.down_after = parse_positive_millis(ms)?,
            ("refused-after-milliseconds", [ms]) => {
                settings.refused_after = Duration::from_millis(parse_number(ms)?);
            }
            ("failover-timeout", [ms]) => settings.failover_timeout = parse_positive_millis(ms)?,
            ("parallel-syncs", [count]) => settings.parallel_syncs = parse_number(count)?,
            ("notification-script", [path]) => settings.notification_script = non_empty(path),
            ("client-reconfig-script", [path]) => settings.client_reconfig_script = non_empty(path),
            ("auth-user", [user]) => settings.auth_user = (*user).to_owned(),
            ("auth-pass", [pass]) => settings.auth_pass = (*pass).to_owned(),
            ("master-reboot-down-after-period" | "primary-reboot-down-after-period", [ms]) => {
                let ms = ms.parse().map_err(|_| "negative time parameter.")?;
                settings.reboot_down_after = Duration::from_millis(ms);
            }
            ("config-epoch", [epoch]) => self.config_epoch = parse_number(epoch)?,
            ("leader-epoch", [epoch]) => self.leader_epoch = parse_number(epoch)?,
            ("rename-command", [from, to]) => {
                if settings.renamed.insert(from.to_ascii_uppercase(), (*to).to_owned()).is_some() {
                    return Err("Same command renamed multiple times with rename-command.".into());
                }
            }
            _ => return Err(UNKNOWN_STATEMENT.into()),
        }
        Ok(())
    }

    /// Adds a known replica or, with a run id, a known sentinel.
    fn add_known_instance(&mut self, addr: Addr, id: Option<&str>) -> Result<(), String> {
        if let Some(id) = id {
            let id = RunId::parse(id).ok_or("Wrong hostname or port for sentinel.")?;
            self.sentinels.retain(|(_, known)| *known != id);
            // Earlier versions stored sentinels with port 0 when another sentinel had taken their address.
            if addr.port != 0 {
                self.sentinels.push((addr, id));
            }
        } else if !self.replicas.contains(&addr) {
            self.replicas.push(addr);
        }
        Ok(())
    }

    /// The lines that follow the `monitor` line of this master.
    fn option_lines(&self) -> Vec<String> {
        let name = quoted(&self.name);
        let settings = &self.settings;
        let mut lines = Vec::new();
        let mut line = |option: &str, value: String| lines.push(format!("sentinel {option} {name} {value}"));
        let millis = |duration: Duration| duration.as_millis().to_string();
        let timed = [
            ("down-after-milliseconds", settings.down_after, DEFAULT_DOWN_AFTER),
            ("refused-after-milliseconds", settings.refused_after, DEFAULT_REFUSED_AFTER),
            ("failover-timeout", settings.failover_timeout, DEFAULT_FAILOVER_TIMEOUT),
            ("master-reboot-down-after-period", settings.reboot_down_after, Duration::ZERO),
        ];
        for (option, value, default) in timed {
            if value != default {
                line(option, millis(value));
            }
        }
        if settings.parallel_syncs != DEFAULT_PARALLEL_SYNCS {
            line("parallel-syncs", settings.parallel_syncs.to_string());
        }
        let texts = [
            ("notification-script", settings.notification_script.as_deref().unwrap_or("")),
            ("client-reconfig-script", settings.client_reconfig_script.as_deref().unwrap_or("")),
            ("auth-user", &settings.auth_user),
            ("auth-pass", &settings.auth_pass),
        ];
        for (option, value) in texts {
            if !value.is_empty() {
                line(option, quoted(value));
            }
        }
        line("config-epoch", self.config_epoch.to_string());
        line("leader-epoch", self.leader_epoch.to_string());
        for addr in &self.replicas {
            line("known-replica", format!("{} {}", addr.host, addr.port));
        }
        for (addr, id) in &self.sentinels {
            line("known-sentinel", format!("{} {} {id}", addr.host, addr.port));
        }
        for (from, to) in &settings.renamed {
            line("rename-command", format!("{} {}", quoted(from), quoted(to)));
        }
        lines
    }
}

impl SentinelConfig {
    /// Finds the line with these words. Returns its number, starting at 1, and its text, for errors that the caller
    /// detects.
    #[must_use]
    pub fn line_of(&self, words: &[&[u8]]) -> Option<(usize, String)> {
        let same = |line: &Vec<u8>| {
            split_line(line).is_some_and(|found| {
                found.len() == words.len() && found.iter().zip(words).all(|(a, b)| a.eq_ignore_ascii_case(b))
            })
        };
        let place = self.lines.iter().rposition(same)?;
        Some((place + 1, to_display_text(&self.lines[place])))
    }

    /// Treats the lines from index `first` on as command-line arguments: their values apply, and are saved like values
    /// that were changed at run time.
    pub fn forget_lines_from(&mut self, first: usize) {
        self.lines.truncate(first);
    }

    /// All lines of the current configuration, each with a key. A line replaces the old line with the same key.
    fn current_lines(&self) -> Vec<(String, String)> {
        let global = &self.global;
        let mut lines = Vec::new();
        if let Some(id) = &self.myid {
            lines.push(format!("sentinel myid {id}"));
        }
        let flags = [
            ("deny-scripts-reconfig", global.deny_scripts_reconfig, true),
            ("resolve-hostnames", global.resolve_hostnames, false),
            ("announce-hostnames", global.announce_hostnames, false),
        ];
        for (option, value, default) in flags {
            if value != default {
                lines.push(format!("sentinel {option} {}", if value { "yes" } else { "no" }));
            }
        }
        let written =
            self.lines.iter().any(|line| split_line(line).is_some_and(|words| is_log_level(&words)));
        if written || global.log_level_set {
            lines.push(format!("loglevel {}", global.log_level));
        }
        for master in &self.masters {
            let (name, Addr { host, port }) = (quoted(&master.name), &master.addr);
            lines.push(format!("sentinel monitor {name} {host} {port} {}", master.settings.quorum));
            lines.extend(master.option_lines());
        }
        lines.push(format!("sentinel current-epoch {}", self.current_epoch));
        if let Some(ip) = &global.announce_ip {
            lines.push(format!("sentinel announce-ip {}", quoted(ip)));
        }
        if global.announce_port != 0 {
            lines.push(format!("sentinel announce-port {}", global.announce_port));
        }
        for (option, value) in
            [("sentinel-user", &global.sentinel_user), ("sentinel-pass", &global.sentinel_pass)]
        {
            if !value.is_empty() {
                lines.push(format!("sentinel {option} {}", quoted(value)));
            }
        }
        let users = self.users.iter().map(|words| {
            let words: Vec<String> = words.iter().map(quoted).collect();
            format!("user {}", words.join(" "))
        });
        lines.extend(users);
        let identified =
            |line: String| (rewrite::line_key(line.as_bytes()).expect("a line that is rewritten"), line);
        lines.into_iter().map(identified).collect()
    }

    /// Returns the file content with the current configuration.
    #[must_use]
    pub fn to_file_content(&self) -> Vec<u8> {
        rewrite::rewrite(&self.lines, self.current_lines())
    }
}

/// Splits a file into lines without line terminators.
fn split_lines(text: &[u8]) -> Vec<Vec<u8>> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let line = |line: &[u8]| line.strip_suffix(b"\r").unwrap_or(line).to_vec();
    if text.is_empty() { Vec::new() } else { text.split(|&byte| byte == b'\n').map(line).collect() }
}

/// Formats a line for error messages, with invalid UTF-8 replaced.
fn to_display_text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.trim_ascii()).into_owned()
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("Invalid number '{text}'."))
}

fn parse_positive_millis(text: &str) -> Result<Duration, String> {
    let millis = text.parse().ok().filter(|&millis: &u64| millis > 0);
    millis.map(Duration::from_millis).ok_or_else(|| "negative or zero time parameter.".into())
}

fn parse_flag(flag: &mut bool, word: &str, option: &str) -> Result<(), String> {
    *flag = match word.to_ascii_lowercase().as_str() {
        "yes" => true,
        "no" => false,
        _ => return Err(format!("Please specify yes or no for the {option}.")),
    };
    Ok(())
}

#[cfg(test)]
mod tests;
