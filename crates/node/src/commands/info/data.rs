//! INFO about the data: the sections Persistence, Replication and Keyspace.

use slot_routing::Slot;

use super::Text;
use crate::server::Server;

pub(super) fn persistence(server: &Server, text: &mut Text) {
    crate::saving::info(server, text.raw());
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
