use std::time::Duration;

use super::*;

#[test]
fn names_unsafe_for_nodes_conf_are_refused() {
    let config = Config::default();
    let names = ["cluster-announce-hostname", "cluster-announce-human-nodename", "cluster-announce-ip"];
    for name in names {
        for bad in ["a b", "a,b", "a\nb", "a\tb", "a\"b", "a'b", "a\\b", "a=b", "a\u{7f}b", "a\u{e9}", "a;b"]
        {
            assert!(config.load(name, &[bad.to_owned()]).is_err(), "{name} '{bad:?}'");
        }
        assert_eq!(config.load(name, &[String::new()]), Ok(()), "{name}");
    }
    for (name, good) in [
        ("cluster-announce-hostname", "redis-7.example_1.com"),
        ("cluster-announce-human-nodename", "rack-4/node_2.a"),
        ("availability-zone", "eu-central-1a"),
        ("cluster-announce-ip", "2001:db8::1"),
        ("cluster-databases", "16"),
    ] {
        assert_eq!(config.load(name, &[good.to_owned()]), Ok(()), "{name}");
    }
    for bad in ["0", "65536", "-1"] {
        assert!(config.load("cluster-databases", &[bad.to_owned()]).is_err(), "{bad}");
    }
}

#[test]
fn maxmemory_accepts_full_64_bit_range() {
    let config = Config::default();
    for (word, bytes) in [
        ("9223372036854775808", 1 << 63),
        ("18446744073709551615", usize::MAX),
        ("17179869183gb", 17_179_869_183 << 30),
        ("", 0),
    ] {
        assert_eq!(config.load("maxmemory", &[word.to_owned()]), Ok(()), "{word}");
        assert_eq!(config.get(keys::MAXMEMORY), bytes);
    }
    for bad in ["18446744073709551616", "17179869184gb", "-1", "1tb"] {
        assert!(config.load("maxmemory", &[bad.to_owned()]).is_err(), "{bad}");
    }
}

#[test]
fn every_default_is_valid_and_normalized() {
    for row in PARAMETERS {
        assert_eq!(row.field.format_value(&Values::default()), row.default, "{}", row.name);
    }
}

#[test]
fn parameter_keys_match_their_names() {
    for row in PARAMETERS {
        assert_eq!(format!("{:?}", row.id), row.name.to_uppercase().replace('-', "_"));
    }
}

#[test]
fn parameters_have_typed_values() {
    let config = Config::default();
    config.load("cluster-node-timeout", &["1500".to_owned()]).unwrap();
    config.load("maxmemory", &["1gb".to_owned()]).unwrap();
    assert_eq!(config.get(keys::CLUSTER_NODE_TIMEOUT), Duration::from_millis(1500));
    assert_eq!(config.get(keys::MAXMEMORY), 1 << 30);
    assert_eq!(config.get(keys::APPENDFSYNC), AppendFsync::EverySecond);
    assert_eq!(config.get(keys::ACLFILE), None);
    assert_eq!(config.get(keys::BIND).join(" "), "* -::*");
    let limit = config.values()[keys::CLIENT_OUTPUT_BUFFER_LIMIT].replica;
    assert_eq!(
        (limit.hard_limit, limit.soft_limit, limit.soft_duration),
        (256 << 20, 64 << 20, Duration::from_secs(60))
    );
}

/// A snapshot taken before a change stays complete and unchanged.
#[test]
fn snapshot_is_immutable() {
    let config = Config::default();
    let snapshot = config.values();
    let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let changes = config.set(&[change("maxclients", "5"), change("timeout", "7")], false).unwrap();
    assert_eq!((snapshot[keys::MAXCLIENTS], snapshot[keys::TIMEOUT]), (10000, Duration::ZERO));
    let now = config.values();
    assert_eq!((now[keys::MAXCLIENTS], now[keys::TIMEOUT]), (5, Duration::from_secs(7)));
    assert!(changes.contains(keys::TIMEOUT) && !changes.contains(keys::PORT));
    assert_eq!(changes.previous_values()[keys::MAXCLIENTS], 10000);
}

#[test]
fn default_can_depend_on_machine() {
    let mut config = Config::default();
    config.set_default(keys::IO_THREADS, 8);
    assert!(config.get(keys::IO_THREADS) == 8 && config.is_default(keys::IO_THREADS));
    config.set_value(keys::IO_THREADS, 4);
    assert!(config.get(keys::IO_THREADS) == 4 && !config.is_default(keys::IO_THREADS));
}

