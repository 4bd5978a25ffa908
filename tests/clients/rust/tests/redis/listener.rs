//! A listener to a channel.

use client_tests::{Attempt, Mode, Outcome, TIMEOUT, check};
use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{PushInfo, PushKind, RedisResult, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::link::{How, Link, client, sentinel_client};

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
    /// Messages are pushes of a connection for everything, which lives as long.
    Pushes { _link: Link, pushes: UnboundedReceiver<PushInfo> },
    /// A connection for messages.
    Stream(Box<PubSub>),
}

impl Listener {
    pub(crate) async fn subscribe(attempt: &Attempt, channels: Channels, channel: &str) -> RedisResult<Self> {
        let source = match attempt.protocol {
            2 => {
                let client = match attempt.at.mode {
                    Mode::Sentinel => sentinel_client(attempt, &How::default())?.async_get_client().await?,
                    Mode::Standalone | Mode::Cluster => client(attempt, &How::default())?,
                };
                let mut listener = client.get_async_pubsub().await?;
                listener.subscribe(channel).await?;
                Source::Stream(Box::new(listener))
            }
            _ => {
                let (sender, pushes) = unbounded_channel();
                let mut link = Link::new(attempt, How { pushes: Some(sender), ..How::default() }).await?;
                match (&mut link, channels) {
                    (Link::Standalone(connection), Channels::Common) => connection.subscribe(channel).await?,
                    (Link::Cluster(connection), Channels::Common) => connection.subscribe(channel).await?,
                    (Link::Sentinel(..), Channels::Common) => link.asked().await?.subscribe(channel).await?,
                    (Link::Cluster(connection), Channels::OfAShard) => connection.ssubscribe(channel).await?,
                    (_, Channels::OfAShard) => link.run(cmd("SSUBSCRIBE").arg(channel)).await?,
                }
                Source::Pushes { _link: link, pushes }
            }
        };
        Ok(Self { channels, channel: channel.to_owned(), source })
    }

    /// Has this published, and waits for it.
    pub(crate) async fn hear(&mut self, link: &mut Link, text: &str) -> Outcome {
        let publish = cmd(self.channels.publish()).arg(&self.channel).arg(text).take();
        let () = link.run(&publish).await?;
        let heard = timeout(TIMEOUT, self.next()).await?;
        check(heard.as_deref() == Some(text), "nothing came")?;
        Ok(None)
    }

    /// The next message; nothing once the connection has ended for good.
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
