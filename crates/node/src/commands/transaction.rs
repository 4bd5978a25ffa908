//! EXEC of a queue that holds commands of the shell (REPLICAOF, CONFIG SET).
//!
//! They run one after another as if the client had just sent them, since the shell's commands may wait
//! and nothing may wait while it holds slots. A queue of the engine's own commands never comes here.

use engine::Flow;
use resp::{Batch, Limits, Parser};

use crate::net::connection::{Connection, Waited};

pub(super) async fn exec(connection: &mut Connection) {
    let mut wire = connection.session.take_replay();
    let mut batch = Batch::default();
    // Whatever was queued has been within the limits once.
    let limits = Limits { max_bulk_len: i64::MAX, ..Limits::default() };
    let parsed = Parser::new().parse(&mut wire, &mut batch, &limits);
    assert_eq!((parsed.consumed, parsed.error), (wire.len(), None), "requests as the engine encoded them");
    // CLIENT REPLY SKIP is about the whole.
    let mute = std::mem::take(&mut connection.session.mute);
    connection.session.never_waits = true;
    connection.reply().array(batch.len());
    let mut next = 0;
    while next < batch.len() {
        let (ran, flow) = connection.run_in_engine(&wire, &batch, next);
        next = ran;
        match flow {
            Flow::Done | Flow::Close | Flow::TurnOver => {}
            Flow::Blocked => unreachable!("the session says that it never waits"),
            Flow::Paused => {
                if let Waited::Gone = connection.wait_for_unpause().await {
                    break;
                }
            }
            Flow::Node(command) => {
                Box::pin(super::run_counted(connection, command, batch.args(next, &wire))).await;
                next += 1;
            }
        }
    }
    connection.session.never_waits = false;
    connection.session.mute = mute;
}
