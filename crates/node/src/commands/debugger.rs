//! EVAL after SCRIPT DEBUG: the script runs on a separate thread, and this connection carries the debugger's commands.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use engine::DebuggedScript;
use process::time;
use resp::{Args, Request};
use scripting::DebugConsole;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::connection::Connection;

/// How often a debugger that waits for user input checks whether the script must end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

type CommandWords = Vec<Vec<u8>>;

/// The debugger's ends of the channels to its connection.
#[derive(Debug)]
struct DebuggerChannel {
    output_sender: UnboundedSender<Vec<u8>>,
    command_receiver: Receiver<CommandWords>,
}

impl DebugConsole for DebuggerChannel {
    fn send(&mut self, bytes: Vec<u8>) {
        // An error means that the connection has ended.
        let _ = self.output_sender.send(bytes);
    }

    fn receive(&mut self, is_stopped: &dyn Fn() -> bool) -> Option<CommandWords> {
        loop {
            match self.command_receiver.recv_timeout(STOP_CHECK_INTERVAL) {
                Ok(words) => return Some(words),
                Err(RecvTimeoutError::Timeout) if !is_stopped() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

pub(super) async fn run_debugger(connection: &mut Connection, args: Args<'_>) {
    let (words, mut said) = unbounded_channel();
    let (commands, received) = channel();
    let far = DebuggerChannel { output_sender: words.clone(), command_receiver: received };
    let script = DebuggedScript::new(&mut connection.session, Request::from(args), Box::new(far));
    let server = connection.server.clone();
    let thread = std::thread::Builder::new().name("debugger".to_owned()).spawn(move || {
        let reply = script.run(&server.engine, &server.commands, time::now(), time::nanos);
        // An error means that the client has disconnected.
        let _ = words.send(reply);
    });
    // As in Redis, the connection closes after debugging.
    connection.session.close_after_reply();
    if let Err(error) = thread {
        return connection.reply().error(&format!("ERR no thread for the debugger: {error}"));
    }
    relay_debugger_io(connection, &mut said, commands).await;
}

/// Transfers commands and output until the script ends or the client disconnects. A disconnect closes the channel,
/// which the debugger notices.
async fn relay_debugger_io(
    connection: &mut Connection,
    output: &mut tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>,
    commands: Sender<CommandWords>,
) {
    loop {
        tokio::select! {
            biased;
            words = output.recv() => match words {
                Some(bytes) => connection.output().extend_from_slice(&bytes),
                // The script's thread has ended, and all of its output has been received.
                None => break,
            },
            request = connection.next_request() => {
                let Ok(request) = request else { return };
                let words = request.args().iter().map(<[u8]>::to_vec).collect();
                if commands.send(words).is_err() {
                    // An error means that the script has ended; its remaining output is sent next.
                    continue;
                }
            }
        }
    }
    // An error is ignored here, because it is reported when the connection ends.
    let _ = connection.send_pending_output().await;
}
