//! Compares several clients that block on the same few keys with Valkey.
//!
//! A seed generates a schedule: the connections take turns sending commands that block or that add elements. After each
//! command the test waits until all clients without a reply are blocked, on both servers, and the replies that each
//! connection received since then must be equal. A schedule with a difference is shortened. `DIFFERENTIAL_SEEDS` and
//! `DIFFERENTIAL_FIRST_SEED` select more or other seeds.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use differential::{CommandCaller, ExecutedCommands, ReferenceServer, env_number};
use harness::{Connection, Node, Program, Reply, info_field};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CLIENT_COUNT: usize = 7;
const BLOCKING_KEYS: &[&str] = &["a", "b", "c"];
const STEP_COUNT: usize = 120;
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Commands that block. [`UNBLOCKING_COMMANDS`] are chosen more often, so that the keys are not always empty.
const BLOCKING_COMMANDS: &[&str] = &[
    "BLPOP K 0",
    "BRPOP K 0",
    "BLMOVE K K LEFT RIGHT 0",
    "BLMOVE K K RIGHT LEFT 0",
    "BRPOPLPUSH K K 0",
    "BLMPOP 0 1 K LEFT COUNT 2",
    "BLMPOP 0 1 K RIGHT",
    "BZPOPMIN K 0",
    "BZPOPMAX K 0",
    "BZMPOP 0 1 K MIN COUNT 3",
    "XREAD BLOCK 0 STREAMS K $",
    "XREAD COUNT 1 BLOCK 0 STREAMS K 0",
    "XREADGROUP GROUP g me BLOCK 0 STREAMS K >",
    "XREADGROUP GROUP g you COUNT 1 BLOCK 0 NOACK STREAMS K >",
    "XREAD BLOCK 0 STREAMS K K $ $",
    "BLPOP K K 0",
    "BRPOP K K K 0",
    "BLMPOP 0 2 K K LEFT COUNT 2",
    "BZPOPMIN K K 0",
    "BZMPOP 0 2 K K MIN COUNT 3",
];
/// Commands that unblock clients. `|` separates the commands of a transaction, `N` is a rising number, and `T` is one
/// key per transaction. Clients blocked on a key that a STORE command overwrites use no other key.
const UNBLOCKING_COMMANDS: &[&str] = &[
    "RPUSH K N",
    "LPUSH K N N",
    "RPUSH K N N N",
    "LPUSHX K N",
    "LPOP K",
    "LMOVE K K LEFT RIGHT",
    "LINSERT K BEFORE 1 N",
    "LREM K 0 1",
    "MULTI|DEL T|SORT K BY nosort STORE T|EXEC",
    "ZADD K N N",
    "ZADD K N a N b N c",
    "ZPOPMAX K",
    "ZREM K a b",
    "MULTI|DEL T|ZUNIONSTORE T 2 K K|EXEC",
    "MULTI|DEL T|ZRANGESTORE T K 0 0|EXEC",
    "XADD K N-1 f v",
    "XADD K MAXLEN 2 N-1 f v",
    "XGROUP CREATE K g $ MKSTREAM",
    "XGROUP CREATE K g 0 MKSTREAM",
    "XGROUP SETID K g 0",
    "XGROUP DESTROY K g",
    "XDEL K N-1",
    "SET K x",
    "DEL K",
    "DEL K K",
    "RENAME K K",
    "COPY K K REPLACE",
    "PEXPIREAT K 1",
    "SWAPDB 0 1",
    "FLUSHDB",
    "UNBLOCK C TIMEOUT",
    "UNBLOCK C ERROR",
    "MULTI|RPUSH K N|DEL K|ZADD K N N|EXEC",
    "MULTI|DEL K|RPUSH K N N|LPOP K|EXEC",
    "MULTI|BLPOP K K 0|RPUSH K N|XREAD BLOCK 0 STREAMS K $|EXEC",
    "MULTI|XADD K N-1 f v|XADD K N-1 f v|EXEC",
    "MULTI|RPUSH K N|RPUSH K N|EXEC",
    "MULTI|BLPOP K K 0|RPUSH K N|BLMOVE K K LEFT LEFT 0|XREAD BLOCK 0 STREAMS K $|EXEC",
];

