//! Checks of the configuration file and its certificates.

use std::path::Path;

use config::{Config, keys};
use net::tls::certificates::CertificateFile;

use super::finding::Finding;

/// A certificate that expires within this number of days is reported.
const CERTIFICATE_RENEWAL_DAYS: i64 = 30;
/// Default difference between the bus port and the client port.
const BUS_PORT_OFFSET: u32 = 10_000;

/// Loads the file into `config`, as the server does at startup.
pub(super) fn check_config_file(config: &Config, file: &Path) -> Vec<Finding> {
    let about = "configuration";
    if let Err(error) = config.load_file(&file.to_string_lossy()) {
        let text = format!("{}, line {}: '{}': {}", file.display(), error.line, error.text, error.reason);
        return vec![Finding::fault(
            about,
            text,
            "'redoubt convert' explains each line and suggests replacements",
        )];
    }
    let warnings = config::unsupported_warnings(config).into_iter();
    let mut findings: Vec<_> = warnings
        .map(|text| Finding::warning(about, text, "'redoubt convert' suggests a replacement for each"))
        .collect();
    if findings.is_empty() {
        findings.push(Finding::fine(about, format!("{} has no errors", file.display())));
    }
    findings
}

/// Runs all checks of the parameter values.
pub(super) fn check_parameters(config: &Config) -> Vec<Finding> {
    [check_access_control, check_persistence, check_bus_port]
        .iter()
        .filter_map(|check| check(config))
        .collect()
}

fn check_access_control(config: &Config) -> Option<Finding> {
    let has_password = config.get(keys::REQUIREPASS).is_some_and(|password| !password.is_empty())
        || config.get(keys::ACLFILE).is_some()
        || !config.user_lines().is_empty();
    let is_local = |address: &str| {
        let address = address.trim_start_matches('-');
        address.starts_with("127.") || matches!(address, "::1" | "localhost")
    };
    let is_open = config.get(keys::BIND).iter().any(|address| !is_local(address));
    let about = "access";
    Some(if has_password {
        Finding::fine(about, "clients must log in")
    } else if !is_open {
        Finding::fine(about, "only clients on this machine can connect")
    } else if config.get(keys::PROTECTED_MODE) {
        Finding::warning(
            about,
            "no password is set: protected mode refuses clients from other machines",
            "set requirepass or define users (aclfile); protected-mode can stay on",
        )
    } else {
        Finding::fault(
            about,
            "anyone who can reach the port has full access: no password is set, and protected-mode is off",
            "set requirepass, define users (aclfile), or bind to local addresses",
        )
    })
}

fn check_persistence(config: &Config) -> Option<Finding> {
    let about = "persistence";
    let is_saving = config.get(keys::APPENDONLY) || !config.get(keys::SAVE).is_empty();
    let is_replicated = config.get(keys::CLUSTER_ENABLED) || config.get(keys::REPLICAOF).is_some();
    Some(match (is_saving, is_replicated) {
        (true, _) => Finding::fine(about, "data is persisted"),
        (false, true) => Finding::warning(
            about,
            "nothing is persisted: if all nodes of a shard stop at once, its data is lost",
            "set appendonly yes, or save points",
        ),
        (false, false) => Finding::warning(
            about,
            "nothing is persisted: the server is empty after a restart",
            "set appendonly yes, or save points; ignore this for a cache",
        ),
    })
}

fn check_bus_port(config: &Config) -> Option<Finding> {
    if !config.get(keys::CLUSTER_ENABLED) || config.get(keys::CLUSTER_PORT).is_some() {
        return None;
    }
    let port = u32::from(config.get(keys::PORT));
    let bus = port + BUS_PORT_OFFSET;
    Some(if bus > u32::from(u16::MAX) {
        Finding::fault(
            "bus port",
            format!("port + 10000 is {bus}, which is not a valid port"),
            "use a port of at most 55535, or set cluster-port",
        )
    } else {
        Finding::fine("bus port", format!("the cluster bus listens on {bus}"))
    })
}

