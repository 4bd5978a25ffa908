//! sentinel.conf: read once, rewritten whenever what the sentinel knows changes.
//!
//! The syntax is redis.conf's: a directive and its arguments a line, quotes where an argument has
//! blanks, `#` starts a comment line. Rewriting keeps the file as its owner wrote it: comments and blank
//! lines stay, a directive's new value takes the place of its old line, what no longer holds is dropped,
//! what is new goes to the end, under a comment that says so.

use std::time::Duration;

use crate::addr::{Addr, RunId, is_host, is_ip};
use crate::settings::{DOWN_AFTER, FAILOVER_TIMEOUT, Global, MasterSettings, PARALLEL_SYNCS, REFUSED_AFTER};

mod line;
mod rewrite;

use line::{quoted, split_line};

/// A master as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMaster {
    pub name: String,
    pub addr: Addr,
    pub settings: MasterSettings,
    pub config_epoch: u64,
    pub leader_epoch: u64,
    pub replicas: Vec<Addr>,
    pub sentinels: Vec<(Addr, RunId)>,
}

/// A configuration file's contents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    pub global: Global,
    /// Missing until the first start.
    pub myid: Option<RunId>,
    pub current_epoch: u64,
    pub masters: Vec<KnownMaster>,
    /// The users' lines, each the words after `user`, for the shell.
    pub users: Vec<Vec<String>>,
    /// Directives that are not the sentinel's own (bind, dir, logfile, ...), for the shell.
    pub server: Vec<Vec<String>>,
    lines: Vec<String>,
}

/// Why a configuration file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Reading the configuration file, at line {line}\n>>> '{text}'\n{reason}")]
pub struct ConfigError {
    pub line: usize,
    pub text: String,
    pub reason: String,
}

impl Config {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self { lines: text.lines().map(str::to_owned).collect(), ..Self::default() };
        // What other lines depend on comes first, wherever it stands: whether names of hosts are
        // allowed, then the masters.
        let mut order: Vec<(u8, usize, Vec<String>)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let words = split_line(line).ok_or_else(|| ConfigError {
                line: number + 1,
                text: line.trim().to_owned(),
                reason: "Unbalanced quotes in configuration line".to_owned(),
            })?;
            let rank = match words.get(1).map(|word| word.to_ascii_lowercase()).as_deref() {
                Some("resolve-hostnames") => 0,
                Some("monitor") => 1,
                _ => 2,
            };
            if !words.is_empty() {
                order.push((rank, number, words));
            }
        }
        order.sort();
        for (_, number, words) in order {
            let text = config.lines[number].trim().to_owned();
            config.take(&words).map_err(|reason| ConfigError { line: number + 1, text, reason })?;
        }
        Ok(config)
    }

    fn take(&mut self, words: &[String]) -> Result<(), String> {
        let directive = words[0].to_ascii_lowercase();
        if directive == "sentinel" {
            let words: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            return self.take_own(&words);
        }
        if directive == "user" && words.len() > 1 {
            self.users.push(words[1..].to_vec());
            return Ok(());
        }
        if directive == "port" {
            let port = words.get(1).and_then(|word| word.parse().ok());
            self.global.port = port.filter(|_| words.len() == 2).ok_or("Invalid port")?;
        }
        self.server.push(words.to_vec());
        Ok(())
    }

    fn take_own(&mut self, words: &[&str]) -> Result<(), String> {
        let [option, args @ ..] = words else { return Err(UNKNOWN.into()) };
        match (option.to_ascii_lowercase().as_str(), args) {
            ("monitor", [name, host, port, quorum]) => self.monitor(name, host, port, quorum),
            ("myid", [id]) => {
                self.myid = Some(RunId::parse(id).ok_or("Malformed Sentinel id in myid option.")?);
                Ok(())
            }
            ("current-epoch", [epoch]) => {
                self.current_epoch = self.current_epoch.max(number(epoch)?);
                Ok(())
            }
            ("announce-ip", [ip]) => {
                self.global.announce_ip = (!ip.is_empty()).then(|| (*ip).to_owned());
                Ok(())
            }
            ("announce-port", [port]) => {
                self.global.announce_port = number(port)?;
                Ok(())
            }
            ("deny-scripts-reconfig", [word]) => set_flag(&mut self.global.deny_scripts_reconfig, word),
            ("resolve-hostnames", [word]) => set_flag(&mut self.global.resolve_hostnames, word),
            ("announce-hostnames", [word]) => set_flag(&mut self.global.announce_hostnames, word),
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
                    return Err(UNKNOWN.into());
                }
                let master = self.masters.iter_mut().find(|master| master.name == *name);
                master.ok_or("No such master with specified name.")?.take(option, args)
            }
            _ => Err(UNKNOWN.into()),
        }
    }

    fn monitor(&mut self, name: &str, host: &str, port: &str, quorum: &str) -> Result<(), String> {
        let quorum: u32 = number(quorum)?;
        if quorum == 0 {
            return Err("Quorum must be 1 or greater.".into());
        }
        if self.masters.iter().any(|master| master.name == name) {
            return Err("Duplicate master name.".into());
        }
        let addr = Addr { host: host.to_owned(), port: number(port).map_err(|_| "Invalid port number.")? };
        if !is_host(host) || (!self.global.resolve_hostnames && !is_ip(host)) {
            return Err("Can't resolve instance hostname.".into());
        }
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

/// Names stand in hello messages (split at commas), events and lines of this file.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.bytes().any(|byte| byte <= b' ' || byte == b',' || byte == 127)
}

