//! Inputs and actions of the state machine, and the contract with its driver.
//!
//! The driver feeds [`ClusterInput`]s with the time at which they happened and executes the returned [`ClusterAction`]s
//! in order; it need not wait for one action to complete before it starts the next. A packet with `after_persist` must
//! not leave before the last preceding [`ClusterAction::Persist`] with `sync` is durable, because the packet carries an
//! epoch or a vote that must survive a crash. Every header carries this node's claim, so while a new claim is not
//! durable yet, all packets have the flag. [`ClusterInput::Persisted`] ends this state.

use std::net::IpAddr;
use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::{NodeId, ReplOffset, Slot, SlotSet, Topology};

use crate::commands::{OperatorCommand, OperatorError, OperatorReply, SlotChange};
use crate::config::ClusterConfig;
use crate::event::ClusterEvent;
use crate::wire::{Packet, Publication};

/// Identifies a link. The machine numbers outbound links, the driver numbers inbound links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkId {
    /// A link that this node opened.
    Out(u64),
    /// A link that a peer opened.
    In(u64),
}

/// An event that the driver reports to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterInput {
    /// The first input after a start.
    Start,
    /// How far the dataset that was loaded from disk reaches; must precede [`ClusterInput::Start`]. Zero means that no
    /// data was found.
    Loaded {
        /// Replication offset of the loaded dataset.
        upto: ReplOffset,
    },
    /// A peer opened a link.
    Accepted {
        /// The link number, chosen by the driver.
        link: LinkId,
        /// Remote address of the socket.
        peer: IpAddr,
        /// Local address of the socket.
        local: IpAddr,
    },
    /// A requested outbound link is established.
    Connected {
        /// The outbound link.
        link: LinkId,
    },
    /// A requested outbound link could not be established.
    ConnectFailed {
        /// The outbound link.
        link: LinkId,
        /// Whether the host refused the connection (ECONNREFUSED).
        refused: bool,
    },
    /// A link broke, was closed by the peer, or carried a malformed packet.
    Closed {
        /// The closed link.
        link: LinkId,
    },
    /// A packet arrived.
    Packet {
        /// The link on which the packet arrived.
        link: LinkId,
        /// The decoded packet.
        packet: Box<Packet>,
    },
    /// The time returned by [`next_deadline`](crate::Gossip::next_deadline) has come.
    Deadline,
    /// The replication state changed. The driver reports this before other inputs.
    Replication(ReplicationStatus),
    /// All writes requested with `sync` ([`ClusterAction::Persist`]) are durable.
    Persisted,
    /// Writes are paused as requested; the replication stream does not grow while they are.
    WritesPaused {
        /// The end of the replication stream.
        offset: ReplOffset,
    },
    /// This node has keys in slots that it does not own. Keys of slots that it has just lost and is about to delete do
    /// not count.
    ForeignKeysFound {
        /// The slots that contain keys.
        slots: SlotSet,
        /// Whether the keys were loaded from disk at startup.
        at_start: bool,
    },
    /// An operator command. [`ClusterAction::Reply`] carries the same token.
    Command {
        /// Correlates the reply with the command.
        token: u64,
        /// The parsed command.
        command: OperatorCommand,
    },
    /// Result of an [`ClusterAction::TellReplicas`] with a confirmation.
    ReplicasAcknowledged {
        /// The token of the confirmation.
        token: u64,
        /// Whether every connected replica has acknowledged the change; also true if there is no replica.
        held: bool,
        /// Number of keys that this node has in the slot now.
        keys_in_slot: u64,
    },
    /// The replication stream contains a slot change. The driver reports it before the [`ClusterInput::Replication`]
    /// that covers its offset.
    SlotChanged {
        /// The changed slot.
        slot: Slot,
        /// The new state of the slot.
        change: SlotChange,
    },
    /// The replication stream says that the master shuts down and that this replica shall take over. All writes of the
    /// master have arrived.
    MasterShutdown,
    /// A snapshot of the master was loaded. The listed slots are migrating or importing, all others are not.
    MovesLoaded(Vec<(Slot, SlotChange)>),
    /// The first client write since this node became a master.
    FirstWrite {
        /// Wall-clock time of the write.
        at: Millis,
    },
    /// A client published a message that other nodes must receive.
    Publish(Publication),
    /// The configuration changed.
    Configure(Box<ClusterConfig>),
}

