//! Implements script commands.
//!
//! Nodes have no Lua interpreter. A scenario's script calls one command, for example `return
//! redis.call('INCR', KEYS[1])` as written by [`super::script_calling`]; nodes parse this form and
//! reject any other with an error.

use std::collections::{BTreeMap, BTreeSet};

use resp::Value;
use sha1::{Digest, Sha1};

use super::healthy_node::{error, ok};
use super::{ClusterSimulation, ConnectionId, NodeIndex, Role, bulk, commands};
use crate::protocol::Mode;

/// The scripts loaded on each node by digest. A newly promoted master has none of its predecessor's
/// scripts.
#[derive(Debug, Default)]
pub(super) struct LoadedScripts {
    texts: BTreeMap<String, String>,
    by_node: BTreeSet<(NodeIndex, String)>,
}

impl LoadedScripts {
    fn record_script(&mut self, node: NodeIndex, text: &str) -> String {
        let digest: String = Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        self.texts.insert(digest.clone(), text.to_owned());
        self.by_node.insert((node, digest.clone()));
        digest
    }

    fn text(&self, node: NodeIndex, digest: &str) -> Option<String> {
        let digest = digest.to_ascii_lowercase();
        self.by_node.contains(&(node, digest.clone())).then(|| self.texts[&digest].clone())
    }
}

impl ClusterSimulation {
    /// Executes SCRIPT and its subcommands.
    pub(super) fn script(&mut self, id: ConnectionId, args: &[String]) -> Value {
        let node = self.connections.get(&id).map_or(0, |connection| connection.node);
        match (args[1].to_ascii_uppercase().as_str(), args.get(2)) {
            ("LOAD", Some(text)) => bulk(&self.scripts.record_script(node, text)),
            ("EXISTS", Some(_)) => {
                let knows = |digest: &String| i64::from(self.scripts.text(node, digest).is_some());
                Value::Array(args[2..].iter().map(|digest| Value::Integer(knows(digest))).collect())
            }
            ("FLUSH", _) => {
                self.scripts.by_node.retain(|(at, _)| *at != node);
                ok()
            }
            (other, _) => Value::Error(format!("ERR unknown subcommand or wrong arguments for '{other}'.")),
        }
    }

    /// Executes EVAL and EVALSHA. The called command is recorded as executed.
    pub(super) fn run_script(&mut self, ms: u64, id: ConnectionId, name: &str, args: &[String]) -> Value {
        let node = self.connections.get(&id).map_or(0, |connection| connection.node);
        let text = if name == "eval" {
            self.scripts.record_script(node, &args[1]);
            Some(args[1].clone())
        } else {
            self.scripts.text(node, &args[1])
        };
        let Some(text) = text else { return error("NOSCRIPT No matching script. Please use EVAL.") };
        let keys = args.get(2).and_then(|count| count.parse().ok()).unwrap_or(0);
        let (keys, others) = args[3..].split_at_checked(keys).unwrap_or((&args[3..], &[]));
        let called = parse_called_command(&text, keys, others);
        let Some((row, called)) =
            called.and_then(|called| Some((commands::find_command(&called[0])?, called)))
        else {
            return error("ERR a scripted node runs only a script that calls one command that it knows");
        };
        let follows = matches!(self.nodes[node].role, Role::Replica(_)) && self.mode == Mode::Sentinel;
        if follows && row.writes {
            return error("READONLY You can't write against a read only replica.");
        }
        self.run_on_keys(ms, id, row, &called)
    }
}

/// Parses the command that a script calls; `None` if the script has another form.
fn parse_called_command(text: &str, keys: &[String], others: &[String]) -> Option<Vec<String>> {
    let words = text.trim().strip_prefix("return redis.call(")?.strip_suffix(')')?;
    let from = |list: &[String], word: &str, name: &str| -> Option<String> {
        let place: usize = word.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
        list.get(place.checked_sub(1)?).cloned()
    };
    let word = |word: &str| {
        let word = word.trim();
        let quoted = word.strip_prefix('\'').and_then(|word| word.strip_suffix('\''));
        quoted.map(str::to_owned).or_else(|| from(keys, word, "KEYS")).or_else(|| from(others, word, "ARGV"))
    };
    words.split(',').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::script_calling;

    #[test]
    fn script_calls_the_command_in_its_text() {
        for line in ["INCR n", "SET k v", "RPUSH l a b", "GET k"] {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let (text, keys, others) = script_calling(&args);
            assert_eq!(parse_called_command(&text, &keys, &others), Some(args), "{text}");
        }
        for text in ["return 1", "return redis.call('GET', KEYS[2])", "return redis.call(x)", ""] {
            assert_eq!(parse_called_command(text, &["k".to_owned()], &[]), None, "{text}");
        }
    }
}