#[test]
fn config_set_is_atomic() {
    let config = Config::default();
    let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let failed = config.set(&[change("maxclients", "5"), change("timeout", "x")], false);
    assert_eq!(failed.unwrap_err().0, "timeout");
    assert_eq!(config.get(keys::MAXCLIENTS), 10000);
    let both = [change("port", "1"), change("slave-priority", "7"), change("timeout", "0")];
    let changes = config.set(&both, false).unwrap();
    assert_eq!(changes.names().collect::<Vec<_>>(), ["port", "replica-priority"]);
    assert_eq!(config.get(keys::REPLICA_PRIORITY), 7);
    // A change that was made after the reverted one stays in force.
    config.set(&[change("hz", "50")], false).unwrap();
    config.revert(&changes);
    assert_eq!((config.get(keys::PORT), config.get(keys::REPLICA_PRIORITY)), (6379, 100));
    assert_eq!(config.get(keys::HZ), 50);
}

#[test]
fn former_names_of_renamed_parameters_still_work() {
    let config = Config::default();
    for (former, name) in [
        ("cluster-refused-timeout", "cluster-connect-refused-timeout"),
        ("stale-master-timeout", "empty-master-timeout"),
    ] {
        let set = |name: &str, value: &str| config.set(&[(name.to_owned(), value.to_owned())], false);
        let changes = set(former, "1234").unwrap();
        assert_eq!(changes.names().collect::<Vec<_>>(), [name]);
        let get = |name: &str| {
            let all = config.visible_parameters();
            all.into_iter().find(|(shown, _)| *shown == name).map(|(_, value)| value)
        };
        assert_eq!((get(former), get(name)), (Some("1234".to_owned()), Some("1234".to_owned())));
        set(name, "0").unwrap();
        assert_eq!((get(former), get(name)), (Some("0".to_owned()), Some("0".to_owned())));
    }
}

#[test]
fn protected_parameters_require_trust() {
    let config = Config::default();
    let set = |name: &str, value: &str, trusted| {
        config.set(&[(name.to_owned(), value.to_owned())], trusted).map(|_| ()).map_err(|(_, error)| error)
    };
    assert_eq!(set("databases", "3", true), Err(SetError::Immutable));
    assert_eq!(set("dir", "/", false), Err(SetError::Protected));
    assert!(set("dir", "/", true).is_ok());
    assert_eq!(set("nonsense", "3", true), Err(SetError::UnknownParameter));
    assert!(set("tls-auth-clients-user", "URI", true).is_ok());
    assert_eq!(set("replicaof", "127.0.0.1 7000", true), Err(SetError::Immutable));
    assert_eq!(set("slaveof", "127.0.0.1 7000", true), Err(SetError::Immutable));
}

/// Test suites and operators set some parameters that CONFIG GET does not list.
#[test]
fn hidden_parameters_are_settable_but_not_listed() {
    let config = Config::default();
    let hidden: Vec<_> = PARAMETERS.iter().filter(|row| row.hidden).map(|row| row.name).collect();
    assert!(hidden.contains(&"enable-debug-assert") && hidden.contains(&"cluster-ping-interval"));
    let listed = config.visible_parameters();
    for name in hidden {
        assert!(listed.iter().all(|(shown, _)| *shown != name), "{name}");
        assert_eq!(config.find_hidden_parameter(name).map(|(name, _)| name), Some(name));
    }
    let change = ("Cluster-Ping-Interval".to_owned(), "500".to_owned());
    assert_eq!(config.set(&[change], false).map(|changes| changes.names().count()), Ok(1));
    assert_eq!(
        config.find_hidden_parameter("CLUSTER-PING-INTERVAL"),
        Some(("cluster-ping-interval", "500".to_owned()))
    );
    assert_eq!(
        config.find_hidden_parameter("lua-enable-deprecated-api"),
        Some(("lua-enable-deprecated-api", "no".to_owned()))
    );
    assert_eq!(config.find_hidden_parameter("maxmemory"), None);
}

/// As in Redis 8.10.2, CONFIG SET validates the result of all its changes, whatever their order.
#[test]
fn protected_bus_requires_certificates() {
    let config = Config::default();
    let set = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        config.set(&pairs, false).map(drop).map_err(|(name, _)| name)
    };
    let (protected, tls) = ("cluster-bus-port-protected-mode", "tls-cluster");
    assert!(!config.get(keys::CLUSTER_BUS_PORT_PROTECTED_MODE));
    // Without cluster mode there is no cluster bus, so the check does not apply.
    assert_eq!(set(&[(protected, "yes")]), Ok(()));
    assert_eq!(set(&[(protected, "no")]), Ok(()));
    config.load("cluster-enabled", &["yes".to_owned()]).unwrap();
    assert_eq!(set(&[(protected, "yes")]), Err(protected.to_owned()));
    assert_eq!(set(&[(protected, "yes"), (tls, "yes")]), Ok(()));
    assert_eq!(set(&[(tls, "no")]), Err(tls.to_owned()));
    assert_eq!(set(&[(tls, "no"), (protected, "no")]), Ok(()));
}
