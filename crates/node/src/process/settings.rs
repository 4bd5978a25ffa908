//! Carrying parameters to where they are read: once at the start, and again when CONFIG SET changes them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Engine, Gate, Lazy, Settings};
use keyspace::{Bounds, Limits, ListLimit, NodeBounds, SetBounds};
use slot_routing::EndpointKind;

use crate::net::listener::Ports;
use crate::net::worker;
use crate::process::{cron, log, places};
use crate::server::Server;
use config::Config;

/// What a server needs besides its clients: listeners, logs, snapshots, links.
pub(crate) const RESERVED_FILES: u64 = 32;

/// As many addresses can be listened at, as in Redis.
const MOST_ADDRESSES: usize = 16;

/// Brings everything that reads a parameter up to date with the configuration.
pub(crate) fn apply(server: &Server) {
    let config = &server.config;
    log::set_level(&config.text("loglevel"));
    apply_to_commands(config, &server.engine.settings);
    apply_to_logs(config, &server.engine);
    apply_to_clients(config, server);
    apply_to_memory(config, &server.engine);
    server.replication.apply_config();
    crate::durability::saving::update_gate(&server.durability);
    if let Some(cluster) = server.cluster.get() {
        cluster.configure();
    }
    server.durability.append_only.configure();
    cron::check_memory(&server.housekeeping);
}

/// What commands go by.
fn apply_to_commands(config: &Config, settings: &Settings) {
    settings.proto_max_bulk_len.store(config.integer("proto-max-bulk-len"), Ordering::Relaxed);
    settings.flush_async.store(config.switch("lazyfree-lazy-user-flush"), Ordering::Relaxed);
    settings
        .cluster_allow_reads_when_down
        .store(config.switch("cluster-allow-reads-when-down"), Ordering::Relaxed);
    settings
        .cluster_allow_pubsubshard_when_down
        .store(config.switch("cluster-allow-pubsubshard-when-down"), Ordering::Relaxed);
    settings.set_endpoint(EndpointKind::of_word(&config.text("cluster-preferred-endpoint-type")));
    let events = engine::Class::of_letters(&config.text("notify-keyspace-events"));
    settings.set_notified(events.unwrap_or_default());
    settings.busy_reply_threshold.store(config.integer("busy-reply-threshold"), Ordering::Relaxed);
    settings.lua_deprecated_api.store(config.switch("lua-enable-insecure-api"), Ordering::Relaxed);
    settings.debug_command.set(&config.text("enable-debug-command"));
    settings.module_command.set(&config.text("enable-module-command"));
    settings.protected_configs.set(&config.text("enable-protected-configs"));
    settings.set_limits(&limits(config));
    settings.hll_sparse_bytes.store(size(config, "hll-sparse-max-bytes"), Ordering::Relaxed);
}

/// What is kept of commands that were slow, large or refused.
fn apply_to_logs(config: &Config, engine: &Engine) {
    engine.settings.latency_tracking.store(config.switch("latency-tracking"), Ordering::Relaxed);
    engine.latency.configure(config.integer("latency-monitor-threshold").unsigned_abs());
    let logs = &engine.logs;
    for (log, threshold, len) in [
        (&logs.slow, "slowlog-log-slower-than", "slowlog-max-len"),
        (&logs.large_request, "commandlog-request-larger-than", "commandlog-large-request-max-len"),
        (&logs.large_reply, "commandlog-reply-larger-than", "commandlog-large-reply-max-len"),
    ] {
        log.configure(config.integer(threshold), size(config, len));
    }
    engine.acl_log.lock().set_length(size(config, "acllog-max-len"));
}

