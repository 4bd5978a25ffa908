//! Queries sentinels.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use redis::{Connection, ConnectionInfo};

use super::super::nodes::{Node, ask_at, at, connect};
use super::{Sentinel, Watched};

/// Queries the sentinel at `info`, whose common facts are in `node`, and all sentinels that it knows.
///
/// # Errors
/// The first sentinel cannot be queried.
pub(in crate::doctor) fn gather(info: &ConnectionInfo, node: Node) -> Result<Vec<Sentinel>> {
    let mut connection = connect(info)?;
    let first = complete(&mut connection, node)?;
    let mut addresses = BTreeSet::new();
    for watched in &first.masters {
        addresses.extend(peers(&mut connection, &watched.name)?);
    }
    let mut sentinels = vec![first];
    for address in addresses {
        let asked = at(info, &address).and_then(|info| {
            let node = ask_at(&info, &address)?;
            complete(&mut connect(&info)?, node)
        });
        sentinels.push(asked.unwrap_or_else(|error| Sentinel {
            node: Node { address, refusal: Some(crate::error_text(&error)), ..Node::default() },
            ..Sentinel::default()
        }));
    }
    Ok(sentinels)
}

/// Adds the facts that only sentinels have.
fn complete(connection: &mut Connection, node: Node) -> Result<Sentinel> {
    let replies: Vec<BTreeMap<String, String>> =
        redis::cmd("SENTINEL").arg("MASTERS").query(connection).context("SENTINEL MASTERS")?;
    let mut masters = Vec::new();
    for reply in replies {
        let watched = watched(&reply);
        let answer: Result<String, _> =
            redis::cmd("SENTINEL").arg("CKQUORUM").arg(&watched.name).query(connection);
        masters.push(Watched { hindrance: answer.err().map(|error| error.to_string()), ..watched });
    }
    // Harmless: sentinels write their configuration whenever their state changes.
    let written: Result<String, _> = redis::cmd("SENTINEL").arg("FLUSHCONFIG").query(connection);
    Ok(Sentinel { node, write_refusal: written.err().map(|error| error.to_string()), masters })
}

/// The addresses of the other sentinels of this master.
fn peers(connection: &mut Connection, master: &str) -> Result<Vec<String>> {
    let replies: Vec<BTreeMap<String, String>> =
        redis::cmd("SENTINEL").arg("SENTINELS").arg(master).query(connection)?;
    Ok(replies.iter().map(address).collect())
}

fn address(reply: &BTreeMap<String, String>) -> String {
    format!("{}:{}", text(reply, "ip"), text(reply, "port"))
}

fn text<'a>(reply: &'a BTreeMap<String, String>, name: &str) -> &'a str {
    reply.get(name).map_or("", String::as_str)
}

/// Parses a master in the reply of SENTINEL MASTERS.
pub(super) fn watched(reply: &BTreeMap<String, String>) -> Watched {
    let number = |name: &str| text(reply, name).parse().unwrap_or(0);
    Watched {
        name: text(reply, "name").to_owned(),
        address: address(reply),
        flags: text(reply, "flags").split(',').map(str::to_owned).collect(),
        quorum: number("quorum"),
        sentinels: number("num-other-sentinels") + 1,
        replicas: number("num-slaves"),
        hindrance: None,
    }
}
