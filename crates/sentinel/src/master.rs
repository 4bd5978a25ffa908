//! A monitored master with its instances, the other sentinels, and its consensus group.

use clock::Instant;
use consensus::SavedGroup;
use rand::RngExt;

use crate::addr::{Addr, RunId};
use crate::config::KnownMaster;
use crate::event::EventLevel;
use crate::info::Role;
use crate::master::consensus_member::ConsensusMember;
use crate::master::failovers::{Failover, Failovers};
use crate::master::failure_detector::FailureDetector;
use crate::master::instance::Instance;
use crate::master::known_sentinels::{KnownSentinel, KnownSentinels};
use crate::master::monitored_servers::MonitoredServers;
use crate::settings::MasterSettings;
use crate::shared::Context;

mod consensus_member;
mod failover;
pub(crate) mod failovers;
mod failure_detector;
pub(crate) mod foreign_servers;
mod group_actions;
mod handover;
mod health;
pub(crate) mod instance;
pub(crate) mod known_sentinels;
mod monitored_servers;
mod periodic_tasks;
mod queries;
mod repair;
mod replica_selection;
mod reported_state;
mod round_schedule;
mod switch;
mod switch_record;
pub(crate) mod transactions;

pub(crate) struct Master {
    name: String,
    settings: MasterSettings,
    servers: MonitoredServers,
    sentinels: KnownSentinels,
    config_epoch: u64,
    consensus: ConsensusMember,
    detector: FailureDetector,
    failovers: Failovers,
}

