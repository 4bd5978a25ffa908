//! The commands of atomic slot migration: CLUSTER MIGRATESLOTS, CANCELSLOTMIGRATIONS, GETSLOTMIGRATIONS, SYNCSLOTS and
//! MIGRATION.

use clock::Millis;
use migration::{
    JobDirection, JobName, MigrationJob, MigrationMessage, MigrationProgress, SyncSlotsCommand,
    SyncSlotsError, parse_slot_moves, parse_slot_ranges,
};
use process::time;
use resp::{Args, Writer};
use slot_routing::NodeId;

use crate::connection::Connection;
use crate::migration::PullTask;
use crate::server::Server;

#[derive(Debug, Clone, Copy)]
pub(super) enum MigrationCommand {
    Begin,
    Cancel,
    List,
    Pull,
    Sync,
}

/// Returns the error reply to CLUSTER SETSLOT if this node must refuse that command now.
pub(super) fn setslot_conflict(server: &Server) -> Option<&'static str> {
    match () {
        () if server.replication.is_replica() => Some("ERR Please use SETSLOT only with masters."),
        () if server.migrations.is_active(JobDirection::Export) => Some("ERR Slot export in progress."),
        () if server.migrations.is_active(JobDirection::Import) => Some("ERR Slot import in progress."),
        () => None,
    }
}

/// Executes the commands of atomic slot migration except SYNCSLOTS, which needs the connection ([`execute_syncslots`]).
pub(super) fn execute_migration_command(
    server: &Server,
    command: MigrationCommand,
    args: Args<'_>,
    reply: &mut Writer<'_>,
) {
    match command {
        MigrationCommand::Begin => match start_migrations(server, args) {
            Ok(()) => reply.ok(),
            Err(text) => reply.error(&text),
        },
        MigrationCommand::Cancel if server.migrations.cancel_exports() => reply.ok(),
        MigrationCommand::Cancel => reply.error("ERR No migrations ongoing"),
        MigrationCommand::List => {
            let mut jobs = server.migrations.list_jobs();
            jobs.extend(server.replication.master_imports.list());
            jobs.sort_by_key(|job| std::cmp::Reverse(job.created_at));
            reply.array(jobs.len());
            jobs.iter().for_each(|job| write_job(job, reply));
        }
        MigrationCommand::Pull => execute_cluster_migration(server, args, reply),
        MigrationCommand::Sync => reply.error("ERR syntax error"),
    }
}

/// Returns the arguments from index `from` on. Each one is truncated at its first NUL, because valkey-cli 9.1 sends one
/// after SLOTSRANGE.
fn arguments_from(args: Args<'_>, from: usize) -> Vec<String> {
    let until_nul = |word: &[u8]| word.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    args.iter().skip(from).map(|word| String::from_utf8_lossy(&until_nul(word)).into_owned()).collect()
}

fn start_migrations(server: &Server, args: Args<'_>) -> Result<(), String> {
    if server.replication.is_replica() {
        return Err("ERR Slot migration can only be used on primary nodes.".to_owned());
    }
    let check = server.migrations.request_checks()?;
    let orders =
        parse_slot_moves(&arguments_from(args, 2), &check).map_err(|error| format!("ERR {error}"))?;
    server.migrations.begin_exports(orders)
}

/// Executes CLUSTER MIGRATION, as in Redis 8.4.
fn execute_cluster_migration(server: &Server, args: Args<'_>, reply: &mut Writer<'_>) {
    const WRONG_ARITY_ERROR: &str = "ERR wrong number of arguments for 'cluster|migration' command";
    let is = |index: usize, word: &str| {
        args.get(index).is_some_and(|name| name.eq_ignore_ascii_case(word.as_bytes()))
    };
    if is(2, "import") {
        let words = arguments_from(args, 3);
        if !words.len().is_multiple_of(2) {
            return reply.error(WRONG_ARITY_ERROR);
        }
        let begun = parse_slot_ranges(&words).map_err(|error| format!("ERR {error}"));
        return match begun.and_then(|ranges| server.migrations.request_slots(ranges)) {
            Ok(name) => reply.bulk(name.as_str().as_bytes()),
            Err(text) => reply.error(&text),
        };
    }
    let (cancels, shows) = (is(2, "cancel"), is(2, "status"));
    let name = match (is(3, "id"), is(3, "all")) {
        _ if !cancels && !shows => return reply.error("ERR unknown argument"),
        (true, _) if args.len() == 5 => JobName::from_bytes(args.get(4).unwrap_or_default()).map(Some),
        (_, true) if args.len() == 4 => Some(None),
        (false, false) if args.len() <= 5 => return reply.error("ERR unknown argument"),
        _ => return reply.error(WRONG_ARITY_ERROR),
    };
    match name {
        Some(name) if cancels => reply.integer(server.migrations.cancel_pulls(name) as i64),
        None if cancels => reply.integer(0),
        None => reply.array(0),
        Some(name) => {
            let tasks = server.migrations.list_pull_tasks(name);
            reply.array(tasks.len());
            tasks.iter().for_each(|task| write_pull_task(task, reply));
        }
    }
}

