//! DEBUG commands about the process, its files and its links.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clock::Millis;
use config::RewriteExtent;
use durability::append_only::{self, UnfinishedAofPolicy};
use durability::saving::{self, ReloadOptions, ShutdownSave};
use engine::{ClientKind, DebugCommand, PauseMode, PausePurpose};
use gossip::LinkId;
use process::time;
use resp::Args;
use rustix::process::{Signal, getpid, kill_process};
use slot_routing::NodeId;
use tikv_jemalloc_ctl::{arenas, background_thread, epoch, max_background_threads, stats, version};

use super::ShellResult;
use crate::cluster::BusFaults;
use crate::connection::Connection;
use crate::replication::ReplicationEvent;
use crate::server::{Server, shutdown};

/// How often the fatal signal is sent again. The first signal may only reset the handler.
const SIGNAL_RETRY_INTERVAL: Duration = Duration::from_millis(10);

pub(super) async fn run_debug(connection: &mut Connection, command: DebugCommand, args: Args<'_>) {
    let server = connection.server.clone();
    let outcome = match command {
        DebugCommand::AofFlushSleep => {
            let micros = resp::parse_i64(&args[2]).and_then(|micros| u64::try_from(micros).ok());
            server.durability.append_only.flush_sleep_micros.store(micros.unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }
        DebugCommand::ChangeReplId => {
            server.replication.change_replication_id();
            Ok(())
        }
        DebugCommand::ClientEviction => return write_client_eviction(connection),
        DebugCommand::ClusterLink => kill_links(&server, args).await,
        DebugCommand::CloseLinkOnDrop | DebugCommand::DisableReconnection | DebugCommand::DropPackets => {
            inject_bus_faults(&server, command, args).await
        }
        DebugCommand::ConfigRewriteForceAll => super::config::rewrite_config(&server, RewriteExtent::All)
            .map_err(|_| "ERR CONFIG-REWRITE-FORCE-ALL failed".to_owned()),
        DebugCommand::CrashAndRecover => restart_server(&server, args, false).await,
        DebugCommand::Restart => restart_server(&server, args, true).await,
        DebugCommand::FailTlsWrites => {
            net::tls::FORCE_WRITE_ERRORS.store(&args[2] == b"1", Ordering::Relaxed);
            Ok(())
        }
        DebugCommand::LoadAof => reload_aof(&server).await,
        DebugCommand::Log => {
            tracing::warn!("DEBUG LOG: {}", escape_line_breaks(&args[2]));
            Ok(())
        }
        DebugCommand::Mallctl => return run_mallctl(connection, args),
        DebugCommand::MallctlStr => return run_mallctl_str(connection, args),
        DebugCommand::PauseCron => {
            server.housekeeping.is_cron_paused.store(&args[2] == b"1", Ordering::Relaxed);
            Ok(())
        }
        DebugCommand::Reload => reload_dataset(&server, args).await,
        DebugCommand::Segfault => raise_segfault(),
        DebugCommand::Sleep => debug_sleep(&server, args).await,
    };
    match outcome {
        Ok(()) => connection.reply().ok(),
        Err(text) => connection.reply().error(&text),
    }
}

fn escape_line_breaks(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { line.extend(letter.escape_default()) } else { line.push(letter) }
    }
    line
}

/// Executes DEBUG SLEEP seconds: suspends clients, the bus and the replication links.
async fn debug_sleep(server: &Server, args: Args<'_>) -> ShellResult {
    let seconds = args.get(2).and_then(|text| std::str::from_utf8(text).ok()?.parse::<f64>().ok());
    let duration = Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default();
    if duration.is_zero() {
        return Ok(());
    }
    let (pauses, settings) = (&server.engine.scheduling.pauses, &server.engine.settings);
    let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let until = Millis(time::now().0.saturating_add(millis));
    pauses.pause(settings, PausePurpose::Sleep, PauseMode::All, until);
    server.housekeeping.sleep_request.request_sleep(duration);
    server.replication.send_event(ReplicationEvent::Sleep(duration));
    tokio::time::sleep(duration).await;
    pauses.end_expired(settings, time::now());
    Ok(())
}

