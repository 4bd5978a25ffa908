//! The requests of one owner (acquire, extend and release), sent to one server or to several.
//!
//! All requests are idempotent, so they can be repeated. A single server is a quorum of one. Several servers (Redlock)
//! receive each request concurrently and decide by majority. An acquisition without a quorum is released on all servers
//! before the next attempt.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{FromRedisValue, RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::lease::{RequestOutcome, lease_end};
use crate::link::ServerLink;
use crate::names::LockNames;
use crate::script::{RECORD_TOKEN, Script, ScriptCall};
use crate::wakeups::{WakeMode, Wakeups};

/// One server, Sentinel group or cluster, with its connections.
#[derive(Debug)]
pub(crate) struct LockServer {
    pub(crate) address: String,
    pub(crate) link: Arc<ServerLink>,
    /// A separate connection for requests that wait for replicas, because such a request delays all later ones on its
    /// connection.
    pub(crate) confirming_link: ServerLink,
    pub(crate) wakeups: Wakeups,
    pub(crate) is_cluster: bool,
    pub(crate) background_tasks: BackgroundTasks,
}

/// Counts background tasks, which release locks after their guards have been dropped.
#[derive(Debug, Clone)]
pub(crate) struct BackgroundTasks {
    pub(crate) runtime: Handle,
    running_count: Arc<watch::Sender<usize>>,
}

/// A running background task, which is counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundTask(Arc<watch::Sender<usize>>);

impl BackgroundTasks {
    pub(crate) fn new() -> Self {
        Self { runtime: Handle::current(), running_count: Arc::new(watch::Sender::new(0)) }
    }

    pub(crate) fn begin_task(&self) -> BackgroundTask {
        self.running_count.send_modify(|count| *count += 1);
        BackgroundTask(self.running_count.clone())
    }

    pub(crate) async fn wait_for_releases(&self) {
        // The channel cannot be closed, because `self` owns a sender.
        let _ = self.running_count.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A kind of lock: its scripts and its additional keys.
#[derive(Debug)]
pub(crate) struct LockKind {
    pub(crate) acquire: &'static LazyLock<Script>,
    pub(crate) extend: &'static LazyLock<Script>,
    pub(crate) release: &'static LazyLock<Script>,
    /// Suffixes of keys that this kind needs besides those of the lock and its token.
    pub(crate) companion_keys: &'static [&'static str],
    /// Whether waiters have an entry on the server, which must be removed when the waiter gives up.
    pub(crate) has_queue: bool,
    /// Which waiters a release wakes.
    pub(crate) wake_mode: WakeMode,
}

/// The claim of one owner to a lock, and the servers on which the lock is stored.
#[derive(Debug, Clone)]
pub(crate) struct LockClaim {
    pub(crate) servers: Vec<Arc<LockServer>>,
    pub(crate) quorum: usize,
    pub(crate) kind: &'static LockKind,
    pub(crate) names: LockNames,
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    pub(crate) required_replicas: usize,
    /// The number of permits of a semaphore; `None` for other kinds.
    pub(crate) permit_limit: Option<u32>,
}

/// The result of an attempt to acquire a lock.
#[derive(Debug, PartialEq)]
pub(crate) enum AcquireAttempt {
    /// The lock was acquired, with this fencing token.
    Acquired(u64),
    /// Another owner holds the lock. The next attempt may succeed after this time.
    Busy(Duration),
    /// Fewer servers or replicas than required have confirmed.
    TooFewServers {
        available: usize,
        required: usize,
    },
    Failed(RedisError),
}

impl LockClaim {
    /// Returns the same claim with a new owner name. After a failed attempt, the lock is released on all servers. With
    /// a new name, such a release cannot undo a later attempt even if it is delayed.
    pub(crate) fn with_new_owner(&self, attempt: u64) -> Self {
        let owner = self.owner.split('/').next().unwrap_or_default();
        Self { owner: format!("{owner}/{attempt}"), ..self.clone() }
    }

    /// Makes one attempt to acquire the lock. `queue_timeout` is how long a queue entry stays valid without another
    /// attempt.
    pub(crate) async fn acquire(&self, queue_timeout: Duration) -> AcquireAttempt {
        let [node] = self.servers.as_slice() else { return self.acquire_from_majority(queue_timeout).await };
        self.acquire_from(node, queue_timeout).await
    }

