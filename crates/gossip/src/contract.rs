//! Inputs and actions of the state machine, and the contract with its driver.
//!
//! The driver feeds [`ClusterInput`]s with the time at which they happened and executes the returned [`ClusterAction`]s
//! in order; it need not wait for one action to complete before it starts the next. A packet with `after_persist` must
//! not be sent before the last preceding [`ClusterAction::Persist`] with `must_sync` is durable, because the packet carries
//! an epoch or a vote that must survive a crash. Every header carries this node's claim, so all packets have the flag
//! until a new claim is durable, which the driver reports with [`ClusterInput::Persisted`].

use std::net::IpAddr;
use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::{NodeId, ReplOffset, Slot, SlotSet, Topology};

use crate::commands::{OperatorCommand, OperatorError, OperatorReply, SlotChange};
use crate::config::ClusterConfig;
use crate::event::ClusterEvent;
use crate::wire::{Packet, Publication};

/// Identifies a link. The machine numbers the outbound links and the driver numbers the inbound ones, so the same
/// number can occur in both variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkId {
    /// A link that this node opened.
    Outbound(u64),
    /// A link that a peer opened.
    Inbound(u64),
}

/// An event that the driver reports to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterInput {
    /// The node has started. No input precedes it except [`ClusterInput::DatasetLoaded`].
    NodeStarted,
    /// The extent of the dataset that was loaded from disk; must precede [`ClusterInput::NodeStarted`].
    DatasetLoaded {
        /// Replication offset of the loaded dataset; 0 if no data was found.
        offset: ReplOffset,
    },
    /// A peer opened a link to this node. The driver reports it before any packet on that link.
    LinkAccepted {
        /// The link number, chosen by the driver.
        link: LinkId,
        /// Address of the peer as seen by the socket. The node uses it if the peer does not announce an address.
        peer_ip: IpAddr,
        /// Local address of the socket. A node without a configured address adopts this one.
        local_ip: IpAddr,
    },
    /// A requested outbound link is established.
    Connected {
        /// The link number from [`ClusterAction::Connect`].
        link: LinkId,
    },
    /// A requested outbound link could not be established.
    ConnectFailed {
        /// The link number from [`ClusterAction::Connect`]. The state machine will request a new link with another
        /// number.
        link: LinkId,
        /// Whether the host refused the connection (ECONNREFUSED).
        is_refused: bool,
    },
    /// A link broke, was closed by the peer, or carried a malformed packet.
    Closed {
        /// The closed link, inbound or outbound.
        link: LinkId,
    },
    /// A packet arrived completely and could be decoded.
    Packet {
        /// The inbound or outbound link that carried the packet; replies use the same link.
        link: LinkId,
        /// The decoded packet. The driver reports a malformed packet as [`ClusterInput::Closed`] instead.
        packet: Box<Packet>,
    },
    /// The time returned by [`next_deadline`](crate::Gossip::next_deadline) has come.
    Deadline,
    /// The replication state changed. The driver reports this before any other input.
    ReplicationChanged(ReplicationStatus),
    /// All writes requested with `must_sync` ([`ClusterAction::Persist`]) are durable.
    Persisted,
    /// Client writes are paused as requested, so the replication stream does not grow.
    WritesPaused {
        /// The final replication offset. The replica takes over when it has applied the stream up to this offset.
        offset: ReplOffset,
    },
    /// This node has keys in slots that it does not own. Slots that it has just lost and is about to empty do not
    /// count.
    ForeignKeysFound {
        /// The slots that contain keys although this node does not own them.
        slots: SlotSet,
        /// Whether the keys were loaded from disk at startup.
        at_startup: bool,
    },
    /// An operator command. [`ClusterAction::Reply`] carries the same token.
    Command {
        /// Identifies the command. Chosen by the driver and copied into the reply.
        token: u64,
        /// The parsed command. Facts that only the driver knows, such as key counts, are already filled in.
        command: OperatorCommand,
    },
    /// Result of a [`ClusterAction::ReplicateSlotChange`] that requested a confirmation.
    ReplicasAcknowledged {
        /// The token of the [`ReplicaConfirmation`].
        token: u64,
        /// Whether every connected replica has acknowledged the change; also true if there is no replica.
        is_acknowledged: bool,
        /// Current number of keys that this node has in the slot.
        keys_in_slot: u64,
    },
    /// The replication stream contains a slot change. The driver reports it before a [`ClusterInput::ReplicationChanged`]
    /// whose offset covers the change.
    SlotChanged {
        /// The slot whose mark or owner changed on the master.
        slot: Slot,
        /// The new state of the slot on the master.
        change: SlotChange,
    },
    /// The master shuts down and has named this replica as its successor in the replication stream. All writes of the
    /// master have arrived.
    MasterShutdown,
    /// A snapshot of the master was loaded. The listed slots are migrating or importing, all others are not.
    SlotMarksLoaded(Vec<(Slot, SlotChange)>),
    /// The first client write since this node became a master.
    FirstWrite {
        /// Wall-clock time of the write, for the failover timeline.
        written_at: Millis,
    },
    /// A client published a message that must be forwarded to other nodes.
    Publish(Publication),
    /// An operator changed a configuration option. The state machine compares the new configuration with the previous
    /// one.
    Configure(Box<ClusterConfig>),
}

