//! The table of commands that the sentinel implements, and their dispatch.

use clock::Instant;
use resp::Writer;

use crate::event::EventLevel;
use crate::hello::{HELLO_CHANNEL, Hello};
use crate::machine::{ClientCommand, RejectedScript, Sentinel, SentinelAction};
use crate::master::Master;
use crate::shared::Context;
use crate::writes::{Condition, StepOutput};

mod describe;
mod masters;
mod operate;
mod peers;
mod settings;

/// A client command that is being executed.
struct CommandCall<'a> {
    sentinel: &'a mut Sentinel,
    now: Instant,
    /// The arguments that follow the subcommand.
    args: &'a [&'a [u8]],
    reply: Writer<'a>,
    out: &'a mut StepOutput,
    /// What must be on disk before the reply leaves.
    condition: Condition,
    rejected_script: Option<RejectedScript>,
}

impl CommandCall<'_> {
    /// Returns an argument as text. Invalid UTF-8 becomes a replacement character, which matches no name.
    fn text_arg(&self, at: usize) -> &str {
        self.args.get(at).and_then(|arg| std::str::from_utf8(arg).ok()).unwrap_or("\u{fffd}")
    }

    fn number_arg<T: std::str::FromStr>(&self, at: usize) -> Option<T> {
        self.text_arg(at).parse().ok()
    }

    /// Looks up the master that an argument names. Sends an error reply if there is none.
    fn find_master(&mut self, at: usize) -> Option<&Master> {
        let name = self.text_arg(at).to_owned();
        if !self.sentinel.masters.contains_key(&name) {
            self.reply.error("ERR No such master with that name");
        }
        self.sentinel.masters.get(&name)
    }

    /// Looks up the master that an argument names, to change it. Sends an error reply if there is none.
    fn find_master_mut(&mut self, at: usize) -> Option<(&mut Master, Context<'_>)> {
        let name = self.text_arg(at).to_owned();
        let Sentinel { masters, shared, .. } = &mut *self.sentinel;
        let Some(master) = masters.get_mut(&name) else {
            self.reply.error("ERR No such master with that name");
            return None;
        };
        shared.scheduler.schedule_round(&name);
        Some((master, Context { now: self.now, shared, out: self.out }))
    }

    fn reply_fields(&mut self, fields: &[(&'static str, String)]) {
        self.reply.map(fields.len());
        for (name, value) in fields {
            self.reply.bulk(name.as_bytes());
            self.reply.bulk(value.as_bytes());
        }
    }
}

/// An entry in the table of SENTINEL subcommands.
struct Subcommand {
    name: &'static str,
    run: fn(&mut CommandCall<'_>),
    /// The lines of SENTINEL HELP: the syntax, followed by the description.
    help: &'static [&'static str],
}

macro_rules! subcommands {
    ($($name:literal $run:path, [$($help:literal),*];)*) => {
        &[$(Subcommand { name: $name, run: $run, help: &[$($help),*] }),*]
    };
}

/// The subcommands in the order of SENTINEL HELP. SLAVES and Valkey's alternative names have no help lines.
static SUBCOMMANDS: &[Subcommand] = subcommands! {
    "ckquorum" peers::ckquorum, ["CKQUORUM <master-name>",
        "    Check if the current Sentinel configuration is able to reach the quorum",
        "    needed to failover a master and the majority needed to authorize the",
        "    failover. Names the Sentinels that are out of reach."];
    "config" settings::config, ["CONFIG SET <param> <value> [<param> <value> ...]",
        "    Set a global Sentinel configuration parameter.",
        "CONFIG GET <param> [<param> ...]",
        "    Get global Sentinel configuration parameter."];
    "debug" settings::debug, ["DEBUG [<param> <value> ...]",
        "    Show a list of configurable time parameters and their values (milliseconds).",
        "    Or update current configurable parameters values (one or more)."];
    "get-primary-addr-by-name" masters::show_master_addr, [];
    "is-primary-down-by-addr" peers::is_master_down, [];
    "primaries" masters::list_masters, [];
    "primary" masters::show_master, [];
    "get-master-addr-by-name" masters::show_master_addr, ["GET-MASTER-ADDR-BY-NAME <master-name>",
        "    Return the ip and port number of the master with that name."];
    "failover" operate::failover, ["FAILOVER <master-name> [COORDINATED]",
        "    Manually failover a master node. A majority of the Sentinels must agree.",
        "    COORDINATED has the master hand over by itself, without losing a write."];
    "failovers" masters::list_failovers, ["FAILOVERS [<master-name>] [JSON]",
        "    Show the last failovers step by step, in milliseconds from the first suspicion."];
    "flushconfig" operate::flushconfig, ["FLUSHCONFIG",
        "    Force Sentinel to rewrite its configuration on disk, including the current",
        "    Sentinel state."];
    "forget-peer" peers::forget_peer, ["FORGET-PEER <master-name> <runid>",
        "    Stop counting a Sentinel that is gone for good. To be said to every Sentinel."];
    "info-cache" masters::show_info_cache, ["INFO-CACHE <master-name>",
        "    Return last cached INFO output from masters and all its replicas."];
    "is-master-down-by-addr" peers::is_master_down, ["IS-MASTER-DOWN-BY-ADDR <ip> <port> <current-epoch> <runid>",
        "    Check if the master specified by ip:port is down from current Sentinel's",
        "    point of view."];
    "master" masters::show_master, ["MASTER <master-name>",
        "    Show the state and info of the specified master."];
    "masters" masters::list_masters, ["MASTERS",
        "    Show a list of monitored masters and their state."];
    "monitor" operate::monitor, ["MONITOR <name> <ip> <port> <quorum>",
        "    Start monitoring a new master with the specified name, ip, port and quorum."];
    "myid" settings::myid, ["MYID", "    Return the ID of the Sentinel instance."];
    "pending-scripts" settings::pending_scripts, ["PENDING-SCRIPTS", "    Get pending scripts information."];
    "raft" peers::raft, ["RAFT [<master-name> <message>]",
        "    What Sentinels say to each other to elect a leader."];
    "remove" operate::remove, ["REMOVE <master-name>", "    Remove master from Sentinel's monitor list."];
    "replicas" masters::list_replicas, ["REPLICAS <master-name>",
        "    Show a list of replicas for this master and their state."];
    "reset" operate::reset, ["RESET <pattern>",
        "    Reset masters for specific master name matching this pattern."];
    "sentinels" masters::list_sentinels, ["SENTINELS <master-name>",
        "    Show a list of Sentinel instances for this master and their state."];
    "set" settings::set_options, ["SET <master-name> <option> <value> [<option> <value> ...]",
        "    Set configuration parameters for certain masters."];
    "simulate-failure" settings::simulate_failure, ["SIMULATE-FAILURE [CRASH-AFTER-ELECTION] [CRASH-AFTER-PROMOTION] [HELP]",
        "    Simulate a Sentinel crash."];
    "slaves" masters::list_replicas, [];
    "help" help, ["HELP", "    Prints this help."];
};

/// The names of the SENTINEL subcommands. The caller checks the number of arguments before it passes a command on.
pub fn subcommands() -> impl Iterator<Item = &'static str> {
    SUBCOMMANDS.iter().map(|one| one.name)
}

