//! The cluster bus, version 1: its packets as values, and as bytes.
//!
//! Every packet is a 2256-byte header ([`Header`]) and data that depends on its type ([`Body`]). All
//! integers are big-endian, names are 40 hexadecimal characters, IPs are 46 bytes of text filled up
//! with zeros. The layout is that of Redis 7 and Valkey, so that nodes of all three can share a bus.
//!
//! ```text
//! offset bytes field              offset bytes field
//!      0     4 "RCmb"               2128    40 master's id, or zeros
//!      4     4 whole length         2168    46 announced ip, or zeros
//!      8     2 version, 1           2214     2 number of extensions
//!     10     2 client port          2216    30 unused
//!     12     2 type                 2246     2 the other client port (TLS), or 0
//!     14     2 gossip entries       2248     2 bus port
//!     16     8 current epoch        2250     2 node flags
//!     24     8 config epoch         2252     1 state: 0 ok, 1 fail
//!     32     8 replication offset   2253     3 message flags, two unused
//!     40    40 sender's id
//!     80  2048 slots
//! ```
//!
//! Invariant: whatever the bytes, decoding returns a packet or an error; it never panics and never
//! allocates more than a small multiple of the bytes it was given. What encodes, decodes to the same.

mod decode;
mod encode;
mod extension;
mod flags;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use slot_routing::{Epoch, NodeId, ReplOffset, SlotSet};

pub(crate) use decode::MAX_EPOCH;
pub use decode::{DecodeError, MAX_PACKET_BYTES, decode, frame_len};
pub use extension::Extension;
pub use flags::{MessageFlags, NodeFlags};

pub(crate) const SIGNATURE: &[u8; 4] = b"RCmb";
pub(crate) const VERSION: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 2256;
pub(crate) const ENTRY_BYTES: usize = 104;
pub(crate) const ID_BYTES: usize = 40;
pub(crate) const IP_BYTES: usize = 46;
pub(crate) const BITMAP_BYTES: usize = 2048;
/// The most bytes that the channel and the message of a [`Publication`] may have together.
pub const MAX_PUBLICATION_BYTES: usize = MAX_PACKET_BYTES - HEADER_BYTES - 8;
pub(crate) const UPDATE_BYTES: usize = 8 + ID_BYTES + BITMAP_BYTES;

/// Places in the header.
pub(crate) mod at {
    pub(crate) const LENGTH: usize = 4;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const PORT: usize = 10;
    pub(crate) const KIND: usize = 12;
    pub(crate) const COUNT: usize = 14;
    pub(crate) const CURRENT_EPOCH: usize = 16;
    pub(crate) const CONFIG_EPOCH: usize = 24;
    pub(crate) const OFFSET: usize = 32;
    pub(crate) const SENDER: usize = 40;
    pub(crate) const SLOTS: usize = 80;
    pub(crate) const REPLICA_OF: usize = 2128;
    pub(crate) const IP: usize = 2168;
    pub(crate) const EXTENSIONS: usize = 2214;
    pub(crate) const OTHER_PORT: usize = 2246;
    pub(crate) const BUS_PORT: usize = 2248;
    pub(crate) const FLAGS: usize = 2250;
    pub(crate) const STATE: usize = 2252;
    pub(crate) const MESSAGE_FLAGS: usize = 2253;
}

/// One message of the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The sender, as it describes itself.
    pub header: Header,
    /// The type of the message, with its data.
    pub body: Body,
}

/// The description of its sender that every message begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The sender's name.
    pub sender: NodeId,
    /// The sender's role and condition.
    pub flags: NodeFlags,
    /// The flags of this message, beside its type.
    pub message_flags: MessageFlags,
    /// Whether the sender's cluster state is ok.
    pub serving: bool,
    /// Announced address; `None` means: take the socket's.
    pub ip: Option<IpAddr>,
    /// The port for clients.
    pub port: u16,
    /// TLS port where `port` is TCP, and the reverse; or 0.
    pub other_port: u16,
    /// The port of the bus.
    pub bus_port: u16,
    /// The highest epoch that the sender knows.
    pub current_epoch: Epoch,
    /// The epoch of the sender's claim to its slots, or of its master's.
    pub config_epoch: Epoch,
    /// How far the sender has produced or processed its shard's stream.
    pub offset: ReplOffset,
    /// The sender's slots, or its master's.
    pub slots: SlotSet,
    /// The sender's master, if it is a replica.
    pub replica_of: Option<NodeId>,
}

impl Header {
    /// The epoch of the sender's own claim: a replica has none.
    #[must_use]
    pub fn own_epoch(&self) -> Epoch {
        if self.replica_of.is_none() { self.config_epoch } else { Epoch(0) }
    }
}

