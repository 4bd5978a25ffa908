//! Parameters that are accepted without effect, and directives that are refused. The server refuses to start with a
//! directive that would be harmful to ignore, and logs a warning for those that can safely be ignored.

use super::{Config, Id};

/// Parameters that are not implemented. A value that differs from the default causes a warning.
const PARAMETERS_WITHOUT_EFFECT: &[Id] = &[
    Id::ACTIVEDEFRAG,
    Id::AOF_REWRITE_CPULIST,
    Id::BGSAVE_CPULIST,
    Id::BIO_CPULIST,
    Id::CLUSTER_MESSAGE_GOSSIP_PERC,
    Id::CLUSTER_PING_INTERVAL,
    Id::DEBUG_CONTEXT,
    Id::HIDE_USER_DATA_FROM_LOG,
    Id::LOCALE_COLLATE,
    Id::MPTCP,
    Id::PROPAGATION_ERROR_BEHAVIOR,
    Id::RDMA_BIND,
    Id::RDMA_COMPLETION_VECTOR,
    Id::RDMA_PORT,
    Id::RDMA_RX_SIZE,
    Id::REPL_MPTCP,
    Id::SERVER_CPULIST,
    Id::SOCKET_MARK_ID,
    Id::UNIXSOCKETGROUP,
    Id::USE_EXIT_ON_PANIC,
    Id::WATCHDOG_PERIOD,
];

/// Parameters that are not needed, because they tune mechanisms that this server implements differently. They are
/// grouped by the explanation.
const PARAMETERS_NOT_NEEDED: &[(&str, &[Id])] = &[
    (
        "memory is always defragmented, rehashed and released one slot at a time",
        &[
            Id::ACTIVE_DEFRAG_CYCLE_MAX,
            Id::ACTIVE_DEFRAG_CYCLE_MIN,
            Id::ACTIVE_DEFRAG_CYCLE_US,
            Id::ACTIVE_DEFRAG_IGNORE_BYTES,
            Id::ACTIVE_DEFRAG_MAX_SCAN_FIELDS,
            Id::ACTIVE_DEFRAG_THRESHOLD_LOWER,
            Id::ACTIVE_DEFRAG_THRESHOLD_UPPER,
            Id::ACTIVEREHASHING,
            Id::JEMALLOC_BG_THREAD,
        ],
    ),
    ("expiry uses an index instead of sampling", &[Id::ACTIVE_EXPIRE_EFFORT]),
    ("lists have little overhead per element and are not compressed", &[Id::LIST_COMPRESS_DEPTH]),
    (
        "the dataset that a full synchronisation replaces is always freed in the background",
        &[Id::REPLICA_LAZY_FLUSH],
    ),
    (
        "only elliptic-curve key exchange is used, and the session cache evicts its oldest entries",
        &[Id::TLS_DH_PARAMS_FILE, Id::TLS_SESSION_CACHE_TIMEOUT],
    ),
    (
        "each worker reads, prefetches and accepts independently",
        &[
            Id::EVENTS_PER_IO_THREAD,
            Id::IO_THREADS_ALWAYS_ACTIVE,
            Id::IO_THREADS_DO_READS,
            Id::MAX_NEW_CONNECTIONS_PER_CYCLE,
            Id::MAX_NEW_TLS_CONNECTIONS_PER_CYCLE,
            Id::MIN_IO_THREADS_AVOID_COPY_REPLY,
            Id::MIN_STRING_SIZE_AVOID_COPY_REPLY,
            Id::MIN_STRING_SIZE_AVOID_COPY_REPLY_THREADED,
            Id::PREFETCH_BATCH_MAX_SIZE,
        ],
    ),
    ("timers are event-driven", &[Id::DYNAMIC_HZ]),
    ("connections are always served during loading", &[Id::LOADING_PROCESS_EVENTS_INTERVAL_BYTES]),
    ("assertions are always on", &[Id::ENABLE_DEBUG_ASSERT]),
    ("there is no fork, so huge pages cause no copy-on-write", &[Id::DISABLE_THP]),
    (
        "crash reports are always on, and there is no logo",
        &[Id::ALWAYS_SHOW_LOGO, Id::CRASH_LOG_ENABLED, Id::CRASH_MEMCHECK_ENABLED, Id::IGNORE_WARNINGS],
    ),
];

