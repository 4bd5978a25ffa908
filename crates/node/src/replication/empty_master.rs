//! Runs [`replication::EmptyMaster`]: records the replicas of a master that sentinels watch, and makes a master that
//! restarted without its data wait until a replica is promoted.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use config::{Config, MasterAddress, keys};
use gossip::ReplicaAdmission;
use process::paths;
use replication::{EmptyMaster, RecordedReplicas, ReplicaRecorder};

use super::Replication;

impl Replication {
    /// Called after startup. A master that had replicas and now has no keys waits until one of them is promoted.
    pub(crate) fn start_empty_master_wait(&self) {
        let timeout = empty_master_timeout(&self.config);
        let keyspace = &self.engine.keyspace;
        let has_keys = || (0..keyspace.database_count()).any(|db| !keyspace.is_empty(db));
        if self.engine.topology.is_some() || self.is_replica() || timeout.is_zero() || has_keys() {
            return;
        }
        let Ok(text) = std::fs::read_to_string(replica_list_path(&self.config)) else { return };
        let followers = RecordedReplicas::parse(&text);
        tracing::warn!(
            "Started without data, and {} replicas had the history {}: neither serving nor letting anybody copy until \
             sentinels have promoted one of them, for {} ms at most",
            followers.replicas.len(),
            followers.history,
            timeout.as_millis()
        );
        let waiting = EmptyMaster::new(followers, process::time::monotonic_now(), timeout);
        *self.empty_master.lock() = Some(waiting);
        self.replica_admission.store(Arc::new(ReplicaAdmission::None));
        self.engine.settings.sentinel.rejects_sentinel_pings.store(true, Ordering::Relaxed);
        self.update_gates();
    }

    /// Ends the wait and serves clients without data, because an operator or a sentinel has ordered that.
    pub(crate) fn serve_as_empty_master(&self) {
        self.was_promoted.store(true, Ordering::Relaxed);
        if self.stop_empty_wait() {
            tracing::warn!("Serving without the data that there was (user request)");
            self.update_gates();
        }
    }

    /// Ends the wait. Returns false if this master was not waiting. The caller publishes the role.
    pub(super) fn stop_empty_wait(&self) -> bool {
        let was = self.empty_master.lock().take().is_some();
        if was {
            self.replica_admission.store(Arc::new(ReplicaAdmission::All));
            self.engine.settings.sentinel.rejects_sentinel_pings.store(false, Ordering::Relaxed);
        }
        was
    }

    fn check_empty_master(&self, hello_payload: Option<&[u8]>) {
        let watched = &self.engine.settings.sentinel;
        let mut empty = self.empty_master.lock();
        let Some(waiting) = empty.as_mut() else { return };
        let values = self.config.values();
        let announced = values[keys::REPLICA_ANNOUNCE_PORT].unwrap_or(0);
        let ports = [values[keys::PORT], values[keys::TLS_PORT], announced];
        let ports: Vec<u16> = ports.into_iter().filter(|port| *port != 0).collect();
        if let Some(greeting) = hello_payload
            && waiting.on_hello(greeting, &ports)
        {
            tracing::info!("Sentinels have another master: waiting to be told to follow it");
        }
        watched.rejects_sentinel_pings.store(waiting.is_down_to_sentinels(), Ordering::Relaxed);
        if waiting.has_timed_out(process::time::monotonic_now()) {
            drop(empty);
            tracing::warn!(
                "No replica has taken over within empty-master-timeout: serving without the data that there was"
            );
            self.stop_empty_wait();
            self.update_gates();
        }
    }

    /// Returns the replicas to record; `None` for a replica, in cluster mode, and if no sentinel watches this server.
    /// `was_watched` says whether sentinels watched this server before its restart.
    fn replicas_to_record(&self, was_watched: bool) -> Option<Vec<(String, u16)>> {
        let watched = was_watched || self.engine.settings.sentinel.hello_seen.load(Ordering::Relaxed);
        if !watched || self.engine.topology.is_some() || self.is_replica() {
            return None;
        }
        let named = |(MasterAddress { host, port }, _)| (host, port);
        let mut all: Vec<_> = self.list_replicas().into_iter().map(named).collect();
        all.sort();
        Some(all)
    }
}

/// Records the replicas at every housekeeping tick and whenever a replica connects, so that a new replica is recorded
/// before it has much data to lose. Runs until the server stops.
pub(crate) async fn run_replica_recorder(replication: Arc<Replication>) {
    let mut kept = std::fs::read_to_string(replica_list_path(&replication.config)).ok();
    let replicas = kept.as_deref().map(|text| RecordedReplicas::parse(text).replicas);
    let mut keeping = ReplicaRecorder::at_startup(process::time::monotonic_now(), replicas);
    loop {
        tokio::select! {
            () = replication.tick.wait_for_tick() => {}
            () = replication.replica_connected.notified() => {}
        }
        let greeting = replication.engine.settings.sentinel.last_hello.swap(None);
        let greeting = greeting.as_deref().map(Vec::as_slice);
        if replication.was_promoted.swap(false, Ordering::Relaxed) {
            keeping.on_promoted();
        }
        replication.check_empty_master(greeting);
        greeting.into_iter().for_each(|greeting| keeping.on_hello(greeting));
        if replication.empty_master.lock().is_some() {
            continue;
        }
        let (now, timeout) = (process::time::monotonic_now(), empty_master_timeout(&replication.config));
        let replicas = keeping
            .update_recorded_replicas(now, replication.replicas_to_record(kept.is_some()), timeout)
            .map(<[_]>::to_vec);
        let history = replication.log.lock().position().id;
        let own = keeping.own_address().cloned();
        let text =
            replicas.map(|replicas| RecordedReplicas { history, own_address: own, replicas }.to_file_text());
        if text == kept {
            continue;
        }
        kept.clone_from(&text);
        let path = replica_list_path(&replication.config);
        let written = tokio::task::spawn_blocking(move || store_replica_list(&path, text.as_deref())).await;
        if let Ok(Err(error)) = written {
            tracing::warn!("Cannot note who follows this master: {error}");
        }
    }
}

fn empty_master_timeout(config: &Config) -> Duration {
    config.get(keys::EMPTY_MASTER_TIMEOUT)
}

/// Returns the path of the recorded replica list. It contains the port, since several servers may share a directory.
fn replica_list_path(config: &Config) -> PathBuf {
    let ports = [keys::PORT, keys::TLS_PORT].map(|key| config.get(key));
    let port = ports.into_iter().find(|port| *port != 0).unwrap_or(0);
    format!("followers-{port}.conf").into()
}

/// Writes and syncs the replica list file, or removes it if `text` is `None`.
fn store_replica_list(path: &Path, text: Option<&str>) -> std::io::Result<()> {
    match text {
        Some(text) => {
            let mut file = paths::create_temporary_file("temp-followers-", ".conf")?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path)?;
        }
        None => match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        },
    }
    std::fs::File::open(".")?.sync_all()
}
