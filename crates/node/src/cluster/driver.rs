//! The task that owns the machine: feeds it and does what it says.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clock::Instant;
use gossip::wire::{Packet, Publication};
use gossip::{Action, Event, Gossip, Input, Level, LinkId, Source};
use slot_routing::{ReplOffset, SlotSet};
use tokio::sync::{mpsc, oneshot};

use super::links::{self, LinkEvent, Links};
use super::store::Store;
use super::{Answer, Ask, Prepared, options, publish};
use crate::net::dialer::Dialer;
use crate::net::transport::Options;
use crate::replication::MasterAddress;
use crate::server::Server;

/// What was learned from others is written this much later, together with what else was learned by then: they
/// would tell it again.
const SAVE_LATER: Duration = Duration::from_millis(100);
/// While an offset is waited for, how often it is looked at.
const WATCH: Duration = Duration::from_millis(2);

/// The machine and everything it moves.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) gossip: Gossip,
    server: Arc<Server>,
    store: Store,
    links: Links,
    events: mpsc::Receiver<LinkEvent>,
    asks: mpsc::UnboundedReceiver<Ask>,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    next_token: u64,
    /// The last time that the machine was told; it must not go back, whatever the processor's clock does.
    last: Instant,
    /// The machine wants to know when this is processed.
    watched: Option<ReplOffset>,
    pause: Option<Pause>,
    /// What is to be written into `nodes.conf`, and when.
    unsaved: Option<(String, Instant)>,
    /// What the machine was last told.
    facts: gossip::Replication,
}

/// Writes are held back for a manual failover.
#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Instant,
    /// When the offset is told, if it has not been.
    tell_at: Option<Instant>,
}

impl Driver {
    /// Opens the bus. To be called within the control thread's event loop.
    pub(crate) fn new(server: Arc<Server>, prepared: Prepared) -> Result<Self> {
        let (sender, events) = mpsc::channel(links::WAITING_EVENTS);
        let config = &server.config;
        let port = options::bus_port(config)?;
        let Prepared { gossip, store, asks } = prepared;
        // A peer that vanished is not waited for long (Redis: twice the node timeout).
        let keepalive = Some(2 * gossip.config().node_timeout);
        for listener in crate::net::listener::open(&config.text("bind"), port, 511, "cluster")? {
            let options = Options { nodelay: true, keepalive };
            tokio::spawn(links::listen(listener, options, sender.clone()));
        }
        Ok(Self {
            gossip,
            server,
            store,
            links: Links::new(sender),
            events,
            asks,
            waiting: BTreeMap::new(),
            next_token: 0,
            last: crate::process::time::instant(),
            watched: None,
            pause: None,
            unsaved: None,
            facts: gossip::Replication::default(),
        })
    }

