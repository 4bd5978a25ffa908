//! Wakeups: the waiters for a lock are told that it was released.
//!
//! One connection receives the messages for all waiters of a [`crate::Locks`]. A message is a hint and nothing more: a
//! waiter asks again anyway when the lease ends. So messages may be lost; and when the connection was, all waiters ask
//! again, since some may have been.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::ear::Ear;
use crate::link::Link;

/// How often an idle connection is tried, since a dead peer says nothing.
const PING_EVERY: Duration = Duration::from_secs(3);
const RECONNECT_AFTER: Duration = Duration::from_millis(100);

/// The waiters of one channel.
#[derive(Debug)]
struct Channel {
    /// Changes with each message.
    messages: watch::Sender<u64>,
    /// One of the waiters; if it stops waiting at that moment, another.
    next: Notify,
}

type Channels = HashMap<String, Arc<Channel>>;

#[derive(Debug)]
struct Shared {
    channels: Mutex<Channels>,
    changed: Notify,
}

impl Shared {
    fn each<T>(&self, then: impl FnOnce(&mut Channels) -> T) -> T {
        then(&mut self.channels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake(&self, channel: &str) {
        self.each(|channels| {
            if let Some(channel) = channels.get(channel) {
                channel.messages.send_modify(|count| *count += 1);
                channel.next.notify_one();
            }
        });
    }
}

/// The channels that have waiters. The task that listens to them ends with it.
#[derive(Debug)]
pub(crate) struct Wakeups {
    shared: Arc<Shared>,
    link: Arc<Link>,
    started: std::sync::Once,
}

/// The waiters that a message wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// One of this process: whichever asks gets the free lock, and its release is the next message.
    One,
    /// All: the server decides which of them gets it.
    All,
}

/// A place among the waiters of a channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    wake: Wake,
    channel: Arc<Channel>,
    messages: watch::Receiver<u64>,
    shared: Arc<Shared>,
}

impl Subscription {
    /// Comes back once there is a message, or one may have been missed.
    pub(crate) async fn woken(&mut self) {
        match self.wake {
            Wake::One => self.channel.next.notified().await,
            // The sender is held here, so there is no end.
            Wake::All => drop(self.messages.changed().await),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.changed.notify_one();
    }
}

impl Wakeups {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let shared = Shared { channels: Mutex::default(), changed: Notify::new() };
        Self { shared: Arc::new(shared), link, started: std::sync::Once::new() }
    }

    /// A place at this channel. It is woken a first time once the server has confirmed it.
    pub(crate) fn subscribe(&self, channel: &str, wake: Wake) -> Subscription {
        self.started.call_once(|| {
            tokio::spawn(hear(Arc::downgrade(&self.shared), self.link.clone()));
        });
        let fresh = || Arc::new(Channel { messages: watch::Sender::new(0), next: Notify::new() });
        let channel =
            self.shared.each(|channels| channels.entry(channel.to_owned()).or_insert_with(fresh).clone());
        self.shared.changed.notify_one();
        Subscription { wake, messages: channel.messages.subscribe(), channel, shared: self.shared.clone() }
    }
}

impl Drop for Wakeups {
    fn drop(&mut self) {
        // The task looks whether any waiter is left.
        self.shared.changed.notify_one();
    }
}

async fn hear(shared: Weak<Shared>, link: Arc<Link>) {
    loop {
        if let Ok(connection) = link.hear().await
            && !serve(&shared, connection).await
        {
            return;
        }
        if shared.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// Passes messages on until the connection ends. False if there is no waiter left.
async fn serve(shared: &Weak<Shared>, mut ear: Ear) -> bool {
    let mut subscribed = HashSet::new();
    let mut ping_at = Instant::now() + PING_EVERY;
    loop {
        let Some(strong) = shared.upgrade() else { return false };
        if timeout(PING_EVERY, follow(&strong, &mut subscribed, &mut ear)).await != Ok(true) {
            return true;
        }
        tokio::select! {
            channel = ear.next(|channel| subscribed.contains(channel)) => match channel {
                Some(channel) => strong.wake(&channel),
                None => return true,
            },
            () = strong.changed.notified() => {}
            () = tokio::time::sleep_until(ping_at) => {
                if !matches!(timeout(PING_EVERY, ear.ping()).await, Ok(Ok(()))) {
                    return true;
                }
                ping_at = Instant::now() + PING_EVERY;
            }
        }
    }
}

/// Subscribes to new channels and leaves those without waiters. False if the connection broke.
async fn follow(shared: &Shared, subscribed: &mut HashSet<String>, ear: &mut Ear) -> bool {
    let (new, old) = shared.each(|channels| {
        channels.retain(|_, channel| channel.messages.receiver_count() > 0);
        let new: Vec<String> = channels.keys().filter(|name| !subscribed.contains(*name)).cloned().collect();
        let old: Vec<String> =
            subscribed.iter().filter(|name| !channels.contains_key(*name)).cloned().collect();
        (new, old)
    });
    for channel in new {
        if ear.subscribe(&channel).await.is_err() {
            return false;
        }
        shared.wake(&channel);
        subscribed.insert(channel);
    }
    for channel in old {
        if ear.unsubscribe(&channel).await.is_err() {
            return false;
        }
        subscribed.remove(&channel);
    }
    true
}
