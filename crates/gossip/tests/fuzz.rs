//! Fuzz test on the stable toolchain: feeds mutated packets of a known peer, link events and time steps to the state
//! machine. `FUZZ_SECONDS` sets the duration, `FUZZ_SEED` the first seed.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant as Watch};

use clock::{Instant, Millis};
use gossip::wire::{
    self, ConfigUpdate, Extension, GossipEntry, Header, MessageBody, MessageFlags, NodeFlags, Packet,
    Publication,
};
use gossip::{
    AnnouncedAddress, ClusterAction, ClusterConfig, ClusterInput, Gossip, LinkId, ReplicationSource,
    ReplicationStatus,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slot_routing::{Epoch, NodeId, ReplOffset, Slot, SlotSet};

const WALL_TIME_MILLIS: i64 = 1_790_000_000_000;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const KNOWN_NODE_COUNT: u8 = 6;

struct Fuzzer {
    rng: ChaCha8Rng,
    gossip: Gossip,
    now: Instant,
    links: Vec<LinkId>,
    epoch: Epoch,
}

#[test]
fn mutated_packets_never_crash_the_state_machine() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let time = Duration::from_secs(number("FUZZ_SECONDS", 2));
    let start = Watch::now();
    let mut seed = number("FUZZ_SEED", 1);
    while start.elapsed() < time {
        println!("FUZZ_SEED={seed}");
        let mut fuzz = Fuzzer::new(seed);
        for _ in 0..500 {
            fuzz.step();
        }
        seed += 1;
    }
}

