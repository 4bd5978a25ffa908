//! Queries sentinels for the facts that the checks need.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use redis::{Connection, ConnectionInfo};

use super::super::nodes::{ServerFacts, connect_with_timeout, query_server, with_address};
use super::{MasterView, SentinelFacts};

/// Queries the sentinel at `info`, whose common facts are in `node`, and all sentinels that it knows.
///
/// # Errors
/// The first sentinel cannot be queried.
pub(in crate::doctor) fn query_all_sentinels(
    info: &ConnectionInfo,
    node: ServerFacts,
) -> Result<Vec<SentinelFacts>> {
    let mut connection = connect_with_timeout(info)?;
    let first = query_sentinel(&mut connection, node)?;
    let mut addresses = BTreeSet::new();
    for watched in &first.masters {
        addresses.extend(query_peers(&mut connection, &watched.name)?);
    }
    let mut sentinels = vec![first];
    for address in addresses {
        let asked = with_address(info, &address).and_then(|info| {
            let node = query_server(&info, &address)?;
            query_sentinel(&mut connect_with_timeout(&info)?, node)
        });
        sentinels.push(asked.unwrap_or_else(|error| SentinelFacts {
            node: ServerFacts {
                address,
                connect_error: Some(crate::error_text(&error)),
                ..ServerFacts::default()
            },
            ..SentinelFacts::default()
        }));
    }
    Ok(sentinels)
}

/// Adds the facts that only sentinels have.
fn query_sentinel(connection: &mut Connection, node: ServerFacts) -> Result<SentinelFacts> {
    let replies: Vec<BTreeMap<String, String>> =
        redis::cmd("SENTINEL").arg("MASTERS").query(connection).context("SENTINEL MASTERS")?;
    let mut masters = Vec::new();
    for reply in replies {
        let watched = parse_master(&reply);
        let answer: Result<String, _> =
            redis::cmd("SENTINEL").arg("CKQUORUM").arg(&watched.name).query(connection);
        masters.push(MasterView { quorum_error: answer.err().map(|error| error.to_string()), ..watched });
    }
    // This command is harmless: sentinels write their configuration whenever their state changes.
    let written: Result<String, _> = redis::cmd("SENTINEL").arg("FLUSHCONFIG").query(connection);
    Ok(SentinelFacts { node, write_error: written.err().map(|error| error.to_string()), masters })
}

/// Returns the addresses of the other sentinels that monitor this master.
fn query_peers(connection: &mut Connection, master: &str) -> Result<Vec<String>> {
    let replies: Vec<BTreeMap<String, String>> =
        redis::cmd("SENTINEL").arg("SENTINELS").arg(master).query(connection)?;
    Ok(replies.iter().map(format_address).collect())
}

fn format_address(reply: &BTreeMap<String, String>) -> String {
    format!("{}:{}", field_text(reply, "ip"), field_text(reply, "port"))
}

fn field_text<'a>(reply: &'a BTreeMap<String, String>, name: &str) -> &'a str {
    reply.get(name).map_or("", String::as_str)
}

/// Parses a master in the reply of SENTINEL MASTERS.
pub(super) fn parse_master(reply: &BTreeMap<String, String>) -> MasterView {
    let number = |name: &str| field_text(reply, name).parse().unwrap_or(0);
    MasterView {
        name: field_text(reply, "name").to_owned(),
        address: format_address(reply),
        flags: field_text(reply, "flags").split(',').map(str::to_owned).collect(),
        required_quorum: number("quorum"),
        sentinel_count: number("num-other-sentinels") + 1,
        replica_count: number("num-slaves"),
        quorum_error: None,
    }
}
