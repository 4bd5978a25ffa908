//! The settings of an operator, for all masters and for each.

use std::collections::BTreeMap;
use std::time::Duration;

use ::config::LogLevel;

/// Settings of the sentinel itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// The port that clients and other sentinels use.
    pub port: u16,
    /// Announced to others instead of the address that a link happens to have.
    pub announce_ip: Option<String>,
    /// Announced instead of `port`; 0 for none.
    pub announce_port: u16,
    /// Whether addresses may be host names.
    pub resolve_hostnames: bool,
    /// Whether clients are told host names where there are any.
    pub announce_hostnames: bool,
    /// Whether SENTINEL SET may not change scripts.
    pub deny_scripts_reconfig: bool,
    /// The least urgent lines that go to the log.
    pub log_level: LogLevel,
    /// Whether that was set by SENTINEL CONFIG, and is to outlive the process.
    pub log_level_set: bool,
    /// With what to sign in at other sentinels.
    pub sentinel_user: String,
    /// The password for that.
    pub sentinel_pass: String,
}

impl Default for Global {
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

/// Settings of one watched master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterSettings {
    /// How many sentinels must agree that it is down.
    pub quorum: u32,
    /// How long it may be silent.
    pub down_after: Duration,
    /// A port that refuses connections this long after its link broke means: down. Zero turns the
    /// rule off. 150 ms is what a connection attempt and its repetition need with room to spare.
    pub refused_after: Duration,
    /// How long a failover may take before another is tried, as Redis counts it.
    pub failover_timeout: Duration,
    /// How many replicas may synchronise with the new master at once.
    pub parallel_syncs: u32,
    /// The program that is told of warnings.
    pub notification_script: Option<String>,
    /// The program that is told of a new master.
    pub client_reconfig_script: Option<String>,
    /// The user to sign in as at the master and its replicas.
    pub auth_user: String,
    /// The password for that.
    pub auth_pass: String,
    /// A master that came back with another run id counts as down for this long. Zero: not at all.
    pub reboot_down_after: Duration,
    /// Commands that go by another name at this master and its replicas; upper-case keys.
    pub renamed: BTreeMap<String, String>,
}

/// Redis's defaults.
pub(crate) const DOWN_AFTER: Duration = Duration::from_secs(30);
pub(crate) const REFUSED_AFTER: Duration = Duration::from_millis(150);
pub(crate) const FAILOVER_TIMEOUT: Duration = Duration::from_secs(180);
pub(crate) const PARALLEL_SYNCS: u32 = 1;

impl MasterSettings {
    /// Redis's defaults with this quorum.
    #[must_use]
    pub fn new(quorum: u32) -> Self {
        Self {
            quorum,
            down_after: DOWN_AFTER,
            refused_after: REFUSED_AFTER,
            failover_timeout: FAILOVER_TIMEOUT,
            parallel_syncs: PARALLEL_SYNCS,
            notification_script: None,
            client_reconfig_script: None,
            auth_user: String::new(),
            auth_pass: String::new(),
            reboot_down_after: Duration::ZERO,
            renamed: BTreeMap::new(),
        }
    }

    /// The name that `command` goes by at this master.
    pub(crate) fn command<'a>(&'a self, command: &'a str) -> &'a str {
        self.renamed.get(command).map_or(command, String::as_str)
    }
}

/// Periods and limits, all of them settable by SENTINEL DEBUG; Redis's names and defaults.
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
            default_down_after: DOWN_AFTER,
            default_failover_timeout: FAILOVER_TIMEOUT,
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
    /// Every one with the name that SENTINEL DEBUG knows it by, in the order in which Redis lists them.
    pub(crate) fn fields(&mut self) -> [(&'static str, &mut Duration); 13] {
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

    /// How often to ping, for a master that counts as down after `down_after`: every second, or ten
    /// times within that time if it is short. Silence is counted from the first ping without an answer,
    /// so this is what a failure may go unnoticed before the count begins.
    pub(crate) fn ping_period_for(&self, down_after: Duration) -> Duration {
        (down_after / 10).max(Duration::from_millis(100)).min(self.ping_period)
    }
}