/// How many clients there may be, and what they may do and take.
fn apply_to_clients(config: &Config, server: &Server) {
    let engine = &server.engine;
    let open_channels = config.text("acl-pubsub-default") == "allchannels";
    engine.users.write().set_open_channels(open_channels);
    let limits = &server.door.limits;
    server.engine.settings.availability_zone.store(std::sync::Arc::new(config.text("availability-zone")));
    limits.query_buffer.store(size(config, "client-query-buffer-limit"), Ordering::Relaxed);
    limits.clients.store(size(config, "maxclients"), Ordering::Relaxed);
    limits.clients_memory.store(clients_memory(config), Ordering::Relaxed);
    for (limit, class) in limits.output.iter().zip(["normal", "slave", "pubsub"]) {
        let (hard, soft, seconds) = config.output_limit(class);
        limit.hard.store(hard, Ordering::Relaxed);
        limit.soft.store(soft, Ordering::Relaxed);
        limit.seconds.store(seconds, Ordering::Relaxed);
    }
    engine.tracking.max_keys.store(size(config, "tracking-table-max-keys"), Ordering::Relaxed);
    let (published, ..) = config.output_limit("pubsub");
    engine.tracking.output_limit.store(published, Ordering::Relaxed);
    engine.pubsub.output_limit.store(published, Ordering::Relaxed);
    engine.monitors.output_limit.store(config.output_limit("normal").0, Ordering::Relaxed);
    engine.settings.set_gate(Gate::IMPORTING, config.switch("import-mode"));
}

/// What the data may take, and what goes when it takes more.
fn apply_to_memory(config: &Config, engine: &Engine) {
    let settings = &engine.settings;
    let number = |name: &str| u32::try_from(config.integer(name)).unwrap_or(u32::MAX);
    settings.lfu_log_factor.store(number("lfu-log-factor"), Ordering::Relaxed);
    settings.lfu_decay_minutes.store(number("lfu-decay-time"), Ordering::Relaxed);
    settings.set_evicting(
        &config.text("maxmemory-policy"),
        size(config, "maxmemory-samples"),
        number("maxmemory-eviction-tenacity"),
        config.switch("replica-ignore-maxmemory"),
    );
    let reasons = [
        ("lazyfree-lazy-expire", Lazy::EXPIRE),
        ("lazyfree-lazy-eviction", Lazy::EVICTION),
        ("lazyfree-lazy-server-del", Lazy::SERVER_DEL),
        ("lazyfree-lazy-user-del", Lazy::USER_DEL),
    ];
    let lazy = reasons.into_iter().filter(|(name, _)| config.switch(name)).map(|(_, reason)| reason);
    settings.set_lazy(lazy.collect());
    cron::tell_new_keys(engine);
    engine.limit_memory(size(config, "maxmemory"));
}

/// Up to where each kind of collection is called small.
fn limits(config: &Config) -> Limits {
    let bounds = |entries, value| Bounds { entries: size(config, entries), value: size(config, value) };
    Limits {
        list: ListLimit(i32::try_from(config.integer("list-max-listpack-size")).unwrap_or(i32::MAX)),
        set: SetBounds {
            intset: size(config, "set-max-intset-entries"),
            listpack: bounds("set-max-listpack-entries", "set-max-listpack-value"),
        },
        sorted_set: bounds("zset-max-listpack-entries", "zset-max-listpack-value"),
        hash: bounds("hash-max-listpack-entries", "hash-max-listpack-value"),
        stream: NodeBounds {
            bytes: size(config, "stream-node-max-bytes"),
            entries: size(config, "stream-node-max-entries"),
        },
    }
}

/// `maxmemory-clients`, which may be a part of `maxmemory`.
fn clients_memory(config: &Config) -> usize {
    let text = config.text("maxmemory-clients");
    match text.strip_suffix('%') {
        Some(percent) => size(config, "maxmemory") / 100 * percent.parse::<usize>().unwrap_or(0),
        None => text.parse().unwrap_or(0),
    }
}

fn size(config: &Config, name: &str) -> usize {
    usize::try_from(config.integer(name)).unwrap_or(usize::MAX)
}

