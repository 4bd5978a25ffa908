//! FAILOVER: a master hands its place to one of its replicas.
//!
//! Writes wait until a replica has them all; then this node follows that replica and asks it, in the same
//! breath, to take over (`PSYNC id offset FAILOVER`). Until the new master has answered, writes still
//! wait; if it does not, this node stays master.

use std::sync::Arc;
use std::time::Duration;

use config::{Config, MasterAddress, keys};
use engine::Engine;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::net::pauses::PauseGate;
use crate::replication::Replication;

/// How often the replicas' progress is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Writes are held back no longer than this after what the operator allowed.
const LONGEST_HANDOVER: Duration = Duration::from_secs(60);
/// Without TIMEOUT an operator waits until he aborts.
const WITHOUT_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 86400);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    None,
    WaitingForSync,
    HandingOver,
}

/// The failover that goes on, if one does, and what it works with.
#[derive(Debug)]
pub(crate) struct Failover {
    engine: Arc<Engine>,
    config: Arc<Config>,
    replication: Arc<Replication>,
    pauses: Arc<PauseGate>,
    state: Mutex<State>,
    aborted: Notify,
}

/// The request that FAILOVER makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    Abort,
    Start { target: Option<(String, u16)>, force: bool, timeout: Option<Duration> },
}

impl Order {
    /// The words after FAILOVER.
    pub(crate) fn parse(words: &[&[u8]]) -> Result<Self, &'static str> {
        let (mut target, mut force, mut timeout) = (None, false, None);
        let mut left = words;
        loop {
            let is =
                |word: &str| left.first().is_some_and(|first| first.eq_ignore_ascii_case(word.as_bytes()));
            left = match left {
                [] => break,
                [_] if is("abort") && words.len() == 1 => return Ok(Self::Abort),
                [_, host, port, rest @ ..] if is("to") && target.is_none() => {
                    let port = resp::parse_i64(port).ok_or("ERR value is not an integer or out of range")?;
                    let port = u16::try_from(port).unwrap_or(0);
                    target = Some((String::from_utf8_lossy(host).into_owned(), port));
                    rest
                }
                [_, millis, rest @ ..] if is("timeout") && timeout.is_none() => {
                    let millis =
                        resp::parse_i64(millis).ok_or("ERR value is not an integer or out of range")?;
                    let millis = u64::try_from(millis).ok().filter(|millis| *millis > 0);
                    timeout = Some(Duration::from_millis(
                        millis.ok_or("ERR FAILOVER timeout must be greater than 0")?,
                    ));
                    rest
                }
                [_, rest @ ..] if is("force") && !force => {
                    force = true;
                    rest
                }
                _ => return Err("ERR syntax error"),
            };
        }
        Ok(Self::Start { target, force, timeout })
    }
}

impl Failover {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: Arc<Config>,
        replication: Arc<Replication>,
        pauses: Arc<PauseGate>,
    ) -> Self {
        Self { engine, config, replication, pauses, state: Mutex::default(), aborted: Notify::new() }
    }

    /// As INFO shows it.
    pub(crate) fn name(&self) -> &'static str {
        match *self.state.lock() {
            State::None => "no-failover",
            State::WaitingForSync => "waiting-for-sync",
            State::HandingOver => "failover-in-progress",
        }
    }

    fn set(&self, state: State) {
        *self.state.lock() = state;
    }
}

/// Carries out what FAILOVER asks for; a failover goes on after the reply.
pub(crate) fn run(failover: &Arc<Failover>, order: Order) -> Result<(), &'static str> {
    if failover.engine.topology.is_some() {
        return Err("ERR FAILOVER not allowed in cluster mode.");
    }
    let (target, force, timeout) = match order {
        Order::Abort => return abort(failover),
        Order::Start { target, force, timeout } => (target, force, timeout),
    };
    if *failover.state.lock() != State::None {
        return Err("ERR FAILOVER already in progress.");
    }
    if failover.replication.is_replica() {
        return Err("ERR FAILOVER is not valid when server is a replica.");
    }
    let replicas = failover.replication.replica_addresses();
    if replicas.is_empty() {
        return Err("ERR FAILOVER requires connected replicas.");
    }
    if force && (target.is_none() || timeout.is_none()) {
        return Err("ERR FAILOVER with force option requires both a timeout and target HOST and IP.");
    }
    let target = match target {
        None => None,
        Some((host, port)) => {
            let named = replicas.iter().find(|(address, _)| address.host == host && address.port == port);
            match named {
                None => return Err("ERR FAILOVER target HOST and PORT is not a replica."),
                Some((_, false)) => return Err("ERR FAILOVER target replica is not online."),
                Some((address, true)) => Some(address.clone()),
            }
        }
    };
    failover.set(State::WaitingForSync);
    tokio::spawn(hand_over(failover.clone(), target, force, timeout));
    Ok(())
}

