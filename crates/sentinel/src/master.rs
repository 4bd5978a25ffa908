//! A monitored master with its instances, the other sentinels, and its consensus group.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use clock::Instant;
use consensus::{Group, PeerId, SavedGroup, Term};
use rand::RngExt;

use crate::addr::{Addr, RunId};
use crate::config::KnownMaster;
use crate::event::EventLevel;
use crate::failover::Failover;
use crate::info::Role;
use crate::instance::{Instance, Peer};
use crate::record::Switch;
use crate::settings::MasterSettings;
use crate::shared::Context;

/// Maximum number of replicas or sentinels per master, as a protection against floods.
const MAX_KNOWN: usize = 1024;

pub(crate) struct Master {
    pub(crate) name: String,
    pub(crate) settings: MasterSettings,
    pub(crate) myself: Instance,
    pub(crate) replicas: BTreeMap<Addr, Instance>,
    pub(crate) peers: BTreeMap<RunId, Peer>,
    /// Former member ids of sentinels that restarted without their files, with the time of the change. These sentinels
    /// may have forgotten a vote in an epoch that this sentinel does not know.
    pub(crate) former_members: BTreeMap<PeerId, Instant>,
    pub(crate) config_epoch: u64,
    /// The candidate of the last known vote; the field `leader_epoch` has its epoch.
    pub(crate) leader: Option<RunId>,
    pub(crate) leader_epoch: u64,
    /// When the master became objectively down; `None` while it is not.
    pub(crate) odown: Option<Instant>,
    pub(crate) failover: Option<Failover>,
    /// A failed failover is not repeated before this time.
    pub(crate) retry_at: Instant,
    /// Number of consecutive failed failover attempts, which determines the delay before the next one.
    pub(crate) failures: u32,
    pub(crate) group: Group,
    /// The latest records of the group, as pairs of their number in the group and their number in the journal.
    pub(crate) synced: VecDeque<(u64, u64)>,
    /// The last announced term and vote of the group.
    pub(crate) ballot: (Term, u64),
}

impl Master {
    /// Starts to monitor a master; `saved` is the group's state from the journal.
    pub(crate) fn new(cx: &mut Context<'_>, known: &KnownMaster, saved: SavedGroup) -> Self {
        let seed = cx.shared.rng.random();
        let ballot = (saved.term, saved.voted_for);
        let group = Group::new(&known.name, cx.shared.my_peer(), saved, seed);
        let myself = Instance::new(cx, &known.addr, Role::Master, &known.settings);
        let mut master = Self {
            name: known.name.clone(),
            settings: known.settings.clone(),
            myself,
            replicas: BTreeMap::new(),
            peers: BTreeMap::new(),
            former_members: BTreeMap::new(),
            config_epoch: known.config_epoch,
            leader: None,
            leader_epoch: known.leader_epoch,
            odown: None,
            failover: None,
            retry_at: cx.now,
            failures: 0,
            group,
            synced: VecDeque::new(),
            ballot,
        };
        master.announce(cx, EventLevel::Warning, "+monitor", &format!(" quorum {}", known.settings.quorum));
        for addr in &known.replicas {
            master.add_replica(cx, addr);
        }
        for (addr, run_id) in &known.sentinels {
            master.add_peer(cx, addr, run_id);
        }
        master.update_members(cx);
        // Applies a switch that was committed but not written to the configuration file.
        if let Some(switch) = Switch::decode(master.group.value()).filter(|switch| switch.done) {
            master.learn_switch(cx, &switch);
        }
        master
    }

    /// Describes the master for the configuration file. After a committed switch this is the new master.
    pub(crate) fn known(&self) -> KnownMaster {
        let addr = self.current_addr();
        let old = &self.myself.addr;
        let replicas = self.replicas.keys().map(|replica| if replica == addr { old } else { replica });
        KnownMaster {
            name: self.name.clone(),
            addr: addr.clone(),
            settings: self.settings.clone(),
            config_epoch: self.config_epoch,
            leader_epoch: self.leader_epoch,
            replicas: replicas.cloned().collect(),
            sentinels: self.peers.values().map(|peer| (peer.addr.clone(), peer.run_id.clone())).collect(),
        }
    }

    /// Publishes an event about the master.
    pub(crate) fn announce(&self, cx: &mut Context<'_>, level: EventLevel, name: &str, extra: &str) {
        let subject = cx.subject("master", &self.name, &self.myself.addr, None);
        cx.event(level, name, format!("{subject}{extra}"), self.settings.notification_script.as_deref());
    }

    /// Publishes an event about a replica.
    pub(crate) fn announce_replica(
        &self,
        cx: &mut Context<'_>,
        level: EventLevel,
        name: &str,
        addr: &Addr,
        extra: &str,
    ) {
        let shown = Addr::new(cx.shared.display_host(&addr.host), addr.port);
        let of = Some((self.name.as_str(), &self.myself.addr));
        let subject = cx.subject("slave", &shown.to_string(), addr, of);
        cx.event(level, name, format!("{subject}{extra}"), self.settings.notification_script.as_deref());
    }

