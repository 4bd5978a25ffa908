//! Applies parameters to the components that read them, at startup and after CONFIG SET.

use std::sync::Arc;

use crate::housekeeping::cron;
use crate::server::Server;
use config::{ChangedParameters, keys};
use durability::append_only;
use net::tls::PreviousTls;
use process::{file_limit, log, paths, title};

/// The maximum number of addresses in `bind`, as in Redis.
const MAX_BIND_ADDRESSES: usize = 16;

/// Applies the current configuration to all components.
pub(crate) fn apply_settings(server: &Server) {
    let values = server.config.values();
    log::set_level(values[keys::LOGLEVEL]);
    log::set_format(&values);
    server.engine.configure(&values);
    server.engine.set_initial_usage(process::time::now());
    server.engine.reset_usage_after_kind_change(process::time::now());
    server.network.limits.configure(&values);
    server.replication.apply_config();
    durability::saving::update_write_gate(&server.durability);
    if let Some(cluster) = &server.cluster {
        cluster.notify_config_change();
    }
    server.migrations.trim_finished_jobs();
    server.durability.append_only.configure();
    cron::check_memory(&server.housekeeping);
}

/// The error of a CONFIG SET that failed and changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigSetError {
    /// The parameter that could not be applied.
    pub(crate) parameter: &'static str,
    pub(crate) reason: String,
}

impl ConfigSetError {
    fn new(parameter: &'static str, reason: impl Into<String>) -> Self {
        Self { parameter, reason: reason.into() }
    }
}

/// A completed step of CONFIG SET, which is undone if a later step fails.
enum CompletedStep {
    Directory,
    Tls(PreviousTls),
    Listeners,
    AppendOnly,
}

/// Applies changed parameters, either all of them or none. The configuration already has the new values. After an error
/// the caller restores the old values.
pub(crate) async fn apply_changes(
    server: &Arc<Server>,
    changes: &ChangedParameters,
) -> Result<(), ConfigSetError> {
    let mut done = Vec::new();
    if let Err(refusal) = apply_fallible_steps(server, changes, &mut done).await {
        tracing::warn!(
            "Failed applying new configuration. Possibly related to new {} setting. Restoring previous settings.",
            refusal.parameter
        );
        server.config.revert(changes);
        for step in done.into_iter().rev() {
            undo_step(server, changes, step).await;
        }
        return Err(refusal);
    }
    if changes.contains(keys::AOF_DISABLE_AUTO_GC) {
        let append_only = server.durability.append_only.clone();
        let collected = tokio::task::spawn_blocking(move || append_only.delete_kept_history()).await;
        if let Ok(Err(error)) = collected {
            tracing::warn!("History files of the AOF are left behind: {error:#}");
        }
    }
    if changes.contains(keys::REQUIREPASS) {
        let password = server.config.get(keys::REQUIREPASS).unwrap_or_default();
        server.engine.access.change_users(|users| users.set_default_password(password.as_bytes()));
    }
    apply_settings(server);
    title::update_process_title(&server.config, server.identity.config_file.as_deref());
    for warning in config::unsupported_warnings(&server.config) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Performs the steps that can fail, and records the completed ones.
async fn apply_fallible_steps(
    server: &Arc<Server>,
    changes: &ChangedParameters,
    completed: &mut Vec<CompletedStep>,
) -> Result<(), ConfigSetError> {
    if changes.contains(keys::BIND) && server.config.values()[keys::BIND].len() > MAX_BIND_ADDRESSES {
        return Err(ConfigSetError::new(keys::BIND.name(), "Too many bind addresses specified."));
    }
    if changes.contains(keys::MAXCLIENTS) {
        file_limit::raise_for_config_set(&server.config)
            .map_err(|reason| ConfigSetError::new(keys::MAXCLIENTS.name(), reason))?;
    }
    if changes.contains(keys::DIR) {
        paths::change_to_dir(&server.config)
            .map_err(|error| ConfigSetError::new(keys::DIR.name(), format_system_error(&error)))?;
        completed.push(CompletedStep::Directory);
    }
    if let Some(name) = changes.names().find(|name| name.starts_with("tls-")) {
        let replaced = server.network.tls.replace(&server.config).map_err(|reason| {
            tracing::warn!("Unable to update TLS configuration: {reason}");
            ConfigSetError::new(name, "Unable to update TLS configuration. Check server logs.")
        })?;
        completed.push(CompletedStep::Tls(replaced));
    }
    if changes.contains(keys::BIND) || changes.contains(keys::PORT) || changes.contains(keys::TLS_PORT) {
        // The old listeners are closed first, so they must be restored even if the new ones cannot be opened.
        completed.push(CompletedStep::Listeners);
        open_listeners(server, changes).await?;
    }
    if changes.contains(keys::APPENDONLY) {
        switch_append_only(server)
            .await
            .map_err(|reason| ConfigSetError::new(keys::APPENDONLY.name(), reason))?;
        completed.push(CompletedStep::AppendOnly);
    }
    // This step comes last and is never undone, because worker threads that serve clients cannot be removed again.
    if changes.contains(keys::IO_THREADS) {
        let count = server.config.get(keys::IO_THREADS);
        let spawned = server.network.worker_pool.set_active_workers(count);
        spawned.map_err(|error| ConfigSetError::new(keys::IO_THREADS.name(), format_system_error(&error)))?;
    }
    Ok(())
}

/// Undoes a step, after the configuration has got its old values back.
async fn undo_step(server: &Arc<Server>, changes: &ChangedParameters, step: CompletedStep) {
    let undone = match step {
        CompletedStep::Directory => {
            paths::change_to_dir(&server.config).map_err(|error| format_system_error(&error))
        }
        CompletedStep::Tls(replaced) => {
            server.network.tls.restore(replaced);
            Ok(())
        }
        CompletedStep::Listeners => {
            server.network.listen_tcp(changes.previous_values()).await.map_err(|error| format!("{error:#}"))
        }
        CompletedStep::AppendOnly => switch_append_only(server).await,
    };
    if let Err(error) = undone {
        tracing::warn!("Failed restoring previous settings: {error}");
    }
}

async fn open_listeners(server: &Arc<Server>, changes: &ChangedParameters) -> Result<(), ConfigSetError> {
    let now = server.config.values().clone();
    let Err(error) = server.network.listen_tcp(&now).await else { return Ok(()) };
    tracing::warn!("{error:#}");
    let port = [keys::PORT, keys::TLS_PORT].into_iter().find(|port| changes.contains(*port));
    Err(match port {
        Some(port) => ConfigSetError::new(port.name(), "Unable to listen on this port. Check server logs."),
        None => ConfigSetError::new(keys::BIND.name(), "Failed to bind to specified addresses."),
    })
}

/// Creates an append-only file with the current data, or closes the existing one, as `appendonly` requires.
async fn switch_append_only(server: &Arc<Server>) -> Result<(), String> {
    let durability = server.durability.clone();
    let turns_on = server.config.get(keys::APPENDONLY);
    // Runs on a blocking thread, since both operations wait for the disk.
    let switched = tokio::task::spawn_blocking(move || {
        if turns_on {
            return append_only::enable(&durability);
        }
        durability.append_only.disable();
        Ok(())
    });
    switched.await.map_err(|error| error.to_string())?.map_err(|error| {
        tracing::warn!("The server needs to enable the AOF but can't: {error:#}");
        "Unable to turn on AOF. Check server logs.".to_owned()
    })
}

/// Formats a system error without the error number that Rust appends.
fn format_system_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
