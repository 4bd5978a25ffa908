//! The commands that need the node, one file per family.

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
mod wait;

use std::pin::Pin;

use engine::{
    AclCommand, CommandError, CommandOutcome, Context, ExecutedCommand, Flags, NodeCommand, Shell,
    ShellCommand,
};
use net::output::OutputMark;
use net::scratch::with_scratch;
use resp::{Args, Request};

use crate::connection::Connection;
use crate::server::Server;

/// Executes a command that the engine leaves to the node, and writes its reply.
pub(crate) fn run_command<'a>(
    connection: &'a mut Connection,
    command: NodeCommand,
    request: &'a Request,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(async move {
        let mark = connection.output.mark();
        run_and_record(connection, command, request.args()).await;
        connection.discard_disabled_reply(mark);
    })
}

async fn run_and_record(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let started = process::time::nanos();
    let mark = connection.output.mark();
    dispatch_command(connection, command, args).await;
    record_call(connection, args, process::time::nanos() - started, mark);
}

async fn dispatch_command(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let server = connection.server.clone();
    let outcome = match command {
        NodeCommand::ConfigSet => {
            config::set_parameters(&server, args, connection.session.client().connection.is_local).await
        }
        NodeCommand::Debug(command) => return debug::run_debug(connection, command, args).await,
        NodeCommand::Failover => replication::run_failover(&server, args),
        NodeCommand::DebugScript => return debugger::run_debugger(connection, args).await,
        NodeCommand::Exec => return transaction::run_exec(connection).await,
        NodeCommand::Cluster(command) => {
            return cluster::run_cluster_command(connection, command, args).await;
        }
        NodeCommand::MemoryPurge => {
            memory::purge_memory(server.engine.keyspace.clone()).await;
            Ok(())
        }
        NodeCommand::Migrate => return migrate::run_migrate(connection, args).await,
        NodeCommand::Psync => return replication::run_psync(connection, args),
        NodeCommand::Replconf => return replication::run_replconf(connection, args),
        NodeCommand::Replicaof => {
            let client = connection.session.client().clone();
            return replication::run_replicaof(&server, &client, args, &mut connection.reply());
        }
        NodeCommand::Wait => {
            return wait::run_wait(connection, wait::parse_wait(&server.replication, args)).await;
        }
        NodeCommand::WaitAof => {
            return wait::run_wait(connection, wait::parse_waitaof(&server.replication, args)).await;
        }
        NodeCommand::Save => return saving::run_save(connection).await,
        NodeCommand::Shutdown => return saving::run_shutdown(connection, args).await,
    };
    match outcome {
        Ok(()) => connection.reply().ok(),
        Err(text) => connection.reply().error(&text),
    }
}

impl Server {
    /// Resets the counters outside of the engine (CONFIG RESETSTAT).
    fn reset_statistics(&self) {
        self.housekeeping.reset_totals();
        self.durability.append_only.reset_counts();
        self.durability.rdb_saves.reset_counts();
        if let Some(cluster) = &self.cluster {
            cluster.reset_statistics();
        }
    }
}