/// A command or transaction that one client sends.
#[derive(Debug, Clone)]
struct ScheduleStep {
    client: usize,
    commands: Vec<Vec<String>>,
}

fn random_schedule(seed: u64) -> Vec<ScheduleStep> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut number = 0;
    (0..STEP_COUNT)
        .map(|_| {
            let forms = if random.random_ratio(2, 5) { BLOCKING_COMMANDS } else { UNBLOCKING_COMMANDS };
            let form = forms.choose(&mut random).expect("there are forms");
            let kept = *BLOCKING_KEYS.choose(&mut random).expect("there are keys");
            let mut word = |word: &str| match word {
                "K" => (*BLOCKING_KEYS.choose(&mut random).expect("there are keys")).to_owned(),
                "T" => kept.to_owned(),
                "C" => random.random_range(0..CLIENT_COUNT).to_string(),
                _ if word.starts_with('N') && !word.starts_with("NO") => {
                    number += 1;
                    word.replacen('N', &number.to_string(), 1)
                }
                _ => word.to_owned(),
            };
            let commands = form.split('|').map(|line| line.split(' ').map(&mut word).collect()).collect();
            ScheduleStep { client: random.random_range(0..CLIENT_COUNT), commands }
        })
        .collect()
}

/// One server and the clients connected to it.
struct BlockingServer<'a> {
    node: &'a Node,
    clients: Vec<Connection>,
    ids: Vec<i64>,
    operator: Connection,
    is_blocked: [bool; CLIENT_COUNT],
}

/// The replies that clients received in one step, in order per client.
type ClientReplies = Vec<(usize, Reply)>;

impl<'a> BlockingServer<'a> {
    fn new(node: &'a Node) -> Self {
        let mut operator = node.connect();
        operator.call_line("FLUSHALL").expect_ok();
        let mut clients: Vec<Connection> = (0..CLIENT_COUNT).map(|_| node.connect()).collect();
        for client in clients.iter_mut().step_by(2) {
            client.call_line("HELLO 3");
        }
        let ids = clients.iter_mut().map(|client| client.call_line("CLIENT ID").int()).collect();
        Self { node, clients, ids, operator, is_blocked: [false; CLIENT_COUNT] }
    }

    /// Sends the command of a step, unless its client is blocked, and returns all replies it caused.
    fn run_step(&mut self, step: &ScheduleStep) -> ClientReplies {
        let mut told = ClientReplies::new();
        if self.is_blocked[step.client] {
            return told;
        }
        for command in &step.commands {
            self.is_blocked[step.client] = true;
            let words = match command[0].as_str() {
                "UNBLOCK" => {
                    let id = command[1].parse::<usize>().map(|number| self.ids[number]).expect("a number");
                    vec!["CLIENT".into(), "UNBLOCK".into(), id.to_string(), command[2].clone()]
                }
                _ => command.clone(),
            };
            self.clients[step.client].send(&words).expect("the server takes commands");
            self.wait_until_settled(&mut told);
        }
        // Sort by client; the replies of each client stay in order.
        told.sort_by_key(|(client, _)| *client);
        told
    }

    /// Waits until every client has received its reply or is blocked, and adds the replies to `replies`.
    fn wait_until_settled(&mut self, replies: &mut ClientReplies) {
        let start = Instant::now();
        loop {
            for (number, client) in self.clients.iter_mut().enumerate() {
                if self.is_blocked[number] && client.has_unread_data() {
                    replies.push((number, client.read().expect("a reply")));
                    self.is_blocked[number] = false;
                }
            }
            let waits = self.is_blocked.iter().filter(|waits| **waits).count();
            let blocked = info_field(&mut self.operator, "clients", "blocked_clients");
            if blocked == Some(waits.to_string()) {
                return;
            }
            assert!(
                start.elapsed() < STEP_TIMEOUT,
                "{} comes to rest: {waits} wait, {blocked:?}",
                self.node.port
            );
            std::thread::yield_now();
        }
    }

