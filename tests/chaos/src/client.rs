//! A recording client: it follows cluster redirections and sentinel failovers, never retries a
//! write whose result is unknown, and records every operation.

use std::collections::HashMap;
use std::time::Duration;

use harness::{Connection, Endpoint, MASTER_NAME, Reply, SLOT_COUNT, slot_of};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{DeploymentMode, OpHistory, OpOutcome, Operation};

/// How long a client waits for a reply. After a timeout the result of the operation is unknown.
const REPLY_TIMEOUT: Duration = Duration::from_millis(1000);
/// The maximum number of redirections per command.
const MAX_REDIRECTS: usize = 5;
/// The delay before a refused client retries, as in client libraries.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Why a command has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The command was certainly not executed, for this reason.
    NotExecuted(String),
    /// The command may have been executed or may still be executed.
    UnknownResult(String),
}

/// A reply or the reason for its absence.
type CallResult = Result<Reply, CallError>;

/// A recording client of the servers under test.
#[derive(Debug)]
pub struct ChaosClient<'a> {
    /// The client's number in the history and in reports.
    pub id: usize,
    /// The random generator of this client, derived from the run's seed.
    pub rng: ChaCha8Rng,
    history: &'a OpHistory,
    mode: DeploymentMode,
    endpoints: &'a [Endpoint],
    connections: HashMap<usize, Connection>,
    /// The known owner of each slot. Without a cluster, the master is stored for slot 0.
    slot_owners: HashMap<u16, usize>,
    /// The node that received the last command.
    last_node: usize,
    last_value: u64,
}

impl<'a> ChaosClient<'a> {
    /// Creates client `id` of the run with `seed`. `endpoints` are the deployment's nodes.
    #[must_use]
    pub fn new(
        id: usize,
        seed: u64,
        mode: DeploymentMode,
        endpoints: &'a [Endpoint],
        history: &'a OpHistory,
    ) -> Self {
        Self {
            id,
            rng: ChaCha8Rng::seed_from_u64(seed ^ ((id as u64 + 1) << 32)),
            history,
            mode,
            endpoints,
            connections: HashMap::new(),
            slot_owners: HashMap::new(),
            last_node: 0,
            last_value: 0,
        }
    }

    /// Returns a number that no other client writes and that exceeds this client's earlier ones.
    pub fn unique_value(&mut self) -> u64 {
        self.last_value += 1;
        ((self.id as u64 + 1) << 32) | self.last_value
    }

    /// Returns the number of replicas per master in a healthy deployment.
    #[must_use]
    pub fn replicas_per_master(&self) -> u64 {
        (self.mode.data_node_count() / self.mode.shard_count() - 1) as u64
    }

    /// Returns a random number below `bound`.
    pub fn random_below(&mut self, bound: usize) -> usize {
        self.rng.random_range(0..bound)
    }

    /// Runs `operation`, which returns the value read, and records it in the history.
    pub fn run_operation(
        &mut self,
        op: Operation,
        operation: impl FnOnce(&mut Self) -> Result<Option<u64>, CallError>,
    ) -> Option<Operation> {
        let mut op = Operation { client: self.id, invoked: self.history.now(), ..op };
        let done = operation(self);
        op.completed = self.history.now();
        op.node = self.last_node;
        match done {
            Ok(read) => (op.outcome, op.read) = (OpOutcome::Acknowledged, read),
            Err(CallError::NotExecuted(why)) => (op.outcome, op.error) = (OpOutcome::Failed, Some(why)),
            Err(CallError::UnknownResult(why)) => (op.outcome, op.error) = (OpOutcome::Unknown, Some(why)),
        }
        let failed = op.outcome != OpOutcome::Acknowledged;
        self.history.record(op.clone());
        if failed {
            std::thread::sleep(RETRY_DELAY);
            return None;
        }
        Some(op)
    }

    /// Sends a command to the owner of `key`.
    ///
    /// # Errors
    /// No node executed the command, or the result is unknown.
    pub fn call_command(&mut self, key: &str, words: &[&str]) -> CallResult {
        self.call_pipeline(key, &[words]).map(|mut replies| replies.swap_remove(0))
    }

