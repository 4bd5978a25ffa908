//! EVAL after SCRIPT DEBUG: the script runs on a separate thread, and this connection carries the debugger's commands.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use engine::DebuggedScript;
use process::time;
use resp::{Args, Request};
use scripting::DebugConsole;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::connection::Connection;

/// How often a debugger that waits for its user checks whether the script must end.
const LOOK: Duration = Duration::from_millis(100);

type Words = Vec<Vec<u8>>;

/// The debugger's side of the channels to its connection.
#[derive(Debug)]
struct Far {
    words: UnboundedSender<Vec<u8>>,
    commands: Receiver<Words>,
}

impl DebugConsole for Far {
    fn send(&mut self, bytes: Vec<u8>) {
        // Without a connection there is no receiver.
        let _ = self.words.send(bytes);
    }

    fn receive(&mut self, stopped: &dyn Fn() -> bool) -> Option<Words> {
        loop {
            match self.commands.recv_timeout(LOOK) {
                Ok(words) => return Some(words),
                Err(RecvTimeoutError::Timeout) if !stopped() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

pub(super) async fn run(connection: &mut Connection, args: Args<'_>) {
    let (words, mut said) = unbounded_channel();
    let (commands, received) = channel();
    let far = Far { words: words.clone(), commands: received };
    let script = DebuggedScript::new(&mut connection.session, Request::from(args), Box::new(far));
    let server = connection.server.clone();
    let thread = std::thread::Builder::new().name("debugger".to_owned()).spawn(move || {
        let reply = script.run(&server.engine, &server.commands, time::now(), time::nanos);
        // The client may have disconnected.
        let _ = words.send(reply);
    });
    // As in Redis, the connection closes after debugging.
    connection.session.closing = true;
    if let Err(error) = thread {
        return connection.reply().error(&format!("ERR no thread for the debugger: {error}"));
    }
    carry(connection, &mut said, commands).await;
}

/// Transfers commands and output until the script has ended or the client disconnects, which the debugger then notices.
async fn carry(
    connection: &mut Connection,
    said: &mut tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>,
    commands: Sender<Words>,
) {
    loop {
        tokio::select! {
            biased;
            words = said.recv() => match words {
                Some(bytes) => connection.output().extend_from_slice(&bytes),
                // The script's thread has ended, and its reply was taken.
                None => break,
            },
            request = connection.next_request() => {
                let Ok(request) = request else { return };
                let words = request.args().iter().map(<[u8]>::to_vec).collect();
                if commands.send(words).is_err() {
                    // The script has ended meanwhile.
                    continue;
                }
            }
        }
    }
    // An error will be reported when the connection ends.
    let _ = connection.send_out().await;
}
