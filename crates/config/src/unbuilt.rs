//! What a configuration may ask for that this server does not have. It says so and does not start, or,
//! where the data is safe without it, says so in its log.

use super::Config;

struct Unbuilt {
    name: &'static str,
    is_asked_for: fn(&str) -> bool,
    reason: &'static str,
}

/// Without these the server would not be what its owner relies on: it does not start.
const REFUSED: &[Unbuilt] = &[Unbuilt {
    name: "tls-auth-clients-user",
    is_asked_for: |value| value == "URI",
    reason: "'tls-auth-clients-user URI' is not supported yet: a certificate names its user by its CN",
}];

/// What these ask for is not there yet. Where one differs from its default, the log says so.
const WITHOUT_EFFECT: &[&str] = &[
    "activedefrag",
    "aof-disable-auto-gc",
    "aof-rewrite-cpulist",
    "bgsave-cpulist",
    "bio-cpulist",
    "cluster-announce-client-ipv4",
    "cluster-announce-client-ipv6",
    "cluster-announce-client-port",
    "cluster-announce-client-tls-port",
    "cluster-config-save-behavior",
    "cluster-message-gossip-perc",
    "cluster-ping-interval",
    "cluster-slot-migration-log-max-len",
    "cluster-slot-stats-enabled",
    "debug-context",
    "extended-redis-compatibility",
    "hide-user-data-from-log",
    "locale-collate",
    "log-format",
    "log-timestamp-format",
    "mptcp",
    "proc-title-template",
    "propagation-error-behavior",
    "rdb-version-check",
    "rdma-bind",
    "rdma-completion-vector",
    "rdma-port",
    "rdma-rx-size",
    "repl-mptcp",
    "server-cpulist",
    "set-proc-title",
    "slot-migration-max-failover-repl-bytes",
    "socket-mark-id",
    "unixsocketgroup",
    "use-exit-on-panic",
    "watchdog-period",
];

/// Nothing is missing without these: they tune what this server does in another way or has no need to do,
/// or what another parameter, refused above, would have to switch on.
const WITHOUT_PURPOSE: &[(&str, &[&str])] = &[
    (
        "memory is compacted, indexed and given back a slot at a time, always",
        &[
            "active-defrag-cycle-max",
            "active-defrag-cycle-min",
            "active-defrag-cycle-us",
            "active-defrag-ignore-bytes",
            "active-defrag-max-scan-fields",
            "active-defrag-threshold-lower",
            "active-defrag-threshold-upper",
            "activerehashing",
            "jemalloc-bg-thread",
        ],
    ),
    ("expiry has an index and needs no samples", &["active-expire-effort"]),
    ("the elements of a list take little more than their own bytes", &["list-compress-depth"]),
    (
        "what a replica had before a full synchronisation is always freed in the background",
        &["replica-lazy-flush"],
    ),
    (
        "keys are agreed on by elliptic curves alone, and a session is kept until newer ones need its room",
        &["tls-dh-params-file", "tls-session-cache-timeout"],
    ),
    (
        "every worker reads, looks keys up ahead and accepts at its own pace",
        &[
            "events-per-io-thread",
            "io-threads-always-active",
            "io-threads-do-reads",
            "max-new-connections-per-cycle",
            "max-new-tls-connections-per-cycle",
            "min-io-threads-avoid-copy-reply",
            "min-string-size-avoid-copy-reply",
            "min-string-size-avoid-copy-reply-threaded",
            "prefetch-batch-max-size",
        ],
    ),
    ("timers fire when they are due", &["dynamic-hz"]),
    ("connections are served all the while data is loaded", &["loading-process-events-interval-bytes"]),
    ("every value of a file or a payload is looked at whole before it is stored", &["sanitize-dump-payload"]),
    ("assertions are always on", &["enable-debug-assert"]),
    ("no transparent huge page costs a fork here", &["disable-thp"]),
    (
        "a crash says where it was by itself; there is no logo",
        &["always-show-logo", "crash-log-enabled", "crash-memcheck-enabled", "ignore-warnings"],
    ),
];

/// What comes of a parameter.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// What it says.
    Applied,
    /// Nothing yet.
    NotBuilt,
    /// Nothing, for a reason.
    NoPurpose(&'static str),
}

