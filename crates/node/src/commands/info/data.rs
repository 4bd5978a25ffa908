//! INFO about the data: the sections Persistence, Replication and Keyspace.

use std::sync::atomic::Ordering;

use engine::Gate;
use slot_routing::Slot;

use super::Text;
use crate::server::Server;

pub(super) fn persistence(server: &Server, text: &mut Text) {
    let workers = server.engine.worker_stats();
    let changes: u64 = workers.iter().map(|worker| worker.changes.load(Ordering::Relaxed)).sum();
    text.line("loading", u8::from(server.engine.settings.gate().contains(Gate::LOADING)));
    text.line("rdb_changes_since_last_save", changes);
    text.line("aof_enabled", 0);
}

pub(super) fn replication(server: &Server, text: &mut Text) {
    crate::replication::info(server, text.raw());
}

pub(super) fn keyspace(server: &Server, text: &mut Text) {
    let keyspace = &server.engine.keyspace;
    let databases = usize::from(keyspace.databases());
    let mut counts = vec![(0usize, 0usize); databases];
    for slot in Slot::all() {
        for (db, table) in keyspace.lock(slot).tables() {
            let (keys, volatile) = &mut counts[usize::from(db)];
            *keys += table.len();
            *volatile += table.volatile_len();
        }
    }
    for (db, (keys, volatile)) in counts.into_iter().enumerate().filter(|(_, (keys, _))| *keys > 0) {
        text.line(&format!("db{db}"), format!("keys={keys},expires={volatile},avg_ttl=0"));
    }
}
