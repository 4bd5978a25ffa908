//! A sentinel with simulated servers that implement enough of Redis for a complete failover.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::Instant;
use driver::Driver;
use resp::{Protocol, Value};

use crate::{
    Addr, ClientCommand, ClientId, JobId, LinkId, LinkKind, SavedJournal, Sentinel, SentinelAction,
    SentinelConfig, SentinelInput,
};

/// A simulated Redis server and its replication state.
#[derive(Debug, Clone)]
pub(super) struct FakeServer {
    pub(super) master: Option<Addr>,
    pub(super) alive: bool,
    /// Whether the server accepts requests without answering.
    pub(super) frozen: bool,
    pub(super) run_id: String,
    /// Whether the server, as a replica, has its master's data.
    pub(super) synced: bool,
    /// Whether the server answers PING with LOADING.
    pub(super) loading: bool,
    /// Whether the server restarted without data and waits to be replaced.
    pub(super) empty: bool,
    /// Whether the server hands over its role and does not follow a master yet.
    pub(super) hands_over: bool,
    /// Commands, in upper case, that the sentinel's user must not run.
    pub(super) denies: BTreeSet<&'static str>,
    /// The first digits of the replication ids, starting with the current id. Empty means that INFO shows no ids.
    pub(super) history: &'static str,
    /// Whether the server has keys.
    pub(super) has_keys: bool,
    /// The replies queued since MULTI.
    queued: Option<Vec<Value>>,
    /// When the server lost the link to its master; `None` while the link is up.
    pub(super) disconnected_since: Option<Instant>,
}

pub(super) struct World {
    pub(super) sentinel: Sentinel,
    pub(super) now: Instant,
    pub(super) servers: BTreeMap<Addr, FakeServer>,
    links: BTreeMap<LinkId, (Addr, LinkKind)>,
    up_links: BTreeSet<LinkId>,
    /// Renamed commands and their new names.
    pub(super) renamed_commands: BTreeMap<&'static str, &'static str>,
    /// Whether all masters reject FAILOVER.
    pub(super) refuses_failover: bool,
    /// Whether masters accept FAILOVER without ever completing it.
    pub(super) ignores_failover: bool,
    /// Whether a link breaks once, right after FAILOVER was sent over it.
    pub(super) breaks_after_failover: bool,
    /// The password that all servers require; `None` means that they require none.
    pub(super) password: Option<&'static str>,
    /// Links on which AUTH has succeeded.
    authenticated_links: BTreeSet<LinkId>,
    /// The published events: channel and payload.
    pub(super) events: Vec<String>,
    /// The sent requests with their receivers, except for periodic ones.
    pub(super) sent: Vec<(Addr, String)>,
    pub(super) hellos: Vec<String>,
    /// The periodic requests (PING, INFO, PUBLISH) with time and receiver.
    pub(super) periodic_requests: Vec<(Instant, Addr, &'static str)>,
    pub(super) scripts: Vec<(JobId, Vec<String>)>,
    pub(super) killed_scripts: Vec<JobId>,
    pub(super) resolves: Vec<String>,
    pub(super) crashed: bool,
    /// Whether the test reports the end of writes. Otherwise writes end at once.
    pub(super) has_slow_disk: bool,
    pub(super) log: Vec<String>,
    /// The replies to the current command.
    replies: String,
}

pub(super) fn server(number: u8) -> Addr {
    Addr::new(&format!("10.0.0.{number}"), 6379)
}

impl World {
    /// Creates a sentinel with a master at 10.0.0.1 and replicas at 10.0.0.2 and 10.0.0.3. `lines` are added to its
    /// configuration.
    pub(super) fn new(lines: &str) -> Self {
        let text = format!(
            "sentinel myid aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nsentinel monitor mymaster 10.0.0.1 6379 1\n\
             sentinel down-after-milliseconds mymaster 1000\n{lines}"
        );
        Self::with_config(&text)
    }

