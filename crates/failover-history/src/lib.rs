//! Failover records and their RESP and JSON encodings, shared by CLUSTER FAILOVERS, SENTINEL FAILOVERS, the web page and
//! `redoubt cluster failovers`.
//!
//! ```text
//! node          the failed node's id; under sentinels the master's name
//! address       the failed node's address
//! began-ms-ago  milliseconds between the first step and the reply
//! outcome       open, replaced, came-back, given-up
//! steps         in chronological order, each with its milliseconds since the first step and a description
//! ```
//!
//! The start time is relative because the nodes that keep records may have different wall clocks.
#![forbid(unsafe_code)]

use std::fmt;

use resp::Writer;
use serde::{Deserialize, Serialize};

/// The number of failovers that a node or sentinel remembers.
pub const MAX_REMEMBERED_FAILOVERS: usize = 100;

/// The record of one failover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Failover {
    /// The failed node's id; under sentinels the master's name.
    pub node: String,
    /// The failed node's address; empty if unknown.
    pub address: String,
    /// Milliseconds between the first step and the reply that contains this record.
    pub began_ms_ago: u64,
    /// How the failover ended, or that it is still in progress.
    pub outcome: FailoverOutcome,
    /// The steps in chronological order.
    pub steps: Vec<FailoverStep>,
}

/// The result of a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailoverOutcome {
    /// Still in progress.
    Open,
    /// Another node was promoted.
    Replaced,
    /// The failed node returned before a replica was promoted.
    CameBack,
    /// The failover was abandoned.
    GivenUp,
}

/// One step of a failover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverStep {
    /// Milliseconds since the first step.
    pub ms: u64,
    /// A description for operators.
    pub text: String,
}

impl fmt::Display for FailoverOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Replaced => "replaced",
            Self::CameBack => "came-back",
            Self::GivenUp => "given-up",
        })
    }
}

/// Writes failovers as the reply of CLUSTER FAILOVERS and SENTINEL FAILOVERS.
pub fn write_reply(failovers: &[Failover], reply: &mut Writer<'_>) {
    reply.array(failovers.len());
    for failover in failovers {
        reply.map(5);
        reply.bulk(b"node");
        reply.bulk(failover.node.as_bytes());
        reply.bulk(b"address");
        reply.bulk(failover.address.as_bytes());
        reply.bulk(b"began-ms-ago");
        reply.integer(to_saturating_i64(failover.began_ms_ago));
        reply.bulk(b"outcome");
        reply.bulk(failover.outcome.to_string().as_bytes());
        reply.bulk(b"steps");
        reply.array(failover.steps.len());
        for step in &failover.steps {
            reply.array(2);
            reply.integer(to_saturating_i64(step.ms));
            reply.bulk(step.text.as_bytes());
        }
    }
}

fn to_saturating_i64(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// Encodes failovers as a JSON array. Objects have the fields of the RESP reply; a step is an
/// object with `ms` and `text`.
#[must_use]
pub fn to_json(failovers: &[Failover]) -> String {
    serde_json::to_string(failovers).expect("strings and numbers")
}

/// Decodes the JSON array that [`to_json`] writes.
///
/// # Errors
/// A description of the first syntax error or unexpected value.
pub fn from_json(text: &str) -> Result<Vec<Failover>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use resp::Protocol;

    use super::*;

    fn example_failover() -> Failover {
        let step = |ms, text: &str| FailoverStep { ms, text: text.to_owned() };
        Failover {
            node: "n".into(),
            address: "h:1".into(),
            began_ms_ago: 5000,
            outcome: FailoverOutcome::CameBack,
            steps: vec![step(0, "suspected by \"a\""), step(30, "it answers again")],
        }
    }

    #[test]
    fn reply_and_json_have_the_same_fields() {
        let mut out = Vec::new();
        write_reply(&[example_failover()], &mut Writer::new(&mut out, Protocol::Resp3));
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("*1\r\n%5\r\n$4\r\nnode\r\n$1\r\nn\r\n"), "{text}");
        assert!(text.ends_with("*2\r\n:30\r\n$16\r\nit answers again\r\n"), "{text}");
        let json = to_json(&[example_failover()]);
        for name in ["node", "address", "began-ms-ago", "outcome", "steps"] {
            assert!(
                text.contains(&format!("\r\n{name}\r\n")) && json.contains(&format!("\"{name}\":")),
                "{name}"
            );
        }
        assert!(json.contains("\"outcome\":\"came-back\"") && text.contains("\r\ncame-back\r\n"));
        assert_eq!(from_json(&json), Ok(vec![example_failover()]));
        assert!(from_json("[{}]").is_err());
    }
}
