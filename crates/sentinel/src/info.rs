//! Parses the replies of monitored servers to INFO.

use crate::addr::{Addr, is_host};

/// Maximum length in bytes of an INFO reply that is stored. A normal reply has a few kilobytes; a longer one is
/// truncated.
const MAX_INFO_BYTES: usize = 64 * 1024;
/// Maximum number of replicas that are read from one INFO reply.
const MAX_REPLICAS: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Master,
    Replica,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Replica => "slave",
        }
    }
}

/// The fields of INFO that a sentinel uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct InfoReport {
    pub(crate) run_id: Option<String>,
    pub(crate) role: Option<Role>,
    /// The replicas that are connected to the server, if it is a master.
    pub(crate) replicas: Vec<Addr>,
    pub(crate) master_host: Option<String>,
    pub(crate) master_port: Option<u16>,
    pub(crate) is_link_up: Option<bool>,
    pub(crate) link_down_secs: Option<u64>,
    pub(crate) priority: Option<u32>,
    pub(crate) offset: Option<u64>,
    pub(crate) is_announced: Option<bool>,
    /// The replication ids of the server, without those that are all zeros.
    pub(crate) replication_ids: Vec<String>,
    pub(crate) has_keys: bool,
}

/// Returns the text that SENTINEL INFO-CACHE shows, at most [`MAX_INFO_BYTES`] bytes of the reply.
pub(crate) fn truncate_text(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(MAX_INFO_BYTES)]).into_owned()
}

/// Parses an INFO reply; unknown lines are ignored.
pub(crate) fn parse(text: &str) -> InfoReport {
    let mut report = InfoReport::default();
    for line in text.lines() {
        let Some((field, value)) = line.split_once(':') else { continue };
        match field {
            "run_id" if value.len() == 40 && value.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                report.run_id = Some(value.to_owned());
            }
            "master_replid" | "master_replid2" if is_replication_id_set(value) => {
                report.replication_ids.push(value.to_owned());
            }
            "role" => {
                report.role = match value {
                    "master" => Some(Role::Master),
                    "slave" => Some(Role::Replica),
                    _ => None,
                }
            }
            "master_host" if is_host(value) => report.master_host = Some(value.to_owned()),
            "master_port" => report.master_port = value.parse().ok(),
            "master_link_status" => report.is_link_up = Some(value == "up"),
            "master_link_down_since_seconds" => {
                report.link_down_secs = value.parse::<i64>().ok().map(|secs| secs.max(0) as u64);
            }
            "slave_priority" => report.priority = value.parse().ok(),
            "slave_repl_offset" => report.offset = value.parse().ok(),
            "replica_announced" => report.is_announced = Some(value != "0"),
            _ if is_database(field) => report.has_keys |= !value.starts_with("keys=0,"),
            _ if field.starts_with("slave") && report.replicas.len() < MAX_REPLICAS => {
                report.replicas.extend(parse_replica_line(field, value));
            }
            _ => {}
        }
    }
    report
}

/// Returns whether a replication id is set. Redis shows an unset id as zeros.
fn is_replication_id_set(id: &str) -> bool {
    id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && id.bytes().any(|byte| byte != b'0')
}

/// Whether the field starts a database line such as `db0:keys=1,expires=0`.
fn is_database(field: &str) -> bool {
    field.strip_prefix("db").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Parses the address in `slave0:ip=127.0.0.1,port=6380,...` or, from old servers, `slave0:127.0.0.1,6380,...`.
fn parse_replica_line(field: &str, value: &str) -> Option<Addr> {
    if !field["slave".len()..].bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let named = |key: &str| value.split(',').find_map(|part| part.strip_prefix(key));
    let (host, port) = if value.starts_with("ip=") {
        (named("ip=")?, named("port=")?)
    } else {
        let mut parts = value.split(',');
        (parts.next()?, parts.next()?)
    };
    let port = port.parse().ok().filter(|&port| port != 0)?;
    is_host(host).then(|| Addr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_of_a_master_lists_its_replicas() {
        let text = "# Server\r\nrun_id:ee04819195dcbeead59ef7a62ca4ee2996888de0\r\n# Replication\r\nrole:master\r\n\
            connected_slaves:2\r\nslave0:ip=127.0.0.1,port=6380,state=online,offset=14,lag=0\r\n\
            slave1:10.0.0.2,6381,online\r\nslave2:ip=,port=1\r\nslave_x:ip=1.2.3.4,port=1\r\nslave3:ip=1.1.1.1,port=0\r\n";
        let report = parse(text);
        assert_eq!(report.role, Some(Role::Master));
        assert_eq!(report.run_id.as_deref(), Some("ee04819195dcbeead59ef7a62ca4ee2996888de0"));
        assert_eq!(report.replicas, [Addr::new("127.0.0.1", 6380), Addr::new("10.0.0.2", 6381)]);
    }

    #[test]
    fn info_of_a_replica_has_its_link_state() {
        let report = parse(
            "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nmaster_link_status:down\n\
             master_link_down_since_seconds:-1\nslave_priority:0\nslave_repl_offset:42\nreplica_announced:0\n",
        );
        let expected = InfoReport {
            role: Some(Role::Replica),
            master_host: Some("10.0.0.1".into()),
            master_port: Some(6379),
            is_link_up: Some(false),
            link_down_secs: Some(0),
            priority: Some(0),
            offset: Some(42),
            is_announced: Some(false),
            ..InfoReport::default()
        };
        assert_eq!(report, expected);
    }

    #[test]
    fn info_has_the_replication_history_and_keys() {
        let (id, none) = ("ab".repeat(20), "0".repeat(40));
        let report = parse(&format!("master_replid:{id}\nmaster_replid2:{none}\ndb0:keys=0,expires=0\n"));
        assert_eq!((report.replication_ids, report.has_keys), (vec![id.clone()], false));
        let report = parse(&format!("master_replid:{none}\nmaster_replid2:{id}\ndb3:keys=1,expires=0\n"));
        assert_eq!((report.replication_ids, report.has_keys), (vec![id], true));
    }

    #[test]
    fn malformed_info_lines_are_ignored() {
        assert_eq!(parse("role:king\nmaster_port:x\nrun_id:short\n:::\nslave0:\n"), InfoReport::default());
    }
}
