//! Simulates the behaviour of a Redis server that sentinels depend on.

use std::collections::BTreeSet;
use std::time::Duration;

use clock::Instant;
use replication::handover::HandoverCommand;
use replication::{EmptyMaster, Handover, RecordedReplicas, ReplicaRecorder};
use resp::{Protocol, Writer};

/// The port of every server; servers differ in their IP addresses.
pub(super) const PORT: u16 = 6379;

/// The address of the master that a server follows; `None` if the server is itself a master.
pub(super) type Upstream = Option<(String, u16)>;

#[derive(Debug)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) run_id: String,
    pub(super) upstream: Upstream,
    /// The replication setting saved by CONFIG REWRITE, with which a restart begins.
    saved_upstream: Upstream,
    /// The content of the file on disk that lists the server's replicas.
    pub(super) followers: Option<RecordedReplicas>,
    /// Whether the replica file is kept, which depends on replicas and sentinel greetings.
    pub(super) replica_recorder: ReplicaRecorder,
    /// The state of a FAILOVER, if one is in progress.
    pub(super) handover: Handover,
    /// The commands that must end before writes are blocked for a handover.
    pub(super) commands_before_hold: Option<BTreeSet<u64>>,
    /// Set while a master that returned without its data waits for another server to be promoted.
    pub(super) empty_master: Option<EmptyMaster>,
}

/// The replication state that a server reports to sentinels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerReplication {
    pub(super) offset: u64,
    /// The seconds since the link to the master broke; `None` while it is up.
    pub(super) down_secs: Option<u64>,
    /// The connected replicas with their acknowledged offsets.
    pub(super) replicas: Vec<(String, u64)>,
}

/// The effects of a request other than its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestEffect {
    None,
    Subscribe,
    Publish(Vec<u8>),
    Multi,
    Exec,
    /// Closes all subscribed connections, or all others, except the one that sent the request.
    CloseConnections {
        subscribed: bool,
    },
    /// Makes the server a master, or a replica of this address.
    Follow(Upstream),
    /// Starts or aborts a handover (FAILOVER).
    HandOver(HandoverCommand),
}

/// A replica's state as reported in INFO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplicaInfo {
    pub(super) at: Instant,
    pub(super) master: String,
    /// The seconds since the replica lost its master.
    pub(super) orphaned_secs: u64,
    pub(super) offset: u64,
}

