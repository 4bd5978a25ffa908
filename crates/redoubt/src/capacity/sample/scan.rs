//! Scans a server, or all masters of a cluster.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo, Value};

use super::groups::SampledKey;
use super::{SampleOptions, ScanState};
use crate::progress::{ProgressUnit, new_progress_bar};

/// Number of keys whose properties are requested in one round trip.
const KEYS_PER_BATCH: usize = 100;
/// Number of keys between two writes of the state file.
const KEYS_PER_STATE_WRITE: u64 = 10_000;
/// Prefix of a database number in the list of nodes.
const DATABASE_PREFIX: char = '#';

pub(super) fn scan_server(options: &SampleOptions, state: &mut ScanState) -> Result<()> {
    if state.nodes.is_empty() {
        state.nodes = list_nodes(&mut connect_to_node(&options.from, None)?)?
            .into_iter()
            .map(|node| (node, 0))
            .collect();
        let in_cluster = state.nodes.iter().filter(|(node, _)| !node.starts_with(DATABASE_PREFIX));
        state.groups.masters = in_cluster.count() as u64;
    }
    let bar = new_progress_bar(ProgressUnit::Keys, count_keys(options, state)?, options.no_progress);
    bar.set_position(state.groups.key_count());
    while let Some((address, _)) = state.nodes.last().cloned() {
        let mut connection = connect_to_node(&options.from, Some(&address))?;
        scan_node(options, state, &mut connection, &bar)
            .inspect_err(|_| drop(state.write_state_file(options.state.as_deref())))?;
        state.nodes.pop();
        state.write_state_file(options.state.as_deref())?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn count_keys(options: &SampleOptions, state: &ScanState) -> Result<u64> {
    let mut sum = state.groups.key_count();
    for (address, _) in &state.nodes {
        sum += redis::cmd("DBSIZE").query::<u64>(&mut connect_to_node(&options.from, Some(address))?)?;
    }
    Ok(sum)
}

/// Connects to the node at `address`, or to a database (`#3`) of the server in the URL.
fn connect_to_node(url: &str, address: Option<&str>) -> Result<Connection> {
    let mut info = url.into_connection_info().with_context(|| format!("invalid URL: {url}"))?;
    if let Some((host, port)) = address.and_then(|address| address.rsplit_once(':')) {
        let port = port.parse().with_context(|| format!("invalid address: {host}:{port}"))?;
        let ConnectionAddr::Tcp(..) = info.addr() else { bail!("TLS is not supported for clusters") };
        info = info.set_addr(ConnectionAddr::Tcp(host.to_owned(), port));
    }
    let connection = Client::open(info)?.get_connection_with_timeout(Duration::from_secs(10));
    let mut connection =
        connection.with_context(|| format!("Cannot connect to {}", address.unwrap_or(url)))?;
    connection.set_read_timeout(Some(Duration::from_secs(30)))?;
    if let Some(database) = address.and_then(|address| address.strip_prefix(DATABASE_PREFIX)) {
        redis::cmd("SELECT").arg(database).exec(&mut connection)?;
    }
    Ok(connection)
}

/// Returns the addresses of a cluster's masters, or the non-empty databases of a standalone server.
fn list_nodes(connection: &mut Connection) -> Result<Vec<String>> {
    let info: String = redis::cmd("INFO").arg("cluster").query(connection)?;
    if !info.contains("cluster_enabled:1") {
        let info: String = redis::cmd("INFO").arg("keyspace").query(connection)?;
        let numbers = info.lines().filter_map(|line| line.strip_prefix("db")?.split(':').next());
        return Ok(numbers.map(|number| format!("{DATABASE_PREFIX}{number}")).collect());
    }
    let text: String = redis::cmd("CLUSTER").arg("NODES").query(connection)?;
    let masters = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_master = words.get(2)?.split(',').any(|flag| flag == "master") && words.len() > 8;
        let address = words.get(1)?.split(['@', ',']).next()?;
        is_master.then(|| address.to_owned())
    });
    Ok(masters.collect())
}