    /// Unblocks all clients, and returns their replies and the final data.
    fn unblock_all(&mut self) -> (ClientReplies, Reply) {
        let mut told = ClientReplies::new();
        for number in 0..CLIENT_COUNT {
            if self.is_blocked[number] {
                self.operator.call_line(&format!("CLIENT UNBLOCK {}", self.ids[number]));
                self.wait_until_settled(&mut told);
            }
        }
        (told, self.operator.call_line("DEBUG DIGEST"))
    }
}

/// Returns the index of the first step whose replies differ, and a description of the difference.
fn find_difference(nodes: &[Node; 2], steps: &[ScheduleStep]) -> Option<(usize, String)> {
    let mut report = String::new();
    let [mut ours, mut theirs] = [BlockingServer::new(&nodes[0]), BlockingServer::new(&nodes[1])];
    for (index, step) in steps.iter().enumerate() {
        let (here, there) = (ours.run_step(step), theirs.run_step(step));
        let lines: Vec<String> = step.commands.iter().map(|words| words.join(" ")).collect();
        let _ = writeln!(report, "  {}: {}", step.client, lines.join("; "));
        if here != there {
            let _ = writeln!(report, "    here   {here:?}\n    there  {there:?}");
            return Some((index, report));
        }
    }
    let (here, there) = (ours.unblock_all(), theirs.unblock_all());
    if here == there {
        return None;
    }
    let _ = writeln!(report, "  at the end\n    here   {here:?}\n    there  {there:?}");
    Some((steps.len().saturating_sub(1), report))
}

/// Drops steps while some difference remains.
fn shorten_schedule(nodes: &[Node; 2], mut steps: Vec<ScheduleStep>, mut report: String) -> String {
    let mut chunk = steps.len().div_ceil(2);
    loop {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + chunk).min(fewer.len()));
            match find_difference(nodes, &fewer) {
                Some((last, shorter)) => {
                    fewer.truncate(last + 1);
                    (steps, report) = (fewer, shorter);
                }
                None => at += chunk,
            }
        }
        if chunk <= 1 {
            return report;
        }
        chunk = chunk.div_ceil(2);
    }
}

/// Blocking commands that need replicas or files to wait for are tested elsewhere.
#[test]
fn schedules_cover_every_blocking_command() {
    let mut executed = ExecutedCommands::for_server(&Node::start(&Program::redoubt(), ""));
    for form in BLOCKING_COMMANDS {
        let words: Vec<Vec<u8>> = form.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        executed.add(CommandCaller::UnblockedClient, &words);
    }
    let missing_commands = executed.missing_commands(CommandCaller::UnblockedClient);
    assert!(missing_commands.is_empty(), "{}", missing_commands.join("\n"));
}

#[test]
fn blocked_clients_get_replies_of_valkey() {
    let Some(program) = ReferenceServer::Valkey.program() else { return };
    let options = "--save  --enable-debug-command yes";
    let nodes = [
        Node::start(&Program::redoubt(), &format!("{options} --io-threads 2")),
        Node::start(&program, options),
    ];
    let first = env_number("DIFFERENTIAL_FIRST_SEED", 1);
    let mut reports = Vec::new();
    for seed in first..first + env_number("DIFFERENTIAL_SEEDS", 25) {
        let steps = random_schedule(seed);
        if let Some((last, report)) = find_difference(&nodes, &steps) {
            let report = shorten_schedule(&nodes, steps[..=last].to_vec(), report);
            reports.push(format!("seed {seed}:\n{report}"));
        }
        if reports.len() == 5 {
            break;
        }
    }
    assert!(reports.is_empty(), "replies differ from Valkey's:\n{}", reports.join("\n"));
}