/// The replication state of this node, which headers and elections depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicationStatus {
    /// Offset written (master) or applied (replica).
    pub offset: ReplOffset,
    /// On a replica, the state of its link to the master.
    pub source: ReplicationSource,
}

/// The nodes that may synchronize from this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplicaAdmission {
    /// Any node may synchronize.
    #[default]
    All,
    /// Only nodes without data may synchronize: this node started empty and knows no replica of its own, so a node with
    /// data must not replace its data with this node's empty dataset.
    OnlyEmpty,
    /// No node may synchronize: this node may have less data than its replicas.
    None,
}

/// The state of a replica's replication link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplicationSource {
    /// Not synchronized since startup, so the age of the data is unknown.
    #[default]
    NeverSynchronized,
    /// Connected to the master and in sync.
    Streaming {
        /// When the master last sent anything.
        last_heard_at: Instant,
    },
    /// The replication link is down, so the data is becoming outdated.
    Lost {
        /// When the link broke. The validity factor limits how long a replica may be disconnected and still fail over.
        since: Instant,
    },
}

/// Asks the driver to report when the replicas have acknowledged a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaConfirmation {
    /// Correlates [`ClusterInput::ReplicasAcknowledged`] with this request.
    pub token: u64,
    /// How long to wait for the replicas. After this time the driver reports a failure.
    pub timeout: Duration,
}

/// An action that the driver executes for the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAction {
    /// Open an outbound link and report the result with [`ClusterInput::Connected`] or [`ClusterInput::ConnectFailed`].
    Connect {
        /// The number under which the driver must report the result.
        link: LinkId,
        /// IP address to connect to.
        ip: IpAddr,
        /// Cluster bus port of the peer.
        port: u16,
    },
    /// Close a link, which the state machine has already forgotten.
    Close {
        /// The link to close, inbound or outbound.
        link: LinkId,
    },
    /// Send a packet on an established link.
    Send {
        /// The link to send on. If it has been closed in the meantime, the packet is dropped.
        link: LinkId,
        /// The packet, which the driver encodes.
        packet: Box<Packet>,
        /// Whether the packet must wait until the last [`ClusterAction::Persist`] with `must_sync` is durable.
        after_persist: bool,
    },
    /// Atomically replace the content of `nodes.conf`, so that a crash leaves the old or the new file.
    Persist {
        /// The complete new content of the file.
        nodes_conf: String,
        /// Whether the write must be durable before packets with `after_persist` are sent.
        must_sync: bool,
    },
    /// Publish this topology for the routing of commands.
    Publish(Box<Topology>),
    /// Restrict which nodes may synchronize from this node. The initial state is [`ReplicaAdmission::All`].
    RestrictReplicas(ReplicaAdmission),
    /// Stop replicating, keep the data and accept writes.
    BecomeMaster,
    /// Replicate from this master. Sent again when the address of the current master changes.
    BecomeReplica {
        /// Node id of the master. It stays the same when the master's address changes.
        master: NodeId,
        /// IP address of the master.
        ip: IpAddr,
        /// Port for the replication link: the TLS port if `tls_replication` is set.
        port: u16,
        /// Whether the local data belongs to another shard, so that its offset is not comparable with the master's.
        is_data_foreign: bool,
    },
    /// Pause client writes, then report the final offset with [`ClusterInput::WritesPaused`]. The pause ends with
    /// [`ClusterAction::ResumeWrites`] or at `until`.
    PauseWrites {
        /// When the pause ends unless [`ClusterAction::ResumeWrites`] ends it earlier.
        until: Instant,
    },
    /// Write a slot change into the replication stream, so that the replicas apply it.
    ReplicateSlotChange {
        /// The slot whose state changed.
        slot: Slot,
        /// The state that the replicas must record for the slot.
        change: SlotChange,
        /// If set, report with [`ClusterInput::ReplicasAcknowledged`] whether the replicas have acknowledged the
        /// change.
        confirmation: Option<ReplicaConfirmation>,
    },
    /// Resume client writes. Always follows the [`ClusterAction::Publish`] with the new slot owners.
    ResumeWrites,
    /// Report [`ClusterInput::ReplicationChanged`] as soon as this offset is applied; `None` cancels the request.
    WatchOffset(Option<ReplOffset>),
    /// Delete the keys in these slots, which other nodes now own.
    DeleteSlotKeys(SlotSet),
    /// Delete the whole dataset because the operator reset the node.
    DeleteDataset,
    /// Deliver a message that a client of another node published.
    DeliverPublication(Publication),
    /// Reply to an operator command. Sent exactly once per command, possibly many steps later.
    Reply {
        /// The token of the [`ClusterInput::Command`].
        token: u64,
        /// Success, or why the command was refused.
        result: Result<OperatorReply, OperatorError>,
    },
    /// Write this event to the server's log, at the level that [`ClusterEvent::level`] returns.
    Log(ClusterEvent),
}
