//! A master and a replica that run different programs: by applying the replication stream, the replica must get equal
//! data.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Connection, Node, Program, Reply, eventually_within};

use crate::compare::without_fields;
use crate::data::ServerData;
use crate::{Command, CommandCaller, CommandFlags, ExecutedCommands, format_command};

/// The options disable AOF and snapshots, and make a replica sync without delay.
const SERVER_OPTIONS: &str =
    "--save  --appendonly no --enable-debug-command yes --repl-diskless-sync-delay 0";
/// The number of commands that are pipelined to the master.
const PIPELINE_SIZE: usize = 50;
/// Time limit for a replica to catch up, generous for a busy machine.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// A running master and its replica.
#[derive(Debug)]
pub struct ReplicatedPair {
    master: Node,
    replica: Node,
    command_flags: CommandFlags,
    /// The commands that both servers flag as writes.
    write_commands: BTreeSet<String>,
    executed_commands: RefCell<ExecutedCommands>,
}

impl ReplicatedPair {
    /// Starts both servers, and waits until the replica is in sync.
    ///
    /// # Panics
    /// The replica does not get in sync.
    #[must_use]
    pub fn start(master: &Program, replica: &Program) -> Self {
        let (master, replica) = (Node::start(master, SERVER_OPTIONS), Node::start(replica, SERVER_OPTIONS));
        let [table, known] = [&master, &replica].map(CommandFlags::from_node);
        let writes = |table: &CommandFlags| {
            table.commands_with_flag("write").map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let writes = writes(&table).intersection(&writes(&known)).cloned().collect();
        let ran = RefCell::new(ExecutedCommands::for_server(&master));
        let followed =
            Self { master, replica, command_flags: table, write_commands: writes, executed_commands: ran };
        followed.start_replication();
        followed
    }

    fn start_replication(&self) {
        self.replica.run(&format!("REPLICAOF 127.0.0.1 {}", self.master.port)).expect_ok();
        eventually_within(SYNC_TIMEOUT, "the replica follows", || {
            (self.replica.info("replication", "master_link_status")? == "up").then_some(())
        });
    }

    /// Keeps only commands that can be replicated: non-blocking writes that both servers have, and SELECT.
    #[must_use]
    pub fn replicated_commands(&self, commands: Vec<Command>) -> Vec<Command> {
        let takes_part = |command: &Command| {
            let name = self.command_flags.command_name(command).unwrap_or_default();
            name == "SELECT" || self.write_commands.contains(name) && name != "MIGRATE"
        };
        commands.into_iter().filter(takes_part).collect()
    }

    /// Empties both servers, runs the commands on the master, and describes how the replica's data differs.
    ///
    /// # Panics
    /// The replica does not catch up.
    #[must_use]
    pub fn find_difference_after_streaming(&self, commands: &[Command]) -> Option<String> {
        self.run_on_master(CommandCaller::Master, commands);
        self.compare_data(commands)
    }

    /// Like [`Self::find_difference_after_streaming`], but the replica gets the data by a full synchronisation.
    ///
    /// # Panics
    /// The replica does not get in sync.
    #[must_use]
    pub fn find_difference_after_snapshot(&self, commands: &[Command]) -> Option<String> {
        self.replica.run("REPLICAOF NO ONE").expect_ok();
        // A promotion starts a new history, so that a partial resync is impossible.
        self.replica.run("FLUSHALL").expect_ok();
        self.run_on_master(CommandCaller::Master, commands);
        self.start_replication();
        self.compare_data(commands)
    }

    /// Like [`Self::find_difference_after_streaming`], but the master then reloads its data from an append-only file that contains
    /// only these commands.
    ///
    /// # Panics
    /// The load fails or the replica does not catch up.
    #[must_use]
    pub fn find_difference_after_aof_load(&self, commands: &[Command]) -> Option<String> {
        self.master.run("FLUSHALL").expect_ok();
        self.master.run("CONFIG SET appendonly yes").expect_ok();
        eventually_within(SYNC_TIMEOUT, "the file is begun", || {
            let is =
                |field: &str, value: &str| (self.master.info("persistence", field)? == value).then_some(());
            is("aof_enabled", "1")
                .and(is("aof_rewrite_scheduled", "0"))
                .and(is("aof_rewrite_in_progress", "0"))
        });
        self.run_on_master(CommandCaller::Loader, commands);
        self.master.run("DEBUG LOADAOF").expect_ok();
        let found = self.compare_data(commands);
        self.master.run("CONFIG SET appendonly no").expect_ok();
        found
    }

    /// Like [`Self::find_difference_after_streaming`], but the master then reloads its data from a snapshot.
    ///
    /// # Panics
    /// The load fails or the replica does not catch up.
    #[must_use]
    pub fn find_difference_after_reload(&self, commands: &[Command]) -> Option<String> {
        self.run_on_master(CommandCaller::Master, commands);
        self.master.run("DEBUG RELOAD").expect_ok();
        self.compare_data(commands)
    }

    /// The commands that the caller can execute and did not, and exemptions that are not needed.
    ///
    /// # Panics
    /// The method is called during a comparison.
    #[must_use]
    pub fn missing_commands(&self, caller: CommandCaller) -> Vec<String> {
        self.executed_commands.borrow().missing_commands(caller)
    }

    /// The number of keys in all databases of the replica.
    ///
    /// # Panics
    /// The replica does not reply.
    #[must_use]
    pub fn replica_key_count(&self) -> usize {
        let lines = self.replica.run("INFO keyspace").text();
        let keys =
            lines.split("keys=").skip(1).filter_map(|rest| rest.split(',').next()?.parse::<usize>().ok());
        keys.sum()
    }

    /// Runs the commands on the emptied master, and records them for the caller (replica or loader) that will apply
    /// them.
    fn run_on_master(&self, caller: CommandCaller, commands: &[Command]) {
        let mut ran = self.executed_commands.borrow_mut();
        let mut connection = self.master.connect();
        connection.call_line("FLUSHALL").expect_ok();
        connection.call_line("FUNCTION FLUSH").expect_ok();
        for batch in commands.chunks(PIPELINE_SIZE) {
            connection.send_all(batch).expect("it takes commands");
            for command in batch {
                if !matches!(connection.read().expect("a reply"), Reply::Error(_)) {
                    ran.add(caller, command);
                }
            }
        }
    }

    fn compare_data(&self, commands: &[Command]) -> Option<String> {
        let offset = |node: &Node| node.info("replication", "master_repl_offset");
        eventually_within(SYNC_TIMEOUT, "the replica has all", || {
            (offset(&self.master) == offset(&self.replica)).then_some(())
        });
        let [mut master, mut replica] = [&self.master, &self.replica].map(ServerData::connect);
        let found = master
            .find_difference(&mut replica)
            .or_else(|| self.compare_consumer_groups())
            .or_else(|| self.compare_functions());
        found.map(|(question, master, replica)| {
            let lines: String =
                commands.iter().map(|command| format!("  {}\n", format_command(command))).collect();
            format!(
                "{lines}    {}\n    master   {master:?}\n    replica  {replica:?}\n",
                format_command(&question)
            )
        })
    }

    /// Compares the pending entries of consumer groups, which digests do not include.
    fn compare_consumer_groups(&self) -> Option<(Command, Reply, Reply)> {
        let [mut master, mut replica] = [&self.master, &self.replica].map(Node::connect);
        let ask = |connection: &mut Connection, words: &Command| connection.try_call(words).expect("a reply");
        let keys = master.call_line("SCAN 0 COUNT 100000 TYPE stream");
        for key in keys.items()[1].items() {
            let Reply::Bulk(key) = key else { continue };
            let question = vec![b"XINFO".to_vec(), b"GROUPS".to_vec(), key.clone()];
            let answers = [&mut master, &mut replica].map(|side| ask(side, &question));
            // Valkey computes the lag of a group differently.
            let [there, here] = answers.map(|answer| without_fields(&answer, &["lag"]));
            if there != here {
                return Some((question, there, here));
            }
        }
        None
    }

    /// Compares functions, which digests do not include; FUNCTION LIST has no order.
    fn compare_functions(&self) -> Option<(Command, Reply, Reply)> {
        let question: Command = [&b"FUNCTION"[..], b"LIST", b"WITHCODE"].map(<[u8]>::to_vec).into();
        let [there, here] = [&self.master, &self.replica].map(|node| {
            let mut listed = node.connect().try_call(&question).expect("a reply").items().to_vec();
            listed.sort();
            Reply::Array(listed)
        });
        (there != here).then_some((question, there, here))
    }

    /// Removes commands as long as the remaining ones still produce a difference.
    #[must_use]
    pub fn shrink_commands(
        mut commands: Vec<Command>,
        makes_difference: impl Fn(&[Command]) -> bool,
    ) -> Vec<Command> {
        let mut chunk = commands.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < commands.len() {
                let mut fewer = commands.clone();
                fewer.drain(at..(at + chunk).min(fewer.len()));
                if makes_difference(&fewer) {
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
