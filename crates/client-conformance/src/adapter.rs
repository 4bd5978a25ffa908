//! Runs a library's adapter as a child process and exchanges JSON lines with it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::protocol::{AdapterLine, AdapterOutcome, AdapterRequest, PubSubMessage, encode_line, parse_line};

/// The longest line accepted from an adapter, in bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// The number of bytes kept of the adapter's standard error.
const MAX_STDERR_BYTES: usize = 4000;

/// Why the adapter gave no valid answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterFailure {
    /// No answer arrived within the request's timeout.
    TimedOut,
    /// The adapter's process exited, so all later requests fail as well.
    Exited,
    /// The adapter wrote this line, which is malformed or answers a different request.
    InvalidLine(String),
}

/// A running adapter. Dropping it kills its process group.
#[derive(Debug)]
pub(crate) struct Adapter {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    stderr_tail: File,
    messages: VecDeque<PubSubMessage>,
    last_request_id: u64,
}

impl Adapter {
    /// Starts the adapter's command.
    ///
    /// # Errors
    /// The program does not exist or cannot be started.
    pub(crate) fn start(command: &[String]) -> Result<Self> {
        let (program, arguments) = command.split_first().context("the adapter's command is missing")?;
        let stderr_tail = tempfile::tempfile().context("a temporary file")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr_tail.try_clone()?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("the adapter cannot be started: {program}"))?;
        let input = child.stdin.take().context("the adapter's input")?;
        let output = child.stdout.take().context("the adapter's output")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut bytes = Vec::new();
            while reader
                .by_ref()
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut bytes)
                .is_ok_and(|length| length > 0)
            {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                bytes.clear();
                if !text.trim().is_empty() && sender.send(text).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, input, lines, stderr_tail, messages: VecDeque::new(), last_request_id: 0 })
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The adapter exited, wrote an invalid line, or did not answer within the timeout.
    pub(crate) fn request(
        &mut self,
        request: &AdapterRequest,
        timeout: Duration,
    ) -> Result<AdapterOutcome, AdapterFailure> {
        self.last_request_id += 1;
        let last_request_id = self.last_request_id;
        self.input
            .write_all(encode_line(last_request_id, request).as_bytes())
            .and_then(|()| self.input.flush())
            .map_err(|_| AdapterFailure::Exited)?;
        let until = Instant::now() + timeout;
        loop {
            match self.next(until)? {
                AdapterLine::Answer(id, outcome) if id == last_request_id => return Ok(outcome),
                AdapterLine::Answer(id, _) => {
                    return Err(AdapterFailure::InvalidLine(format!(
                        "an answer to request {id}, not {last_request_id}"
                    )));
                }
                AdapterLine::Message(message) => self.messages.push_back(message),
            }
        }
    }

    /// Returns the next Pub/Sub message, or `None` if none arrives within `timeout`.
    ///
    /// # Errors
    /// The adapter exited or wrote an unexpected line.
    pub(crate) fn next_message(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<PubSubMessage>, AdapterFailure> {
        if let Some(message) = self.messages.pop_front() {
            return Ok(Some(message));
        }
        match self.next(Instant::now() + timeout) {
            Ok(AdapterLine::Message(message)) => Ok(Some(message)),
            Ok(AdapterLine::Answer(id, _)) => {
                Err(AdapterFailure::InvalidLine(format!("a second answer to request {id}, or one too early")))
            }
            Err(AdapterFailure::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn next(&mut self, until: Instant) -> Result<AdapterLine, AdapterFailure> {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => parse_line(&line).map_err(AdapterFailure::InvalidLine),
            Err(RecvTimeoutError::Timeout) => Err(AdapterFailure::TimedOut),
            Err(RecvTimeoutError::Disconnected) => Err(AdapterFailure::Exited),
        }
    }

    /// Returns the end of the adapter's standard error, which explains why most failed adapters did not start.
    #[must_use]
    pub(crate) fn stderr_tail(&mut self) -> String {
        let mut bytes = Vec::new();
        // Read errors are ignored: the output is for people, and no verdict depends on it.
        let _ =
            self.stderr_tail.seek(SeekFrom::Start(0)).and_then(|_| self.stderr_tail.read_to_end(&mut bytes));
        let from = bytes.len().saturating_sub(MAX_STDERR_BYTES);
        String::from_utf8_lossy(&bytes[from..]).into_owned()
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The process may have exited already; then there is nothing to kill.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
