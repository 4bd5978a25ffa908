//! A master of one kind with a replica of the other: what either logs the other applies, to the same data.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Connection, Node, Program, Value, eventually_within};

use crate::compare::without;
use crate::data::Data;
use crate::{Caller, Command, Played, Table, show};

/// Nothing of these is a command that takes part, and a replica is there at once.
const OPTIONS: &str = "--save  --appendonly no --enable-debug-command yes --repl-diskless-sync-delay 0";
/// Commands in flight at once.
const BATCH: usize = 50;
/// A replica has all that its master has within that time, on a busy machine too.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A master and its replica.
#[derive(Debug)]
pub struct Followed {
    master: Node,
    replica: Node,
    table: Table,
    /// The commands that both say are writes.
    writes: BTreeSet<String>,
    ran: RefCell<Played>,
}

impl Followed {
    /// Starts both, and waits until the replica follows.
    ///
    /// # Panics
    /// If it never does.
    #[must_use]
    pub fn start(master: &Program, replica: &Program) -> Self {
        let (master, replica) = (Node::start(master, OPTIONS), Node::start(replica, OPTIONS));
        let [table, known] = [&master, &replica].map(Table::of);
        let writes = |table: &Table| table.with("write").map(str::to_owned).collect::<BTreeSet<_>>();
        let writes = writes(&table).intersection(&writes(&known)).cloned().collect();
        let ran = RefCell::new(Played::none_of(&master));
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

    /// Those of these commands that may take part: writes that end at once, and that both know, and which database they are in.
    #[must_use]
    pub fn taking_part(&self, commands: Vec<Command>) -> Vec<Command> {
        let takes_part = |command: &Command| {
            let name = self.table.name_of(command).unwrap_or_default();
            name == "SELECT" || self.writes.contains(name) && name != "MIGRATE"
        };
        commands.into_iter().filter(takes_part).collect()
    }

    /// Empties both, runs these commands at the master, and gives what the replica then has otherwise: a report.
    ///
    /// # Panics
    /// If the replica does not come to have all of them.
    #[must_use]
    pub fn difference(&self, commands: &[Command]) -> Option<String> {
        self.run(Caller::Master, commands);
        self.compare(commands)
    }

    /// The same where the replica is given all in a snapshot.
    ///
    /// # Panics
    /// If the replica does not come to have it.
    #[must_use]
    pub fn difference_by_snapshot(&self, commands: &[Command]) -> Option<String> {
        self.replica.run("REPLICAOF NO ONE").expect_ok();
        // A history of its own: nothing can be gone on with.
        self.replica.run("FLUSHALL").expect_ok();
        self.run(Caller::Master, commands);
        self.follow();
        self.compare(commands)
    }

    /// The same where the master then loads all from its append-only file, in which nothing else is.
    ///
    /// # Panics
    /// If it does not, or if the replica does not come to have all.
    #[must_use]
    pub fn difference_by_file(&self, commands: &[Command]) -> Option<String> {
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

    /// The same where the master then loads all from a snapshot of its own.
    ///
    /// # Panics
    /// If it does not, or if the replica does not come to have all.
    #[must_use]
    pub fn difference_by_reload(&self, commands: &[Command]) -> Option<String> {
        self.run(Caller::Master, commands);
        self.master.run("DEBUG RELOAD").expect_ok();
        self.compare(commands)
    }

    /// The commands that this caller can have and that have not run since the start, and reasons that are not true.
    ///
    /// # Panics
    /// Never: it is not asked within a comparison.
    #[must_use]
    pub fn lacking(&self, caller: Caller) -> Vec<String> {
        self.ran.borrow().lacking(caller)
    }

    /// How many keys the replica has in all its databases.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn keys(&self) -> usize {
        let lines = self.replica.run("INFO keyspace").text();
        let keys =
            lines.split("keys=").skip(1).filter_map(|rest| rest.split(',').next()?.parse::<usize>().ok());
        keys.sum()
    }

    /// Runs these at the emptied master, for the caller that hears of them next.
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

    /// No digest has what groups of streams have read and not acknowledged.
    fn difference_of_groups(&self) -> Option<(Command, Value, Value)> {
        let [mut master, mut replica] = [&self.master, &self.replica].map(Node::connect);
        let ask = |connection: &mut Connection, words: &Command| connection.try_call(words).expect("a reply");
        let keys = master.run("SCAN 0 COUNT 100000 TYPE stream");
        for key in keys.items()[1].items() {
            let Value::Bulk(key) = key else { continue };
            let question = vec![b"XINFO".to_vec(), b"GROUPS".to_vec(), key.clone()];
            let answers = [&mut master, &mut replica].map(|side| ask(side, &question));
            // Valkey counts the lag otherwise, from the same numbers.
            let [there, here] = answers.map(|answer| without(&answer, &["lag"]));
            if there != here {
                return Some((question, there, here));
            }
        }
        None
    }

    /// Nor has any the functions, which stand in no order.
    fn difference_of_functions(&self) -> Option<(Command, Value, Value)> {
        let question: Command = [&b"FUNCTION"[..], b"LIST", b"WITHCODE"].map(<[u8]>::to_vec).into();
        let [there, here] = [&self.master, &self.replica].map(|node| {
            let mut listed = node.connect().try_call(&question).expect("a reply").items().to_vec();
            listed.sort();
            Value::Array(listed)
        });
        (there != here).then_some((question, there, here))
    }

    /// As few of these commands as still make a difference.
    #[must_use]
    pub fn shortest(mut commands: Vec<Command>, differs: impl Fn(&[Command]) -> bool) -> Vec<Command> {
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