    /// What this node is to its data is settled when this returns.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.feed(Input::Start)
    }

    /// Runs until it is dropped, after [`Driver::start`]; ends with an error that the node must not live with.
    pub(crate) async fn run(mut self) -> Result<()> {
        loop {
            let next = self.next_deadline().map(|at| {
                let ahead = at.since(self.now());
                tokio::time::Instant::now() + ahead
            });
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.events.recv() => {
                    let event = event.expect("the driver holds a sender itself");
                    self.on_event(event)?;
                }
                ask = self.asks.recv() => {
                    let ask = ask.expect("the server, which is ours too, holds a sender");
                    self.on_ask(ask)?;
                }
                () = timer => self.on_timer()?,
            }
            self.server.network.bus_links.store(self.links.len(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> Instant {
        crate::process::time::instant().max(self.last)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let watch = self.watched.map(|_| self.now() + WATCH);
        let pause = self.pause.map(|pause| pause.tell_at.unwrap_or(pause.until));
        let save = self.unsaved.as_ref().map(|(_, at)| *at);
        [self.gossip.next_deadline(), watch, pause, save].into_iter().flatten().min()
    }

    fn on_timer(&mut self) -> Result<()> {
        let now = self.now();
        if self.unsaved.as_ref().is_some_and(|(_, at)| now >= *at) {
            self.save_now()?;
        }
        if let Some(pause) = &mut self.pause {
            if now >= pause.until {
                self.resume_writes();
            } else if pause.tell_at.is_some_and(|at| now >= at) {
                pause.tell_at = None;
                let offset = self.drained_offset();
                return self.feed(Input::WritesPaused { offset });
            }
        }
        self.feed(Input::Deadline)
    }

    fn on_event(&mut self, event: LinkEvent) -> Result<()> {
        match event {
            LinkEvent::Accepted { stream, peer, local } => match self.links.accept(stream) {
                Some(link) => self.feed(Input::Accepted { link, peer, local }),
                None => {
                    tracing::warn!("Too many links on the cluster bus: one from {peer} is refused");
                    Ok(())
                }
            },
            LinkEvent::Connected { link, stream } => {
                if self.links.begin(link, stream) {
                    self.feed(Input::Connected { link })?;
                }
                Ok(())
            }
            LinkEvent::ConnectFailed { link, refused } => {
                self.links.close(link);
                self.feed(Input::ConnectFailed { link, refused })
            }
            LinkEvent::Packet { link, packet } => self.feed(Input::Packet { link, packet }),
            LinkEvent::Closed { link } => {
                self.links.close(link);
                self.feed(Input::Closed { link })
            }
        }
    }

    fn on_ask(&mut self, ask: Ask) -> Result<()> {
        match ask {
            Ask::Command { command, answer } => {
                let token = self.next_token;
                self.next_token += 1;
                self.waiting.insert(token, answer);
                self.feed(Input::Command { token, command })
            }
            Ask::Publish { publication, ticket } => {
                drop(ticket);
                self.feed(Input::Publish(publication))
            }
            Ask::Look(look) => {
                look(self);
                Ok(())
            }
            Ask::Configure => match options::read(&self.server.config) {
                Ok(config) => self.feed(Input::Configure(Box::new(config))),
                Err(error) => {
                    tracing::warn!("{error:#}");
                    Ok(())
                }
            },
        }
    }

    /// Gives the machine an input, after what replication has to say, and does what it answers.
    fn feed(&mut self, input: Input) -> Result<()> {
        let mut actions = Vec::new();
        let (now, wall) = (self.now(), crate::process::time::now());
        self.last = now;
        let asked_for = matches!(input, Input::Command { .. } | Input::Configure(_) | Input::Start);
        let facts = self.standing(now);
        if facts != self.facts {
            self.facts = facts;
            self.gossip.handle(now, wall, Input::Replication(facts), &mut actions);
        }
        self.gossip.handle(now, wall, input, &mut actions);
        let mut lost = SlotSet::new();
        let (mut given_up, mut replies, mut follow) = (Vec::new(), Vec::new(), None);
        for action in actions {
            match action {
                // Deleted when the slots are no longer ours, so that nothing is written after.
                Action::DropSlots(slots) => lost.extend(slots.iter()),
                Action::Send { link, packet, .. } => given_up.extend(self.send(link, &packet)),
                // Told when it holds: whoever reads the reply may ask for the new state at once.
                Action::Reply { token, result } => replies.push((token, result)),
                Action::Persist { text, sync } if sync || asked_for => {
                    self.unsaved = None;
                    self.save(&text, sync)?;
                }
                // Whoever gives up its slots is a replica when they are another's: until then it says MOVED.
                Action::BecomeReplica { ip, port, .. } => follow = Some((ip, port)),
                action => self.carry_out(action)?,
            }
        }
        if let Some((ip, port)) = follow {
            self.follow(ip, port);
        }
        publish::drop_slots(&self.server, &lost);
        for (token, result) in replies {
            if let Some(answer) = self.waiting.remove(&token) {
                // The client may have left.
                let _ = answer.send(result);
            }
        }
        let replaced = self.store.take_replaced();
        if !replaced.is_empty() {
            tokio::task::spawn_blocking(move || drop(replaced));
        }
        for link in given_up {
            self.links.close(link);
            self.feed(Input::Closed { link })?;
        }
        Ok(())
    }

    /// Sends; gives back the link if its peer does not read. What a packet depends on is on disk: persists
    /// are carried out before the actions that follow them.
    fn send(&mut self, link: LinkId, packet: &Packet) -> Option<LinkId> {
        let limit = usize::try_from(self.server.config.integer("cluster-link-sendbuf-limit")).unwrap_or(0);
        if self.links.send(link, packet, limit) {
            return None;
        }
        tracing::warn!(
            "Freeing cluster link because its peer does not read; the send buffer is over its limit"
        );
        Some(link)
    }

    fn carry_out(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Connect { link, ip, port } => {
                let patience = self.gossip.config().node_timeout;
                let dialer = Dialer::new(&self.server.config);
                self.links.connect(link, SocketAddr::new(ip, port), patience, dialer);
            }
            Action::Close { link } => self.links.close(link),
            Action::Persist { text, .. } => {
                let at = self.unsaved.take().map_or(self.now() + SAVE_LATER, |(_, at)| at);
                self.unsaved = Some((text, at));
            }
            Action::Publish(topology) => publish::publish(&self.server, *topology),
            Action::BecomeMaster => {
                self.server.replication.become_master(&self.server);
            }
            Action::PauseWrites { until } => {
                self.server.pause_for_failover(until.since(self.now()));
                self.pause = Some(Pause { until, tell_at: Some(self.now()) });
            }
            Action::ResumeWrites => self.resume_writes(),
            Action::WatchOffset(offset) => self.watched = offset,
            Action::DropEverything => publish::drop_everything(&self.server),
            Action::Deliver(publication) => {
                let Publication { sharded, channel, message } = &publication;
                self.server.engine.pubsub.deliver(*sharded, channel, message);
            }
            Action::Log(event) => log(&event),
            Action::Send { .. }
            | Action::DropSlots(_)
            | Action::Reply { .. }
            | Action::BecomeReplica { .. } => {
                unreachable!("sorted out by the caller")
            }
        }
        Ok(())
    }

    fn save(&mut self, text: &str, sync: bool) -> Result<()> {
        self.store.write(text, sync).context("Fatal: can't update cluster config file")
    }

    fn save_now(&mut self) -> Result<()> {
        match self.unsaved.take() {
            Some((text, _)) => self.save(&text, false),
            None => Ok(()),
        }
    }

    /// How replication stands, as the machine wants to know it.
    fn standing(&self, now: Instant) -> gossip::Replication {
        let replication = &self.server.replication;
        let source = match (replication.is_replica(), replication.link_down_since()) {
            (false, _) => Source::Never,
            (true, None) => Source::Streaming { last_heard: now },
            (true, Some(since)) if replication.was_in_sync() => Source::Lost { since },
            (true, Some(_)) => Source::Never,
        };
        gossip::Replication { offset: replication.offset(), source }
    }

    fn follow(&mut self, ip: IpAddr, port: u16) {
        let master = MasterAddress { host: ip.to_string(), port };
        self.server.replication.become_replica_of(&self.server, master);
    }

    fn resume_writes(&mut self) {
        if self.pause.take().is_some() {
            self.server.resume_after_failover();
        }
    }

    /// Where the stream ends once no write is under way any more.
    fn drained_offset(&mut self) -> ReplOffset {
        self.server.engine.drain();
        self.standing(self.now()).offset
    }

    /// How many links were closed because their peers did not read.
    pub(crate) fn overflown_links(&self) -> u64 {
        self.links.overflown
    }

    /// How many bytes wait to be sent on a link.
    pub(crate) fn queued(&self, link: LinkId) -> usize {
        self.links.queued(link)
    }
}

impl Drop for Driver {
    /// The server stops.
    fn drop(&mut self) {
        if let Err(error) = self.save_now() {
            tracing::warn!("{error:#}");
        }
    }
}

fn log(event: &Event) {
    match event.level() {
        Level::Debug => tracing::trace!("{event}"),
        Level::Verbose => tracing::debug!("{event}"),
        Level::Notice => tracing::info!("{event}"),
        Level::Warning => tracing::warn!("{event}"),
    }
}