    /// Publishes an event about another sentinel.
    pub(crate) fn announce_peer(
        &self,
        cx: &mut Context<'_>,
        level: EventLevel,
        name: &str,
        peer: &Peer,
        extra: &str,
    ) {
        let of = Some((self.name.as_str(), &self.myself.addr));
        let subject = cx.subject("sentinel", peer.run_id.as_str(), &peer.addr, of);
        cx.event(level, name, format!("{subject}{extra}"), self.settings.notification_script.as_deref());
    }

    /// Adds a replica; returns true if it was not known.
    pub(crate) fn add_replica(&mut self, cx: &mut Context<'_>, addr: &Addr) -> bool {
        let known = self.replicas.keys().any(|known| cx.shared.same_addr(known, addr));
        if known || cx.shared.same_addr(&self.myself.addr, addr) || self.replicas.len() >= MAX_KNOWN {
            return false;
        }
        let replica = Instance::new(cx, addr, Role::Replica, &self.settings);
        self.replicas.insert(addr.clone(), replica);
        self.announce_replica(cx, EventLevel::Notice, "+slave", addr, "");
        cx.changed();
        true
    }

    /// Adds a sentinel that was not known.
    pub(crate) fn add_peer(&mut self, cx: &mut Context<'_>, addr: &Addr, run_id: &RunId) {
        let clash = self.peers.values().any(|peer| peer.run_id != *run_id && peer.id() == run_id.peer());
        if *run_id == cx.shared.me || run_id.peer() == cx.shared.my_peer() || clash {
            return;
        }
        if self.peers.len() < MAX_KNOWN {
            let peer = Peer::new(cx, addr, run_id);
            self.peers.insert(run_id.clone(), peer);
        }
    }

    /// Number of known sentinels, including this one.
    pub(crate) fn sentinels(&self) -> usize {
        self.peers.len() + 1
    }

    /// The majority of all members, including former ones.
    pub(crate) fn majority(&self) -> usize {
        (self.sentinels() + self.former_members.len()) / 2 + 1
    }

    /// Removes former members once all other sentinels have sent a hello message since, which shows the epochs that
    /// they know, or after `failover-timeout`, in case one of them is gone for good.
    pub(crate) fn remove_former_members(&mut self, cx: &mut Context<'_>) {
        let (now, before) = (cx.now, self.former_members.len());
        let (peers, timeout) = (&self.peers, self.settings.failover_timeout);
        self.former_members.retain(|_, since| {
            now.since(*since) < timeout && peers.values().any(|peer| peer.last_hello <= *since)
        });
        if self.former_members.len() < before {
            self.update_members(cx);
        }
    }

    /// Tells the consensus group which sentinels are its members.
    pub(crate) fn update_members(&mut self, cx: &mut Context<'_>) {
        let mut voters: BTreeSet<PeerId> = self.peers.values().map(Peer::id).collect();
        voters.insert(cx.shared.my_peer());
        voters.extend(self.former_members.keys());
        let links = &cx.shared.links;
        let foreign = |peer: &&Peer| peer.link.is_some_and(|link| links.at(link).native == Some(false));
        let foreign = self.peers.values().filter(foreign).map(Peer::id).collect();
        self.drive(cx, consensus::GroupInput::SetMembers { voters, foreign_members: foreign });
    }

    pub(crate) fn peer_of(&self, id: PeerId) -> Option<&Peer> {
        self.peers.values().find(|peer| peer.id() == id)
    }

    /// The address for clients: the new master's once the switch is committed.
    pub(crate) fn current_addr(&self) -> &Addr {
        self.failover.as_ref().and_then(Failover::switched_to).unwrap_or(&self.myself.addr)
    }

    /// Reconnects to all instances with the current credentials.
    pub(crate) fn reconnect_all(&self, cx: &mut Context<'_>) {
        for instance in std::iter::once(&self.myself).chain(self.replicas.values()) {
            for link in [instance.command, instance.hello] {
                if let Some(state) = cx.shared.links.find(link) {
                    state.set_credentials(&self.settings.auth_user, &self.settings.auth_pass);
                }
                cx.reconnect(link);
            }
        }
    }

    /// Reconnects to all other sentinels with the current credentials.
    pub(crate) fn reconnect_to_peers(&self, cx: &mut Context<'_>) {
        let (user, pass) = (cx.shared.global.sentinel_user.clone(), cx.shared.global.sentinel_pass.clone());
        for link in self.peers.values().filter_map(|peer| peer.link) {
            if let Some(state) = cx.shared.links.find(link) {
                state.set_credentials(&user, &pass);
            }
            cx.reconnect(link);
        }
    }

    /// The ids of all links that this master uses.
    pub(crate) fn links(&self) -> impl Iterator<Item = crate::link::LinkId> + '_ {
        let data = std::iter::once(&self.myself).chain(self.replicas.values());
        let peers = self.peers.values().filter_map(|peer| peer.link);
        data.flat_map(|instance| [instance.command, instance.hello]).chain(peers)
    }
}