/// The types of messages, each with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Are you there?
    Ping(Gossip),
    /// I am here.
    Pong(Gossip),
    /// Let us know each other.
    Meet(Gossip),
    /// This node is agreed to be down.
    Fail(NodeId),
    /// For subscribers.
    Publish(Publication),
    /// Will you vote for me?
    AuthRequest,
    /// I vote for you.
    AuthAck,
    /// You missed a claim.
    Update(Update),
    /// Hold writes back: I am to take over from you.
    ManualFailoverStart,
    /// A type that this version does not know or use (modules). It is counted and let pass.
    Other(u16),
}

/// The data of a PING, PONG or MEET.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gossip {
    /// Some other nodes, as the sender knows them.
    pub entries: Vec<GossipEntry>,
    /// Further data, if the receiver reads it.
    pub extensions: Vec<Extension>,
}

/// A third node, as the sender knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GossipEntry {
    /// The node.
    pub id: NodeId,
    /// Seconds since the Unix epoch, or 0 if no ping is under way.
    pub ping_sent: u32,
    /// When it last answered the sender, in seconds since the Unix epoch.
    pub pong_received: u32,
    /// Its address, if the sender knows it.
    pub ip: Option<IpAddr>,
    /// Its port for clients.
    pub port: u16,
    /// Its port of the bus.
    pub bus_port: u16,
    /// Its role and its condition, as the sender knows them.
    pub flags: NodeFlags,
    /// Its other port for clients, or 0.
    pub other_port: u16,
}

/// A message of a client to a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// For the subscribers of a shard channel.
    pub sharded: bool,
    /// The channel.
    pub channel: Vec<u8>,
    /// The message.
    pub message: Vec<u8>,
}

/// A newer claim that the receiver has missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The epoch of the claim.
    pub config_epoch: Epoch,
    /// The node that claims the slots.
    pub id: NodeId,
    /// The slots it claims.
    pub slots: SlotSet,
}

/// The types of message, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    /// PING.
    Ping,
    /// PONG.
    Pong,
    /// MEET.
    Meet,
    /// FAIL.
    Fail,
    /// PUBLISH, to a channel of all nodes.
    Publish,
    /// A candidate asks for a vote.
    AuthRequest,
    /// A vote.
    AuthAck,
    /// A claim that the receiver missed.
    Update,
    /// A replica asks for a manual failover.
    ManualFailoverStart,
    /// Modules' own messages.
    Module,
    /// PUBLISH to a shard's channel.
    PublishShard,
}

impl MessageKind {
    /// In the order of their numbers on the wire.
    pub const ALL: [Self; 11] = [
        Self::Ping,
        Self::Pong,
        Self::Meet,
        Self::Fail,
        Self::Publish,
        Self::AuthRequest,
        Self::AuthAck,
        Self::Update,
        Self::ManualFailoverStart,
        Self::Module,
        Self::PublishShard,
    ];

    /// The word that CLUSTER INFO uses in `cluster_stats_messages_*`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Pong => "pong",
            Self::Meet => "meet",
            Self::Fail => "fail",
            Self::Publish => "publish",
            Self::AuthRequest => "auth-req",
            Self::AuthAck => "auth-ack",
            Self::Update => "update",
            Self::ManualFailoverStart => "mfstart",
            Self::Module => "module",
            Self::PublishShard => "publishshard",
        }
    }
}

impl Body {
    /// The number on the wire.
    #[must_use]
    pub fn number(&self) -> u16 {
        match self {
            Self::Other(number) => *number,
            known => known.kind().expect("only Other may lack a kind") as u16,
        }
    }

    /// The kind, unless it is a number that nobody has given a meaning.
    #[must_use]
    pub fn kind(&self) -> Option<MessageKind> {
        Some(match self {
            Self::Ping(_) => MessageKind::Ping,
            Self::Pong(_) => MessageKind::Pong,
            Self::Meet(_) => MessageKind::Meet,
            Self::Fail(_) => MessageKind::Fail,
            Self::Publish(Publication { sharded: false, .. }) => MessageKind::Publish,
            Self::Publish(_) => MessageKind::PublishShard,
            Self::AuthRequest => MessageKind::AuthRequest,
            Self::AuthAck => MessageKind::AuthAck,
            Self::Update(_) => MessageKind::Update,
            Self::ManualFailoverStart => MessageKind::ManualFailoverStart,
            Self::Other(number) => *MessageKind::ALL.get(usize::from(*number))?,
        })
    }
}
