//! A simulated Redis server: what a sentinel sees and does of one, and replication as offsets.

use clock::Instant;
use resp::{Protocol, Writer};

/// Whom a server replicates, as an address; none for a master.
pub(super) type Upstream = Option<(String, u16)>;

#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) run_id: String,
    pub(super) upstream: Upstream,
    /// As CONFIG REWRITE has it: what a restart begins with.
    saved: Upstream,
    pub(super) offset: u64,
    pub(super) link_up: bool,
    pub(super) link_lost: Instant,
}

/// What a request did beside its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Subscribe,
    Publish(Vec<u8>),
    Multi,
    Exec,
    /// Every other connection that is not subscribed, or every one that is.
    Kill {
        subscribed: bool,
    },
    /// It is a master now, or replicates somebody.
    Follow(Upstream),
    /// It hands over to this replica.
    HandOver(String, u16),
}

/// A replica's word about itself, in INFO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) at: Instant,
    pub(super) master: String,
    /// Since how many seconds it has been without its master.
    pub(super) orphaned_secs: u64,
    pub(super) offset: u64,
}

impl Told {
    /// What an INFO text says, if it is a replica's.
    pub(super) fn parse(at: Instant, text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Some(Self {
            at,
            master: field("master_host")?.to_owned(),
            orphaned_secs: field("master_link_down_since_seconds")
                .map_or(Some(0), |secs| secs.parse().ok())?,
            offset: field("slave_repl_offset")?.parse().ok()?,
        })
    }
}

impl Server {
    pub(super) fn new(host: &str, run_id: String, upstream: Upstream) -> Self {
        let saved = upstream.clone();
        Self {
            host: host.to_owned(),
            run_id,
            upstream,
            saved,
            offset: 0,
            link_up: false,
            link_lost: Instant::ORIGIN,
        }
    }

    pub(super) fn restart(&mut self, now: Instant, run_id: String) {
        self.run_id = run_id;
        self.upstream = self.saved.clone();
        self.link_up = false;
        self.link_lost = now;
    }

    pub(super) fn follow(&mut self, now: Instant, upstream: Upstream) {
        self.upstream = upstream;
        self.link_up = false;
        self.link_lost = now;
    }

    /// Answers one request; `replicas` are those that are connected.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        request: &[Vec<u8>],
        replicas: &[(String, u64)],
    ) -> (Vec<u8>, Effect) {
        let words: Vec<String> =
            request.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let upper: Vec<String> = words.iter().map(|word| word.to_ascii_uppercase()).collect();
        let upper: Vec<&str> = upper.iter().map(String::as_str).collect();
        let mut out = Vec::new();
        let mut reply = Writer::new(&mut out, Protocol::Resp2);
        let effect = match upper.as_slice() {
            ["PING"] => {
                reply.simple("PONG");
                Effect::None
            }
            ["INFO"] => {
                reply.bulk(self.info(now, replicas).as_bytes());
                Effect::None
            }
            ["SUBSCRIBE", _] => {
                reply.array(3);
                reply.bulk(b"subscribe");
                reply.bulk(&request[1]);
                reply.integer(1);
                Effect::Subscribe
            }
            ["PUBLISH", _, _] => {
                reply.integer(1);
                Effect::Publish(request[2].clone())
            }
            ["MULTI"] => {
                reply.ok();
                Effect::Multi
            }
            ["EXEC"] => Effect::Exec,
            ["CLIENT", "KILL", "TYPE", kind] => {
                reply.integer(0);
                Effect::Kill { subscribed: *kind == "PUBSUB" }
            }
            ["REPLICAOF", "NO", "ONE"] => {
                reply.ok();
                Effect::Follow(None)
            }
            ["REPLICAOF", _, port] => {
                reply.ok();
                Effect::Follow(port.parse().ok().map(|port| (words[1].clone(), port)))
            }
            ["CONFIG", "REWRITE"] => {
                self.saved = self.upstream.clone();
                reply.ok();
                Effect::None
            }
            ["FAILOVER", "TO", _, port, ..] => {
                reply.ok();
                Effect::HandOver(words[2].clone(), port.parse().unwrap_or(0))
            }
            ["CLIENT", "SETNAME", _] | ["SCRIPT", "KILL"] => {
                reply.ok();
                Effect::None
            }
            _ => {
                reply.error("ERR unknown command");
                Effect::None
            }
        };
        (out, effect)
    }

    fn info(&self, now: Instant, replicas: &[(String, u64)]) -> String {
        let mut text = format!("# Server\r\nrun_id:{}\r\n# Replication\r\n", self.run_id);
        if let Some((host, port)) = &self.upstream {
            let status = if self.link_up { "up" } else { "down" };
            text += &format!(
                "role:slave\r\nmaster_host:{host}\r\nmaster_port:{port}\r\nmaster_link_status:{status}\r\n"
            );
            if !self.link_up {
                text +=
                    &format!("master_link_down_since_seconds:{}\r\n", now.since(self.link_lost).as_secs());
            }
            text += &format!("slave_repl_offset:{}\r\nslave_priority:100\r\n", self.offset);
        } else {
            text += &format!("role:master\r\nconnected_slaves:{}\r\n", replicas.len());
            for (number, (host, offset)) in replicas.iter().enumerate() {
                text += &format!("slave{number}:ip={host},port=6379,state=online,offset={offset},lag=0\r\n");
            }
        }
        text
    }
}
