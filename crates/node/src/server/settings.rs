//! Carrying parameters to where they are read: once at the start, and again when CONFIG SET changes them.

use std::sync::Arc;

use crate::housekeeping::cron;
use crate::server::Server;
use config::{Changes, keys};
use process::{file_limit, log, places};

/// As many addresses can be listened at, as in Redis.
const MOST_ADDRESSES: usize = 16;

/// Brings everything that reads a parameter up to date with the configuration.
pub(crate) fn apply(server: &Server) {
    let values = server.config.values();
    log::set_level(values[keys::LOGLEVEL]);
    log::set_format(&values);
    server.engine.configure(&values);
    server.engine.set_usage_of_new(process::time::now());
    server.engine.adopt_usage_kind(process::time::now());
    server.door.limits.configure(&values);
    server.replication.apply_config();
    durability::saving::update_gate(&server.durability);
    if let Some(cluster) = &server.cluster {
        cluster.configure();
    }
    server.durability.append_only.configure();
    cron::check_memory(&server.housekeeping);
}

/// CONFIG SET: sees to it that changed parameters take effect. An error names the parameter that cannot be had.
pub(crate) async fn change(server: &Arc<Server>, changes: &Changes) -> Result<(), (&'static str, String)> {
    if changes.has(keys::BIND) && server.config.values()[keys::BIND].len() > MOST_ADDRESSES {
        return Err((keys::BIND.name(), "Too many bind addresses specified.".to_owned()));
    }
    if changes.has(keys::MAXCLIENTS) {
        file_limit::make_room(&server.config).map_err(|reason| (keys::MAXCLIENTS.name(), reason))?;
    }
    if changes.has(keys::DIR) {
        places::go_to_dir(&server.config).map_err(|error| (keys::DIR.name(), text_of(&error)))?;
    }
    if let Some(name) = changes.names().find(|name| name.starts_with("tls-")) {
        server.door.tls.load(&server.config).map_err(|reason| {
            tracing::warn!("Unable to update TLS configuration: {reason}");
            (name, "Unable to update TLS configuration. Check server logs.".to_owned())
        })?;
    }
    if changes.has(keys::BIND) || changes.has(keys::PORT) || changes.has(keys::TLS_PORT) {
        listen(server, changes).await?;
    }
    if changes.has(keys::IO_THREADS) {
        let count = server.config.get(keys::IO_THREADS);
        let spawned = server.door.crew.set_serving(count);
        spawned.map_err(|error| (keys::IO_THREADS.name(), text_of(&error)))?;
    }
    if changes.has(keys::APPENDONLY) {
        switch_append_only(server).await.map_err(|reason| (keys::APPENDONLY.name(), reason))?;
    }
    if changes.has(keys::REQUIREPASS) {
        let password = server.config.get(keys::REQUIREPASS).unwrap_or_default();
        server.engine.change_users(|users| users.set_default_password(password.as_bytes()));
    }
    apply(server);
    for warning in config::warnings(&server.config) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Listens where the configuration says now, or again where it said before.
async fn listen(server: &Arc<Server>, changes: &Changes) -> Result<(), (&'static str, String)> {
    let now = server.config.values().clone();
    let Err(error) = server.door.listen_tcp(&now).await else { return Ok(()) };
    tracing::warn!("{error:#}");
    if let Err(error) = server.door.listen_tcp(changes.before()).await {
        tracing::warn!("{error:#}");
    }
    if changes.has(keys::DIR) {
        // It was there a moment ago; if it is not, every path is still whole but for those that are not.
        let _ = std::env::set_current_dir(&*changes.before()[keys::DIR]);
    }
    let port = [keys::PORT, keys::TLS_PORT].into_iter().find(|port| changes.has(*port));
    Err(match port {
        Some(port) => (port.name(), "Unable to listen on this port. Check server logs.".to_owned()),
        None => (keys::BIND.name(), "Failed to bind to specified addresses.".to_owned()),
    })
}

/// Begins an append-only file with the data as it is now, or ends it.
async fn switch_append_only(server: &Arc<Server>) -> Result<(), String> {
    let shared = server.durability.append_only.clone();
    if server.config.get(keys::APPENDONLY) {
        return shared.switch_on().map_err(|error| format!("Unable to turn on AOF: {error:#}"));
    }
    // Not on this worker: what is written is brought to the disk first.
    tokio::task::spawn_blocking(move || shared.stop()).await.map_err(|error| error.to_string())
}

/// An error of the system without its number.
fn text_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
