//! The commands that need the shell, a file for each family.

mod acl;
mod cluster;
mod config;
mod debug;
mod debugger;
pub(crate) mod info;
mod memory;
mod migrate;
mod replication;
mod saving;
mod transaction;

use engine::{AclCommand, Flags, NodeCommand, Ran};
use resp::{Args, Request};

use crate::net::connection::Connection;
use crate::net::output::Mark;
use crate::net::worker::with_scratch;

pub(crate) use acl::genpass;
pub(crate) use migrate::LinkPool;

/// Carries out a command that the engine handed over and writes its reply.
pub(crate) async fn run(connection: &mut Connection, command: NodeCommand, request: &Request) {
    let mark = connection.output.mark();
    run_counted(connection, command, request.args()).await;
    connection.keep_reply_from(mark);
}

async fn run_counted(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let started = crate::process::time::nanos();
    let mark = connection.output.mark();
    dispatch(connection, command, args).await;
    count(connection, args, crate::process::time::nanos() - started, mark);
}

async fn dispatch(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let server = connection.server.clone();
    let outcome = match command {
        NodeCommand::ConfigSet => config::set(&server, args, connection.session.client.link.local).await,
        NodeCommand::ConfigRewrite => config::rewrite(&server, ::config::Extent::Changed),
        NodeCommand::ConfigResetStat => {
            server.housekeeping.reset_totals();
            Ok(())
        }
        NodeCommand::Debug(command) => return debug::run(connection, command, args).await,
        NodeCommand::Failover => replication::failover(&server, args),
        NodeCommand::ConfigGet => return config::get(&server.config, args, &mut connection.reply()),
        NodeCommand::Acl(AclCommand::GenPass) => return acl::genpass(args, &mut connection.reply()),
        NodeCommand::Acl(AclCommand::Load) => acl::load(&server, &mut connection.session),
        NodeCommand::Acl(AclCommand::Save) => acl::save(&server),
        NodeCommand::DebugScript => return debugger::run(connection, args).await,
        NodeCommand::Exec => return transaction::exec(connection).await,
        NodeCommand::Info => return info::info(&server, args, &mut connection.reply()),
        NodeCommand::Cluster(command) => return cluster::run(connection, command, args).await,
        NodeCommand::MemoryDoctor => {
            return memory::doctor(server.housekeeping.memory.peak(), &mut connection.reply());
        }
        NodeCommand::MemoryMallocStats => return memory::malloc_stats(&mut connection.reply()),
        NodeCommand::MemoryPurge => {
            memory::purge(server.engine.keyspace.clone()).await;
            Ok(())
        }
        NodeCommand::MemoryStats => {
            return memory::stats(&server.housekeeping, &server.engine.keyspace, &mut connection.reply());
        }
        NodeCommand::Migrate => return migrate::migrate(connection, args).await,
        NodeCommand::Psync => return replication::psync(connection, args),
        NodeCommand::Replconf => return replication::replconf(connection, args),
        NodeCommand::Replicaof => {
            let client = connection.session.client.clone();
            return replication::replicaof(&server, &client, args, &mut connection.reply());
        }
        NodeCommand::Role => return crate::replication::role(&server.replication, &mut connection.reply()),
        NodeCommand::Wait => return replication::wait(connection, args).await,
        NodeCommand::WaitAof => return replication::wait_aof(connection, args).await,
        NodeCommand::Save => return saving::save(connection).await,
        NodeCommand::Bgrewriteaof => return saving::bgrewriteaof(connection),
        NodeCommand::Bgsave => return saving::bgsave(connection, args),
        NodeCommand::Lastsave => return connection.reply().integer(server.durability.saving.last_save()),
        NodeCommand::Shutdown => return saving::shutdown(connection, args).await,
    };
    match outcome {
        Ok(()) => connection.reply().ok(),
        Err(text) => connection.reply().error(&text),
    }
}

/// Takes the command into the statistics, as the engine does for its own. The reply is what was written
/// since `mark`.
fn count(connection: &mut Connection, args: Args<'_>, nanos: u64, mark: Mark) {
    let Ok(entry) = connection.server.engine.commands().resolve(args) else { return };
    let reply = connection.output.since(mark);
    let reply_len = reply.len();
    let error = reply.strip_prefix(b"-").map(|text| String::from_utf8_lossy(text).into_owned());
    // The time that a client chose to wait is not the command's.
    let nanos = if entry.command.flags.contains(Flags::BLOCKING) { 0 } else { nanos };
    with_scratch(|scratch| {
        let (stats, ran) = (&scratch.worker.stats, Ran { entry, args, nanos, reply_len });
        connection.server.engine.account(stats, &connection.session, crate::process::time::now(), &ran);
        if let Some(text) = error {
            stats.count_failure(entry.index, &text);
        }
    });
}

/// What a failed command replies; `Ok` is replied as +OK.
type Outcome = Result<(), String>;
