//! Configuration options of the sentinel and of each master.

use std::collections::BTreeMap;
use std::time::Duration;

use ::config::LogLevel;

/// Options of the sentinel itself, which apply to all masters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalSettings {
    /// The port for clients and other sentinels.
    pub port: u16,
    /// The address in hello messages; if unset, the local address of each link.
    pub announce_ip: Option<String>,
    /// The port in hello messages; 0 means `port`.
    pub announce_port: u16,
    /// Whether addresses of masters and replicas can be hostnames.
    pub resolve_hostnames: bool,
    /// Whether clients get hostnames where they are known.
    pub announce_hostnames: bool,
    /// Whether SENTINEL SET cannot change scripts.
    pub deny_scripts_reconfig: bool,
    /// The minimum level of log messages.
    pub log_level: LogLevel,
    /// Whether SENTINEL CONFIG has set the log level, which must be saved in that case.
    pub log_level_set: bool,
    /// User name for links to other sentinels; empty means the default user.
    pub sentinel_user: String,
    /// Password for links to other sentinels; empty means no authentication.
    pub sentinel_pass: String,
}

impl Default for GlobalSettings {
    fn default() -> Self {
        Self {
            port: 26379,
            announce_ip: None,
            announce_port: 0,
            resolve_hostnames: false,
            announce_hostnames: false,
            deny_scripts_reconfig: true,
            log_level: LogLevel::Notice,
            log_level_set: false,
            sentinel_user: String::new(),
            sentinel_pass: String::new(),
        }
    }
}

/// Options of a monitored master, which SENTINEL SET can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterSettings {
    /// Number of sentinels that must agree on a failure.
    pub quorum: u32,
    /// Maximum time without a correct reply before a server or sentinel counts as subjectively down.
    pub down_after: Duration,
    /// How long a port must refuse connections after an established link broke, before the server counts as down. Zero
    /// disables the rule. 150 ms leave time for two connection attempts.
    pub refused_after: Duration,
    /// Time limit for the phases of a failover, as in Redis.
    pub failover_timeout: Duration,
    /// Number of replicas that may synchronize with the new master at the same time.
    pub parallel_syncs: u32,
    /// The script to call for warning events, or `None`.
    pub notification_script: Option<String>,
    /// The script to call after a switch, or `None`.
    pub client_reconfig_script: Option<String>,
    /// User name for links to the master and its replicas; empty means the default user.
    pub auth_user: String,
    /// Password for links to the master and its replicas; empty means no authentication.
    pub auth_pass: String,
    /// Maximum loading time of a master that restarted with a new run id, before it counts as down. Zero disables the
    /// rule.
    pub reboot_down_after: Duration,
    /// Renamed commands of the master and its replicas: the original name in upper case, and the new name.
    pub renamed: BTreeMap<String, String>,
}

/// The default of Redis for `down-after-milliseconds`.
pub(crate) const DEFAULT_DOWN_AFTER: Duration = Duration::from_secs(30);
pub(crate) const DEFAULT_REFUSED_AFTER: Duration = Duration::from_millis(150);
pub(crate) const DEFAULT_FAILOVER_TIMEOUT: Duration = Duration::from_secs(180);
pub(crate) const DEFAULT_PARALLEL_SYNCS: u32 = 1;

impl MasterSettings {
    /// Creates the default options of Redis, with the given quorum.
    #[must_use]
    pub fn new(quorum: u32) -> Self {
        Self {
            quorum,
            down_after: DEFAULT_DOWN_AFTER,
            refused_after: DEFAULT_REFUSED_AFTER,
            failover_timeout: DEFAULT_FAILOVER_TIMEOUT,
            parallel_syncs: DEFAULT_PARALLEL_SYNCS,
            notification_script: None,
            client_reconfig_script: None,
            auth_user: String::new(),
            auth_pass: String::new(),
            reboot_down_after: Duration::ZERO,
            renamed: BTreeMap::new(),
        }
    }

    /// Returns the name of `command` on the master and its replicas, where it may have been renamed.
    pub(crate) fn command<'a>(&'a self, command: &'a str) -> &'a str {
        self.renamed.get(command).map_or(command, String::as_str)
    }
}

/// Periods and limits that SENTINEL DEBUG can change, with the names and defaults of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) info_period: Duration,
    pub(crate) ping_period: Duration,
    pub(crate) ask_period: Duration,
    pub(crate) publish_period: Duration,
    pub(crate) default_down_after: Duration,
    pub(crate) default_failover_timeout: Duration,
    pub(crate) tilt_trigger: Duration,
    pub(crate) tilt_period: Duration,
    pub(crate) slave_reconf_timeout: Duration,
    pub(crate) min_link_reconnect_period: Duration,
    pub(crate) election_timeout: Duration,
    pub(crate) script_max_runtime: Duration,
    pub(crate) script_retry_delay: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            info_period: secs(10),
            ping_period: secs(1),
            ask_period: secs(1),
            publish_period: secs(2),
            default_down_after: DEFAULT_DOWN_AFTER,
            default_failover_timeout: DEFAULT_FAILOVER_TIMEOUT,
            tilt_trigger: secs(2),
            tilt_period: secs(30),
            slave_reconf_timeout: secs(10),
            min_link_reconnect_period: secs(15),
            election_timeout: secs(10),
            script_max_runtime: secs(60),
            script_retry_delay: secs(30),
        }
    }
}

impl Timing {
    /// All periods and limits with their names, in the order of SENTINEL DEBUG in Redis.
    pub(crate) fn named_values(&mut self) -> [(&'static str, &mut Duration); 13] {
        [
            ("INFO-PERIOD", &mut self.info_period),
            ("PING-PERIOD", &mut self.ping_period),
            ("ASK-PERIOD", &mut self.ask_period),
            ("PUBLISH-PERIOD", &mut self.publish_period),
            ("DEFAULT-DOWN-AFTER", &mut self.default_down_after),
            ("DEFAULT-FAILOVER-TIMEOUT", &mut self.default_failover_timeout),
            ("TILT-TRIGGER", &mut self.tilt_trigger),
            ("TILT-PERIOD", &mut self.tilt_period),
            ("SLAVE-RECONF-TIMEOUT", &mut self.slave_reconf_timeout),
            ("MIN-LINK-RECONNECT-PERIOD", &mut self.min_link_reconnect_period),
            ("ELECTION-TIMEOUT", &mut self.election_timeout),
            ("SCRIPT-MAX-RUNTIME", &mut self.script_max_runtime),
            ("SCRIPT-RETRY-DELAY", &mut self.script_retry_delay),
        ]
    }

    /// The PING interval for a master with this `down-after-milliseconds`: a tenth of that time, but at most a second.
    /// Silence is measured from the first unanswered PING, so a failure can remain unnoticed for one interval.
    pub(crate) fn ping_period_for(&self, down_after: Duration) -> Duration {
        (down_after / 10).max(Duration::from_millis(100)).min(self.ping_period)
    }
}