    /// Creates a sentinel with this configuration.
    pub(super) fn with_config(text: &str) -> Self {
        let now = Instant::from_millis(100_000);
        let mut out = Vec::new();
        let config = SentinelConfig::parse(text).unwrap();
        let sentinel = Sentinel::new(now, config, SavedJournal::default(), 1, &mut out);
        let fake = |number: u8| FakeServer {
            master: (number > 1).then(|| server(1)),
            alive: true,
            frozen: false,
            run_id: format!("{number:040x}"),
            synced: true,
            disconnected_since: None,
            loading: false,
            empty: false,
            hands_over: false,
            denies: BTreeSet::new(),
            history: "",
            has_keys: false,
            queued: None,
        };
        let mut world = Self {
            sentinel,
            now,
            servers: (1..=3).map(|number| (server(number), fake(number))).collect(),
            links: BTreeMap::new(),
            up_links: BTreeSet::new(),
            renamed_commands: BTreeMap::new(),
            refuses_failover: false,
            ignores_failover: false,
            breaks_after_failover: false,
            password: None,
            authenticated_links: BTreeSet::new(),
            events: Vec::new(),
            sent: Vec::new(),
            hellos: Vec::new(),
            periodic_requests: Vec::new(),
            scripts: Vec::new(),
            killed_scripts: Vec::new(),
            resolves: Vec::new(),
            crashed: false,
            has_slow_disk: false,
            log: Vec::new(),
            replies: String::new(),
        };
        world.execute_actions(out);
        world.advance_time(500);
        world
    }

    pub(super) fn input(&mut self, input: SentinelInput) {
        let mut out = Vec::new();
        self.sentinel.handle(self.now, input, &mut out);
        self.execute_actions(out);
    }

    /// Advances the time and handles all deadlines in between.
    pub(super) fn advance_time(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        while let Some(due) = self.sentinel.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.input(SentinelInput::Deadline);
        }
        self.now = end;
    }

    /// Kills a process: its connections break and new ones are refused.
    pub(super) fn kill(&mut self, addr: &Addr) {
        self.servers.get_mut(addr).unwrap().alive = false;
        for link in self.up_links.clone() {
            if self.links[&link].0 == *addr {
                self.up_links.remove(&link);
                self.input(SentinelInput::Disconnected { link });
            }
        }
    }

    /// Executes a client command and returns the encoded reply.
    pub(super) fn command(&mut self, line: &str) -> String {
        let args = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let mut out = Vec::new();
        let (client, protocol) = (Some(ClientId(7)), Protocol::Resp2);
        let command = SentinelInput::Command(ClientCommand { client, protocol, args, rejected_script: None });
        self.sentinel.handle(self.now, command, &mut out);
        self.replies.clear();
        self.execute_actions(out);
        std::mem::take(&mut self.replies)
    }

    /// Delivers a hello message at the server `at`; its sender belongs to `group` and announces `master`.
    pub(super) fn deliver_hello(&mut self, at: &Addr, group: &str, master: &Addr) {
        let to = |(link, (addr, kind)): (&LinkId, &(Addr, LinkKind))| {
            (addr == at && *kind == LinkKind::Hello && self.up_links.contains(link)).then_some(*link)
        };
        let link = self.links.iter().find_map(to).expect("it is listened to");
        let id = "b".repeat(40);
        let hello = format!("10.0.0.8,26379,{id},1,{group},{},{},1", master.host, master.port);
        let words = ["message", crate::HELLO_CHANNEL, &hello];
        let value = Value::Array(words.iter().map(|word| Value::Bulk(word.as_bytes().to_vec())).collect());
        self.input(SentinelInput::Reply { link, value });
    }

    pub(super) fn has_event(&self, event: &str) -> bool {
        self.events.iter().any(|line| line == event)
    }

    /// The requests that were sent to this server.
    pub(super) fn sent_to(&self, addr: &Addr) -> Vec<&str> {
        self.sent.iter().filter(|(to, _)| to == addr).map(|(_, line)| line.as_str()).collect()
    }

