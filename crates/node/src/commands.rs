//! The commands that need the shell, a file for each family.

mod cluster;
mod config;
mod info;
mod replication;
mod server;

use engine::NodeCommand;
use resp::{Request, Writer};

use crate::connection::Connection;

/// Carries out a command that the engine handed over and writes its reply.
pub(crate) async fn run(connection: &mut Connection, command: NodeCommand, request: &Request) {
    let server = connection.server.clone();
    let args = request.args();
    let protocol = connection.session.protocol;
    match command {
        NodeCommand::Cluster(command) => cluster::run(connection, command, args).await,
        NodeCommand::Info => info::info(&server, args, &mut Writer::new(connection.output(), protocol)),
        NodeCommand::Psync => replication::psync(connection, args),
        NodeCommand::Replconf => replication::replconf(connection, args),
        NodeCommand::Replicaof => {
            replication::replicaof(&server, args, &mut Writer::new(connection.output(), protocol));
        }
        NodeCommand::Role => {
            crate::replication::role(&server, &mut Writer::new(connection.output(), protocol));
        }
        NodeCommand::Wait => replication::wait(connection, args).await,
        NodeCommand::Shutdown => server::shutdown(&server, &mut Writer::new(connection.output(), protocol)),
        NodeCommand::DebugSleep => {
            server::debug_sleep(args).await;
            Writer::new(connection.output(), protocol).ok();
        }
        NodeCommand::ConfigGet => config::get(&server, args, &mut Writer::new(connection.output(), protocol)),
        NodeCommand::ConfigSet => config::set(&server, args, &mut Writer::new(connection.output(), protocol)),
    }
}