impl ReplicaInfo {
    /// Parses INFO output; `None` unless it is from a replica.
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
            saved_upstream: saved,
            followers: None,
            replica_recorder: ReplicaRecorder::default(),
            handover: Handover::default(),
            commands_before_hold: None,
            empty_master: None,
        }
    }

    pub(super) fn restart(&mut self, run_id: String) {
        self.run_id = run_id;
        self.upstream = self.saved_upstream.clone();
        (self.empty_master, self.replica_recorder) = (None, ReplicaRecorder::default());
        (self.handover, self.commands_before_hold) = (Handover::default(), None);
    }

    fn record_hello(&mut self, message: &[u8]) {
        self.replica_recorder.on_hello(message);
        self.empty_master.iter_mut().for_each(|empty| _ = empty.on_hello(message, &[PORT]));
    }

    /// Returns the effects of a request other than its reply.
    fn effect_of(&self, request: &[Vec<u8>], upper: &[&str]) -> RequestEffect {
        let word = |index: usize| String::from_utf8_lossy(&request[index]).into_owned();
        match upper {
            ["MULTI"] => RequestEffect::Multi,
            ["EXEC"] => RequestEffect::Exec,
            ["SUBSCRIBE", _] => RequestEffect::Subscribe,
            ["PUBLISH", _, _] => RequestEffect::Publish(request[2].clone()),
            ["CLIENT", "KILL", "TYPE", kind] => {
                RequestEffect::CloseConnections { subscribed: *kind == "PUBSUB" }
            }
            // A server without data must not become a master.
            ["SLAVEOF", "NO", "ONE"] if self.empty_master.is_some() => RequestEffect::None,
            ["SLAVEOF", ..] if self.handover.is_in_progress() => RequestEffect::None,
            ["SLAVEOF", "NO", "ONE"] => RequestEffect::Follow(None),
            ["SLAVEOF", _, port] => RequestEffect::Follow(port.parse().ok().map(|port| (word(1), port))),
            ["FAILOVER", "ABORT"] => RequestEffect::HandOver(HandoverCommand::Abort),
            ["FAILOVER", "TO", _, port, rest @ ..] => {
                let target = Some((word(2), port.parse().unwrap_or(0)));
                let timeout = rest.last().and_then(|millis| millis.parse().ok()).map(Duration::from_millis);
                RequestEffect::HandOver(HandoverCommand::Start { target, is_forced: false, timeout })
            }
            _ => RequestEffect::None,
        }
    }

    /// Executes one request and adds its reply.
    pub(super) fn answer(
        &mut self,
        request: &[Vec<u8>],
        replication: &ServerReplication,
    ) -> (Vec<u8>, RequestEffect) {
        let upper: Vec<String> =
            request.iter().map(|word| String::from_utf8_lossy(word).to_ascii_uppercase()).collect();
        let upper: Vec<&str> = upper.iter().map(String::as_str).collect();
        let mut out = Vec::new();
        let mut reply = Writer::new(&mut out, Protocol::Resp2);
        let effect = self.effect_of(request, &upper);
        if upper == ["CONFIG", "REWRITE"] {
            // The configuration must not be saved before the handover is over.
            self.saved_upstream = self.upstream.clone().filter(|_| !self.handover.is_in_progress());
        }
        if let RequestEffect::Publish(hello) = &effect {
            self.record_hello(hello);
        }
        match upper.as_slice() {
            ["PING"] if self.empty_master.as_ref().is_some_and(EmptyMaster::is_down_to_sentinels) => {
                reply.error("EMPTYMASTER This master started without its data");
            }
            ["PING"] => reply.simple("PONG"),
            ["ROLE"] => {
                reply.array(1);
                reply.bulk(if self.upstream.is_some() { b"slave" } else { b"master" });
            }
            ["INFO"] => reply.bulk(self.info(replication).as_bytes()),
            ["SUBSCRIBE", _] => {
                reply.array(3);
                reply.bulk(b"subscribe");
                reply.bulk(&request[1]);
                reply.integer(1);
            }
            ["PUBLISH", _, _] => reply.integer(1),
            ["CLIENT", "KILL", "TYPE", _] => reply.integer(0),
            // The reply is added when the queued commands have been executed.
            ["EXEC"] => {}
            // Client pauses are not simulated. A write during a pause is executed or lost.
            ["CLIENT", "SETNAME", _]
            | ["SCRIPT", "KILL"]
            | ["CONFIG", "REWRITE"]
            | ["CLIENT", "PAUSE", ..]
            | ["CLIENT", "UNPAUSE"] => reply.ok(),
            ["SLAVEOF", ..] if self.handover.is_in_progress() => {
                reply.error("ERR REPLICAOF not allowed while failing over.");
            }
            _ if effect != RequestEffect::None => reply.ok(),
            _ => reply.error("ERR unknown command"),
        }
        (out, effect)
    }

    fn info(&self, replication: &ServerReplication) -> String {
        let ServerReplication { offset, down_secs, replicas } = replication;
        let mut text = format!("# Server\r\nrun_id:{}\r\n# Replication\r\n", self.run_id);
        if let Some((host, port)) = &self.upstream {
            let status = if down_secs.is_none() { "up" } else { "down" };
            text += &format!(
                "role:slave\r\nmaster_host:{host}\r\nmaster_port:{port}\r\nmaster_link_status:{status}\r\n"
            );
            if let Some(secs) = down_secs {
                text += &format!("master_link_down_since_seconds:{secs}\r\n");
            }
            text += &format!("slave_repl_offset:{offset}\r\nslave_priority:100\r\n");
        } else {
            text += &format!("role:master\r\nconnected_slaves:{}\r\n", replicas.len());
            for (number, (host, offset)) in replicas.iter().enumerate() {
                text += &format!("slave{number}:ip={host},port=6379,state=online,offset={offset},lag=0\r\n");
            }
        }
        text
    }
}
