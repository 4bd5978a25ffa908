//! The commands that need the shell, a file for each family.

mod cluster;
mod config;
mod info;
mod migrate;
mod replication;
mod saving;
mod server;
mod transaction;

use engine::{Mute, NodeCommand};
use resp::{Args, Request};

use crate::connection::Connection;
use crate::worker::with_scratch;

/// Carries out a command that the engine handed over and writes its reply.
pub(crate) async fn run(connection: &mut Connection, command: NodeCommand, request: &Request) {
    let before = connection.output().len();
    run_counted(connection, command, request.args()).await;
    if matches!(connection.session.mute, Mute::This | Mute::Everything) {
        connection.output().truncate(before);
    }
    if connection.session.mute == Mute::This {
        connection.session.mute = Mute::Nothing;
    }
}

async fn run_counted(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let started = crate::time::nanos();
    let before = connection.output().len();
    dispatch(connection, command, args).await;
    count(connection, args, crate::time::nanos() - started, before);
}

async fn dispatch(connection: &mut Connection, command: NodeCommand, args: Args<'_>) {
    let server = connection.server.clone();
    let outcome = match command {
        NodeCommand::ConfigSet => config::set(&server, args, connection.local).await,
        NodeCommand::ConfigRewrite => config::rewrite(&server),
        NodeCommand::ConfigResetStat => {
            server.reset_totals();
            Ok(())
        }
        NodeCommand::DebugSleep => server::debug_sleep(args).await,
        NodeCommand::ConfigGet => return config::get(&server, args, &mut connection.reply()),
        NodeCommand::Exec => return transaction::exec(connection).await,
        NodeCommand::Info => return info::info(&server, args, &mut connection.reply()),
        NodeCommand::Cluster(command) => return cluster::run(connection, command, args).await,
        NodeCommand::Migrate => return migrate::migrate(connection, args).await,
        NodeCommand::Psync => return replication::psync(connection, args),
        NodeCommand::Replconf => return replication::replconf(connection, args),
        NodeCommand::Replicaof => return replication::replicaof(&server, args, &mut connection.reply()),
        NodeCommand::Role => return crate::replication::role(&server, &mut connection.reply()),
        NodeCommand::Wait => return replication::wait(connection, args).await,
        NodeCommand::Save => return saving::save(connection).await,
        NodeCommand::Bgsave => return saving::bgsave(connection, args),
        NodeCommand::Lastsave => return connection.reply().integer(server.saving.last_save()),
        NodeCommand::DebugReload => return saving::reload(connection, args).await,
        NodeCommand::Shutdown => return saving::shutdown(connection, args).await,
    };
    match outcome {
        Ok(()) => connection.reply().ok(),
        Err(text) => connection.reply().error(&text),
    }
}

/// Takes the command into the statistics, as the engine does for its own. The reply is what was written
/// after `before`.
fn count(connection: &mut Connection, args: Args<'_>, nanos: u64, before: usize) {
    let Ok(entry) = engine::Registry::the().resolve(args) else { return };
    let reply = connection.output().get(before..).unwrap_or_default();
    let error = reply.strip_prefix(b"-").map(|text| String::from_utf8_lossy(text).into_owned());
    with_scratch(|scratch| scratch.worker.stats.count_call(entry.index, nanos, error.as_deref()));
}

/// Whether a switch with the values `yes`, `no` and `local` lets this client through.
fn is_allowed(switch: &str, local: bool) -> bool {
    switch == "yes" || (switch == "local" && local)
}

/// What a failed command replies; `Ok` is replied as +OK.
type Outcome = Result<(), String>;
