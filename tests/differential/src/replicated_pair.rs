//! A master of one kind with a replica of the other: the replica must apply the stream to the same data.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Connection, Node, Program, Value, eventually_within};

use crate::compare::without;
use crate::data::Data;
use crate::{Caller, Command, ExecutedCommands, Table, show};

/// No AOF or snapshots by default, and no delay before a replica syncs.
const OPTIONS: &str = "--save  --appendonly no --enable-debug-command yes --repl-diskless-sync-delay 0";
/// The number of pipelined commands.
const BATCH: usize = 50;
/// A replica catches up within this time, on a busy machine too.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A master and its replica.
#[derive(Debug)]
pub struct ReplicatedPair {
    master: Node,
    replica: Node,
    table: Table,
    /// The commands that both servers flag as writes.
    writes: BTreeSet<String>,
    ran: RefCell<ExecutedCommands>,
}

impl ReplicatedPair {
    /// Starts both servers, and waits until the replica is in sync.
    ///
    /// # Panics
    /// If the replica does not get in sync.
    #[must_use]
    pub fn start(master: &Program, replica: &Program) -> Self {
        let (master, replica) = (Node::start(master, OPTIONS), Node::start(replica, OPTIONS));
        let [table, known] = [&master, &replica].map(Table::of);
        let writes = |table: &Table| table.with("write").map(str::to_owned).collect::<BTreeSet<_>>();
        let writes = writes(&table).intersection(&writes(&known)).cloned().collect();
        let ran = RefCell::new(ExecutedCommands::for_server(&master));
        let followed = Self { master, replica, table, writes, ran };
        followed.follow();
        followed
    }

    fn follow(&self) {
        self.replica.run(&format!("REPLICAOF 127.0.0.1 {}", self.master.port)).expect_ok();
        eventually_within(TIMEOUT, "the replica follows", || {
            (self.replica.info("replication", "master_link_status")? == "up").then_some(())
        });
    }

    /// Keeps the commands that can be replicated: non-blocking writes that both servers have, and SELECT.
    #[must_use]
    pub fn replicated_commands(&self, commands: Vec<Command>) -> Vec<Command> {
        let takes_part = |command: &Command| {
            let name = self.table.name_of(command).unwrap_or_default();
            name == "SELECT" || self.writes.contains(name) && name != "MIGRATE"
        };
        commands.into_iter().filter(takes_part).collect()
    }

    /// Empties both servers, runs the commands on the master, and describes how the replica's data differs.
    ///
    /// # Panics
    /// If the replica does not catch up.
    #[must_use]
    pub fn difference(&self, commands: &[Command]) -> Option<String> {
        self.run(Caller::Master, commands);
        self.compare(commands)
    }

    /// Like [`Self::difference`], but the replica gets the data by a full synchronisation.
    ///
    /// # Panics
    /// If the replica does not get in sync.
    #[must_use]
    pub fn difference_by_snapshot(&self, commands: &[Command]) -> Option<String> {
        self.replica.run("REPLICAOF NO ONE").expect_ok();
        // A new history, so that partial resync is impossible.
        self.replica.run("FLUSHALL").expect_ok();
        self.run(Caller::Master, commands);
        self.follow();
        self.compare(commands)
    }

    /// Like [`Self::difference`], but the master then reloads its data from an append-only file that contains only
    /// these commands.
    ///
    /// # Panics
    /// If the load fails or the replica does not catch up.
    #[must_use]
    pub fn difference_by_aof(&self, commands: &[Command]) -> Option<String> {
        self.master.run("FLUSHALL").expect_ok();
        self.master.run("CONFIG SET appendonly yes").expect_ok();
        eventually_within(TIMEOUT, "the file is begun", || {
            let is =
                |field: &str, value: &str| (self.master.info("persistence", field)? == value).then_some(());
            is("aof_enabled", "1")
                .and(is("aof_rewrite_scheduled", "0"))
                .and(is("aof_rewrite_in_progress", "0"))
        });
        self.run(Caller::Loader, commands);
        self.master.run("DEBUG LOADAOF").expect_ok();
        let found = self.compare(commands);
        self.master.run("CONFIG SET appendonly no").expect_ok();
        found
    }

