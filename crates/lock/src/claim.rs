//! The requests of one owner to the servers: to take, extend and release one thing, on one server or on a majority of
//! many.
//!
//! All requests may be sent again: taking twice as one owner, or releasing twice, changes nothing more. With one server
//! the quorum is one. With several (Redlock) they are asked at once, and what fewer than the quorum granted is released
//! everywhere before anything else is tried.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{FromRedisValue, RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::life::{Outcome, end_of};
use crate::link::Link;
use crate::names::Names;
use crate::script::{Call, RAISE, Script};
use crate::wakeups::{Wake, Wakeups};

/// Where locks are kept: one server, or one group or cluster that stands for one.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) link: Arc<Link>,
    /// For what waits for replicas, which would hold up all else on the same connection.
    pub(crate) confirming: Link,
    pub(crate) wakeups: Wakeups,
    pub(crate) is_cluster: bool,
    pub(crate) background: Background,
}

/// The tasks that go on after their guard is gone.
#[derive(Debug, Clone)]
pub(crate) struct Background {
    pub(crate) runtime: Handle,
    running: Arc<watch::Sender<usize>>,
}

/// Counts as running until it is dropped.
#[derive(Debug)]
pub(crate) struct Running(Arc<watch::Sender<usize>>);

impl Background {
    pub(crate) fn new() -> Self {
        Self { runtime: Handle::current(), running: Arc::new(watch::Sender::new(0)) }
    }

    pub(crate) fn begin(&self) -> Running {
        self.running.send_modify(|count| *count += 1);
        Running(self.running.clone())
    }

    pub(crate) async fn all_released(&self) {
        // The sender is held here, so this ends by the count alone.
        let _ = self.running.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A kind of thing that is acquired: its scripts, and their keys beside its own.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) acquire: &'static LazyLock<Script>,
    pub(crate) extend: &'static LazyLock<Script>,
    pub(crate) release: &'static LazyLock<Script>,
    /// Besides the lock and its token.
    pub(crate) companions: &'static [&'static str],
    /// Whether a waiter leaves a trace on the server.
    pub(crate) queues: bool,
    /// The waiters that a release wakes.
    pub(crate) wake: Wake,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) quorum: usize,
    pub(crate) kind: &'static Kind,
    pub(crate) names: Names,
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    pub(crate) replicas: usize,
    /// Of a semaphore.
    pub(crate) limit: Option<u32>,
}

/// How an attempt to take ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Attempt {
    /// Taken, with this fencing token.
    Taken(u64),
    /// Another owner has it; it may be free after this time.
    Busy(Duration),
    /// Too few servers took part.
    TooFew {
        had: usize,
        wanted: usize,
    },
    Failed(RedisError),
}

impl Claim {
    /// The same as another owner. Between attempts at many servers all is released, and such a release, if it is held
    /// up on its way, must not undo what a later attempt was granted.
    pub(crate) fn as_another(&self, attempt: u64) -> Self {
        let owner = self.owner.split('/').next().unwrap_or_default();
        Self { owner: format!("{owner}/{attempt}"), ..self.clone() }
    }

    /// Asks once. `timeout` is for how long a place in a queue is kept without asking again.
    pub(crate) async fn acquire(&self, timeout: Duration) -> Attempt {
        let [node] = self.nodes.as_slice() else { return self.acquire_from_many(timeout).await };
        self.acquire_from(node, timeout).await
    }

    async fn acquire_from(&self, node: &Node, timeout: Duration) -> Attempt {
        let third = self.limit.map_or(timeout.as_millis(), u128::from).to_string();
        let arguments = vec![self.owner.clone(), self.lease_ms(), third];
        let reply = self.call(node, self.kind.acquire, arguments, self.replicas).await;
        let ((taken, value), had): ((u8, i64), usize) = match reply {
            Ok(reply) => reply,
            Err(error) => return Attempt::Failed(error),
        };
        match u64::try_from(value) {
            Ok(_) if taken == 1 && had < self.replicas => Attempt::TooFew { had, wanted: self.replicas },
            Ok(token) if taken == 1 => Attempt::Taken(token),
            Ok(left) => Attempt::Busy(Duration::from_millis(left)),
            // A key without a time was set by some other program, which decides.
            Err(_) => Attempt::Busy(Duration::MAX),
        }
    }

    async fn acquire_from_many(&self, timeout: Duration) -> Attempt {
        let attempts = join_all(self.nodes.iter().map(|node| self.acquire_from(node, timeout))).await;
        let tally = tally(&attempts, self.quorum);
        match tally {
            Attempt::Taken(token) if !self.raise(token).await => {
                self.release().await;
                Attempt::TooFew { had: 0, wanted: self.quorum }
            }
            Attempt::Taken(_) => tally,
            Attempt::Busy(_) | Attempt::TooFew { .. } | Attempt::Failed(_) => {
                self.release().await;
                tally
            }
        }
    }

    /// Has a majority know the token, so that every later majority gives a larger one: two majorities share a server.
    async fn raise(&self, token: u64) -> bool {
        let arguments = vec![self.owner.clone(), token.to_string()];
        let raised = join_all(
            self.nodes.iter().map(|node| self.call::<u8>(node, &RAISE, arguments.clone(), self.replicas)),
        )
        .await;
        raised.iter().filter(|reply| matches!(reply, Ok((1, _)))).count() >= self.quorum
    }

    /// Renews the lease, for so many holders of the same owner.
    pub(crate) async fn extend(&self, count: u32) -> Outcome {
        let arguments = vec![self.owner.clone(), self.lease_ms(), count.to_string()];
        self.ask_all(self.kind.extend, &arguments, self.replicas).await
    }

