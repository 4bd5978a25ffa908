//! The main loop of an adapter for client conformance tests (docs/judge.md): reads requests and writes replies as lines
//! of JSON.

use std::future::Future;
use std::io::{BufRead, Write};

use client_conformance::protocol::{AdapterLine, AdapterOutcome, PubSubMessage, RequestLine};
pub use client_conformance::protocol::{AdapterRequest, ClientSettings, DiscoveryMode};
use serde_json::Value;

/// The reason why a request failed.
#[derive(Debug)]
pub enum RequestFailure {
    /// The library returned this error.
    Error(String),
    /// The library does not support the request, for this reason.
    Unsupported(&'static str),
}

impl<E: std::error::Error> From<E> for RequestFailure {
    fn from(error: E) -> Self {
        Self::Error(error.to_string())
    }
}

fn write_line(line: &AdapterLine) {
    // If the write fails, the parent process has closed the pipe and will end this program.
    let _ = writeln!(std::io::stdout().lock(), "{}", line.to_line());
}

/// Reports a received pub/sub message.
pub fn report_message(channel: &str, data: &str) {
    write_line(&AdapterLine::Message(PubSubMessage { channel: channel.to_owned(), data: data.to_owned() }));
}

/// Handles requests until the end of the input.
///
/// # Panics
/// A line is not a valid request.
pub async fn serve_requests<F: Future<Output = Result<Value, RequestFailure>>>(
    mut answer: impl FnMut(AdapterRequest) -> F,
) {
    for line in std::io::stdin().lock().lines() {
        let asked: RequestLine = serde_json::from_str(&line.expect("a line")).expect("a request");
        let outcome = match answer(asked.request).await {
            Ok(reply) => AdapterOutcome::Ok(reply),
            Err(RequestFailure::Error(text)) => AdapterOutcome::Error(text),
            Err(RequestFailure::Unsupported(reason)) => AdapterOutcome::Unsupported(reason.to_owned()),
        };
        write_line(&AdapterLine::Answer(asked.id, outcome));
    }
}