impl Master {
    /// Starts to monitor a master; `saved` is the group's state from the journal.
    pub(crate) fn new(cx: &mut Context<'_>, known: &KnownMaster, saved: SavedGroup) -> Self {
        let seed = cx.shared.rng.random();
        let consensus =
            ConsensusMember::new(&known.name, cx.shared.my_peer(), saved, known.leader_epoch, seed);
        let instance = Instance::new(cx, &known.addr, Role::Master, &known.settings);
        let mut master = Self {
            name: known.name.clone(),
            settings: known.settings.clone(),
            servers: MonitoredServers::new(instance),
            sentinels: KnownSentinels::default(),
            config_epoch: known.config_epoch,
            consensus,
            detector: FailureDetector::default(),
            failovers: Failovers::new(cx.now),
        };
        master.announce(cx, EventLevel::Warning, "+monitor", &format!(" quorum {}", known.settings.quorum));
        for addr in &known.replicas {
            master.add_replica(cx, addr);
        }
        for (addr, run_id) in &known.sentinels {
            master.add_sentinel(cx, addr, run_id);
        }
        master.update_members(cx);
        // Applies a switch that was committed but not written to the configuration file.
        if let Some(switch) = master.consensus.committed_switch().filter(|switch| switch.done) {
            master.adopt_switch(cx, &switch);
        }
        master
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn settings(&self) -> &MasterSettings {
        &self.settings
    }

    pub(crate) fn settings_mut(&mut self) -> &mut MasterSettings {
        &mut self.settings
    }

    pub(crate) fn servers(&self) -> &MonitoredServers {
        &self.servers
    }

    pub(crate) fn sentinels(&self) -> &KnownSentinels {
        &self.sentinels
    }

    /// The epoch of the last switch that this sentinel knows.
    pub(crate) fn config_epoch(&self) -> u64 {
        self.config_epoch
    }

    /// The state of the consensus group, which is saved when the journal is replaced.
    pub(crate) fn saved_group(&self) -> &SavedGroup {
        self.consensus.saved_state()
    }

    /// When the master became objectively down; `None` while it is not.
    pub(crate) fn odown(&self) -> Option<Instant> {
        self.detector.odown()
    }

    /// The failover that this sentinel attempts or leads, if there is one.
    pub(crate) fn failover(&self) -> Option<&Failover> {
        self.failovers.current()
    }

    /// Forgets everything that was discovered about the master.
    pub(crate) fn reset(&mut self, cx: &mut Context<'_>) {
        let addr = self.servers.master().addr().clone();
        self.sentinels.clear();
        self.reset_observations(cx, &addr);
        self.update_members(cx);
        self.announce(cx, EventLevel::Warning, "+reset-master", "");
    }

    /// Removes another sentinel. Returns false if it is not known.
    pub(crate) fn forget_sentinel(&mut self, cx: &mut Context<'_>, run_id: &RunId) -> bool {
        let Some(peer) = self.sentinels.remove(run_id) else { return false };
        self.announce_sentinel(cx, EventLevel::Warning, "-sentinel", &peer, "");
        self.update_members(cx);
        cx.shared.links_changed = true;
        true
    }

    /// Describes the master for the configuration file. After a committed switch this is the new master.
    pub(crate) fn to_known_master(&self) -> KnownMaster {
        let addr = self.current_addr();
        let old = self.servers.master().addr();
        let replicas =
            self.servers.replica_addrs().map(|replica| if replica == addr { old } else { replica });
        KnownMaster {
            name: self.name.clone(),
            addr: addr.clone(),
            settings: self.settings.clone(),
            config_epoch: self.config_epoch,
            leader_epoch: self.consensus.voted_epoch(),
            replicas: replicas.cloned().collect(),
            sentinels: self
                .sentinels
                .iter()
                .map(|peer| (peer.addr().clone(), peer.run_id().clone()))
                .collect(),
        }
    }

    /// Publishes an event about the master.
    pub(crate) fn announce(&self, cx: &mut Context<'_>, level: EventLevel, name: &str, extra: &str) {
        let subject = cx.event_subject("master", &self.name, self.servers.master().addr(), None);
        cx.publish_event(
            level,
            name,
            format!("{subject}{extra}"),
            self.settings.notification_script.as_deref(),
        );
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
        let of = Some((self.name.as_str(), self.servers.master().addr()));
        let subject = cx.event_subject("slave", &shown.to_string(), addr, of);
        cx.publish_event(
            level,
            name,
            format!("{subject}{extra}"),
            self.settings.notification_script.as_deref(),
        );
    }

    /// Publishes an event about another sentinel.
    pub(crate) fn announce_sentinel(
        &self,
        cx: &mut Context<'_>,
        level: EventLevel,
        name: &str,
        peer: &KnownSentinel,
        extra: &str,
    ) {
        let of = Some((self.name.as_str(), self.servers.master().addr()));
        let subject = cx.event_subject("sentinel", peer.run_id().as_str(), peer.addr(), of);
        cx.publish_event(
            level,
            name,
            format!("{subject}{extra}"),
            self.settings.notification_script.as_deref(),
        );
    }

    /// Adds a replica. Returns false if the address is known or there are too many replicas.
    pub(crate) fn add_replica(&mut self, cx: &mut Context<'_>, addr: &Addr) -> bool {
        if !self.servers.has_room_for(|known| cx.shared.same_addr(known, addr)) {
            return false;
        }
        let replica = Instance::new(cx, addr, Role::Replica, &self.settings);
        self.servers.insert_replica(replica);
        self.announce_replica(cx, EventLevel::Notice, "+slave", addr, "");
        cx.record_config_change();
        true
    }

    /// Adds another sentinel, unless its member id is taken or there are too many sentinels.
    pub(crate) fn add_sentinel(&mut self, cx: &mut Context<'_>, addr: &Addr, run_id: &RunId) {
        if self.sentinels.has_room_for(&cx.shared.my_id, run_id) {
            let link = cx.link_to_sentinel(addr);
            self.sentinels.insert(KnownSentinel::new(cx.now, addr, run_id, link));
        }
    }

    /// Tells the consensus group which sentinels are its members.
    pub(crate) fn update_members(&mut self, cx: &mut Context<'_>) {
        let voters = self.sentinels.voters(cx.shared.my_peer());
        let foreign = self.sentinels.redis_sentinels(&cx.shared.links);
        self.drive_group(cx, consensus::GroupInput::SetMembers { voters, foreign_members: foreign });
    }

    /// The address that clients get: that of the new master as soon as the switch is committed.
    pub(crate) fn current_addr(&self) -> &Addr {
        self.failovers.current().and_then(Failover::switched_to).unwrap_or(self.servers.master().addr())
    }

    /// Reconnects to the master and its replicas with the current credentials.
    pub(crate) fn reconnect_to_servers(&self, cx: &mut Context<'_>) {
        for instance in self.servers.iter() {
            for link in instance.links() {
                if let Some(state) = cx.shared.links.find(link) {
                    state.set_credentials(&self.settings.auth_user, &self.settings.auth_pass);
                }
                cx.reconnect(link);
            }
        }
    }

    /// Reconnects to all other sentinels with the current credentials.
    pub(crate) fn reconnect_to_sentinels(&self, cx: &mut Context<'_>) {
        let (user, pass) = (cx.shared.global.sentinel_user.clone(), cx.shared.global.sentinel_pass.clone());
        for link in self.sentinels.links() {
            if let Some(state) = cx.shared.links.find(link) {
                state.set_credentials(&user, &pass);
            }
            cx.reconnect(link);
        }
    }

    /// The ids of all links that this master uses.
    pub(crate) fn links(&self) -> impl Iterator<Item = crate::link::LinkId> + '_ {
        self.servers.links().chain(self.sentinels.links())
    }
}
