//! The requests of the judge to an adapter, and its answers: one JSON object a line each ([docs/judge.md]).
//!
//! An adapter is asked one thing at a time and answers it before the next: both go in lock step. Only messages of
//! channels come unasked.
//!
//! [docs/judge.md]: ../../../docs/judge.md

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How a client finds its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By the slots that any node tells.
    Cluster,
    /// By sentinels.
    Sentinel,
}

impl Mode {
    /// Its name in a request.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

/// One thing that an adapter is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Which library this is, and what it can do.
    Hello,
    /// Make a client. Servers need not be reached yet.
    Connect(Connect),
    /// Run one command and give its reply.
    Command {
        /// Its name and arguments.
        args: Vec<String>,
    },
    /// Run a script by the library's own help for scripts, if it has any.
    Script {
        /// Its text.
        source: String,
        /// Its keys.
        keys: Vec<String>,
        /// Its further arguments.
        args: Vec<String>,
    },
    /// Send commands at once and give all replies.
    Pipeline {
        /// The commands.
        commands: Vec<Vec<String>>,
    },
    /// Run commands as one, by MULTI and EXEC.
    Transaction {
        /// The commands.
        commands: Vec<Vec<String>>,
    },
    /// Hear channels; answered when the server has confirmed it.
    Subscribe {
        /// Their names.
        channels: Vec<String>,
        /// Whether they are of SSUBSCRIBE.
        sharded: bool,
    },
    /// Drop the client.
    Close,
}

/// The settings that a client is made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connect {
    /// How it finds its servers.
    pub mode: Mode,
    /// `host:port` of nodes or sentinels.
    pub nodes: Vec<String>,
    /// Under sentinels: the master's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// Whether it reads from replicas.
    #[serde(default)]
    pub replicas: bool,
    /// Whether it keeps what it reads.
    #[serde(default)]
    pub caching: bool,
    /// The scripts that it will be asked to run, for libraries that want to know beforehand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<String>,
    /// With TLS: the file with the certificate of the authority that it is to trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<String>,
    /// 2 or 3.
    pub protocol: u8,
    /// How long the client may wait for a connection or a reply.
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

/// A request as an adapter reads it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Asked {
    /// The number that its answer has to have.
    pub id: u64,
    /// The request.
    #[serde(flatten)]
    pub request: Request,
}

/// A request as a line.
#[must_use]
pub fn line(id: u64, request: &Request) -> String {
    let mut object = json!(request);
    object["id"] = json!(id);
    format!("{object}\n")
}

/// How an operation went, as the adapter says.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is done; the reply.
    Ok(Value),
    /// The library raised this.
    Error(String),
    /// The library has no such thing, and why.
    Unsupported(String),
}

/// A message of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The channel's name.
    pub channel: String,
    /// The published message.
    pub data: String,
}

/// A line that an adapter wrote.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// The answer to the request with this id.
    Answer(u64, Outcome),
    /// A message came on a channel.
    Message(Message),
}

impl Said {
    /// The line that an adapter writes, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Answer(id, Outcome::Ok(value)) => json!({"id": id, "ok": value}),
            Self::Answer(id, Outcome::Error(text)) => json!({"id": id, "error": text}),
            Self::Answer(id, Outcome::Unsupported(reason)) => json!({"id": id, "unsupported": reason}),
            Self::Message(message) => json!({"message": message}),
        }
        .to_string()
    }
}

/// Reads a line of an adapter.
///
/// # Errors
/// Why it is none.
pub fn read(line: &str) -> Result<Said, String> {
    let no_answer = |why: &str| format!("no answer ({why}): {}", line.trim_end());
    let mut object: serde_json::Map<String, Value> =
        serde_json::from_str(line).map_err(|error| no_answer(&error.to_string()))?;
    if let Some(message) = object.remove("message") {
        return serde_json::from_value(message)
            .map(Said::Message)
            .map_err(|error| no_answer(&error.to_string()));
    }
    let id =
        object.get("id").and_then(Value::as_u64).ok_or_else(|| no_answer("the request's id is missing"))?;
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let outcome = if let Some(value) = object.remove("ok") {
        Outcome::Ok(value)
    } else if let Some(error) = object.remove("error") {
        Outcome::Error(text(error))
    } else if let Some(reason) = object.remove("unsupported") {
        Outcome::Unsupported(text(reason))
    } else {
        return Err(no_answer("none of ok, error, unsupported"));
    };
    Ok(Said::Answer(id, outcome))
}

/// A library's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// Its name.
    pub library: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_with_its_id() {
        let request = Request::Command { args: vec!["GET".to_owned(), "a\nb".to_owned()] };
        assert_eq!(line(7, &request), "{\"args\":[\"GET\",\"a\\nb\"],\"do\":\"command\",\"id\":7}\n");
        let connect = Connect {
            mode: Mode::Cluster,
            nodes: vec!["127.0.0.1:1".to_owned()],
            master: None,
            replicas: false,
            caching: false,
            scripts: Vec::new(),
            tls_ca: None,
            protocol: 2,
            timeout_ms: 9,
        };
        let asked: Asked = serde_json::from_str(&line(4, &Request::Connect(connect.clone()))).unwrap();
        assert_eq!(asked, Asked { id: 4, request: Request::Connect(connect.clone()) });
        let told: Value = serde_json::from_str(&line(1, &Request::Connect(connect))).unwrap();
        assert_eq!(
            told,
            json!({"id": 1, "do": "connect", "mode": "cluster", "nodes": ["127.0.0.1:1"], "protocol": 2, "replicas": false, "caching": false, "timeout_ms": 9})
        );
    }

    #[test]
    fn a_null_reply_is_an_answer_and_a_line_without_one_is_none() {
        assert_eq!(read(r#"{"id":3,"ok":null}"#), Ok(Said::Answer(3, Outcome::Ok(Value::Null))));
        assert_eq!(read(r#"{"id":3,"error":"gone"}"#), Ok(Said::Answer(3, Outcome::Error("gone".into()))));
        let message = Message { channel: "c".to_owned(), data: "d".to_owned() };
        assert_eq!(read(r#"{"message":{"channel":"c","data":"d"}}"#), Ok(Said::Message(message.clone())));
        let outcomes =
            [Outcome::Ok(json!([1])), Outcome::Error("e".into()), Outcome::Unsupported("u".into())];
        let said =
            outcomes.map(|outcome| Said::Answer(9, outcome)).into_iter().chain([Said::Message(message)]);
        for said in said {
            assert_eq!(read(&said.line()), Ok(said));
        }
        for bad in ["", "[]", "{}", r#"{"id":3}"#, r#"{"ok":1}"#, r#"{"message":1}"#, "Traceback"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