    async fn acquire_from(&self, server: &LockServer, timeout: Duration) -> AcquireAttempt {
        let third = self.permit_limit.map_or(timeout.as_millis(), u128::from).to_string();
        let arguments = vec![self.owner.clone(), self.lease_ms(), third];
        let reply = self.call(server, self.kind.acquire, arguments, self.required_replicas).await;
        let ((taken, value), had): ((u8, i64), usize) = match reply {
            Ok(reply) => reply,
            Err(error) => return AcquireAttempt::Failed(error),
        };
        match u64::try_from(value) {
            Ok(_) if taken == 1 && had < self.required_replicas => {
                AcquireAttempt::TooFewServers { available: had, required: self.required_replicas }
            }
            Ok(token) if taken == 1 => AcquireAttempt::Acquired(token),
            Ok(left) => AcquireAttempt::Busy(Duration::from_millis(left)),
            // A key without expiry was set by another program, and only that program can release it.
            Err(_) => AcquireAttempt::Busy(Duration::MAX),
        }
    }

    async fn acquire_from_majority(&self, queue_timeout: Duration) -> AcquireAttempt {
        let attempts = join_all(self.servers.iter().map(|node| self.acquire_from(node, queue_timeout))).await;
        let result = combine_attempts(&attempts, self.quorum);
        match result {
            AcquireAttempt::Acquired(token) if !self.record_token(token).await => {
                self.release().await;
                AcquireAttempt::TooFewServers { available: 0, required: self.quorum }
            }
            AcquireAttempt::Acquired(_) => result,
            AcquireAttempt::Busy(_) | AcquireAttempt::TooFewServers { .. } | AcquireAttempt::Failed(_) => {
                self.release().await;
                result
            }
        }
    }

    /// Records the token on a majority of the servers. Every later majority contains one of these servers, so a later
    /// acquisition gets a larger token.
    async fn record_token(&self, token: u64) -> bool {
        let arguments = vec![self.owner.clone(), token.to_string()];
        let raised = join_all(
            self.servers
                .iter()
                .map(|node| self.call::<u8>(node, &RECORD_TOKEN, arguments.clone(), self.required_replicas)),
        )
        .await;
        raised.iter().filter(|reply| matches!(reply, Ok((1, _)))).count() >= self.quorum
    }

    /// Renews the lease, and stores `guard_count` as the number of the owner's guards.
    pub(crate) async fn extend(&self, guard_count: u32) -> RequestOutcome {
        let arguments = vec![self.owner.clone(), self.lease_ms(), guard_count.to_string()];
        self.request_all(self.kind.extend, &arguments, self.required_replicas).await
    }

    /// Releases the lock on all servers.
    pub(crate) async fn release(&self) -> RequestOutcome {
        let mut arguments = vec![self.owner.clone(), self.names.channel.clone()];
        arguments.push(u8::from(self.servers.iter().any(|node| node.is_cluster)).to_string());
        // Replicas need not confirm: if a failover undoes the release, the lock ends with its lease.
        self.request_all(self.kind.release, &arguments, 0).await
    }

    async fn request_all(
        &self,
        script: &'static LazyLock<Script>,
        arguments: &[String],
        replicas: usize,
    ) -> RequestOutcome {
        let calls =
            self.servers.iter().map(|node| self.call::<u8>(node, script, arguments.to_vec(), replicas));
        let outcomes = join_all(calls).await.into_iter().map(|reply| match reply {
            Ok((0, _)) => RequestOutcome::NotHeld,
            Ok((_, had)) if had < replicas => RequestOutcome::Unknown,
            Ok(_) => RequestOutcome::Done,
            Err(_) => RequestOutcome::Unknown,
        });
        combine_outcomes(&outcomes.collect::<Vec<_>>(), self.quorum)
    }

    /// Runs a script on one server. Returns its reply, and the number of replicas that have confirmed if `replicas` is
    /// not zero.
    async fn call<T: FromRedisValue>(
        &self,
        server: &LockServer,
        script: &'static LazyLock<Script>,
        arguments: Vec<String>,
        replicas: usize,
    ) -> RedisResult<(T, usize)> {
        let mut keys = vec![self.names.lock.clone(), self.names.derived_key("token")];
        keys.extend(self.kind.companion_keys.iter().map(|companion| self.names.derived_key(companion)));
        let call = ScriptCall { script, keys, arguments };
        // All requests of one owner use the same connection, so that a release cannot overtake the acquisition that it
        // undoes.
        let link = if self.required_replicas == 0 { &*server.link } else { &server.confirming_link };
        if replicas == 0 {
            return Ok((redis::from_redis_value(link.run_script(&call).await?)?, 0));
        }
        let confirmed = link.run_confirmed_script(&call, replicas).await?;
        Ok((redis::from_redis_value(confirmed.reply)?, confirmed.replica_count))
    }

