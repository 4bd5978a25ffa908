//! MIGRATESLOTS, CANCELSLOTMIGRATIONS, GETSLOTMIGRATIONS and SYNCSLOTS: slots that move in one piece.

use migration::{Job, Operation, parse_establish, parse_orders};
use resp::{Args, Writer};

use crate::connection::Connection;
use crate::server::Server;

/// The commands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Move {
    Begin,
    Cancel,
    List,
    Sync,
}

/// Why SETSLOT may not change anything now.
pub(super) fn keeps_from_setslot(server: &Server) -> Option<&'static str> {
    match () {
        () if server.migrations.is_active(Operation::Export) => Some("ERR Slot export in progress."),
        () if server.migrations.is_active(Operation::Import) => Some("ERR Slot import in progress."),
        () => None,
    }
}

/// Answers all but SYNCSLOTS.
pub(super) fn answer(server: &Server, step: Move, args: Args<'_>, reply: &mut Writer<'_>) {
    match step {
        Move::Begin => match begin(server, args) {
            Ok(()) => reply.ok(),
            Err(text) => reply.error(&text),
        },
        Move::Cancel if server.migrations.cancel_exports() => reply.ok(),
        Move::Cancel => reply.error("ERR No migrations ongoing"),
        Move::List => {
            let mut jobs = server.migrations.list();
            jobs.extend(server.replication.master_imports.list());
            jobs.sort_by_key(|job| std::cmp::Reverse(job.created));
            reply.array(jobs.len());
            jobs.iter().for_each(|job| show(job, reply));
        }
        Move::Sync => reply.error("ERR syntax error"),
    }
}

/// The words from this one on, each up to its first NUL: valkey-cli 9.1 sends one behind SLOTSRANGE.
fn words(args: Args<'_>, from: usize) -> Vec<String> {
    let until_nul = |word: &[u8]| word.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    args.iter().skip(from).map(|word| String::from_utf8_lossy(&until_nul(word)).into_owned()).collect()
}

fn begin(server: &Server, args: Args<'_>) -> Result<(), String> {
    if server.replication.is_replica() {
        return Err("ERR Slot migration can only be used on primary nodes.".to_owned());
    }
    let orders = parse_orders(&words(args, 2)).map_err(|error| format!("ERR {error}"))?;
    server.migrations.begin_exports(orders)
}

fn show(job: &Job, reply: &mut Writer<'_>) {
    reply.map(if job.ends.is_some() { 12 } else { 10 });
    let mut text = |name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    text("name", job.name.as_str());
    text("operation", if job.operation == Operation::Export { "EXPORT" } else { "IMPORT" });
    text("slot_ranges", &job.ranges_text());
    if let Some((source, target)) = job.ends {
        text("target_node", &target.to_string());
        text("source_node", &source.to_string());
    }
    for (name, at) in
        [("create_time", job.created), ("last_update_time", job.updated), ("last_ack_time", job.heard)]
    {
        reply.bulk(name.as_bytes());
        reply.integer(at.secs());
    }
    let mut text = |name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    text("state", job.state);
    text("message", &job.message);
    // Nothing is copied for a snapshot.
    reply.bulk(b"cow_size");
    reply.integer(0);
    reply.bulk(b"remaining_repl_size");
    reply.integer(i64::try_from(job.remaining).unwrap_or(i64::MAX));
}

/// CLUSTER SYNCSLOTS ESTABLISH: the connection leaves for the thread of the jobs, where the rest is heard.
pub(super) fn sync(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    if !args.get(2).is_some_and(|word| word.eq_ignore_ascii_case(b"establish")) {
        let word = args.get(2).map(String::from_utf8_lossy).unwrap_or_default().to_uppercase();
        let text = match migration::Message::parse(word.as_bytes()) {
            Some(_) => {
                format!("ERR CLUSTER SYNCSLOTS {word} should only be used by slot migration clients")
            }
            None => "ERR syntax error".to_owned(),
        };
        return connection.reply().error(&text);
    }
    let Some(import) = parse_establish(&words(args, 3)) else {
        return connection.reply().error("ERR syntax error");
    };
    if let Err(text) = server.migrations.accept_import(&import) {
        return connection.reply().error(&text);
    }
    let given = connection.hand_over();
    connection.session.closing = true;
    server.migrations.begin_import(import, given);
}
