//! Carrying parameters to where they are read: once at the start, and again when CONFIG SET changes them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::log;
use crate::server::Server;

/// Brings everything that reads a parameter up to date with the configuration.
pub(crate) fn apply(server: &Server) {
    let (config, settings) = (&server.config, &server.engine.settings);
    log::set_level(&config.text("loglevel"));
    settings.proto_max_bulk_len.store(config.integer("proto-max-bulk-len"), Ordering::Relaxed);
    settings
        .cluster_allow_reads_when_down
        .store(config.switch("cluster-allow-reads-when-down"), Ordering::Relaxed);
    server.replication.apply_config(server);
    let password = config.text("requirepass");
    settings.password.store(Arc::new((!password.is_empty()).then(|| password.into_bytes())));
    let query = usize::try_from(config.integer("client-query-buffer-limit")).unwrap_or(usize::MAX);
    server.limits.query_buffer.store(query, Ordering::Relaxed);
    let (hard, _, _) = config.output_limit("normal");
    server.limits.output_buffer.store(hard, Ordering::Relaxed);
    if let Some(cluster) = server.cluster.get() {
        cluster.configure();
    }
}
