//! EXEC with commands that wait for something other than keys, such as REPLICAOF or CONFIG SET.
//!
//! The engine has executed the commands that need slots, and has released its locks. It returns the waiting commands
//! one by one, and executes the commands between them, which need no slots.

use engine::{ClusterCommand, NodeCommand};
use net::scratch::with_scratch;

use crate::connection::Connection;

pub(super) async fn run_exec(connection: &mut Connection) {
    let mut reply = None;
    loop {
        let (server, now) = (connection.server.clone(), process::time::now());
        let next = with_scratch(|scratch| {
            let (worker, session) = (&mut scratch.worker, &mut connection.session);
            let dispatcher = server.commands.dispatcher(&server.engine);
            dispatcher.resume_exec(worker, session, now, reply.take(), connection.output.buffer())
        });
        let Some((command, request)) = next else { return };
        let mark = connection.output.mark();
        if command == NodeCommand::Cluster(ClusterCommand::SyncSlots) {
            // A command that takes over the connection would interrupt the reply to EXEC.
            connection.reply().error("ERR Command not allowed inside a transaction");
        } else {
            Box::pin(super::run_and_record(connection, command, request.args())).await;
        }
        reply = Some(connection.output.copy_since(mark).to_vec());
        connection.output.discard_since(mark);
    }
}