impl Fuzzer {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let replica = rng.random_bool(0.5);
        let config = ClusterConfig {
            node_timeout: Duration::from_millis(500),
            announced_address: AnnouncedAddress {
                port: 7001,
                bus_port: 17001,
                ..AnnouncedAddress::default()
            },
            ..ClusterConfig::default()
        };
        let gossip = Gossip::restore(config, ChaCha8Rng::seed_from_u64(seed), &nodes_conf(replica)).unwrap();
        let mut fuzz = Self { rng, gossip, now: Instant::ORIGIN, links: Vec::new(), epoch: Epoch(0) };
        fuzz.feed(ClusterInput::NodeStarted);
        for number in 0..2 {
            let link = LinkId::Inbound(number);
            fuzz.links.push(link);
            fuzz.feed(ClusterInput::LinkAccepted { link, peer_ip: LOCALHOST, local_ip: LOCALHOST });
        }
        fuzz
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(self.rng.random_range(0..40_000));
        match self.rng.random_range(0..20) {
            0 => self.feed(ClusterInput::Deadline),
            1 => {
                let offset = ReplOffset(self.rng.random_range(0..100));
                let source = ReplicationSource::Streaming { last_heard_at: self.now };
                self.feed(ClusterInput::ReplicationChanged(ReplicationStatus { offset, source }));
            }
            2 => self.feed(ClusterInput::WritesPaused { offset: ReplOffset(7) }),
            _ => self.feed_random_packet(),
        }
        assert!(self.gossip.current_epoch() >= self.epoch, "epochs do not go back");
        self.epoch = self.gossip.current_epoch();
        assert!(self.gossip.nodes().count() <= 10_000);
        let Some(deadline) = self.gossip.next_deadline() else {
            assert_eq!(self.gossip.nodes().count(), 1, "a node with peers has plans");
            return;
        };
        self.now = self.now.max(deadline.min(self.now + Duration::from_millis(20)));
    }

    fn feed_random_packet(&mut self) {
        let mut bytes = self.random_packet().encode();
        if self.rng.random_bool(0.5) {
            for _ in 0..self.rng.random_range(1..8) {
                let place = self.rng.random_range(0..bytes.len());
                bytes[place] = self.rng.random();
            }
        }
        let Ok(packet) = wire::decode(&bytes) else { return };
        let link = self.links[self.rng.random_range(0..self.links.len())];
        self.feed(ClusterInput::Packet { link, packet: Box::new(packet) });
    }

    fn feed(&mut self, input: ClusterInput) {
        let mut out = Vec::new();
        let wall = Millis(WALL_TIME_MILLIS + self.now.as_millis() as i64);
        self.gossip.handle(self.now, wall, input, &mut out);
        for action in out {
            match action {
                ClusterAction::Connect { link, .. } => {
                    if self.rng.random_bool(0.8) {
                        self.links.push(link);
                        self.feed(ClusterInput::Connected { link });
                    } else {
                        let refused = self.rng.random_bool(0.5);
                        self.feed(ClusterInput::ConnectFailed { link, is_refused: refused });
                    }
                }
                ClusterAction::Close { link } => self.links.retain(|other| *other != link),
                ClusterAction::Send { packet, .. } => assert_eq!(wire::decode(&packet.encode()), Ok(*packet)),
                ClusterAction::Persist { nodes_conf: text, .. } => {
                    let config = self.gossip.config().clone();
                    let restored = Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), &text);
                    assert!(restored.is_ok(), "{restored:?}\n{text}");
                }
                ClusterAction::Publish(topology) => assert_eq!(topology.myself, self.gossip.id()),
                _ => {}
            }
        }
    }

    fn random_packet(&mut self) -> Packet {
        let header = self.random_header();
        let body = match self.rng.random_range(0..12) {
            0..3 => MessageBody::Ping(self.random_gossip()),
            3..5 => MessageBody::Pong(self.random_gossip()),
            5 => MessageBody::Meet(self.random_gossip()),
            6 => MessageBody::Fail(self.random_id()),
            7 => MessageBody::AuthRequest,
            8 => MessageBody::AuthAck,
            9 => MessageBody::ManualFailoverStart,
            10 => MessageBody::Update(ConfigUpdate {
                config_epoch: self.random_epoch(),
                id: self.random_id(),
                slots: self.random_slots(),
            }),
            _ => MessageBody::Publish(Publication {
                is_sharded: true,
                channel: b"c".to_vec(),
                message: b"m".to_vec(),
            }),
        };
        Packet { header, body }
    }

    fn random_header(&mut self) -> Header {
        let replica_of = self.rng.random_bool(0.4).then(|| self.random_id());
        Header {
            sender: self.random_id(),
            flags: NodeFlags(self.rng.random()),
            message_flags: MessageFlags(self.rng.random_range(0..4)),
            is_serving: self.rng.random(),
            ip: self.rng.random_bool(0.2).then_some(LOCALHOST),
            port: self.rng.random_range(7000..7010),
            secondary_port: 0,
            bus_port: self.rng.random_range(17_000..17_010),
            current_epoch: self.random_epoch(),
            config_epoch: self.random_epoch(),
            offset: ReplOffset(self.rng.random_range(0..100)),
            slots: self.random_slots(),
            replica_of,
        }
    }

    fn random_gossip(&mut self) -> wire::GossipSection {
        let entries = (0..self.rng.random_range(0..5))
            .map(|_| GossipEntry {
                id: self.random_id(),
                ping_sent: self.rng.random(),
                pong_received: self.rng.random(),
                ip: self.rng.random_bool(0.9).then_some(LOCALHOST),
                port: self.rng.random_range(7000..7010),
                bus_port: self.rng.random_range(17_000..17_010),
                flags: NodeFlags(self.rng.random_range(0..128)),
                secondary_port: 0,
            })
            .collect();
        let extensions = (0..self.rng.random_range(0..5))
            .map(|_| match self.rng.random_range(0..8) {
                0 => Extension::Hostname("host.example".to_owned()),
                1 => Extension::Shard(self.random_id()),
                2 => Extension::ClientIpv4(self.rng.random::<u32>().into()),
                3 => Extension::ClientIpv6(self.rng.random::<u128>().into()),
                4 => Extension::ClientPort(self.rng.random()),
                5 => Extension::ClientTlsPort(self.rng.random()),
                6 => Extension::Zone("eu-1a".to_owned()),
                _ => {
                    Extension::Forgotten { id: self.random_id(), ttl: Duration::from_secs(self.rng.random()) }
                }
            })
            .collect();
        wire::GossipSection { entries, extensions }
    }

    /// Returns the id of a known node in most cases, otherwise that of an unknown one.
    fn random_id(&mut self) -> NodeId {
        NodeId::from_random([self.rng.random_range(1..KNOWN_NODE_COUNT + 3); 20])
    }

    fn random_epoch(&mut self) -> Epoch {
        if self.rng.random_bool(0.02) {
            Epoch(self.rng.random())
        } else {
            Epoch(self.rng.random_range(0..20))
        }
    }

    fn random_slots(&mut self) -> SlotSet {
        let first = self.rng.random_range(0..16_000_u16);
        (first..first + 300).filter_map(Slot::new).collect()
    }
}

/// Returns a `nodes.conf` of node 1. Odd nodes are masters and each even node replicates its predecessor. With
/// `is_replica`, node 1 replicates node 3 instead.
fn nodes_conf(is_replica: bool) -> String {
    let id = |number: u8| NodeId::from_random([number; 20]);
    let mut text = String::new();
    for number in 1..=KNOWN_NODE_COUNT {
        let (address, slots) = (format!("127.0.0.1:700{number}@1700{number}"), u32::from(number) * 2000);
        let me = if number == 1 { "myself," } else { "" };
        let line = match (number, is_replica) {
            (1, true) => format!("{me}slave {} 0 0 1 connected", id(3)),
            (n, _) if n % 2 == 1 => format!("{me}master - 0 0 {n} connected {slots}-{}", slots + 3000),
            (n, _) => format!("{me}slave {} 0 0 1 connected", id(n - 1)),
        };
        text += &format!("{} {address} {line}\n", id(number));
    }
    if is_replica {
        // Node 2 replicated this node. Since this node replicates node 3, node 2 must do the same.
        text = text.replace(&format!("slave {}", id(1)), &format!("slave {}", id(3)));
    }
    text + "vars currentEpoch 6 lastVoteEpoch 0\n"
}