    /// Releases everywhere.
    pub(crate) async fn release(&self) -> Outcome {
        let mut arguments = vec![self.owner.clone(), self.names.channel.clone()];
        arguments.push(u8::from(self.nodes.iter().any(|node| node.is_cluster)).to_string());
        // Replicas need not have it: a lock that they still hold ends with its lease.
        self.ask_all(self.kind.release, &arguments, 0).await
    }

    async fn ask_all(
        &self,
        script: &'static LazyLock<Script>,
        arguments: &[String],
        replicas: usize,
    ) -> Outcome {
        let calls = self.nodes.iter().map(|node| self.call::<u8>(node, script, arguments.to_vec(), replicas));
        let outcomes = join_all(calls).await.into_iter().map(|reply| match reply {
            Ok((0, _)) => Outcome::NotHeld,
            Ok((_, had)) if had < replicas => Outcome::Unknown,
            Ok(_) => Outcome::Done,
            Err(_) => Outcome::Unknown,
        });
        agreed(&outcomes.collect::<Vec<_>>(), self.quorum)
    }

    /// The reply, and how many replicas have the effect, of those that are asked for.
    async fn call<T: FromRedisValue>(
        &self,
        node: &Node,
        script: &'static LazyLock<Script>,
        arguments: Vec<String>,
        replicas: usize,
    ) -> RedisResult<(T, usize)> {
        let mut keys = vec![self.names.lock.clone(), self.names.key("token")];
        keys.extend(self.kind.companions.iter().map(|companion| self.names.key(companion)));
        let call = Call { script, keys, arguments };
        // One owner's requests are on one connection, so that a release does not overtake the acquisition that it
        // undoes.
        let link = if self.replicas == 0 { &*node.link } else { &node.confirming };
        if replicas == 0 {
            return Ok((redis::from_redis_value(link.run(&call).await?)?, 0));
        }
        let confirmed = link.run_confirmed(&call, replicas).await?;
        Ok((redis::from_redis_value(confirmed.reply)?, confirmed.replicas))
    }

    fn lease_ms(&self) -> String {
        self.lease.as_millis().max(1).to_string()
    }

    /// Releases a lock without a guard: again and again while the lease may last.
    pub(crate) fn release_in_background(self: Arc<Self>) {
        let background = &self.nodes[0].background;
        let running = background.begin();
        background.runtime.clone().spawn(async move {
            let until = end_of(Instant::now(), self.lease);
            while self.release().await == Outcome::Unknown && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            drop(running);
        });
    }
}

/// The joint result of several servers' answers to one attempt. The token is the largest.
fn tally(attempts: &[Attempt], quorum: usize) -> Attempt {
    let tokens = attempts.iter().filter_map(|attempt| match attempt {
        Attempt::Taken(token) => Some(*token),
        Attempt::Busy(_) | Attempt::TooFew { .. } | Attempt::Failed(_) => None,
    });
    if tokens.clone().count() >= quorum {
        return Attempt::Taken(tokens.max().unwrap_or_default());
    }
    let busy = attempts.iter().filter_map(|attempt| match attempt {
        Attempt::Busy(left) => Some(*left),
        Attempt::Taken(_) | Attempt::TooFew { .. } | Attempt::Failed(_) => None,
    });
    let had = tokens.count() + busy.clone().count();
    match busy.min() {
        Some(left) if had >= quorum => Attempt::Busy(left),
        Some(_) | None => Attempt::TooFew { had, wanted: quorum },
    }
}

/// The joint outcome of several servers' answers to one request.
fn agreed(outcomes: &[Outcome], quorum: usize) -> Outcome {
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    if count(Outcome::Done) >= quorum {
        Outcome::Done
    } else if count(Outcome::NotHeld) + quorum > outcomes.len() {
        Outcome::NotHeld
    } else {
        Outcome::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn failed() -> Attempt {
        Attempt::TooFew { had: 0, wanted: 1 }
    }

    #[test]
    fn a_majority_takes_with_the_largest_token() {
        let attempts = [Attempt::Taken(7), failed(), Attempt::Taken(9), failed(), Attempt::Taken(8)];
        assert_eq!(tally(&attempts, 3), Attempt::Taken(9));
    }

    #[test]
    fn less_than_a_majority_is_busy_if_others_hold_and_too_few_if_servers_are_gone() {
        let two = || [Attempt::Taken(7), Attempt::Taken(9)];
        let split = two().into_iter().chain([Attempt::Busy(SECOND), Attempt::Busy(2 * SECOND), failed()]);
        assert_eq!(tally(&split.collect::<Vec<_>>(), 3), Attempt::Busy(SECOND));
        let alone = two().into_iter().chain([failed(), failed(), failed()]);
        assert_eq!(tally(&alone.collect::<Vec<_>>(), 3), Attempt::TooFew { had: 2, wanted: 3 });
    }

    #[test]
    fn what_a_majority_no_longer_has_is_not_held_and_what_it_may_have_is_unknown() {
        use Outcome::{Done, NotHeld, Unknown};
        assert_eq!(agreed(&[Done, Unknown, Done, NotHeld, Done], 3), Done);
        assert_eq!(agreed(&[Done, NotHeld, NotHeld, NotHeld, Unknown], 3), NotHeld);
        assert_eq!(agreed(&[Done, Done, NotHeld, NotHeld, Unknown], 3), Unknown);
        assert_eq!(agreed(&[Done], 1), Done);
        assert_eq!(agreed(&[NotHeld], 1), NotHeld);
        assert_eq!(agreed(&[Unknown], 1), Unknown);
    }
}