fn abort(failover: &Failover) -> Result<(), &'static str> {
    if *failover.state.lock() == State::None {
        return Err("ERR No failover in progress.");
    }
    failover.aborted.notify_waiters();
    Ok(())
}

/// From the first held back write to the new master's answer.
async fn hand_over(
    failover: Arc<Failover>,
    target: Option<MasterAddress>,
    force: bool,
    timeout: Option<Duration>,
) {
    let longest = timeout.unwrap_or(WITHOUT_TIMEOUT);
    failover.pauses.pause_for_failover(longest + LONGEST_HANDOVER);
    let aborted = failover.aborted.notified();
    tokio::pin!(aborted);
    tracing::info!("FAILOVER requested.");
    // Every command that was admitted before is in the log once every slot has been held.
    failover.engine.drain();
    failover.replication.ask_for_acknowledgements();
    let synced = tokio::select! {
        address = in_sync(&failover.replication, target.as_ref()) => Some(address),
        () = tokio::time::sleep(longest) => target.filter(|_| force),
        () = &mut aborted => None,
    };
    let outcome = match synced {
        Some(address) => tokio::select! {
            taken = give_up(&failover, address) => taken,
            () = &mut aborted => {
                stay_master(&failover);
                false
            }
        },
        None => false,
    };
    tracing::info!("Failover {}.", if outcome { "done: this node is a replica now" } else { "aborted" });
    failover.set(State::None);
    failover.pauses.resume_after_failover();
}

/// Waits until the target, or any replica, has everything.
async fn in_sync(replication: &Replication, target: Option<&MasterAddress>) -> MasterAddress {
    loop {
        let synced = replication.replicas_in_sync();
        if let Some(address) =
            synced.into_iter().find(|address| target.is_none_or(|target| target == address))
        {
            return address;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Follows the new master and asks it to be one. Says whether it is.
async fn give_up(failover: &Failover, address: MasterAddress) -> bool {
    failover.set(State::HandingOver);
    tracing::info!("Failover target is {}:{}, it is asked to take over.", address.host, address.port);
    failover.replication.hand_over_to(address.clone());
    let end = Instant::now() + LONGEST_HANDOVER;
    while Instant::now() < end {
        if failover.replication.link_down_since().is_none() {
            failover.config.put(keys::REPLICAOF, Some(address));
            failover.replication.apply_config();
            return true;
        }
        tokio::time::sleep(LOOK).await;
    }
    stay_master(failover);
    false
}

fn stay_master(failover: &Failover) {
    if *failover.state.lock() == State::HandingOver {
        failover.replication.become_master();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_failover() {
        let parse = |line: &str| {
            let words: Vec<&[u8]> = line.split_ascii_whitespace().map(str::as_bytes).collect();
            Order::parse(&words)
        };
        let start = |target: Option<(&str, u16)>, force, millis: Option<u64>| {
            let target = target.map(|(host, port)| (host.to_owned(), port));
            Ok(Order::Start { target, force, timeout: millis.map(Duration::from_millis) })
        };
        let table = [
            ("", start(None, false, None)),
            ("abort", Ok(Order::Abort)),
            ("TO h 7000 FORCE TIMEOUT 10", start(Some(("h", 7000)), true, Some(10))),
            ("timeout 100 to h 1", start(Some(("h", 1)), false, Some(100))),
            ("to h", Err("ERR syntax error")),
            ("to h x", Err("ERR value is not an integer or out of range")),
            ("timeout 0", Err("ERR FAILOVER timeout must be greater than 0")),
            ("abort force", Err("ERR syntax error")),
            ("nonsense", Err("ERR syntax error")),
        ];
        for (line, expected) in table {
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
