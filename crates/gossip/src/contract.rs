//! The inputs and the actions of the machine.
//!
//! The driver feeds [`Input`]s with the time at which they happened and carries out the [`Action`]s in
//! their order; it need not wait for one before the next. A packet with `after_persist` must not leave before
//! the last [`Action::Persist`] with `sync` ahead of it is safely on disk: it carries an epoch or a vote that
//! must survive a crash. While a claim of this node is not there yet, that is every packet, since every header
//! tells of it; [`Input::Persisted`] ends that.

use std::net::IpAddr;
use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::{NodeId, ReplOffset, Slot, SlotSet, Topology};

use crate::commands::{Command, CommandError, Reply, SlotChange};
use crate::config::Config;
use crate::event::Event;
use crate::wire::{Packet, Publication};

/// Names a link. The machine numbers those that it asks for, the driver those that it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkId {
    /// We connected.
    Out(u64),
    /// They connected.
    In(u64),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The first input after a start: nothing but time has happened.
    Start,
    /// Before [`Input::Start`], if it is known: how far the data reaches that was found on disk. Zero is none at all.
    Loaded {
        /// The offset in the history.
        upto: ReplOffset,
    },
    /// A peer connected; the socket's two addresses.
    Accepted {
        /// The link's number, chosen by the shell.
        link: LinkId,
        /// The other end's address.
        peer: IpAddr,
        /// This end's address.
        local: IpAddr,
    },
    /// A link that was asked for is up.
    Connected {
        /// The link.
        link: LinkId,
    },
    /// A link that was asked for could not be made; `refused` if the host said that nobody listens.
    ConnectFailed {
        /// The link.
        link: LinkId,
        /// Whether the host answered that nobody listens there.
        refused: bool,
    },
    /// A link broke, ended, or brought what is no packet.
    Closed {
        /// The link.
        link: LinkId,
    },
    /// A message came.
    Packet {
        /// The link it came over.
        link: LinkId,
        /// The message.
        packet: Box<Packet>,
    },
    /// The time that [`next_deadline`](crate::Gossip::next_deadline) named has come.
    Deadline,
    /// How replication stands. To be told when it changed, before other inputs.
    Replication(Replication),
    /// All that was to reach the disk ([`Action::Persist`] with `sync`) is there.
    Persisted,
    /// Writes are paused as asked for; the stream will not grow beyond this offset meanwhile.
    WritesPaused {
        /// The end of the stream.
        offset: ReplOffset,
    },
    /// These slots are others', or have no owner, and this node holds keys in them. Keys that it lost a moment ago and
    /// is to drop are not meant.
    KeysFound {
        /// The slots.
        slots: SlotSet,
        /// Whether the keys were loaded at the start.
        at_start: bool,
    },
    /// The operator says; the answer carries the same token.
    Command {
        /// Names the answer.
        token: u64,
        /// The command.
        command: Command,
    },
    /// The outcome of an [`Action::TellReplicas`] that was to be confirmed.
    ReplicasTold {
        /// Its token.
        token: u64,
        /// Whether every replica that is connected has it, or there is none.
        held: bool,
        /// How many keys this node holds of the slot now.
        keys_in_slot: u64,
    },
    /// The master's stream says what became of a slot. To be told before [`Input::Replication`] says that it is
    /// processed.
    SlotChanged {
        /// The slot.
        slot: Slot,
        /// The change.
        change: SlotChange,
    },
    /// The master's stream says that it stops, and that this node is to have its place. Everything that it wrote is here.
    MasterYields,
    /// The master's snapshot was loaded; these slots, and no others, were on the move in it.
    MovesLoaded(Vec<(Slot, SlotChange)>),
    /// The first write of a client since this node became a master, and when it was.
    FirstWrite {
        /// By the wall clock.
        at: Millis,
    },
    /// A client published; the other nodes are to hear it.
    Publish(Publication),
    /// The settings changed.
    Configure(Box<Config>),
}

/// How this node's replication stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replication {
    /// Produced, as a master, or processed, as a replica.
    pub offset: ReplOffset,
    /// Where the data comes from, on a replica.
    pub source: Source,
}

/// The nodes that may copy a node's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// All that ask.
    #[default]
    All,
    /// Only nodes that have nothing yet: this node came with nothing, and knows no replica of its own.
    WithoutData,
    /// None: there may be less here than the replicas have.
    None,
}

/// A replica's link to its master, the one that brings data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Never had any since the start, so there is no telling how old the data is.
    #[default]
    Never,
    /// In sync; when the master was last heard.
    Streaming {
        /// The master's last word.
        last_heard: Instant,
    },
    /// The link broke.
    Lost {
        /// When it broke.
        since: Instant,
    },
}

/// The replicas' word is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirm {
    /// Names the answer.
    pub token: u64,
    /// How long they may take.
    pub timeout: Duration,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Open a link.
    Connect {
        /// Its number.
        link: LinkId,
        /// Where to.
        ip: IpAddr,
        /// The bus port there.
        port: u16,
    },
    /// Close the link; the machine has already forgotten it.
    Close {
        /// The link.
        link: LinkId,
    },
    /// Send a message over a link.
    Send {
        /// The link.
        link: LinkId,
        /// The message.
        packet: Box<Packet>,
        /// Whether it must wait until the last [`Action::Persist`] is on disk.
        after_persist: bool,
    },
    /// Make this the content of `nodes.conf`, atomically; `sync` asks for it to reach the disk.
    Persist {
        /// The whole text.
        text: String,
        /// Whether it must be on disk before messages that ask for it leave.
        sync: bool,
    },
    /// The rest of the node is to route by this from now on.
    Publish(Box<Topology>),
    /// Let these copy what is here, from now on. Until it is said, all may.
    AllowCopies(Copies),
    /// Stop copying, keep the data, take writes.
    BecomeMaster,
    /// Copy this master.
    BecomeReplica {
        /// The master's name.
        master: NodeId,
        /// Its address.
        ip: IpAddr,
        /// Its port for replication.
        port: u16,
        /// The data here is of another shard's history: its offset says nothing beside the master's.
        foreign: bool,
    },
    /// Hold back writes, then tell the offset with [`Input::WritesPaused`]. Ends with
    /// [`Action::ResumeWrites`], or by itself at `until`.
    PauseWrites {
        /// When the pause ends by itself.
        until: Instant,
    },
    /// Say this to the replicas in the stream that they get.
    TellReplicas {
        /// The slot.
        slot: Slot,
        /// The change.
        change: SlotChange,
        /// Whether it is to be told when they have it ([`Input::ReplicasTold`]).
        confirm: Option<Confirm>,
    },
    /// Always after the [`Action::Publish`] that names the owners of the slots from now on.
    ResumeWrites,
    /// Tell [`Input::Replication`] as soon as this offset is processed; `None`: no longer.
    WatchOffset(Option<ReplOffset>),
    /// These slots now belong to others: what this node holds of them is to go.
    DropSlots(SlotSet),
    /// The operator reset the node: everything is to go.
    DropEverything,
    /// A client of another node published this.
    Deliver(Publication),
    /// Answer an operator's command.
    Reply {
        /// The command's token.
        token: u64,
        /// The answer, or the reason for refusing it.
        result: Result<Reply, CommandError>,
    },
    /// Say this in the log.
    Log(Event),
}