impl Sentinel {
    /// Executes a client command and replies to the client.
    pub(crate) fn on_command(&mut self, now: Instant, command: ClientCommand, out: &mut StepOutput) {
        let ClientCommand { client, protocol, args, rejected_script } = command;
        let mut reply = Vec::new();
        let words: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let rest = words.get(1..).unwrap_or(&[]);
        let reply_to = Writer::new(&mut reply, protocol);
        let condition = Condition::Nothing;
        let mut call =
            CommandCall { sentinel: self, now, args: rest, reply: reply_to, out, condition, rejected_script };
        match words.first().map(|word| word.to_ascii_lowercase()).as_deref() {
            Some(b"sentinel") => run_subcommand(&mut call),
            Some(b"publish") if words.len() == 3 => publish(&mut call),
            Some(b"publish") => call.reply.error("ERR wrong number of arguments for 'publish' command"),
            Some(b"role") if words.len() == 1 => role(&mut call),
            Some(b"role") => call.reply.error("ERR wrong number of arguments for 'role' command"),
            _ => call.reply.error("ERR unknown command"),
        }
        let condition = call.condition;
        if let Some(client) = client {
            out.push_after(condition, SentinelAction::Reply { client, reply });
        }
    }

    /// Returns the `Sentinel` section of INFO.
    #[must_use]
    pub fn info(&self, now: Instant) -> String {
        describe::info(self, now)
    }
}

fn run_subcommand(call: &mut CommandCall<'_>) {
    let Some((name, rest)) = call.args.split_first() else {
        call.reply.error("ERR wrong number of arguments for 'sentinel' command");
        return;
    };
    let asked = String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    let lower = asked.to_ascii_lowercase();
    let Some(found) = SUBCOMMANDS.iter().find(|one| one.name == lower) else {
        call.reply.error(&format!("ERR unknown subcommand '{asked}'. Try SENTINEL HELP."));
        return;
    };
    call.args = rest;
    (found.run)(call);
}

fn help(call: &mut CommandCall<'_>) {
    let lines: Vec<&str> = SUBCOMMANDS.iter().flat_map(|one| one.help).copied().collect();
    call.reply.array(lines.len() + 1);
    call.reply.simple("SENTINEL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    for line in lines {
        call.reply.simple(line);
    }
}

/// Handles PUBLISH, because other sentinels also send hello messages over a command link.
fn publish(call: &mut CommandCall<'_>) {
    if call.args[0] != HELLO_CHANNEL.as_bytes() {
        call.reply.error("ERR Only HELLO messages are accepted by Sentinel instances.");
        return;
    }
    if let Some(hello) = Hello::parse(call.args[1]) {
        call.sentinel.on_hello(call.now, &hello, call.out);
    }
    call.reply.integer(1);
}

fn role(call: &mut CommandCall<'_>) {
    let names: Vec<&String> = call.sentinel.masters.keys().collect();
    call.reply.array(2);
    call.reply.bulk(b"sentinel");
    call.reply.array(names.len());
    for name in names {
        call.reply.bulk(name.as_bytes());
    }
}

/// Writes the configuration file at once. The reply OK follows when the file is on disk, so changed settings are
/// durable before the client sees the reply.
fn save_and_confirm(call: &mut CommandCall<'_>) {
    call.sentinel.write_config(call.out);
    call.condition = Condition::Config;
    call.reply.ok();
}

fn announce_set(master: &Master, cx: &mut Context<'_>, option: &str, value: &str) {
    master.announce(cx, EventLevel::Warning, "+set", &format!(" {option} {value}"));
}
