//! A Pub/Sub connection to one server or to a cluster.
//!
//! In a cluster, a release is published either to all nodes or only to the shard of the channel (by Redisson since
//! Redis 7.0). Therefore both kinds of channels are subscribed. If a subscription ends, for instance because a slot
//! moves, this connection ends as well. The listener then reconnects and wakes all waiters, because messages may have
//! been missed.

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::cluster_async::ClusterConnection;
use redis::{PushInfo, PushKind, RedisResult};
use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) enum PubSubConnection {
    Single(Box<PubSubSink>, Box<PubSubStream>),
    Cluster(Box<ClusterConnection>, UnboundedReceiver<PushInfo>),
}

impl From<PubSub> for PubSubConnection {
    fn from(connection: PubSub) -> Self {
        let (sink, stream) = connection.split();
        Self::Single(Box::new(sink), Box::new(stream))
    }
}

impl PubSubConnection {
    pub(crate) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Single(sink, _) => sink.subscribe(channel).await,
            Self::Cluster(connection, _) => {
                connection.subscribe(channel).await?;
                // Redis before 7.0 has no sharded channels, so an error is harmless.
                match connection.ssubscribe(channel).await {
                    Err(error) if !error.is_io_error() && !error.is_timeout() => Ok(()),
                    outcome => outcome,
                }
            }
        }
    }

    pub(crate) async fn unsubscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Single(sink, _) => sink.unsubscribe(channel).await,
            Self::Cluster(connection, _) => {
                connection.unsubscribe(channel).await?;
                connection.sunsubscribe(channel).await
            }
        }
    }

    /// Checks whether the server responds. Fails if the connection is dead.
    pub(crate) async fn ping(&mut self) -> RedisResult<()> {
        match self {
            Self::Single(sink, _) => sink.ping::<redis::Value>().await.map(drop),
            Self::Cluster(connection, _) => redis::cmd("PING").exec_async(&mut **connection).await,
        }
    }

    /// Returns the channel of the next message. `None` if the connection has ended, or if a subscription has ended
    /// whose channel satisfies `is_wanted`.
    pub(crate) async fn next(&mut self, is_wanted: impl Fn(&str) -> bool) -> Option<String> {
        match self {
            Self::Single(_, stream) => {
                stream.next().await.map(|message| message.get_channel_name().to_owned())
            }
            Self::Cluster(_, pushes) => loop {
                let push = pushes.recv().await?;
                let channel =
                    push.data.first().and_then(|name| redis::from_redis_value_ref::<String>(name).ok());
                match push.kind {
                    PushKind::Message | PushKind::SMessage => return channel,
                    PushKind::Disconnection => return None,
                    PushKind::SUnsubscribe if channel.as_deref().is_some_and(&is_wanted) => return None,
                    _ => {}
                }
            },
        }
    }
}