    fn execute_actions(&mut self, out: Vec<SentinelAction>) {
        let mut queue: VecDeque<SentinelAction> = out.into();
        while let Some(action) = queue.pop_front() {
            let input = match action {
                SentinelAction::Connect { link, addr, kind } => {
                    self.links.insert(link, (addr.clone(), kind));
                    if self.servers.get(&addr).is_some_and(|server| server.alive) {
                        self.up_links.insert(link);
                        Some(SentinelInput::Connected { link, local_ip: "10.0.0.9".into() })
                    } else {
                        Some(SentinelInput::ConnectFailed { link, refused: true })
                    }
                }
                SentinelAction::Close(link) => {
                    self.up_links.remove(&link);
                    self.authenticated_links.remove(&link);
                    None
                }
                SentinelAction::Send { link, request, .. } => self.answer(link, &request),
                SentinelAction::Publish { channel, payload } => {
                    self.events.push(format!("{channel} {payload}"));
                    None
                }
                SentinelAction::RunScript { job, argv } => {
                    self.scripts.push((job, argv));
                    None
                }
                SentinelAction::KillScript(job) => {
                    self.killed_scripts.push(job);
                    None
                }
                SentinelAction::Resolve { host } => {
                    self.resolves.push(host);
                    None
                }
                SentinelAction::Crash => {
                    self.crashed = true;
                    None
                }
                SentinelAction::Log { text, .. } => {
                    self.log.push(text);
                    None
                }
                SentinelAction::Write(_) => {
                    (!self.has_slow_disk).then_some(SentinelInput::Written { journal_bytes: 0 })
                }
                SentinelAction::Reply { reply, .. } => {
                    self.replies += &String::from_utf8(reply).unwrap();
                    None
                }
                SentinelAction::SetLogLevel(_) | SentinelAction::CloseClient(_) => None,
            };
            if let Some(input) = input {
                let mut more = Vec::new();
                self.sentinel.handle(self.now, input, &mut more);
                queue.extend(more);
            }
        }
    }

    fn answer(&mut self, link: LinkId, request: &[Vec<u8>]) -> Option<SentinelInput> {
        let (addr, kind) = self.links[&link].clone();
        let words: Vec<&str> = request.iter().map(|word| std::str::from_utf8(word).unwrap()).collect();
        let asked =
            self.renamed_commands.iter().find(|(_, new)| **new == words[0]).map_or(words[0], |(old, _)| *old);
        let periodic_requests = ["PING", "INFO", "PUBLISH"].into_iter().find(|word| *word == asked);
        self.periodic_requests.extend(periodic_requests.map(|word| (self.now, addr.clone(), word)));
        match asked {
            "PING" | "INFO" | "ROLE" => {}
            "CLIENT" if words[1] == "SETNAME" => {}
            "PUBLISH" => self.hellos.push(words[2].to_owned()),
            _ => self.sent.push((addr.clone(), words.join(" "))),
        }
        if kind == LinkKind::Hello || !self.up_links.contains(&link) || self.servers[&addr].frozen {
            return None;
        }
        if let Some(password) = self.password {
            let value = match asked {
                "AUTH" if words.last() == Some(&password) => {
                    self.authenticated_links.insert(link);
                    Value::Simple("OK".into())
                }
                "AUTH" => {
                    Value::Error("WRONGPASS invalid username-password pair or user is disabled.".into())
                }
                _ => Value::Error("NOAUTH Authentication required.".into()),
            };
            if !self.authenticated_links.contains(&link) || asked == "AUTH" {
                return Some(SentinelInput::Reply { link, value });
            }
        }
        let value = self.run(&addr, asked, &words[1..])?;
        if asked == "FAILOVER" && std::mem::take(&mut self.breaks_after_failover) {
            self.up_links.remove(&link);
            return Some(SentinelInput::Disconnected { link });
        }
        Some(SentinelInput::Reply { link, value: self.in_transaction(&addr, asked, value) })
    }