/// The replication state of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicationStatus {
    /// Offset written (master) or applied (replica).
    pub offset: ReplOffset,
    /// On a replica, the state of its link to the master.
    pub source: ReplicationSource,
}

/// Which nodes may synchronize from this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplicaAdmission {
    /// Any node.
    #[default]
    All,
    /// Only nodes without data: this node started empty and knows no replica of its own, so a node with data must not
    /// replace it with this empty dataset.
    OnlyEmpty,
    /// No node: this node may have less data than its replicas.
    None,
}

/// The state of a replica's replication link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplicationSource {
    /// Not synchronized since startup, so the age of the data is unknown.
    #[default]
    Never,
    /// Connected to the master and in sync.
    Streaming {
        /// When the master last sent anything.
        last_heard: Instant,
    },
    /// The link to the master broke.
    Lost {
        /// When the link broke.
        since: Instant,
    },
}

/// Asks the driver to report when the replicas have acknowledged a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaConfirmation {
    /// Correlates [`ClusterInput::ReplicasAcknowledged`] with this request.
    pub token: u64,
    /// How long to wait for the replicas.
    pub timeout: Duration,
}

/// An action that the driver executes for the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAction {
    /// Open an outbound link.
    Connect {
        /// The number of the new link.
        link: LinkId,
        /// IP address of the peer.
        ip: IpAddr,
        /// Cluster bus port of the peer.
        port: u16,
    },
    /// Close a link; the machine no longer knows it.
    Close {
        /// The link to close.
        link: LinkId,
    },
    /// Send a packet.
    Send {
        /// The link to send on.
        link: LinkId,
        /// The packet to encode and send.
        packet: Box<Packet>,
        /// Whether the packet must wait until the last [`ClusterAction::Persist`] with `sync` is durable.
        after_persist: bool,
    },
    /// Atomically replace the content of `nodes.conf`.
    Persist {
        /// The new content of the file.
        text: String,
        /// Whether the write must be durable before packets with `after_persist` leave.
        sync: bool,
    },
    /// Use this topology for routing from now on.
    Publish(Box<Topology>),
    /// Restrict which nodes may synchronize from this node. The initial state is [`ReplicaAdmission::All`].
    AllowReplicas(ReplicaAdmission),
    /// Stop replicating, keep the data and accept writes.
    BecomeMaster,
    /// Replicate from this master.
    BecomeReplica {
        /// Node id of the master.
        master: NodeId,
        /// IP address of the master.
        ip: IpAddr,
        /// Port for the replication link.
        port: u16,
        /// The local data belongs to another shard, so its offset is not comparable with the master's.
        foreign: bool,
    },
    /// Pause writes, then report the offset with [`ClusterInput::WritesPaused`]. The pause ends with
    /// [`ClusterAction::ResumeWrites`] or at `until`.
    PauseWrites {
        /// When the pause ends without [`ClusterAction::ResumeWrites`].
        until: Instant,
    },
    /// Write a slot change into the replication stream.
    TellReplicas {
        /// The slot to write about.
        slot: Slot,
        /// The new state of the slot.
        change: SlotChange,
        /// Report with [`ClusterInput::ReplicasAcknowledged`] when the replicas have acknowledged it.
        confirm: Option<ReplicaConfirmation>,
    },
    /// Resume writes. Always follows the [`ClusterAction::Publish`] with the new slot owners.
    ResumeWrites,
    /// Report [`ClusterInput::Replication`] as soon as this offset is applied; `None` cancels the request.
    WatchOffset(Option<ReplOffset>),
    /// Delete the keys in these slots, which other nodes own now.
    DropSlots(SlotSet),
    /// Delete the whole dataset because the operator reset the node.
    DropEverything,
    /// Deliver a message that a client of another node published.
    Deliver(Publication),
    /// Reply to an operator command.
    Reply {
        /// The token of the command.
        token: u64,
        /// The reply or the error.
        result: Result<OperatorReply, OperatorError>,
    },
    /// Write this event to the log.
    Log(ClusterEvent),
}