/// Checks the certificates. `now` is the Unix time in seconds.
pub(super) fn check_certificates(files: &[CertificateFile], now: i64) -> Vec<Finding> {
    files.iter().map(|file| check_certificate(file, now)).collect()
}

fn check_certificate(file: &CertificateFile, now: i64) -> Finding {
    let about = "certificate";
    let name = format!("{} ({})", file.parameter, file.path);
    let renew =
        "renew it; with tls-auto-reload-interval or CONFIG SET of this parameter, no restart is needed";
    let end = match &file.expires_at {
        Err(reason) => {
            return Finding::fault(
                about,
                format!("{name}: {reason}"),
                "make it readable to the server's user",
            );
        }
        Ok(end) => *end,
    };
    let days = (end - now).div_euclid(24 * 3600);
    if end <= now {
        Finding::fault(about, format!("{name} expired {} days ago", -days), renew)
    } else if days < CERTIFICATE_RENEWAL_DAYS {
        Finding::warning(about, format!("{name} expires in {days} days"), renew)
    } else {
        Finding::fine(about, format!("{name} is valid for {days} days"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    fn severity_of_config(lines: &str, check: fn(&Config) -> Option<Finding>) -> Option<Severity> {
        let config = Config::default();
        config.load_text(lines, &config::ConfigSource::CommandLine).unwrap();
        check(&config).map(|finding| finding.verdict)
    }

    #[test]
    fn open_access_is_reported() {
        let table = [
            ("", Severity::Warning),
            ("bind 127.0.0.1 -::1", Severity::Fine),
            ("protected-mode no", Severity::Fault),
            ("protected-mode no\nbind 127.0.0.1", Severity::Fine),
            ("protected-mode no\nrequirepass x", Severity::Fine),
            ("protected-mode no\nuser alice on", Severity::Fine),
            ("bind 10.0.0.1\naclfile /x", Severity::Fine),
        ];
        for (lines, expected) in table {
            assert_eq!(severity_of_config(lines, check_access_control), Some(expected), "{lines}");
        }
    }

    #[test]
    fn missing_persistence_and_invalid_bus_port_are_reported() {
        assert_eq!(severity_of_config("", check_persistence), Some(Severity::Fine));
        assert_eq!(severity_of_config("save ''", check_persistence), Some(Severity::Warning));
        assert_eq!(severity_of_config("save ''\nappendonly yes", check_persistence), Some(Severity::Fine));
        assert_eq!(severity_of_config("port 60000", check_bus_port), None);
        assert_eq!(
            severity_of_config("port 60000\ncluster-enabled yes", check_bus_port),
            Some(Severity::Fault)
        );
        assert_eq!(
            severity_of_config("port 60000\ncluster-enabled yes\ncluster-port 1", check_bus_port),
            None
        );
        assert_eq!(
            severity_of_config("port 7000\ncluster-enabled yes", check_bus_port),
            Some(Severity::Fine)
        );
    }

    #[test]
    fn expiring_certificate_is_reported() {
        let day = 24 * 3600;
        let table = [
            (Ok(31 * day), Severity::Fine),
            (Ok(29 * day), Severity::Warning),
            (Ok(1), Severity::Warning),
            (Ok(0), Severity::Fault),
            (Ok(-day), Severity::Fault),
            (Err("no".to_owned()), Severity::Fault),
        ];
        for (end, expected) in table {
            let expires_at = end.clone().map(|end| 1_000_000 + end);
            let file = CertificateFile { parameter: "tls-cert-file", path: "a".to_owned(), expires_at };
            assert_eq!(check_certificate(&file, 1_000_000).verdict, expected, "{end:?}");
        }
    }

    #[test]
    fn invalid_configuration_line_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redis.conf");
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            check_config_file(&Config::default(), &path)
                .iter()
                .map(|finding| finding.verdict)
                .collect::<Vec<_>>()
        };
        assert_eq!(load("port 1\n"), [Severity::Fine]);
        assert_eq!(load("port 1\nnonsense\n"), [Severity::Fault]);
        assert_eq!(load("activedefrag yes\n"), [Severity::Warning]);
    }
}
