//! The loop of a judge's adapter (docs/judge.md): a line of JSON asks, a line of JSON answers.

use std::future::Future;
use std::io::{BufRead, Write};

use serde::Deserialize;
use serde_json::{Value, json};

/// A request of the judge.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Which library this is.
    Hello,
    /// Make a client.
    Connect(Connect),
    /// Run a command.
    Command {
        /// Its words.
        args: Vec<String>,
    },
    /// Send commands at once.
    Pipeline {
        /// The commands.
        commands: Vec<Vec<String>>,
    },
    /// Run commands as one.
    Transaction {
        /// The commands.
        commands: Vec<Vec<String>>,
    },
    /// Hear channels.
    Subscribe {
        /// Their names.
        channels: Vec<String>,
        /// Whether they are of SSUBSCRIBE.
        sharded: bool,
    },
    /// Drop the client.
    Close,
}

/// How a client is made.
#[derive(Debug, Deserialize)]
pub struct Connect {
    /// `cluster` or `sentinel`.
    pub mode: String,
    /// `host:port` each.
    pub nodes: Vec<String>,
    /// Under sentinels: the master's name.
    pub master: Option<String>,
    /// Whether it reads from replicas.
    pub replicas: bool,
    /// 3 if RESP3 is needed.
    pub protocol: u8,
    /// For a connection and for a reply.
    pub timeout_ms: u64,
}

impl Connect {
    /// Host and port of each node.
    pub fn addresses(&self) -> impl Iterator<Item = (String, u16)> {
        self.nodes.iter().filter_map(|node| {
            let (host, port) = node.rsplit_once(':')?;
            Some((host.to_owned(), port.parse().ok()?))
        })
    }
}

/// Why there is no reply.
#[derive(Debug)]
pub enum Failure {
    /// The library says this.
    Error(String),
    /// The library has no such thing.
    Unsupported(&'static str),
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(error.to_string())
    }
}

#[derive(Debug, Deserialize)]
struct Line {
    id: u64,
    #[serde(flatten)]
    request: Request,
}

/// Writes a line.
pub fn say(line: &Value) {
    // A judge that reads no more has ended this program already.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Tells a message of a channel.
pub fn say_message(channel: &str, data: &str) {
    say(&json!({"message": {"channel": channel, "data": data}}));
}

/// Answers requests until there are no more.
///
/// # Panics
/// If a line is no request.
pub async fn answer_all<F: Future<Output = Result<Value, Failure>>>(mut answer: impl FnMut(Request) -> F) {
    for line in std::io::stdin().lock().lines() {
        let line: Line = serde_json::from_str(&line.expect("a line")).expect("a request");
        let id = line.id;
        match answer(line.request).await {
            Ok(reply) => say(&json!({"id": id, "ok": reply})),
            Err(Failure::Error(text)) => say(&json!({"id": id, "error": text})),
            Err(Failure::Unsupported(reason)) => say(&json!({"id": id, "unsupported": reason})),
        }
    }
}