/// The effect of a parameter on this server, for docs/CONFIGURATION.md and warnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterEffect {
    /// The parameter works as documented.
    Applied,
    /// The parameter is accepted and stored, but has no effect.
    NotImplemented,
    /// The parameter tunes a mechanism that this server implements differently; holds the explanation.
    NotNeeded(&'static str),
}

impl ParameterEffect {
    pub(crate) fn of_parameter(id: Id) -> Self {
        if PARAMETERS_WITHOUT_EFFECT.contains(&id) {
            return Self::NotImplemented;
        }
        let row = PARAMETERS_NOT_NEEDED.iter().find(|(_, ids)| ids.contains(&id));
        row.map_or(Self::Applied, |(reason, _)| Self::NotNeeded(reason))
    }
}

/// Directives that are refused although they are not parameters, with the reason.
const UNSUPPORTED_DIRECTIVES: &[(&str, &str)] = &[("loadmodule", "modules are not supported")];

/// What to use instead of parameters without effect.
const ALTERNATIVES: &[(&[&str], &str)] = &[
    (&["loadmodule"], "there is no module API; replace the module's commands, for example with functions"),
    (&["activedefrag"], "remove the line: memory is always defragmented, one slot at a time"),
    (
        &["server-cpulist", "bio-cpulist", "aof-rewrite-cpulist", "bgsave-cpulist"],
        "set the CPU affinity of the process: CPUAffinity= in its systemd unit, or taskset",
    ),
    (
        &["cluster-config-save-behavior"],
        "nothing: votes and epochs are always persisted before they are sent",
    ),
    (&["hide-user-data-from-log"], "remove the line: the log never contains values of keys"),
    (&["locale-collate"], "sort in the client: strings are compared byte by byte"),
    (&["mptcp", "repl-mptcp"], "remove the line: connections use plain TCP"),
    (&["rdma-bind", "rdma-port", "rdma-rx-size", "rdma-completion-vector"], "listen on TCP: bind and port"),
    (&["propagation-error-behavior"], "remove the line"),
    (&["socket-mark-id"], "mark the packets by the cgroup of the process, in the firewall"),
    (
        &["unixsocketgroup"],
        "start the server with that group, or place the socket in a directory of that group",
    ),
    (&["use-exit-on-panic", "watchdog-period"], "remove the line: it serves the debugging of Redis itself"),
];

/// Hints for using parameters that work.
const HINTS: &[(&[&str], &str)] = &[
    (
        &["cluster-bus-port-protected-mode"],
        "with 'yes' a cluster node without 'tls-cluster yes' does not start, as in Redis 8.10.2: the cluster bus has no \
         password, so any process that can reach the port could join",
    ),
    (
        &["io-threads"],
        "the number of worker threads, which also run commands; the default is one per core, and values tuned for Redis \
         are usually too low",
    ),
    (
        &["maxmemory"],
        "the same data needs about half the memory here; 'redoubt capacity sample' estimates it for your data",
    ),
    (
        &["slot-migration-max-failover-repl-bytes"],
        "writes pause as soon as at most 64 KiB remain to be sent, even if this value is lower; -1 pauses them at once",
    ),
    (
        &["cluster-node-timeout"],
        "a silent node is suspected after this time; a node whose port refuses connections is suspected after \
         cluster-connect-refused-timeout (150 ms)",
    ),
];

/// What to use instead of this parameter without effect, if there is an alternative.
pub(super) fn find_alternative(directive: &str) -> Option<&'static str> {
    find_in_table(ALTERNATIVES, directive)
}

/// The hint for a parameter that works, if there is one.
pub(super) fn find_hint(directive: &str) -> Option<&'static str> {
    find_in_table(HINTS, directive)
}

