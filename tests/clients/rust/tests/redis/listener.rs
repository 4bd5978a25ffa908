//! A subscriber to a channel.

use client_tests::{DeploymentMode, FeatureAttempt, FeatureResult, OPERATION_TIMEOUT, check_condition};
use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{PushInfo, PushKind, RedisResult, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::link::{ConnectionOptions, TestConnection, sentinel_client, standalone_client};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    Plain,
    Sharded,
}

impl ChannelKind {
    fn publish_command(self) -> &'static str {
        match self {
            Self::Plain => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }
}

pub(crate) struct ChannelListener {
    channels: ChannelKind,
    channel: String,
    source: MessageSource,
}

enum MessageSource {
    /// Messages arrive as RESP3 pushes on a normal connection, which must be kept open.
    Pushes { _link: TestConnection, pushes: UnboundedReceiver<PushInfo> },
    /// Messages arrive on a dedicated pub/sub connection.
    Stream(Box<PubSub>),
}

impl ChannelListener {
    pub(crate) async fn subscribe(
        attempt: &FeatureAttempt,
        channels: ChannelKind,
        channel: &str,
    ) -> RedisResult<Self> {
        let source = match attempt.protocol {
            2 => {
                let client = match attempt.addresses.mode {
                    DeploymentMode::Sentinel => {
                        sentinel_client(attempt, &ConnectionOptions::default())?.async_get_client().await?
                    }
                    DeploymentMode::Standalone | DeploymentMode::Cluster => {
                        standalone_client(attempt, &ConnectionOptions::default())?
                    }
                };
                let mut listener = client.get_async_pubsub().await?;
                listener.subscribe(channel).await?;
                MessageSource::Stream(Box::new(listener))
            }
            _ => {
                let (sender, pushes) = unbounded_channel();
                let mut link = TestConnection::new(
                    attempt,
                    ConnectionOptions { pushes: Some(sender), ..ConnectionOptions::default() },
                )
                .await?;
                match (&mut link, channels) {
                    (TestConnection::Standalone(connection), ChannelKind::Plain) => {
                        connection.subscribe(channel).await?;
                    }
                    (TestConnection::Cluster(connection), ChannelKind::Plain) => {
                        connection.subscribe(channel).await?;
                    }
                    (TestConnection::Sentinel(..), ChannelKind::Plain) => {
                        link.current_master().await?.subscribe(channel).await?;
                    }
                    (TestConnection::Cluster(connection), ChannelKind::Sharded) => {
                        connection.ssubscribe(channel).await?;
                    }
                    (_, ChannelKind::Sharded) => link.run(cmd("SSUBSCRIBE").arg(channel)).await?,
                }
                MessageSource::Pushes { _link: link, pushes }
            }
        };
        Ok(Self { channels, channel: channel.to_owned(), source })
    }

    /// Publishes a message, and waits until it arrives.
    pub(crate) async fn publish_and_receive(
        &mut self,
        link: &mut TestConnection,
        text: &str,
    ) -> FeatureResult {
        let publish = cmd(self.channels.publish_command()).arg(&self.channel).arg(text).take();
        let () = link.run(&publish).await?;
        let heard = timeout(OPERATION_TIMEOUT, self.next_message()).await?;
        check_condition(heard.as_deref() == Some(text), "nothing came")?;
        Ok(None)
    }

    /// Waits for the next message; `None` once the connection has ended for good.
    async fn next_message(&mut self) -> Option<String> {
        match &mut self.source {
            MessageSource::Stream(stream) => stream.on_message().next().await?.get_payload().ok(),
            MessageSource::Pushes { pushes, .. } => loop {
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
