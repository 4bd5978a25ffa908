//! A client that finds its way: it follows redirections in a cluster and asks sentinels elsewhere, tries no write twice
//! whose fate it does not know, and notes everything.

use std::collections::HashMap;
use std::time::Duration;

use harness::{Connection, Endpoint, MASTER, SLOTS, Value, slot_of};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{History, Mode, Op, Outcome};

/// How long a reply may take: longer is not known.
const TIMEOUT: Duration = Duration::from_millis(1000);
/// How often a command is sent on to another node.
const HOPS: usize = 5;
/// A client that was refused waits so long, as libraries do.
const PAUSE: Duration = Duration::from_millis(10);

/// Why a command has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It is certain that it was not carried out.
    Refused(String),
    /// It may have been carried out, or still be.
    Unknown(String),
}

/// A reply, and the node that gave it.
type Answer = Result<Value, Failure>;

/// A client of the servers.
#[derive(Debug)]
pub struct Client<'a> {
    /// Its number.
    pub id: usize,
    /// Its own chance.
    pub chance: ChaCha8Rng,
    history: &'a History,
    mode: Mode,
    endpoints: &'a [Endpoint],
    connections: HashMap<usize, Connection>,
    /// The owner of each slot, as far as the client was told; without slots, the master for all of them.
    owners: HashMap<u16, usize>,
    /// The node that was asked last.
    asked: usize,
    counter: u64,
}

impl<'a> Client<'a> {
    /// Client `id` of the run with this seed; `endpoints` are the nodes of the deployment.
    #[must_use]
    pub fn new(id: usize, seed: u64, mode: Mode, endpoints: &'a [Endpoint], history: &'a History) -> Self {
        Self {
            id,
            chance: ChaCha8Rng::seed_from_u64(seed ^ ((id as u64 + 1) << 32)),
            history,
            mode,
            endpoints,
            connections: HashMap::new(),
            owners: HashMap::new(),
            asked: 0,
            counter: 0,
        }
    }

    /// A number that no other client writes, larger than those before it of this client.
    pub fn unique(&mut self) -> u64 {
        self.counter += 1;
        ((self.id as u64 + 1) << 32) | self.counter
    }

    /// How many replicas a master has where nothing is wrong.
    #[must_use]
    pub fn replicas(&self) -> u64 {
        (self.mode.servers() / self.mode.shards() - 1) as u64
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.chance.random_range(0..end)
    }

    /// Carries out an operation and notes it: `act` says what was read.
    pub fn operate(
        &mut self,
        op: Op,
        act: impl FnOnce(&mut Self) -> Result<Option<u64>, Failure>,
    ) -> Option<Op> {
        let mut op = Op { client: self.id, invoked: self.history.now(), ..op };
        let done = act(self);
        op.completed = self.history.now();
        op.node = self.asked;
        match done {
            Ok(read) => (op.outcome, op.read) = (Outcome::Acknowledged, read),
            Err(Failure::Refused(why)) => (op.outcome, op.error) = (Outcome::Failed, Some(why)),
            Err(Failure::Unknown(why)) => (op.outcome, op.error) = (Outcome::Unknown, Some(why)),
        }
        let failed = op.outcome != Outcome::Acknowledged;
        self.history.note(op.clone());
        if failed {
            std::thread::sleep(PAUSE);
            return None;
        }
        Some(op)
    }

    /// Sends a command to the owner of the key.
    ///
    /// # Errors
    /// If no node carried it out, or that is not known.
    pub fn call(&mut self, key: &str, words: &[&str]) -> Answer {
        self.batch(key, &[words]).map(|mut replies| replies.swap_remove(0))
    }

    /// Sends commands at once; the replies of all of them. Only the first is sent on, so the others must stand or fall
    /// with it.
    ///
    /// # Errors
    /// As for one.
    pub fn batch(&mut self, key: &str, commands: &[&[&str]]) -> Result<Vec<Value>, Failure> {
        let slot = if self.mode == Mode::Cluster { slot_of(key) } else { 0 };
        let mut node = self.guess(slot);
        let mut asking = false;
        for _ in 0..HOPS {
            self.asked = node;
            let replies = match self.exchange(node, asking, commands) {
                Ok(replies) => replies,
                Err(failure) => {
                    self.owners.remove(&slot);
                    return Err(failure);
                }
            };
            let Value::Error(error) = &replies[0] else {
                self.owners.insert(slot, node);
                return Ok(replies);
            };
            asking = error.starts_with("ASK ");
            match redirected(error, self.endpoints) {
                Some(next) => {
                    node = next;
                    if !asking {
                        self.owners.insert(slot, next);
                    }
                }
                None => {
                    // A node that is no master, or knows none, is not asked again.
                    self.owners.remove(&slot);
                    return Err(Failure::Refused(error.clone()));
                }
            }
        }
        Err(Failure::Refused("too many redirections".to_owned()))
    }

    fn guess(&mut self, slot: u16) -> usize {
        if let Some(&owner) = self.owners.get(&slot) {
            return owner;
        }
        match self.mode {
            Mode::Cluster => {
                let servers = self.mode.servers();
                // At the beginning the masters lie in the order of their slots.
                let first = usize::from(slot) * self.mode.shards() / usize::from(SLOTS);
                if self.owners.is_empty() && self.counter < 3 { first } else { self.below(servers) }
            }
            Mode::Sentinel => self.ask_sentinels().unwrap_or_else(|| self.below(self.mode.servers())),
        }
    }

    fn ask_sentinels(&mut self) -> Option<usize> {
        let sentinel = self.mode.servers() + self.below(self.mode.nodes() - self.mode.servers());
        let question: &[&str] = &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let replies = self.exchange(sentinel, false, &[question]).ok()?;
        let Value::Array(address) = &replies[0] else { return None };
        let port = address.get(1)?.text().parse::<u16>().ok()?;
        self.endpoints.iter().position(|endpoint| endpoint.port == port)
    }

    /// Sends commands to this node and reads their replies.
    fn exchange(&mut self, node: usize, asking: bool, commands: &[&[&str]]) -> Result<Vec<Value>, Failure> {
        let mut connection = match self.connections.remove(&node) {
            Some(connection) => connection,
            None => {
                let opened = self.endpoints[node].connect();
                let mut opened =
                    opened.map_err(|error| Failure::Refused(format!("no connection: {error}")))?;
                opened.set_timeout(TIMEOUT);
                opened
            }
        };
        let lost = |error: std::io::Error| Failure::Unknown(format!("no reply: {:?}", error.kind()));
        if asking {
            connection.send(&["ASKING"]).map_err(lost)?;
        }
        for words in commands {
            connection.send(words).map_err(lost)?;
        }
        if asking {
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

/// The node that `MOVED slot ip:port` or `ASK slot ip:port` names.
fn redirected(error: &str, endpoints: &[Endpoint]) -> Option<usize> {
    let mut words = error.split(' ');
    if !matches!(words.next(), Some("MOVED" | "ASK")) {
        return None;
    }
    let port: u16 = words.nth(1)?.rsplit(':').next()?.parse().ok()?;
    endpoints.iter().position(|endpoint| endpoint.port == port)
}
