//! What a configuration may ask for that this server does not have. It says so and does not start, or,
//! where the data is safe without it, says so in its log.

use super::Config;

struct Unbuilt {
    name: &'static str,
    is_asked_for: fn(&str) -> bool,
    reason: &'static str,
}

/// Without these the server would not be what its owner relies on.
const REFUSED: &[Unbuilt] = &[
    Unbuilt {
        name: "appendonly",
        is_asked_for: |value| value == "yes",
        reason: "'appendonly yes' is not supported yet: this version keeps no append-only file. \
                 Say 'appendonly no' and use 'save' points and replicas",
    },
    Unbuilt {
        name: "tls-port",
        is_asked_for: |value| value != "0",
        reason: "'tls-port' is not supported yet: this version speaks no TLS. Say 'tls-port 0'",
    },
    Unbuilt {
        name: "tls-replication",
        is_asked_for: |value| value == "yes",
        reason: "'tls-replication yes' is not supported yet: this version speaks no TLS",
    },
    Unbuilt {
        name: "tls-cluster",
        is_asked_for: |value| value == "yes",
        reason: "'tls-cluster yes' is not supported yet: this version speaks no TLS",
    },
    Unbuilt {
        name: "aclfile",
        is_asked_for: |value| !value.is_empty(),
        reason: "'aclfile' is not supported yet: this version knows one user, by 'requirepass'",
    },
];

/// Without these the server does less than it could.
const WARNED: &[Unbuilt] = &[
    Unbuilt {
        name: "notify-keyspace-events",
        is_asked_for: |value| !value.is_empty(),
        reason: "'notify-keyspace-events' has no effect yet: this version publishes no events",
    },
    Unbuilt {
        name: "maxmemory-clients",
        is_asked_for: |value| value != "0",
        reason: "'maxmemory-clients' has no effect yet: clients are not evicted",
    },
];

/// Directives that are no parameters.
const DIRECTIVES: &[(&str, &str)] = &[
    ("loadmodule", "modules are not supported"),
    ("rename-command", "'rename-command' is not supported: commands keep their names"),
    ("user", "'user' is not supported yet: this version knows one user, by 'requirepass'"),
];

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
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let rows = WARNED.iter().filter(|row| (row.is_asked_for)(&config.text(row.name)));
    let mut warnings: Vec<String> = rows.map(|row| row.reason.to_owned()).collect();
    let policy = config.text("maxmemory-policy");
    if config.integer("maxmemory") > 0 && policy != "noeviction" {
        warnings.push(format!(
            "'maxmemory-policy {policy}' has no effect yet: no key is evicted. Above 'maxmemory', commands that \
             need memory are refused, as with 'noeviction'"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_about_a_parameter_and_its_default_is_fine() {
        let config = Config::default();
        for row in REFUSED.iter().chain(WARNED) {
            assert!(!(row.is_asked_for)(&config.text(row.name)), "{}", row.name);
        }
        assert_eq!(warnings(&config), [""; 0]);
    }

    #[test]
    fn an_eviction_policy_without_a_limit_is_nobodys_concern() {
        let config = Config::default();
        config.load("maxmemory-policy", &["allkeys-lru".to_owned()]).unwrap();
        assert_eq!(warnings(&config).len(), 0);
        config.load("maxmemory", &["1gb".to_owned()]).unwrap();
        assert_eq!(warnings(&config).len(), 1);
    }
}
