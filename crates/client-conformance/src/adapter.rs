//! The adapter's process: started, asked, and ended with all that it started.

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

use crate::protocol::{Message, Outcome, Request, Said, line, read};

/// The longest line of an adapter.
const LONGEST_LINE: u64 = 1 << 20;
/// The bytes of its standard error that are kept.
const COMPLAINTS: usize = 4000;

/// Why no answer came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// It says nothing.
    Hung,
    /// It has ended.
    Ended,
    /// It wrote this.
    Nonsense(String),
}

/// A running adapter. Dropping it ends its process group.
#[derive(Debug)]
pub(crate) struct Adapter {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    complaints: File,
    messages: VecDeque<Message>,
    asked: u64,
}

impl Adapter {
    /// Starts the command.
    ///
    /// # Errors
    /// If there is no such program.
    pub(crate) fn start(command: &[String]) -> Result<Self> {
        let (program, arguments) = command.split_first().context("the adapter's command is missing")?;
        let complaints = tempfile::tempfile().context("a temporary file")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(complaints.try_clone()?)
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
                .take(LONGEST_LINE)
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
        Ok(Self { child, input, lines, complaints, messages: VecDeque::new(), asked: 0 })
    }

    /// Asks one thing and waits for its answer.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn ask(&mut self, request: &Request, timeout: Duration) -> Result<Outcome, NoAnswer> {
        self.asked += 1;
        let asked = self.asked;
        self.input
            .write_all(line(asked, request).as_bytes())
            .and_then(|()| self.input.flush())
            .map_err(|_| NoAnswer::Ended)?;
        let until = Instant::now() + timeout;
        loop {
            match self.next(until)? {
                Said::Answer(id, outcome) if id == asked => return Ok(outcome),
                Said::Answer(id, _) => {
                    return Err(NoAnswer::Nonsense(format!("an answer to request {id}, not {asked}")));
                }
                Said::Message(message) => self.messages.push_back(message),
            }
        }
    }

    /// The next message of a channel; none if none comes.
    ///
    /// # Errors
    /// If the adapter is no longer there, or writes a line that answers no request.
    pub(crate) fn message(&mut self, timeout: Duration) -> Result<Option<Message>, NoAnswer> {
        if let Some(message) = self.messages.pop_front() {
            return Ok(Some(message));
        }
        match self.next(Instant::now() + timeout) {
            Ok(Said::Message(message)) => Ok(Some(message)),
            Ok(Said::Answer(id, _)) => {
                Err(NoAnswer::Nonsense(format!("a second answer to request {id}, or one too early")))
            }
            Err(NoAnswer::Hung) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn next(&mut self, until: Instant) -> Result<Said, NoAnswer> {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => read(&line).map_err(NoAnswer::Nonsense),
            Err(RecvTimeoutError::Timeout) => Err(NoAnswer::Hung),
            Err(RecvTimeoutError::Disconnected) => Err(NoAnswer::Ended),
        }
    }

    /// The end of its standard error.
    #[must_use]
    pub(crate) fn complaints(&mut self) -> String {
        let mut bytes = Vec::new();
        // An error is ignored: the complaints are for people, no verdict depends on them.
        let _ =
            self.complaints.seek(SeekFrom::Start(0)).and_then(|_| self.complaints.read_to_end(&mut bytes));
        let from = bytes.len().saturating_sub(COMPLAINTS);
        String::from_utf8_lossy(&bytes[from..]).into_owned()
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