const UNKNOWN: &str = "Unrecognized sentinel configuration statement.";

const MASTER_OPTIONS: [&str; 16] = [
    "down-after-milliseconds",
    "refused-after-milliseconds",
    "failover-timeout",
    "parallel-syncs",
    "notification-script",
    "client-reconfig-script",
    "auth-user",
    "auth-pass",
    "master-reboot-down-after-period",
    "config-epoch",
    "leader-epoch",
    "known-replica",
    "known-slave",
    "known-sentinel",
    "rename-command",
    "leader",
];

impl KnownMaster {
    fn take(&mut self, option: &str, args: &[&str]) -> Result<(), String> {
        let settings = &mut self.settings;
        match (option, args) {
            ("down-after-milliseconds", [ms]) => settings.down_after = positive(ms)?,
            ("refused-after-milliseconds", [ms]) => {
                settings.refused_after = Duration::from_millis(number(ms)?);
            }
            ("failover-timeout", [ms]) => settings.failover_timeout = positive(ms)?,
            ("parallel-syncs", [count]) => settings.parallel_syncs = number(count)?,
            ("notification-script", [path]) => settings.notification_script = some(path),
            ("client-reconfig-script", [path]) => settings.client_reconfig_script = some(path),
            ("auth-user", [user]) => settings.auth_user = (*user).to_owned(),
            ("auth-pass", [pass]) => settings.auth_pass = (*pass).to_owned(),
            ("master-reboot-down-after-period", [ms]) => {
                settings.reboot_down_after = Duration::from_millis(number(ms)?);
            }
            ("config-epoch", [epoch]) => self.config_epoch = number(epoch)?,
            ("leader-epoch", [epoch]) => self.leader_epoch = number(epoch)?,
            ("known-replica" | "known-slave", [host, port]) => {
                let addr = Addr { host: (*host).to_owned(), port: number(port)? };
                if !self.replicas.contains(&addr) {
                    self.replicas.push(addr);
                }
            }
            ("known-sentinel", [host, port, id]) => {
                let addr = Addr { host: (*host).to_owned(), port: number(port)? };
                let id = RunId::parse(id).ok_or("Wrong hostname or port for sentinel.")?;
                self.sentinels.retain(|(_, known)| *known != id);
                self.sentinels.push((addr, id));
            }
            ("rename-command", [from, to]) => {
                settings.renamed.insert(from.to_ascii_uppercase(), (*to).to_owned());
            }
            _ => return Err(UNKNOWN.into()),
        }
        Ok(())
    }

    /// The master's lines after its `monitor` line.
    fn lines(&self) -> Vec<String> {
        let name = quoted(&self.name);
        let settings = &self.settings;
        let mut lines = Vec::new();
        let mut line = |option: &str, value: String| lines.push(format!("sentinel {option} {name} {value}"));
        let millis = |duration: Duration| duration.as_millis().to_string();
        let timed = [
            ("down-after-milliseconds", settings.down_after, DOWN_AFTER),
            ("refused-after-milliseconds", settings.refused_after, REFUSED_AFTER),
            ("failover-timeout", settings.failover_timeout, FAILOVER_TIMEOUT),
            ("master-reboot-down-after-period", settings.reboot_down_after, Duration::ZERO),
        ];
        for (option, value, default) in timed {
            if value != default {
                line(option, millis(value));
            }
        }
        if settings.parallel_syncs != PARALLEL_SYNCS {
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

impl Config {
    /// Which line, counted from one, has these words, and its text: for what only the shell can judge.
    #[must_use]
    pub fn line_of(&self, words: &[&str]) -> Option<(usize, &str)> {
        let same = |line: &String| {
            split_line(line).is_some_and(|found| {
                found.len() == words.len() && found.iter().zip(words).all(|(a, b)| a.eq_ignore_ascii_case(b))
            })
        };
        let place = self.lines.iter().position(same)?;
        Some((place + 1, self.lines[place].trim()))
    }

    /// Every line that holds now, by what identifies it: its option, its master, and for lists nothing
    /// more, since their lines are interchangeable.
    fn current(&self) -> Vec<(String, String)> {
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
        for master in &self.masters {
            let (name, Addr { host, port }) = (quoted(&master.name), &master.addr);
            lines.push(format!("sentinel monitor {name} {host} {port} {}", master.settings.quorum));
            lines.extend(master.lines());
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
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            format!("user {}", words.join(" "))
        });
        lines.extend(users);
        let identified = |line: String| (rewrite::identity(&line).expect("a line that is rewritten"), line);
        lines.into_iter().map(identified).collect()
    }

    /// The file's text with everything that holds now.
    #[must_use]
    pub fn rewritten(&self) -> String {
        rewrite::rewrite(&self.lines, self.current())
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("Invalid number '{text}'."))
}

fn positive(text: &str) -> Result<Duration, String> {
    match number(text)? {
        0u64 => Err("negative or zero time parameter.".into()),
        ms => Ok(Duration::from_millis(ms)),
    }
}

fn set_flag(flag: &mut bool, word: &str) -> Result<(), String> {
    *flag = match word.to_ascii_lowercase().as_str() {
        "yes" => true,
        "no" => false,
        _ => return Err("argument must be 'yes' or 'no'".into()),
    };
    Ok(())
}

#[cfg(test)]
mod tests;
