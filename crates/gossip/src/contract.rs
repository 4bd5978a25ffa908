//! What goes into the machine and what comes out.
//!
//! The driver feeds [`Input`]s with the time at which they happened and carries out the [`Action`]s in
//! their order. An action with `after_persist` must not leave before the last [`Action::Persist`] ahead
//! of it is safely on disk: it carries an epoch or a vote that must survive a crash.

use std::net::IpAddr;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset, SlotSet, Topology};

use crate::commands::{Command, CommandError, Reply};
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
    /// A peer connected; the socket's two addresses.
    Accepted {
        link: LinkId,
        peer: IpAddr,
        local: IpAddr,
    },
    /// A link that was asked for is up.
    Connected {
        link: LinkId,
    },
    /// A link that was asked for could not be made; `refused` if the host said that nobody listens.
    ConnectFailed {
        link: LinkId,
        refused: bool,
    },
    /// A link broke, ended, or brought what is no packet.
    Closed {
        link: LinkId,
    },
    Packet {
        link: LinkId,
        packet: Box<Packet>,
    },
    /// The time that [`next_deadline`](crate::Gossip::next_deadline) named has come.
    Deadline,
    /// How replication stands. To be told when it changed, before other inputs.
    Replication(Replication),
    /// Writes are paused as asked for; the stream will not grow beyond this offset meanwhile.
    WritesPaused {
        offset: ReplOffset,
    },
    /// The operator says; the answer carries the same token.
    Command {
        token: u64,
        command: Command,
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
    pub source: Source,
}

/// A replica's link to its master, the one that brings data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Never had any since the start, so there is no telling how old the data is.
    #[default]
    Never,
    /// In sync; when the master was last heard.
    Streaming {
        last_heard: Instant,
    },
    Lost {
        since: Instant,
    },
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Connect {
        link: LinkId,
        ip: IpAddr,
        port: u16,
    },
    /// Close the link; the machine has already forgotten it.
    Close {
        link: LinkId,
    },
    Send {
        link: LinkId,
        packet: Box<Packet>,
        after_persist: bool,
    },
    /// Make this the content of `nodes.conf`, atomically; `sync` asks for it to reach the disk.
    Persist {
        text: String,
        sync: bool,
    },
    /// The rest of the node is to route by this from now on.
    Publish(Box<Topology>),
    /// Stop copying, keep the data, take writes.
    BecomeMaster,
    /// Copy this master.
    BecomeReplica {
        master: NodeId,
        ip: IpAddr,
        port: u16,
    },
    /// Hold back writes, then tell the offset with [`Input::WritesPaused`]. Ends with
    /// [`Action::ResumeWrites`], or by itself at `until`.
    PauseWrites {
        until: Instant,
    },
    /// Always after the [`Action::Publish`] that says whose the writes are from now on.
    ResumeWrites,
    /// Tell [`Input::Replication`] as soon as this offset is processed; `None`: no longer.
    WatchOffset(Option<ReplOffset>),
    /// These slots now belong to others: what this node holds of them is to go.
    DropSlots(SlotSet),
    /// The operator reset the node: everything is to go.
    DropEverything,
    /// A client of another node published this.
    Deliver(Publication),
    Reply {
        token: u64,
        result: Result<Reply, CommandError>,
    },
    Log(Event),
}