#[cfg(test)]
impl Effect {
    pub(crate) fn of(name: &str) -> Self {
        if WITHOUT_EFFECT.contains(&name) {
            return Self::NotBuilt;
        }
        let row = WITHOUT_PURPOSE.iter().find(|(_, names)| names.contains(&name));
        row.map_or(Self::Applied, |(reason, _)| Self::NoPurpose(reason))
    }
}

/// Directives that are no parameters.
const DIRECTIVES: &[(&str, &str)] = &[("loadmodule", "modules are not supported")];

/// Lines of old files that Redis itself reads without any effect: what they set has left it.
const FORGOTTEN: &[&str] = &["list-max-ziplist-entries", "list-max-ziplist-value", "lua-replicate-commands"];

/// Whether a line sets what no longer exists anywhere, and is passed over.
pub(super) fn is_forgotten(directive: &str) -> bool {
    FORGOTTEN.iter().any(|name| name.eq_ignore_ascii_case(directive))
}

/// Why a value cannot be used, if it asks for what is not there.
pub(super) fn check(name: &str, value: &str) -> Result<(), String> {
    match REFUSED.iter().find(|row| row.name == name && (row.is_asked_for)(value)) {
        Some(row) => Err(row.reason.to_owned()),
        None => Ok(()),
    }
}

/// Why a line that is no parameter cannot be used.
pub(super) fn reason(directive: &str) -> Option<&'static str> {
    let row = DIRECTIVES.iter().find(|(name, _)| name.eq_ignore_ascii_case(directive));
    row.map(|(_, reason)| *reason)
}

/// What the log should say about this configuration.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let asked: Vec<&str> = WITHOUT_EFFECT.iter().copied().filter(|name| !config.is_default(name)).collect();
    if asked.is_empty() {
        return Vec::new();
    }
    vec![format!("The configuration sets what has no effect in this version: {}", asked.join(", "))]
}

/// What the log may say, for those who look closely, about parameters that change nothing here.
#[must_use]
pub fn notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for (reason, names) in WITHOUT_PURPOSE {
        for name in names.iter().filter(|name| !config.is_default(name)) {
            notes.push(format!("'{name}' changes nothing: {reason}"));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_as_it_comes_is_fine() {
        let config = Config::default();
        for row in REFUSED {
            assert!(!(row.is_asked_for)(&config.text(row.name)), "{}", row.name);
        }
        assert_eq!(warnings(&config), [""; 0]);
    }

    #[test]
    fn what_has_no_effect_is_named_once_in_one_line() {
        let config = Config::default();
        for (name, value) in [("proc-title-template", "x"), ("mptcp", "yes"), ("dynamic-hz", "no")] {
            config.load(name, &[value.to_owned()]).unwrap();
        }
        let expected =
            "The configuration sets what has no effect in this version: mptcp, proc-title-template";
        assert_eq!(warnings(&config), [expected]);
        assert_eq!(notes(&config), ["'dynamic-hz' changes nothing: timers fire when they are due"]);
    }

    /// The program's text without its tests and the tables of parameters.
    fn program() -> String {
        fn read(folder: &std::path::Path, text: &mut String) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    read(&path, text);
                } else if !path.ends_with("parameters.rs") && !path.ends_with("unbuilt.rs") {
                    let file = std::fs::read_to_string(&path).unwrap();
                    text.push_str(file.split("#[cfg(test)]\nmod tests").next().unwrap());
                }
            }
        }
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut text = String::new();
        for name in ["config", "node"] {
            read(&crates.join(name).join("src"), &mut text);
        }
        text
    }

    /// No parameter is taken and then ignored in silence: somebody reads it, or it stands above.
    #[test]
    fn every_parameter_has_an_effect_or_a_reason_for_none() {
        let program = program();
        let reasoned: Vec<&str> =
            WITHOUT_PURPOSE.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut odd = Vec::new();
        for row in super::super::PARAMETERS {
            let is_read = program.contains(&format!("\"{}\"", row.name));
            let is_refused = REFUSED.iter().any(|refused| refused.name == row.name);
            let places =
                [is_read || is_refused, WITHOUT_EFFECT.contains(&row.name), reasoned.contains(&row.name)];
            if places.iter().filter(|there| **there).count() != 1 {
                odd.push(format!("{}: {places:?}", row.name));
            }
        }
        assert!(odd.is_empty(), "has an effect, has none yet, has no purpose: {odd:#?}");
    }
}
