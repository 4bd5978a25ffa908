//! The record of a failover, in the one shape in which CLUSTER FAILOVERS, SENTINEL FAILOVERS, the page and
//! `redoubt cluster failovers` have it.
//!
//! ```text
//! node          the failed node's id; under sentinels the master's name
//! address       where it was reached
//! began-ms-ago  when the first step was, in milliseconds before the answer
//! outcome       open, replaced, came back, given up
//! steps         in the order of time, each with its milliseconds after the first, and in words
//! ```
//!
//! How long ago it began, not when: the machines that keep records need not have the same wall clock.
#![forbid(unsafe_code)]

use std::fmt;

use resp::Writer;
use serde::{Deserialize, Serialize};

/// How many failovers are remembered.
pub const KEPT: usize = 100;

/// A failover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Failover {
    /// The failed node's id, or the master's name.
    pub node: String,
    /// Where it was reached; empty if that is not known any more.
    pub address: String,
    /// How many milliseconds ago the first step was.
    pub began_ms_ago: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// In the order of time.
    pub steps: Vec<Step>,
}

/// How a failover ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is under way.
    Open,
    /// Another node took its place.
    Replaced,
    /// It answered again before.
    CameBack,
    /// It was not carried out.
    GivenUp,
}

/// A step of a failover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Milliseconds after the first step.
    pub ms: u64,
    /// In words.
    pub text: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Replaced => "replaced",
            Self::CameBack => "came-back",
            Self::GivenUp => "given-up",
        })
    }
}

/// Writes failovers as a command's reply.
pub fn write(failovers: &[Failover], reply: &mut Writer<'_>) {
    reply.array(failovers.len());
    for failover in failovers {
        reply.map(5);
        reply.bulk(b"node");
        reply.bulk(failover.node.as_bytes());
        reply.bulk(b"address");
        reply.bulk(failover.address.as_bytes());
        reply.bulk(b"began-ms-ago");
        reply.integer(signed(failover.began_ms_ago));
        reply.bulk(b"outcome");
        reply.bulk(failover.outcome.to_string().as_bytes());
        reply.bulk(b"steps");
        reply.array(failover.steps.len());
        for step in &failover.steps {
            reply.array(2);
            reply.integer(signed(step.ms));
            reply.bulk(step.text.as_bytes());
        }
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// Failovers as JSON: an array of objects with the fields of the reply; a step is an object with `ms` and `text`.
#[must_use]
pub fn json(failovers: &[Failover]) -> String {
    serde_json::to_string(failovers).expect("strings and numbers")
}

/// Reads what [`json`] writes.
///
/// # Errors
/// Says where the text is something else.
pub fn from_json(text: &str) -> Result<Vec<Failover>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use resp::Protocol;

    use super::*;

    fn example() -> Failover {
        let step = |ms, text: &str| Step { ms, text: text.to_owned() };
        Failover {
            node: "n".into(),
            address: "h:1".into(),
            began_ms_ago: 5000,
            outcome: Outcome::CameBack,
            steps: vec![step(0, "suspected by \"a\""), step(30, "it answers again")],
        }
    }

    #[test]
    fn the_reply_and_the_json_have_the_same_fields() {
        let mut out = Vec::new();
        write(&[example()], &mut Writer::new(&mut out, Protocol::Resp3));
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("*1\r\n%5\r\n$4\r\nnode\r\n$1\r\nn\r\n"), "{text}");
        assert!(text.ends_with("*2\r\n:30\r\n$16\r\nit answers again\r\n"), "{text}");
        let json = json(&[example()]);
        for name in ["node", "address", "began-ms-ago", "outcome", "steps"] {
            assert!(
                text.contains(&format!("\r\n{name}\r\n")) && json.contains(&format!("\"{name}\":")),
                "{name}"
            );
        }
        assert!(json.contains("\"outcome\":\"came-back\"") && text.contains("\r\ncame-back\r\n"));
        assert_eq!(from_json(&json), Ok(vec![example()]));
        assert!(from_json("[{}]").is_err());
    }
}
