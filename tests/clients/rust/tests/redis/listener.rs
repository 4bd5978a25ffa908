//! A subscriber to a channel.

use client_tests::{Attempt, FeatureResult, Mode, TIMEOUT, check};
use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{PushInfo, PushKind, RedisResult, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::link::{ConnectionOptions, Link, client, sentinel_client};

/// A kind of channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channels {
    Common,
    OfAShard,
}

impl Channels {
    fn publish(self) -> &'static str {
        match self {
            Self::Common => "PUBLISH",
            Self::OfAShard => "SPUBLISH",
        }
    }
}

pub(crate) struct Listener {
    channels: Channels,
    channel: String,
    source: Source,
}

enum Source {
    /// Messages arrive as pushes on a normal connection, which must stay alive.
    Pushes { _link: Link, pushes: UnboundedReceiver<PushInfo> },
    /// A dedicated connection for pub/sub.
    Stream(Box<PubSub>),
}

impl Listener {
    pub(crate) async fn subscribe(attempt: &Attempt, channels: Channels, channel: &str) -> RedisResult<Self> {
        let source = match attempt.protocol {
            2 => {
                let client = match attempt.addresses.mode {
                    Mode::Sentinel => {
                        sentinel_client(attempt, &ConnectionOptions::default())?.async_get_client().await?
                    }
                    Mode::Standalone | Mode::Cluster => client(attempt, &ConnectionOptions::default())?,
                };
                let mut listener = client.get_async_pubsub().await?;
                listener.subscribe(channel).await?;
                Source::Stream(Box::new(listener))
            }
            _ => {
                let (sender, pushes) = unbounded_channel();
                let mut link = Link::new(
                    attempt,
                    ConnectionOptions { pushes: Some(sender), ..ConnectionOptions::default() },
                )
                .await?;
                match (&mut link, channels) {
                    (Link::Standalone(connection), Channels::Common) => connection.subscribe(channel).await?,
                    (Link::Cluster(connection), Channels::Common) => connection.subscribe(channel).await?,
                    (Link::Sentinel(..), Channels::Common) => {
                        link.current_master().await?.subscribe(channel).await?;
                    }
                    (Link::Cluster(connection), Channels::OfAShard) => connection.ssubscribe(channel).await?,
                    (_, Channels::OfAShard) => link.run(cmd("SSUBSCRIBE").arg(channel)).await?,
                }
                Source::Pushes { _link: link, pushes }
            }
        };
        Ok(Self { channels, channel: channel.to_owned(), source })
    }

    /// Publishes a message, and waits until it arrives.
    pub(crate) async fn publish_and_receive(&mut self, link: &mut Link, text: &str) -> FeatureResult {
        let publish = cmd(self.channels.publish()).arg(&self.channel).arg(text).take();
        let () = link.run(&publish).await?;
        let heard = timeout(TIMEOUT, self.next()).await?;
        check(heard.as_deref() == Some(text), "nothing came")?;
        Ok(None)
    }

    /// The next message; `None` once the connection has ended for good.
    async fn next(&mut self) -> Option<String> {
        match &mut self.source {
            Source::Stream(stream) => stream.on_message().next().await?.get_payload().ok(),
            Source::Pushes { pushes, .. } => loop {
                let push = pushes.recv().await?;
                match push.kind {
                    PushKind::Message | PushKind::SMessage => {
                        return redis::from_redis_value(push.data.last()?.clone()).ok();
                    }
                    _ => {}
                }
            },
        }
    }
}