    /// The reply to a command inside or outside of MULTI. EXEC returns the queued replies, or fails if one of them was
    /// NOPERM.
    fn in_transaction(&mut self, addr: &Addr, asked: &str, value: Value) -> Value {
        let server = self.servers.get_mut(addr).expect("it was asked");
        match (asked, &mut server.queued) {
            ("MULTI", queued) => *queued = Some(Vec::new()),
            ("EXEC", queued) => {
                let replies = queued.take().unwrap_or_default();
                let denied =
                    |reply: &Value| matches!(reply, Value::Error(text) if text.starts_with("NOPERM"));
                if replies.iter().any(denied) {
                    return Value::Error(
                        "EXECABORT Transaction discarded because of previous errors.".into(),
                    );
                }
                return Value::Array(replies);
            }
            (_, Some(queued)) => queued.push(value.clone()),
            (_, None) => {}
        }
        value
    }

    fn run(&mut self, addr: &Addr, asked: &str, words: &[&str]) -> Option<Value> {
        if self.servers[addr].denies.contains(asked) {
            let name = asked.to_lowercase();
            return Some(Value::Error(format!(
                "NOPERM User watcher has no permissions to run the '{name}' command"
            )));
        }
        let value = match (asked, words) {
            ("PING", _) if self.servers[addr].loading => Value::Error("LOADING the dataset in memory".into()),
            ("PING", _) if self.servers[addr].empty => Value::Error("EMPTYMASTER it lost its data".into()),
            ("PING", _) => Value::Simple("PONG".into()),
            ("INFO", _) => Value::Bulk(self.info(addr).into_bytes()),
            ("ROLE", _) => {
                let word = if self.servers[addr].master.is_some() { "slave" } else { "master" };
                Value::Array(vec![Value::Bulk(word.as_bytes().to_vec())])
            }
            ("SLAVEOF", _) if self.servers[addr].hands_over => {
                Value::Error("ERR REPLICAOF not allowed while failing over.".into())
            }
            ("SLAVEOF", ["NO", "ONE"]) => {
                self.servers.get_mut(addr)?.master = None;
                Value::Simple("OK".into())
            }
            ("SLAVEOF", [host, port]) => {
                let master = Addr::new(host, port.parse().unwrap());
                self.servers.get_mut(addr)?.master = Some(master);
                Value::Simple("OK".into())
            }
            ("FAILOVER", ["ABORT"]) => {
                self.servers.get_mut(addr)?.hands_over = false;
                Value::Simple("OK".into())
            }
            ("FAILOVER", _) if self.refuses_failover => {
                Value::Error("ERR FAILOVER target replica is not online.".into())
            }
            ("FAILOVER", _) if self.ignores_failover => Value::Simple("OK".into()),
            ("FAILOVER", ["TO", host, port, ..]) => {
                let to = Addr::new(host, port.parse().unwrap());
                self.servers.get_mut(addr)?.master = Some(to.clone());
                self.servers.get_mut(&to)?.master = None;
                Value::Simple("OK".into())
            }
            _ => Value::Simple("OK".into()),
        };
        Some(value)
    }

    fn info(&self, addr: &Addr) -> String {
        let own = &self.servers[addr];
        let mut text = format!("run_id:{}\r\n", own.run_id);
        match &own.master {
            Some(Addr { host, port }) => {
                let status = if own.synced { "up" } else { "down" };
                text += &format!(
                    "role:slave\r\nmaster_host:{host}\r\nmaster_port:{port}\r\nmaster_link_status:{status}\r\n\
                     slave_repl_offset:1\r\nslave_priority:100\r\n"
                );
                if let Some(since) = own.disconnected_since {
                    let secs = self.now.since(since).as_secs();
                    text += &format!("master_link_down_since_seconds:{secs}\r\n");
                }
            }
            None => text += "role:master\r\n",
        }
        for (field, digit) in ["master_replid", "master_replid2"].iter().zip(own.history.chars()) {
            text += &format!("{field}:{}\r\n", digit.to_string().repeat(40));
        }
        if own.has_keys {
            text += "db0:keys=1,expires=0,avg_ttl=0\r\n";
        }
        let replicas = self.servers.iter().filter(|(_, server)| server.master.as_ref() == Some(addr));
        for (index, (replica, _)) in replicas.enumerate() {
            text += &format!("slave{index}:ip={},port={},state=online\r\n", replica.host, replica.port);
        }
        text
    }
}
