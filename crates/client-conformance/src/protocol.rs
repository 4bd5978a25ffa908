//! The protocol between the test program and an adapter: one JSON object per line
//! ([docs/judge.md]).
//!
//! Requests and answers alternate. Only Pub/Sub messages arrive unsolicited.
//!
//! [docs/judge.md]: ../../../docs/judge.md

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How a client discovers its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiscoveryMode {
    /// The client reads the slot map from any cluster node.
    Cluster,
    /// The client asks sentinels for the master's address.
    Sentinel,
}

impl DiscoveryMode {
    /// Returns the mode's name in a request.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

/// A request that the test program sends to an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum AdapterRequest {
    /// Report the library's name and version.
    Hello,
    /// Create a client. Its servers need not be reachable yet.
    Connect(ClientSettings),
    /// Run one command and return its reply.
    Command {
        /// The command's name, followed by its arguments.
        args: Vec<String>,
    },
    /// Run a script with the library's script helper, if it has one.
    Script {
        /// The Lua source of the script.
        source: String,
        /// The keys, which the script sees as `KEYS`.
        keys: Vec<String>,
        /// The arguments that the script sees as `ARGV`.
        args: Vec<String>,
    },
    /// Send several commands as one pipeline and return all replies.
    Pipeline {
        /// The commands in the order in which they must be sent, each as name and arguments.
        commands: Vec<Vec<String>>,
    },
    /// Run commands atomically with MULTI and EXEC.
    Transaction {
        /// The commands between MULTI and EXEC, each as name and arguments.
        commands: Vec<Vec<String>>,
    },
    /// Subscribe to channels; the answer follows the server's confirmation.
    Subscribe {
        /// The channels to subscribe to with one request.
        channels: Vec<String>,
        /// Whether to use SSUBSCRIBE instead of SUBSCRIBE.
        sharded: bool,
    },
    /// Close the client and its connections.
    Close,
}

/// The settings with which the adapter must create its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSettings {
    /// How the client discovers its servers, which decides what `nodes` contains.
    pub mode: DiscoveryMode,
    /// The `host:port` addresses of cluster nodes or sentinels to begin with.
    pub nodes: Vec<String>,
    /// The name under which the sentinels know the master; `None` in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// Whether the client should read from replicas.
    #[serde(default)]
    pub replicas: bool,
    /// Whether the client should use client-side caching.
    #[serde(default)]
    pub caching: bool,
    /// The scripts that will be run, because some libraries must register scripts in advance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<String>,
    /// The CA certificate file to trust; `None` means that the servers do not use TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<String>,
    /// The RESP version that the client must use, 2 or 3.
    pub protocol: u8,
    /// Timeout for connecting and for replies, in milliseconds.
    pub timeout_ms: u64,
}

impl ClientSettings {
    /// Splits each entry of `nodes` into host and port.
    pub fn addresses(&self) -> impl Iterator<Item = (String, u16)> {
        self.nodes.iter().filter_map(|node| {
            let (host, port) = node.rsplit_once(':')?;
            Some((host.to_owned(), port.parse().ok()?))
        })
    }
}

/// A request as the adapter receives it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RequestLine {
    /// The id that the adapter's answer must repeat.
    pub id: u64,
    /// The operation that the adapter must perform.
    #[serde(flatten)]
    pub request: AdapterRequest,
}

/// Encodes a request as one line.
#[must_use]
pub fn encode_line(id: u64, request: &AdapterRequest) -> String {
    let mut object = json!(request);
    object["id"] = json!(id);
    format!("{object}\n")
}

/// The result of a request as reported by the adapter.
#[derive(Debug, Clone, PartialEq)]
pub enum AdapterOutcome {
    /// The request succeeded with this reply.
    Ok(Value),
    /// The library raised this error, which the verdict compares with the wire traffic.
    Error(String),
    /// The library does not support the request, for this reason.
    Unsupported(String),
}

/// A Pub/Sub message as the library delivered it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PubSubMessage {
    /// The channel on which the message was published.
    pub channel: String,
    /// The published payload, without the channel's name.
    pub data: String,
}

/// A line written by an adapter.
#[derive(Debug, Clone, PartialEq)]
pub enum AdapterLine {
    /// The answer to the request with this id.
    Answer(u64, AdapterOutcome),
    /// A Pub/Sub message arrived, independently of any request.
    Message(PubSubMessage),
}

