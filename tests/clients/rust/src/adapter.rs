//! The loop of a judge's adapter (docs/judge.md): a line of JSON asks, a line of JSON answers.

use std::future::Future;
use std::io::{BufRead, Write};

use client_conformance::protocol::{AdapterLine, AdapterOutcome, Message, RequestLine};
pub use client_conformance::protocol::{Connect, Mode, Request};
use serde_json::Value;

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

fn say(said: &AdapterLine) {
    // A judge that reads no more has ended this program already.
    let _ = writeln!(std::io::stdout().lock(), "{}", said.to_line());
}

/// Tells a message of a channel.
pub fn say_message(channel: &str, data: &str) {
    say(&AdapterLine::Message(Message { channel: channel.to_owned(), data: data.to_owned() }));
}

/// Answers requests until there are no more.
///
/// # Panics
/// If a line is no request.
pub async fn answer_all<F: Future<Output = Result<Value, Failure>>>(mut answer: impl FnMut(Request) -> F) {
    for line in std::io::stdin().lock().lines() {
        let asked: RequestLine = serde_json::from_str(&line.expect("a line")).expect("a request");
        let outcome = match answer(asked.request).await {
            Ok(reply) => AdapterOutcome::Ok(reply),
            Err(Failure::Error(text)) => AdapterOutcome::Error(text),
            Err(Failure::Unsupported(reason)) => AdapterOutcome::Unsupported(reason.to_owned()),
        };
        say(&AdapterLine::Answer(asked.id, outcome));
    }
}