/// CONFIG SET: sees to it that changed parameters take effect. `before` has them with their former values.
/// An error names the parameter that cannot be had.
pub(crate) async fn change(
    server: &Arc<Server>,
    before: &[(&'static str, String)],
) -> Result<(), (&'static str, String)> {
    let changed = |name: &str| before.iter().find(|(changed, _)| *changed == name);
    if changed("bind").is_some() && server.config.text("bind").split(' ').count() > MOST_ADDRESSES {
        return Err(("bind", "Too many bind addresses specified.".to_owned()));
    }
    if changed("maxclients").is_some() {
        make_room(&server.config).map_err(|reason| ("maxclients", reason))?;
    }
    if changed("dir").is_some() {
        places::go_to_dir(&server.config).map_err(|error| ("dir", text_of(&error)))?;
    }
    if let Some((name, _)) = before.iter().find(|(name, _)| name.starts_with("tls-")) {
        server.door.tls.load(&server.config).map_err(|reason| {
            tracing::warn!("Unable to update TLS configuration: {reason}");
            (*name, "Unable to update TLS configuration. Check server logs.".to_owned())
        })?;
    }
    if ["bind", "port", "tls-port"].iter().any(|name| changed(name).is_some()) {
        listen_anew(server, before).await?;
    }
    if changed("io-threads").is_some() {
        let count = size(&server.config, "io-threads");
        let spawned = server.door.listeners.set_serving(count, |number| worker::spawn(server, number));
        spawned.map_err(|error| ("io-threads", text_of(&error)))?;
    }
    if changed("appendonly").is_some() {
        switch_append_only(server).await.map_err(|reason| ("appendonly", reason))?;
    }
    if changed("requirepass").is_some() {
        let password = server.config.text("requirepass");
        server.engine.change_users(|users| users.set_default_password(password.as_bytes()));
    }
    apply(server);
    for warning in config::warnings(&server.config) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Listens where the configuration now says, or else where it said before.
async fn listen_anew(
    server: &Arc<Server>,
    before: &[(&'static str, String)],
) -> Result<(), (&'static str, String)> {
    let changed = |name: &str| before.iter().find(|(changed, _)| *changed == name);
    let (bind, port, tls_port) = (changed("bind"), changed("port"), changed("tls-port"));
    let now = (server.config.text("bind"), Ports::of(&server.config));
    if let Err(error) = server.door.listen_tcp(&now.0, now.1).await {
        tracing::warn!("{error:#}");
        let old_bind = bind.map_or(now.0, |(_, old)| old.clone());
        let old = |port: Option<&(_, String)>, now| port.and_then(|(_, old)| old.parse().ok()).unwrap_or(now);
        let old_ports = Ports { plain: old(port, now.1.plain), tls: old(tls_port, now.1.tls) };
        if let Err(error) = server.door.listen_tcp(&old_bind, old_ports).await {
            tracing::warn!("{error:#}");
        }
        if let Some((_, old)) = changed("dir") {
            // It was there a moment ago; if it is not, every path is still whole but for those that are not.
            let _ = std::env::set_current_dir(old);
        }
        return Err(match port.or(tls_port) {
            Some((name, _)) => (*name, "Unable to listen on this port. Check server logs.".to_owned()),
            None => ("bind", "Failed to bind to specified addresses.".to_owned()),
        });
    }
    Ok(())
}

/// Begins an append-only file with the data as it is now, or ends it.
async fn switch_append_only(server: &Arc<Server>) -> Result<(), String> {
    let shared = server.durability.append_only.clone();
    if server.config.switch("appendonly") {
        return shared.switch_on().map_err(|error| format!("Unable to turn on AOF: {error:#}"));
    }
    // Not on this worker: what is written is brought to the disk first.
    tokio::task::spawn_blocking(move || shared.stop()).await.map_err(|error| error.to_string())
}

/// Asks the system for as many open files as `maxclients` needs.
fn make_room(config: &Config) -> Result<(), String> {
    let clients = u64::try_from(config.integer("maxclients")).unwrap_or(u64::MAX);
    let wanted = clients.saturating_add(RESERVED_FILES);
    let granted = rlimit::increase_nofile_limit(wanted).unwrap_or(0);
    if granted >= wanted {
        return Ok(());
    }
    let possible = granted.saturating_sub(RESERVED_FILES);
    Err(format!(
        "The operating system is not able to handle the specified number of clients, try with {possible}"
    ))
}

/// An error of the system without its number.
fn text_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
