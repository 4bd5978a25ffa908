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
    AclCommand, CommandError, Context, ExecutedCommand, Flags, HandlerOutcome as Done, NodeCommand, Shell,
    ShellCommand,
};
use net::output::OutputMark;
use net::scratch::with_scratch;
use resp::{Args, Request};

use crate::connection::Connection;
use crate::server::Server;

/// Executes a command that the engine has passed on, and writes its reply.
pub(crate) fn run<'a>(
    connection: &'a mut Connection,
    command: NodeCommand,
    request: &'a Request,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(async move {
        let mark = connection.output.mark();
        run_counted(connection, command, request.args()).await;
        connection.keep_reply_from(mark);
    })
}

async fn run_counted(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let started = process::time::nanos();
    let mark = connection.output.mark();
    dispatch(connection, command, args).await;
    count(connection, args, process::time::nanos() - started, mark);
}

async fn dispatch(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let server = connection.server.clone();
    let outcome = match command {
        NodeCommand::ConfigSet => {
            config::set(&server, args, connection.session.client.connection.is_local).await
        }
        NodeCommand::Debug(command) => return debug::run(connection, command, args).await,
        NodeCommand::Failover => replication::failover(&server, args),
        NodeCommand::DebugScript => return debugger::run(connection, args).await,
        NodeCommand::Exec => return transaction::exec(connection).await,
        NodeCommand::Cluster(command) => return cluster::run(connection, command, args).await,
        NodeCommand::MemoryPurge => {
            memory::purge(server.engine.keyspace.clone()).await;
            Ok(())
        }
        NodeCommand::Migrate => return migrate::migrate(connection, args).await,
        NodeCommand::Psync => return replication::psync(connection, args),
        NodeCommand::Replconf => return replication::replconf(connection, args),
        NodeCommand::Replicaof => {
            let client = connection.session.client.clone();
            return replication::replicaof(&server, &client, args, &mut connection.reply());
        }
        NodeCommand::Wait => {
            return wait::wait(connection, wait::wait_asks(&server.replication, args)).await;
        }
        NodeCommand::WaitAof => {
            return wait::wait(connection, wait::wait_aof_asks(&server.replication, args)).await;
        }
        NodeCommand::Save => return saving::save(connection).await,
        NodeCommand::Shutdown => return saving::shutdown(connection, args).await,
    };
    match outcome {
        Ok(()) => connection.reply().ok(),
        Err(text) => connection.reply().error(&text),
    }
}

impl Server {
    /// CONFIG RESETSTAT, for counters outside of the engine.
    fn reset_statistics(&self) {
        self.housekeeping.reset_totals();
        self.durability.append_only.reset_counts();
        self.durability.saving.reset_counts();
        if let Some(cluster) = &self.cluster {
            cluster.machine.gossip.lock().reset_stats();
            cluster.machine.traffic.reset();
        }
    }
}

impl Shell for Server {
    fn run_command(&self, command: ShellCommand, context: &mut Context<'_>) -> Result<Done, CommandError> {
        let (args, waits) = (context.args, context.can_block());
        let outcome = match command {
            ShellCommand::Acl(AclCommand::Load) => acl::load(self, context.session),
            ShellCommand::Acl(AclCommand::Save) => acl::save(self),
            ShellCommand::ConfigRewrite => config::rewrite(self, ::config::RewriteExtent::Changed),
            ShellCommand::ConfigResetStat => {
                self.reset_statistics();
                Ok(())
            }
            ShellCommand::MemoryPurge if waits => return Ok(Done::Defer(NodeCommand::MemoryPurge)),
            ShellCommand::MemoryPurge => memory::purge_aside(self.engine.keyspace.clone()),
            ShellCommand::Wait if waits => return Ok(Done::Defer(NodeCommand::Wait)),
            ShellCommand::WaitAof if waits => return Ok(Done::Defer(NodeCommand::WaitAof)),
            ShellCommand::Wait => {
                return replied(wait::count(self, context, wait::wait_asks(&self.replication, args)));
            }
            ShellCommand::WaitAof => {
                return replied(wait::count(self, context, wait::wait_aof_asks(&self.replication, args)));
            }
            ShellCommand::Cluster(command) => return cluster::at_once(self, command, context),
            ShellCommand::Bgrewriteaof => return replied(saving::bgrewriteaof(self, &mut context.reply)),
            ShellCommand::Bgsave => return replied(saving::bgsave(self, args, &mut context.reply)),
            ShellCommand::Acl(AclCommand::GenPass) => {
                return replied(process::access::genpass(args, &mut context.reply));
            }
            ShellCommand::ConfigGet => {
                config::get(&self.config, args, &mut context.reply);
                return Ok(Done::Done);
            }
            ShellCommand::Info => {
                info::info(self, context);
                return Ok(Done::Done);
            }
            ShellCommand::Lastsave => {
                context.reply.integer(self.durability.saving.last_save());
                return Ok(Done::Done);
            }
            ShellCommand::MemoryDoctor => {
                memory::doctor(self.housekeeping.memory.peak(), &mut context.reply);
                return Ok(Done::Done);
            }
            ShellCommand::MemoryMallocStats => {
                memory::malloc_stats(&mut context.reply);
                return Ok(Done::Done);
            }
            ShellCommand::MemoryStats => {
                memory::stats(&self.housekeeping, context);
                return Ok(Done::Done);
            }
            ShellCommand::Role => {
                crate::replication::role(&self.replication, &mut context.reply);
                return Ok(Done::Done);
            }
        };
        outcome.map(|()| context.reply.ok()).map_err(failed)?;
        Ok(Done::Done)
    }
}

/// Converts the result of a command that has replied or failed.
fn replied(outcome: Outcome) -> Result<Done, CommandError> {
    outcome.map(|()| Done::Done).map_err(failed)
}

fn failed(text: String) -> CommandError {
    CommandError::Text(text.into())
}

/// Counts the command in the statistics, as the engine does for its own commands. The reply starts at `mark`.
fn count(connection: &mut Connection, args: Args<'_>, nanos: u64, mark: OutputMark) {
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

/// The result of a command. An error is the reply; `Ok` is replied as +OK if nothing was written.
type Outcome = Result<(), String>;