fn write_pull_task(task: &PullTask, reply: &mut Writer<'_>) {
    let id = |end: Option<NodeId>| end.map(|id| id.to_string()).unwrap_or_default();
    let (source, dest) = (id(task.endpoints.map(|ends| ends.0)), id(task.endpoints.map(|ends| ends.1)));
    let operation = if task.is_import { "import" } else { "migrate" };
    reply.map(12 + EXTRA_PROGRESS_FIELD_COUNT);
    for (name, text) in [
        ("id", task.id.as_str()),
        ("slots", &task.slots),
        ("source", &source),
        ("dest", &dest),
        ("operation", operation),
        ("state", task.state),
        ("last_error", &task.last_error),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    for (name, number) in [
        ("retries", i64::from(task.retries)),
        ("create_time", task.created_at.0),
        ("start_time", task.started_at.0),
        ("end_time", task.ended_at.0),
        ("write_pause_ms", task.pause_millis),
    ] {
        reply.bulk(name.as_bytes());
        reply.integer(number);
    }
    let ended = (task.ended_at != Millis(0)).then_some(task.ended_at);
    write_progress(&task.progress, task.started_at, ended, reply);
}

/// The number of fields in the reply that neither Redis nor Valkey has.
const EXTRA_PROGRESS_FIELD_COUNT: usize = 5;

/// Writes the progress of a job. Unknown values are written as -1.
fn write_progress(
    progress: &MigrationProgress,
    started_at: Millis,
    ended_at: Option<Millis>,
    reply: &mut Writer<'_>,
) {
    let now = time::now();
    let left = if ended_at.is_some() { Some(0) } else { progress.remaining_ms(started_at, now) };
    let known = |number: Option<u64>| number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX));
    for (name, number) in [
        ("keys_total", progress.total_keys),
        ("keys_moved", progress.transferred_keys),
        ("bytes_moved", Some(progress.transferred_bytes)),
        ("bytes_per_sec", Some(progress.bytes_per_sec(started_at, ended_at.unwrap_or(now)))),
        ("left_ms", left),
    ] {
        reply.bulk(name.as_bytes());
        reply.integer(known(number));
    }
}

fn write_job(job: &MigrationJob, reply: &mut Writer<'_>) {
    reply.map(if job.source_and_target.is_some() { 12 + EXTRA_PROGRESS_FIELD_COUNT } else { 10 });
    let mut text = |name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    text("name", job.name.as_str());
    text("operation", if job.direction == JobDirection::Export { "EXPORT" } else { "IMPORT" });
    text("slot_ranges", &job.ranges_text());
    if let Some((source, target)) = job.source_and_target {
        text("target_node", &target.to_string());
        text("source_node", &source.to_string());
    }
    for (name, at) in [
        ("create_time", job.created_at),
        ("last_update_time", job.updated_at),
        ("last_ack_time", job.last_heard_at),
    ] {
        reply.bulk(name.as_bytes());
        reply.integer(at.secs());
    }
    let mut text = |name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    text("state", job.state_name);
    text("message", &job.error);
    // Snapshots are taken without fork, so copy-on-write costs no memory.
    reply.bulk(b"cow_size");
    reply.integer(0);
    reply.bulk(b"remaining_repl_size");
    reply.integer(i64::try_from(job.progress.remaining_bytes).unwrap_or(i64::MAX));
    // Only the node that runs the job knows its progress; a replica of that node does not.
    if job.source_and_target.is_some() {
        let ended = (!job.is_active).then_some(job.updated_at);
        write_progress(&job.progress, job.created_at, ended, reply);
    }
}

/// Executes CLUSTER SYNCSLOTS from another node. After ESTABLISH and RESUME the migration thread owns the connection.
pub(super) fn execute_syncslots(connection: &mut Connection, args: Args<'_>) {
    if let Err(text) = run_sync_slots(connection, args) {
        connection.reply().error(&text);
    }
}

fn run_sync_slots(connection: &mut Connection, args: Args<'_>) -> Result<(), String> {
    let server = connection.server.clone();
    match SyncSlotsCommand::parse(&arguments_from(args, 2)).map_err(|error| format!("ERR {error}"))? {
        SyncSlotsCommand::QueryResumable => connection.reply().ok(),
        SyncSlotsCommand::Request(name, order) => {
            server.migrations.begin_requested_export(name, order)?;
            connection.reply().ok();
        }
        SyncSlotsCommand::Resume(name) if server.migrations.is_resumable(&name) => {
            resume_sync(connection, &name);
        }
        SyncSlotsCommand::Resume(_) => return Err(format!("ERR {}", SyncSlotsError::Resume)),
        SyncSlotsCommand::Establish(import) => {
            server.migrations.accept_import(&import)?;
            let given = connection.detach();
            connection.session.close_after_reply();
            server.migrations.begin_import(import, given);
        }
        SyncSlotsCommand::Message(message) => return Err(migration_only_error(message)),
        SyncSlotsCommand::AppliedBytes(_) => return Err(migration_only_error(MigrationMessage::Ack)),
        SyncSlotsCommand::Finish(_) => return Err("ERR syntax error".to_owned()),
    }
    Ok(())
}

fn migration_only_error(message: MigrationMessage) -> String {
    format!("ERR CLUSTER SYNCSLOTS {} should only be used by slot migration clients", message.wire_name())
}

fn resume_sync(connection: &mut Connection, name: &JobName) {
    let given = connection.detach();
    connection.session.close_after_reply();
    match given {
        Ok(given) => connection.server.migrations.resume_import(name, given),
        Err(error) => tracing::warn!("The link of a slot migration was lost on its way: {error}"),
    }
}