/// Executes DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]. If a key exists both in memory and in the file, Redis exits
/// without MERGE; here the value in the file wins.
async fn reload_dataset(server: &Arc<Server>, args: Args<'_>) -> ShellResult {
    let mut how = ReloadOptions { saves_first: true, merges: false };
    for word in args.iter().skip(2) {
        match word.to_ascii_lowercase().as_slice() {
            b"nosave" => how.saves_first = false,
            b"noflush" => how.merges = true,
            b"merge" => {}
            _ => {
                return Err(
                    "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.".to_owned()
                );
            }
        }
    }
    let (durability, replication) = (server.durability.clone(), server.replication.clone());
    let outcome = tokio::task::spawn_blocking(move || {
        let drop_expired = !replication.is_replica();
        saving::reload(&durability, how, drop_expired, |left_out| replication.log_skipped_keys(left_out))
    })
    .await;
    match outcome {
        Ok(Ok(())) => {
            tracing::warn!("DB reloaded by DEBUG RELOAD");
            return Ok(());
        }
        Ok(Err(error)) => tracing::warn!("DEBUG RELOAD: {error}"),
        Err(error) => tracing::warn!("DEBUG RELOAD: {error}"),
    }
    Err("ERR Error trying to load the RDB dump, check server logs.".to_owned())
}

/// Executes DEBUG LOADAOF.
async fn reload_aof(server: &Arc<Server>) -> ShellResult {
    let loading = server.clone();
    let outcome = tokio::task::spawn_blocking(move || append_only::reload(&loading.durability)).await;
    match outcome {
        Ok(Ok(true)) => {
            tracing::warn!("Append Only File loaded by DEBUG LOADAOF");
            return Ok(());
        }
        Ok(Ok(false)) => tracing::warn!("DEBUG LOADAOF: there is no append only file"),
        Ok(Err(error)) => tracing::warn!("DEBUG LOADAOF: {error}"),
        Err(error) => tracing::warn!("DEBUG LOADAOF: {error}"),
    }
    Err("ERR Error trying to load the AOF files, check server logs.".to_owned())
}

/// Executes DEBUG SEGFAULT. Returns only if the signal does not end the process.
fn raise_segfault() -> ShellResult {
    tracing::error!("Redoubt crashed by signal: 11, asked for by DEBUG SEGFAULT");
    loop {
        kill_process(getpid(), Signal::SEGV).map_err(|error| format!("ERR {error}"))?;
        std::thread::sleep(SIGNAL_RETRY_INTERVAL);
    }
}

/// Replaces this process by a new server. DEBUG RESTART [milliseconds] saves the data first, DEBUG CRASH-AND-RECOVER
/// [milliseconds] does not.
async fn restart_server(server: &Arc<Server>, args: Args<'_>, saves_data: bool) -> ShellResult {
    let delay = match args.get(2) {
        None => 0,
        Some(word) => resp::parse_i64(word).unwrap_or(0).max(0).unsigned_abs(),
    };
    if saves_data {
        if server.identity.config_file.is_some() {
            super::config::rewrite_config(server, RewriteExtent::Changed)?;
        }
        server.pause_gate.pause_for_shutdown();
        let saving = server.clone();
        let saved = tokio::task::spawn_blocking(move || {
            saving.engine.wait_for_admitted_commands();
            saving::save_at_shutdown(
                &saving.durability,
                ShutdownSave::AsConfigured,
                UnfinishedAofPolicy::AbortShutdown,
            )
        })
        .await;
        if !matches!(saved, Ok(Ok(()))) {
            server.pause_gate.resume_after_shutdown();
            return Err("ERR failed to restart the server. Check server logs.".to_owned());
        }
    }
    std::thread::sleep(Duration::from_millis(delay));
    tracing::warn!("The server starts anew, asked for by DEBUG");
    let error = shutdown::restart_process(&server.identity);
    tracing::warn!("The server did not start anew: {error}");
    server.pause_gate.resume_after_shutdown();
    Err("ERR failed to restart the server. Check server logs.".to_owned())
}

/// Executes DEBUG CLUSTERLINK KILL to|from|all node-id.
async fn kill_links(server: &Server, args: Args<'_>) -> ShellResult {
    let Some(cluster) = &server.cluster else {
        return Err("ERR Debug option only available for cluster mode enabled setup!".to_owned());
    };
    let which = args[3].to_ascii_lowercase();
    if !args[2].eq_ignore_ascii_case(b"kill") || !matches!(which.as_slice(), b"to" | b"from" | b"all") {
        return Err("ERR unknown subcommand or wrong number of arguments for 'clusterlink'. Try DEBUG HELP."
            .to_owned());
    }
    let name = String::from_utf8_lossy(&args[4]).into_owned();
    let unknown = format!("ERR Unknown node {name}");
    let Ok(node) = name.parse::<NodeId>() else { return Err(unknown) };
    let known = cluster.run_query(move |driver| {
        driver.kill_links(node, |link| match link {
            LinkId::Outbound(_) => which != b"from",
            LinkId::Inbound(_) => which != b"to",
        })
    });
    if known.await.unwrap_or(false) { Ok(()) } else { Err(unknown) }
}