    fn lease_ms(&self) -> String {
        self.lease.as_millis().max(1).to_string()
    }

    /// Starts a task that releases a lock that has no guard. The task retries until the lease has ended.
    pub(crate) fn release_in_background(self: Arc<Self>) {
        let background = &self.servers[0].background_tasks;
        let running = background.begin_task();
        background.runtime.clone().spawn(async move {
            let until = lease_end(Instant::now(), self.lease);
            while self.release().await == RequestOutcome::Unknown && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            drop(running);
        });
    }
}

/// Combines the results of several servers. A successful acquisition gets the largest of their tokens.
fn combine_attempts(attempts: &[AcquireAttempt], quorum: usize) -> AcquireAttempt {
    let tokens = attempts.iter().filter_map(|attempt| match attempt {
        AcquireAttempt::Acquired(token) => Some(*token),
        AcquireAttempt::Busy(_) | AcquireAttempt::TooFewServers { .. } | AcquireAttempt::Failed(_) => None,
    });
    if tokens.clone().count() >= quorum {
        return AcquireAttempt::Acquired(tokens.max().unwrap_or_default());
    }
    let busy = attempts.iter().filter_map(|attempt| match attempt {
        AcquireAttempt::Busy(left) => Some(*left),
        AcquireAttempt::Acquired(_) | AcquireAttempt::TooFewServers { .. } | AcquireAttempt::Failed(_) => {
            None
        }
    });
    let had = tokens.count() + busy.clone().count();
    match busy.min() {
        Some(left) if had >= quorum => AcquireAttempt::Busy(left),
        Some(_) | None => AcquireAttempt::TooFewServers { available: had, required: quorum },
    }
}

/// Combines the outcomes of several servers: the outcome that a quorum reports.
fn combine_outcomes(outcomes: &[RequestOutcome], quorum: usize) -> RequestOutcome {
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    if count(RequestOutcome::Done) >= quorum {
        RequestOutcome::Done
    } else if count(RequestOutcome::NotHeld) + quorum > outcomes.len() {
        RequestOutcome::NotHeld
    } else {
        RequestOutcome::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_SECOND: Duration = Duration::from_secs(1);

    fn failed_attempt() -> AcquireAttempt {
        AcquireAttempt::TooFewServers { available: 0, required: 1 }
    }

    #[test]
    fn majority_of_servers_acquires_with_the_largest_token() {
        let attempts = [
            AcquireAttempt::Acquired(7),
            failed_attempt(),
            AcquireAttempt::Acquired(9),
            failed_attempt(),
            AcquireAttempt::Acquired(8),
        ];
        assert_eq!(combine_attempts(&attempts, 3), AcquireAttempt::Acquired(9));
    }

    #[test]
    fn attempt_without_majority_is_busy_or_has_too_few_servers() {
        let two = || [AcquireAttempt::Acquired(7), AcquireAttempt::Acquired(9)];
        let split = two().into_iter().chain([
            AcquireAttempt::Busy(ONE_SECOND),
            AcquireAttempt::Busy(2 * ONE_SECOND),
            failed_attempt(),
        ]);
        assert_eq!(combine_attempts(&split.collect::<Vec<_>>(), 3), AcquireAttempt::Busy(ONE_SECOND));
        let alone = two().into_iter().chain([failed_attempt(), failed_attempt(), failed_attempt()]);
        assert_eq!(
            combine_attempts(&alone.collect::<Vec<_>>(), 3),
            AcquireAttempt::TooFewServers { available: 2, required: 3 }
        );
    }

    #[test]
    fn outcome_is_unknown_while_a_majority_may_hold_the_lock() {
        use RequestOutcome::{Done, NotHeld, Unknown};
        assert_eq!(combine_outcomes(&[Done, Unknown, Done, NotHeld, Done], 3), Done);
        assert_eq!(combine_outcomes(&[Done, NotHeld, NotHeld, NotHeld, Unknown], 3), NotHeld);
        assert_eq!(combine_outcomes(&[Done, Done, NotHeld, NotHeld, Unknown], 3), Unknown);
        assert_eq!(combine_outcomes(&[Done], 1), Done);
        assert_eq!(combine_outcomes(&[NotHeld], 1), NotHeld);
        assert_eq!(combine_outcomes(&[Unknown], 1), Unknown);
    }
}