fn find_in_table(table: &[(&[&str], &'static str)], directive: &str) -> Option<&'static str> {
    let is_named = |name: &&str| name.eq_ignore_ascii_case(directive);
    table.iter().find(|(names, _)| names.iter().any(is_named)).map(|(_, advice)| *advice)
}

/// Parameters that Redis itself removed and still accepts without effect.
const OBSOLETE_PARAMETERS: &[&str] =
    &["list-max-ziplist-entries", "list-max-ziplist-value", "lua-replicate-commands"];

/// Whether Redis removed this parameter and ignores it.
pub(super) fn is_obsolete(directive: &str) -> bool {
    OBSOLETE_PARAMETERS.iter().any(|name| name.eq_ignore_ascii_case(directive))
}

/// The reason why the server refuses to start with this directive, or `None` if it accepts the directive.
pub(super) fn refusal_reason(directive: &str) -> Option<&'static str> {
    let row = UNSUPPORTED_DIRECTIVES.iter().find(|(name, _)| name.eq_ignore_ascii_case(directive));
    row.map(|(_, reason)| *reason)
}

/// Startup warnings about parameters without effect.
#[must_use]
pub fn unsupported_warnings(config: &Config) -> Vec<String> {
    let asked = PARAMETERS_WITHOUT_EFFECT.iter().filter(|id| !config.has_default_value(**id));
    let asked: Vec<&str> = asked.map(|id| id.name()).collect();
    if asked.is_empty() {
        return Vec::new();
    }
    vec![format!("These parameters are set but have no effect in this version: {}", asked.join(", "))]
}

/// Lines for the verbose log about parameters that are set but not needed on this server.
#[must_use]
pub fn not_needed_notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for (reason, ids) in PARAMETERS_NOT_NEEDED {
        for id in ids.iter().filter(|id| !config.has_default_value(**id)) {
            notes.push(format!("'{}' has no effect: {reason}", id.name()));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::PARAMETERS;

    #[test]
    fn default_configuration_has_no_warnings() {
        let config = Config::default();
        assert_eq!(unsupported_warnings(&config), [""; 0]);
    }

    #[test]
    fn parameters_without_effect_give_one_warning() {
        let config = Config::default();
        for (name, value) in [("use-exit-on-panic", "yes"), ("mptcp", "yes"), ("dynamic-hz", "no")] {
            config.load(name, &[value.to_owned()]).unwrap();
        }
        let expected =
            "These parameters are set but have no effect in this version: mptcp, use-exit-on-panic";
        assert_eq!(unsupported_warnings(&config), [expected]);
        assert_eq!(not_needed_notes(&config), ["'dynamic-hz' has no effect: timers are event-driven"]);
    }

    /// The source text of the program, without its tests and the parameter tables.
    fn program_source() -> String {
        fn append_sources(folder: &std::path::Path, text: &mut String) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    append_sources(&path, text);
                } else if ["parameters.rs", "unsupported.rs", "tests.rs"]
                    .iter()
                    .all(|name| !path.ends_with(name))
                {
                    let file = std::fs::read_to_string(&path).unwrap();
                    text.push_str(file.split("#[cfg(test)]\nmod tests").next().unwrap());
                }
            }
        }
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut text = String::new();
        for name in ["config", "durability", "engine", "net", "node", "process", "sentinel-server"] {
            append_sources(&crates.join(name).join("src"), &mut text);
        }
        text
    }

    /// Each parameter is either read somewhere in the program or listed in this file, so that no parameter is silently
    /// ignored.
    #[test]
    fn every_parameter_is_used_or_explained() {
        let program = program_source();
        let mut odd = Vec::new();
        for row in PARAMETERS {
            let key = format!("keys::{:?}", row.id);
            let ends = |rest: &str| !rest.starts_with(|next: char| next == '_' || next.is_alphanumeric());
            let is_read = program.match_indices(&key).any(|(at, _)| ends(&program[at + key.len()..]));
            let is_said = ParameterEffect::of_parameter(row.id) != ParameterEffect::Applied;
            if is_read == is_said {
                odd.push(format!("{}: read: {is_read}, listed as without effect: {is_said}", row.name));
            }
        }
        assert!(odd.is_empty(), "{odd:#?}");
    }
}