    /// Sends commands as one pipeline and returns all replies. Only the first reply is checked for redirection, so the
    /// commands must succeed or fail together.
    ///
    /// # Errors
    /// The same as for [`Self::call_command`].
    pub fn call_pipeline(&mut self, key: &str, commands: &[&[&str]]) -> Result<Vec<Reply>, CallError> {
        let slot = if self.mode == DeploymentMode::Cluster { slot_of(key) } else { 0 };
        let mut node = self.initial_owner(slot);
        let mut asking = false;
        for _ in 0..MAX_REDIRECTS {
            self.last_node = node;
            let replies = match self.send_to_node(node, asking, commands) {
                Ok(replies) => replies,
                Err(failure) => {
                    self.slot_owners.remove(&slot);
                    return Err(failure);
                }
            };
            let Reply::Error(error) = &replies[0] else {
                self.slot_owners.insert(slot, node);
                return Ok(replies);
            };
            asking = error.starts_with("ASK ");
            match parse_redirection(error, self.endpoints) {
                Some(next) => {
                    node = next;
                    if !asking {
                        self.slot_owners.insert(slot, next);
                    }
                }
                None => {
                    // Forget this node, because it is not a master or knows no owner of the slot.
                    self.slot_owners.remove(&slot);
                    return Err(CallError::NotExecuted(error.clone()));
                }
            }
        }
        Err(CallError::NotExecuted("too many redirections".to_owned()))
    }

    fn initial_owner(&mut self, slot: u16) -> usize {
        if let Some(&owner) = self.slot_owners.get(&slot) {
            return owner;
        }
        match self.mode {
            DeploymentMode::Cluster => {
                let servers = self.mode.data_node_count();
                // Initially the masters own equal slot ranges in node order.
                let first = usize::from(slot) * self.mode.shard_count() / usize::from(SLOT_COUNT);
                if self.slot_owners.is_empty() && self.last_value < 3 {
                    first
                } else {
                    self.random_below(servers)
                }
            }
            DeploymentMode::Sentinel => {
                self.query_sentinels().unwrap_or_else(|| self.random_below(self.mode.data_node_count()))
            }
        }
    }

    fn query_sentinels(&mut self) -> Option<usize> {
        let sentinel = self.mode.data_node_count()
            + self.random_below(self.mode.node_count() - self.mode.data_node_count());
        let question: &[&str] = &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
        let replies = self.send_to_node(sentinel, false, &[question]).ok()?;
        let Reply::Array(address) = &replies[0] else { return None };
        let port = address.get(1)?.text().parse::<u16>().ok()?;
        self.endpoints.iter().position(|endpoint| endpoint.port == port)
    }

    /// Sends commands to `node` and reads their replies.
    fn send_to_node(
        &mut self,
        node: usize,
        is_asking: bool,
        commands: &[&[&str]],
    ) -> Result<Vec<Reply>, CallError> {
        let mut connection = match self.connections.remove(&node) {
            Some(connection) => connection,
            None => {
                let opened = self.endpoints[node].connect();
                let mut opened =
                    opened.map_err(|error| CallError::NotExecuted(format!("no connection: {error}")))?;
                opened.set_timeout(REPLY_TIMEOUT);
                opened
            }
        };
        let lost = |error: std::io::Error| CallError::UnknownResult(format!("no reply: {:?}", error.kind()));
        if is_asking {
            connection.send(&["ASKING"]).map_err(lost)?;
        }
        for words in commands {
            connection.send(words).map_err(lost)?;
        }
        if is_asking {
            connection.read().map_err(lost)?;
        }
        let mut replies = Vec::with_capacity(commands.len());
        for _ in commands {
            replies.push(connection.read().map_err(lost)?);
        }
        self.connections.insert(node, connection);
        Ok(replies)
    }
}

/// Returns the node named in `MOVED slot ip:port` or `ASK slot ip:port`.
fn parse_redirection(error: &str, endpoints: &[Endpoint]) -> Option<usize> {
    let mut words = error.split(' ');
    if !matches!(words.next(), Some("MOVED" | "ASK")) {
        return None;
    }
    let port: u16 = words.nth(1)?.rsplit(':').next()?.parse().ok()?;
    endpoints.iter().position(|endpoint| endpoint.port == port)
}