impl AdapterLine {
    /// Encodes the line as JSON without a newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        match self {
            Self::Answer(id, AdapterOutcome::Ok(value)) => json!({"id": id, "ok": value}),
            Self::Answer(id, AdapterOutcome::Error(text)) => json!({"id": id, "error": text}),
            Self::Answer(id, AdapterOutcome::Unsupported(reason)) => json!({"id": id, "unsupported": reason}),
            Self::Message(message) => json!({"message": message}),
        }
        .to_string()
    }
}

/// Parses a line that an adapter wrote.
///
/// # Errors
/// The reason why the line is invalid, for the report.
pub fn parse_line(line: &str) -> Result<AdapterLine, String> {
    let no_answer = |why: &str| format!("no answer ({why}): {}", line.trim_end());
    let mut object: serde_json::Map<String, Value> =
        serde_json::from_str(line).map_err(|error| no_answer(&error.to_string()))?;
    if let Some(message) = object.remove("message") {
        return serde_json::from_value(message)
            .map(AdapterLine::Message)
            .map_err(|error| no_answer(&error.to_string()));
    }
    let id =
        object.get("id").and_then(Value::as_u64).ok_or_else(|| no_answer("the request's id is missing"))?;
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let outcome = if let Some(value) = object.remove("ok") {
        AdapterOutcome::Ok(value)
    } else if let Some(error) = object.remove("error") {
        AdapterOutcome::Error(text(error))
    } else if let Some(reason) = object.remove("unsupported") {
        AdapterOutcome::Unsupported(text(reason))
    } else {
        return Err(no_answer("none of ok, error, unsupported"));
    };
    Ok(AdapterLine::Answer(id, outcome))
}

/// A library as reported by its adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientLibrary {
    /// The name under which the library is listed on the scorecard.
    pub library: String,
    /// The version that the adapter found installed.
    #[serde(default)]
    pub version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_one_line_with_id() {
        let request = AdapterRequest::Command { args: vec!["GET".to_owned(), "a\nb".to_owned()] };
        assert_eq!(encode_line(7, &request), "{\"args\":[\"GET\",\"a\\nb\"],\"do\":\"command\",\"id\":7}\n");
        let connect = ClientSettings {
            mode: DiscoveryMode::Cluster,
            nodes: vec!["127.0.0.1:1".to_owned()],
            master: None,
            replicas: false,
            caching: false,
            scripts: Vec::new(),
            tls_ca: None,
            protocol: 2,
            timeout_ms: 9,
        };
        let asked: RequestLine =
            serde_json::from_str(&encode_line(4, &AdapterRequest::Connect(connect.clone()))).unwrap();
        assert_eq!(asked, RequestLine { id: 4, request: AdapterRequest::Connect(connect.clone()) });
        let told: Value = serde_json::from_str(&encode_line(1, &AdapterRequest::Connect(connect))).unwrap();
        assert_eq!(
            told,
            json!({"id": 1, "do": "connect", "mode": "cluster", "nodes": ["127.0.0.1:1"], "protocol": 2, "replicas": false, "caching": false, "timeout_ms": 9})
        );
    }

    #[test]
    fn null_reply_is_an_answer_and_missing_reply_is_an_error() {
        assert_eq!(
            parse_line(r#"{"id":3,"ok":null}"#),
            Ok(AdapterLine::Answer(3, AdapterOutcome::Ok(Value::Null)))
        );
        assert_eq!(
            parse_line(r#"{"id":3,"error":"gone"}"#),
            Ok(AdapterLine::Answer(3, AdapterOutcome::Error("gone".into())))
        );
        let message = PubSubMessage { channel: "c".to_owned(), data: "d".to_owned() };
        assert_eq!(
            parse_line(r#"{"message":{"channel":"c","data":"d"}}"#),
            Ok(AdapterLine::Message(message.clone()))
        );
        let outcomes = [
            AdapterOutcome::Ok(json!([1])),
            AdapterOutcome::Error("e".into()),
            AdapterOutcome::Unsupported("u".into()),
        ];
        let said = outcomes
            .map(|outcome| AdapterLine::Answer(9, outcome))
            .into_iter()
            .chain([AdapterLine::Message(message)]);
        for said in said {
            assert_eq!(parse_line(&said.to_line()), Ok(said));
        }
        for bad in ["", "[]", "{}", r#"{"id":3}"#, r#"{"ok":1}"#, r#"{"message":1}"#, "Traceback"] {
            assert!(parse_line(bad).is_err(), "{bad}");
        }
    }
}