/// Executes DEBUG DROP-CLUSTER-PACKET-FILTER and similar commands. Without a cluster they have no effect.
async fn inject_bus_faults(server: &Server, command: DebugCommand, args: Args<'_>) -> ShellResult {
    let number = resp::parse_i64(&args[2]).ok_or("ERR value is not an integer or out of range")?;
    let change = move |interference: &mut BusFaults| match command {
        DebugCommand::CloseLinkOnDrop => interference.closes_link_on_drop = number == 1,
        DebugCommand::DisableReconnection => interference.suppresses_outgoing_links = number == 1,
        _ => interference.dropped_packet_type = number,
    };
    if let Some(cluster) = &server.cluster {
        cluster.run_query(move |driver| change(&mut driver.bus_faults)).await;
    }
    Ok(())
}

/// Clients are grouped by memory in powers of two from this exponent on, as in Redis.
const MIN_MEMORY_EXPONENT: u32 = 15;
const MAX_MEMORY_EXPONENT: u32 = 33;

/// Replies to DEBUG CLIENT-EVICTION with the clients grouped by memory.
fn write_client_eviction(connection: &mut Connection) {
    let server = connection.server.clone();
    if server.engine.clients.memory_limit().is_none() {
        return connection.reply().error("ERR maxmemory-clients is disabled.");
    }
    let mut pools = [(0_usize, 0_usize); (MAX_MEMORY_EXPONENT - MIN_MEMORY_EXPONENT + 1) as usize];
    for client in server.engine.clients.list() {
        if matches!(client.kind(), ClientKind::Normal | ClientKind::PubSub) {
            let bytes = client.memory_bytes();
            let power = bytes.checked_ilog2().map_or(0, |power| power + 1);
            let pool = &mut pools
                [(power.clamp(MIN_MEMORY_EXPONENT, MAX_MEMORY_EXPONENT) - MIN_MEMORY_EXPONENT) as usize];
            *pool = (pool.0 + bytes, pool.1 + 1);
        }
    }
    let mut text = String::new();
    for (power, (bytes, clients)) in (MIN_MEMORY_EXPONENT..).zip(pools) {
        let least = if power == MIN_MEMORY_EXPONENT { 0 } else { 1_u64 << (power - 1) };
        let range = if power == MAX_MEMORY_EXPONENT {
            format!("{least:>10}+            ")
        } else {
            format!("{least:>10} - {:>10}", (1_u64 << power) - 1)
        };
        let _ = writeln!(text, "bucket {range}: tot-mem: {bytes:>10}, clients: {clients}");
    }
    connection.reply().verbatim(b"txt", text.as_bytes());
}

/// Executes DEBUG MALLCTL name [value] for those jemalloc values that have a safe interface.
fn run_mallctl(connection: &mut Connection, args: Args<'_>) {
    let number = |read: Result<usize, _>| read.ok().and_then(|value: usize| i64::try_from(value).ok());
    let value = args.get(3).map(resp::parse_i64);
    let answer = match (&args[2], value) {
        (b"arenas.narenas", None) => arenas::narenas::read().ok().map(i64::from),
        (b"epoch", _) => epoch::advance().ok().and_then(|now| i64::try_from(now).ok()),
        (b"background_thread", None) => background_thread::read().ok().map(i64::from),
        (b"background_thread", Some(Some(on @ 0..=1))) => {
            background_thread::update(on == 1).ok().map(i64::from)
        }
        (b"max_background_threads", None) => number(max_background_threads::read()),
        (b"stats.active", None) => number(stats::active::read()),
        (b"stats.allocated", None) => number(stats::allocated::read()),
        (b"stats.mapped", None) => number(stats::mapped::read()),
        (b"stats.metadata", None) => number(stats::metadata::read()),
        (b"stats.resident", None) => number(stats::resident::read()),
        (b"stats.retained", None) => number(stats::retained::read()),
        _ => None,
    };
    match answer {
        Some(answer) => connection.reply().integer(answer),
        None => connection.reply().error("ERR No such file or directory"),
    }
}

/// Executes DEBUG MALLCTL-STR name.
fn run_mallctl_str(connection: &mut Connection, args: Args<'_>) {
    match (&args[2], args.len(), version::read()) {
        (b"version", 3, Ok(text)) => connection.reply().bulk(text.as_bytes()),
        _ => connection.reply().error("ERR No such file or directory"),
    }
}