impl Shell for Server {
    fn run_command(
        &self,
        command: ShellCommand,
        context: &mut Context<'_>,
    ) -> Result<CommandOutcome, CommandError> {
        let (args, waits) = (context.args, context.can_block());
        let outcome = match command {
            ShellCommand::Acl(AclCommand::Load) => acl::load_acl_file(self, context.session),
            ShellCommand::Acl(AclCommand::Save) => acl::save_acl_file(self),
            ShellCommand::ConfigRewrite => config::rewrite_config(self, ::config::RewriteExtent::Changed),
            ShellCommand::ConfigResetStat => {
                self.reset_statistics();
                Ok(())
            }
            ShellCommand::MemoryPurge if waits => return Ok(CommandOutcome::Defer(NodeCommand::MemoryPurge)),
            ShellCommand::MemoryPurge => memory::purge_in_background(self.engine.keyspace.clone()),
            ShellCommand::Wait if waits => return Ok(CommandOutcome::Defer(NodeCommand::Wait)),
            ShellCommand::WaitAof if waits => return Ok(CommandOutcome::Defer(NodeCommand::WaitAof)),
            ShellCommand::Wait | ShellCommand::WaitAof => {
                let is_wait = matches!(command, ShellCommand::Wait);
                let parse = if is_wait { wait::parse_wait } else { wait::parse_waitaof };
                let wanted = parse(&self.replication, args);
                return to_command_outcome(wait::reply_current_copies(self, context, wanted));
            }
            ShellCommand::Cluster(command) => return cluster::reply_without_waiting(self, command, context),
            ShellCommand::Bgrewriteaof => {
                return to_command_outcome(saving::run_bgrewriteaof(self, &mut context.reply));
            }
            ShellCommand::Bgsave => {
                return to_command_outcome(saving::run_bgsave(self, args, &mut context.reply));
            }
            ShellCommand::Acl(AclCommand::GenPass) => {
                return to_command_outcome(process::access::run_acl_genpass(args, &mut context.reply));
            }
            ShellCommand::ConfigGet => {
                config::get_parameters(&self.config, args, &mut context.reply);
                return Ok(CommandOutcome::Done);
            }
            ShellCommand::Info => {
                info::reply_info(self, context);
                return Ok(CommandOutcome::Done);
            }
            ShellCommand::Lastsave => {
                context.reply.integer(self.durability.rdb_saves.last_save_secs());
                return Ok(CommandOutcome::Done);
            }
            ShellCommand::MemoryDoctor => {
                memory::reply_diagnosis(self.housekeeping.memory_tracker.peak_bytes(), &mut context.reply);
                return Ok(CommandOutcome::Done);
            }
            ShellCommand::MemoryMallocStats => {
                memory::reply_malloc_stats(&mut context.reply);
                return Ok(CommandOutcome::Done);
            }
            ShellCommand::MemoryStats => {
                memory::reply_memory_stats(&self.housekeeping, context);
                return Ok(CommandOutcome::Done);
            }
            ShellCommand::Role => {
                crate::replication::write_role(&self.replication, &mut context.reply);
                return Ok(CommandOutcome::Done);
            }
        };
        outcome.map(|()| context.reply.ok()).map_err(error_reply)?;
        Ok(CommandOutcome::Done)
    }
}

/// Converts the result for the engine, which writes error replies itself.
fn to_command_outcome(result: ShellResult) -> Result<CommandOutcome, CommandError> {
    result.map(|()| CommandOutcome::Done).map_err(error_reply)
}

fn error_reply(text: String) -> CommandError {
    CommandError::Text(text.into())
}

/// Counts the command in the statistics, as the engine does for its own commands. The reply starts at `mark`.
fn record_call(connection: &mut Connection, args: Args<'_>, nanos: u64, mark: OutputMark) {
    let Ok(entry) = connection.server.commands.registry().resolve(args) else { return };
    let reply = connection.output.copy_since(mark);
    let reply_len = reply.len();
    let error = reply.strip_prefix(b"-").map(|text| String::from_utf8_lossy(text).into_owned());
    // The time that a client chose to wait does not count.
    let nanos = if entry.command.flags.contains(Flags::BLOCKING) { 0 } else { nanos };
    with_scratch(|scratch| {
        let (stats, ran) = (&scratch.worker.stats, ExecutedCommand { entry, args, nanos, reply_len });
        connection.server.engine.record_execution(stats, &connection.session, process::time::now(), &ran);
        if let Some(text) = error {
            stats.count_failure(entry.index, &text);
        }
    });
}

/// The result of a node command. An error is the text of the error reply. For `Ok`, +OK is sent unless the command has
/// written a reply.
type ShellResult = Result<(), String>;