fn scan_node(
    options: &SampleOptions,
    state: &mut ScanState,
    connection: &mut Connection,
    bar: &ProgressBar,
) -> Result<()> {
    let has_frequencies = redis::cmd("CONFIG")
        .arg("GET")
        .arg("maxmemory-policy")
        .query::<Vec<String>>(connection)
        .is_ok_and(|policy| policy.iter().any(|word| word.ends_with("-lfu")));
    let (started, mut walked, mut written) = (Instant::now(), 0, 0);
    loop {
        let cursor = state.nodes.last().map_or(0, |(_, cursor)| *cursor);
        let (next, keys): (u64, Vec<Vec<u8>>) =
            redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(KEYS_PER_BATCH).query(connection)?;
        add_keys(options, state, connection, &keys, has_frequencies)?;
        walked += keys.len() as u64;
        bar.inc(keys.len() as u64);
        if let Some(node) = state.nodes.last_mut() {
            node.1 = next;
        }
        if next == 0 {
            return Ok(());
        }
        if walked - written >= KEYS_PER_STATE_WRITE {
            state.write_state_file(options.state.as_deref())?;
            written = walked;
        }
        let due = Duration::from_secs_f64(walked as f64 / options.rate.max(1) as f64);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
}

/// Requests the properties of keys and adds the keys that still exist.
fn add_keys(
    options: &SampleOptions,
    state: &mut ScanState,
    connection: &mut Connection,
    keys: &[Vec<u8>],
    has_frequencies: bool,
) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut pipe = redis::pipe();
    for key in keys {
        pipe.cmd("TYPE").arg(key);
        pipe.cmd("MEMORY").arg("USAGE").arg(key);
        pipe.cmd("PTTL").arg(key);
    }
    let answers: Vec<Value> = pipe.query(connection)?;
    let kinds: Vec<String> = answers
        .iter()
        .step_by(3)
        .map(|answer| redis::from_redis_value_ref(answer).unwrap_or_default())
        .collect();
    // A key may have been deleted or have another type by now, so errors are ignored.
    let mut pipe = redis::pipe();
    pipe.ignore_errors();
    for (key, kind) in keys.iter().zip(&kinds) {
        pipe.cmd("OBJECT").arg("ENCODING").arg(key);
        pipe.cmd(length_command(kind)).arg(key);
        // Every key must have the same number of replies, and EXISTS is a cheap command.
        pipe.cmd(if kind == "hash" { "HRANDFIELD" } else { "EXISTS" }).arg(key);
        if has_frequencies {
            pipe.cmd("OBJECT").arg("FREQ").arg(key);
        }
    }
    let more: Vec<Value> = pipe.query(connection)?;
    let each = if has_frequencies { 4 } else { 3 };
    let number = |value: Option<&Value>| {
        if let Some(Value::Int(number)) = value { u64::try_from(*number).ok() } else { None }
    };
    for (index, (key, kind)) in keys.iter().zip(&kinds).enumerate() {
        let Some(bytes) = number(answers.get(index * 3 + 1)) else { continue };
        let encoding: String = more
            .get(index * each)
            .and_then(|value| redis::from_redis_value_ref(value).ok())
            .unwrap_or_default();
        state.groups.add_key(
            options.separator.as_bytes(),
            &SampledKey {
                key,
                kind,
                encoding: &encoding,
                elements: if kind == "string" { 1 } else { number(more.get(index * each + 1)).unwrap_or(0) },
                bytes,
                ttl: number(answers.get(index * 3 + 2)),
                frequency: if has_frequencies { number(more.get(index * each + 3)) } else { None },
                string_bytes: number(more.get(index * each + 1)).filter(|_| kind == "string"),
                field_name_bytes: if let Some(Value::BulkString(name)) = more.get(index * each + 2) {
                    Some(name.len() as u64)
                } else {
                    None
                },
            },
        );
    }
    Ok(())
}

fn length_command(kind: &str) -> &'static str {
    match kind {
        "hash" => "HLEN",
        "list" => "LLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "stream" => "XLEN",
        _ => "STRLEN",
    }
}
