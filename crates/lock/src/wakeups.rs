//! Wakes waiters when a lock is released.
//!
//! One Pub/Sub connection serves all waiters of a [`crate::Locks`]. A message is only a hint: a waiter also retries
//! when the holder's lease ends. Therefore lost messages do no harm, and all waiters retry after a reconnect.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::link::ServerLink;
use crate::pubsub::PubSubConnection;

/// Interval at which an idle connection is checked. Otherwise a dead peer would not be noticed.
const PING_INTERVAL: Duration = Duration::from_secs(3);
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// Wakes the waiters of one channel.
#[derive(Debug)]
struct WaitChannel {
    /// The number of messages so far. A change of the number wakes all waiters.
    message_count: watch::Sender<u64>,
    /// Wakes one waiter. If that waiter gives up at the same time, another one is woken instead.
    next_waiter: Notify,
}

type WaitChannels = HashMap<String, Arc<WaitChannel>>;

#[derive(Debug)]
struct SharedChannels {
    channels: Mutex<WaitChannels>,
    channels_changed: Notify,
}

impl SharedChannels {
    fn with_channels<T>(&self, action: impl FnOnce(&mut WaitChannels) -> T) -> T {
        action(&mut self.channels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake(&self, channel: &str) {
        self.with_channels(|channels| {
            if let Some(channel) = channels.get(channel) {
                channel.message_count.send_modify(|count| *count += 1);
                channel.next_waiter.notify_one();
            }
        });
    }
}

/// The channels that have waiters. The listener task ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Wakeups {
    shared: Arc<SharedChannels>,
    link: Arc<ServerLink>,
    listener_started: std::sync::Once,
}

/// Which waiters a message wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeMode {
    /// One waiter of this process. It acquires the free lock, and its release is announced by the next message.
    One,
    /// All waiters, because the server decides which of them gets the lock.
    All,
}

/// A waiter's subscription to a channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    wake_mode: WakeMode,
    channel: Arc<WaitChannel>,
    message_count: watch::Receiver<u64>,
    shared: Arc<SharedChannels>,
}

impl Subscription {
    /// Waits until a message arrives, or may have been missed.
    pub(crate) async fn wait_for_wakeup(&mut self) {
        match self.wake_mode {
            WakeMode::One => self.channel.next_waiter.notified().await,
            // The channel cannot be closed, because `self` keeps the sender alive.
            WakeMode::All => drop(self.message_count.changed().await),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.channels_changed.notify_one();
    }
}

impl Wakeups {
    pub(crate) fn new(link: Arc<ServerLink>) -> Self {
        let shared = SharedChannels { channels: Mutex::default(), channels_changed: Notify::new() };
        Self { shared: Arc::new(shared), link, listener_started: std::sync::Once::new() }
    }

    /// Subscribes to a channel. The waiter is woken once when the server has confirmed the subscription.
    pub(crate) fn subscribe(&self, channel: &str, wake_mode: WakeMode) -> Subscription {
        self.listener_started.call_once(|| {
            tokio::spawn(run_listener(Arc::downgrade(&self.shared), self.link.clone()));
        });
        let fresh =
            || Arc::new(WaitChannel { message_count: watch::Sender::new(0), next_waiter: Notify::new() });
        let channel = self
            .shared
            .with_channels(|channels| channels.entry(channel.to_owned()).or_insert_with(fresh).clone());
        self.shared.channels_changed.notify_one();
        Subscription {
            wake_mode,
            message_count: channel.message_count.subscribe(),
            channel,
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Wakeups {
    fn drop(&mut self) {
        // Lets the listener task unsubscribe if the channel has no waiters left.
        self.shared.channels_changed.notify_one();
    }
}

async fn run_listener(shared: Weak<SharedChannels>, link: Arc<ServerLink>) {
    loop {
        if let Ok(connection) = link.open_pubsub().await
            && !forward_messages(&shared, connection).await
        {
            return;
        }
        if shared.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Forwards messages until the connection ends. Returns `false` if no waiter is left.
async fn forward_messages(shared: &Weak<SharedChannels>, mut pubsub: PubSubConnection) -> bool {
    let mut subscribed = HashSet::new();
    let mut ping_at = Instant::now() + PING_INTERVAL;
    loop {
        let Some(strong) = shared.upgrade() else { return false };
        if timeout(PING_INTERVAL, update_subscriptions(&strong, &mut subscribed, &mut pubsub)).await
            != Ok(true)
        {
            return true;
        }
        tokio::select! {
            channel = pubsub.next(|channel| subscribed.contains(channel)) => match channel {
                Some(channel) => strong.wake(&channel),
                None => return true,
            },
            () = strong.channels_changed.notified() => {}
            () = tokio::time::sleep_until(ping_at) => {
                if !matches!(timeout(PING_INTERVAL, pubsub.ping()).await, Ok(Ok(()))) {
                    return true;
                }
                ping_at = Instant::now() + PING_INTERVAL;
            }
        }
    }
}

/// Subscribes to new channels and unsubscribes from channels without waiters. Returns `false` if the connection broke.
async fn update_subscriptions(
    shared: &SharedChannels,
    subscribed_channels: &mut HashSet<String>,
    pubsub: &mut PubSubConnection,
) -> bool {
    let (new, old) = shared.with_channels(|channels| {
        channels.retain(|_, channel| channel.message_count.receiver_count() > 0);
        let new: Vec<String> =
            channels.keys().filter(|name| !subscribed_channels.contains(*name)).cloned().collect();
        let old: Vec<String> =
            subscribed_channels.iter().filter(|name| !channels.contains_key(*name)).cloned().collect();
        (new, old)
    });
    for channel in new {
        if pubsub.subscribe(&channel).await.is_err() {
            return false;
        }
        shared.wake(&channel);
        subscribed_channels.insert(channel);
    }
    for channel in old {
        if pubsub.unsubscribe(&channel).await.is_err() {
            return false;
        }
        subscribed_channels.remove(&channel);
    }
    true
}