    /// Like [`Self::difference`], but the master then reloads its data from a snapshot.
    ///
    /// # Panics
    /// If the load fails or the replica does not catch up.
    #[must_use]
    pub fn difference_by_reload(&self, commands: &[Command]) -> Option<String> {
        self.run(Caller::Master, commands);
        self.master.run("DEBUG RELOAD").expect_ok();
        self.compare(commands)
    }

    /// The commands that the caller can execute and did not, and exemptions that are not needed.
    ///
    /// # Panics
    /// If called during a comparison.
    #[must_use]
    pub fn missing_commands(&self, caller: Caller) -> Vec<String> {
        self.ran.borrow().missing_commands(caller)
    }

    /// The number of keys in all databases of the replica.
    ///
    /// # Panics
    /// If the replica does not reply.
    #[must_use]
    pub fn keys(&self) -> usize {
        let lines = self.replica.run("INFO keyspace").text();
        let keys =
            lines.split("keys=").skip(1).filter_map(|rest| rest.split(',').next()?.parse::<usize>().ok());
        keys.sum()
    }

    /// Runs the commands on the emptied master, and records them for the caller that will apply them.
    fn run(&self, caller: Caller, commands: &[Command]) {
        let mut ran = self.ran.borrow_mut();
        let mut connection = self.master.connect();
        connection.run("FLUSHALL").expect_ok();
        connection.run("FUNCTION FLUSH").expect_ok();
        for batch in commands.chunks(BATCH) {
            connection.send_all(batch).expect("it takes commands");
            for command in batch {
                if !matches!(connection.read().expect("a reply"), Value::Error(_)) {
                    ran.add(caller, command);
                }
            }
        }
    }

    fn compare(&self, commands: &[Command]) -> Option<String> {
        let offset = |node: &Node| node.info("replication", "master_repl_offset");
        eventually_within(TIMEOUT, "the replica has all", || {
            (offset(&self.master) == offset(&self.replica)).then_some(())
        });
        let [mut master, mut replica] = [&self.master, &self.replica].map(Data::of);
        let found = master
            .difference(&mut replica)
            .or_else(|| self.difference_of_groups())
            .or_else(|| self.difference_of_functions());
        found.map(|(question, master, replica)| {
            let lines: String = commands.iter().map(|command| format!("  {}\n", show(command))).collect();
            format!("{lines}    {}\n    master   {master:?}\n    replica  {replica:?}\n", show(&question))
        })
    }

    /// Digests do not include the pending entries of consumer groups.
    fn difference_of_groups(&self) -> Option<(Command, Value, Value)> {
        let [mut master, mut replica] = [&self.master, &self.replica].map(Node::connect);
        let ask = |connection: &mut Connection, words: &Command| connection.try_call(words).expect("a reply");
        let keys = master.run("SCAN 0 COUNT 100000 TYPE stream");
        for key in keys.items()[1].items() {
            let Value::Bulk(key) = key else { continue };
            let question = vec![b"XINFO".to_vec(), b"GROUPS".to_vec(), key.clone()];
            let answers = [&mut master, &mut replica].map(|side| ask(side, &question));
            // Valkey computes the lag differently.
            let [there, here] = answers.map(|answer| without(&answer, &["lag"]));
            if there != here {
                return Some((question, there, here));
            }
        }
        None
    }

    /// Digests do not include functions, and FUNCTION LIST has no order.
    fn difference_of_functions(&self) -> Option<(Command, Value, Value)> {
        let question: Command = [&b"FUNCTION"[..], b"LIST", b"WITHCODE"].map(<[u8]>::to_vec).into();
        let [there, here] = [&self.master, &self.replica].map(|node| {
            let mut listed = node.connect().try_call(&question).expect("a reply").items().to_vec();
            listed.sort();
            Value::Array(listed)
        });
        (there != here).then_some((question, there, here))
    }

    /// Removes commands while the rest still makes a difference.
    #[must_use]
    pub fn shrink_commands(mut commands: Vec<Command>, differs: impl Fn(&[Command]) -> bool) -> Vec<Command> {
        let mut chunk = commands.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < commands.len() {
                let mut fewer = commands.clone();
                fewer.drain(at..(at + chunk).min(fewer.len()));
                if differs(&fewer) {
                    commands = fewer;
                } else {
                    at += chunk;
                }
            }
            if chunk == 1 {
                return commands;
            }
            chunk = chunk.div_ceil(2);
        }
    }
}
