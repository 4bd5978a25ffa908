//! Transactions that reconfigure servers, and the handling of their replies.
//!
//! The transactions use only commands that the Redis and Valkey documentation grants to a sentinel's user. A server
//! rejects a transaction as a whole, because of missing rights or because of its state. The sentinel then reacts at
//! once instead of waiting for a timeout: a rejected promotion aborts its failover, and a replica that refuses to
//! follow is left to [`Master::repair`].
//!
//! A handover pauses the master's writes for as long as it may take. Clients therefore never get an error because their
//! master has become a replica: their writes wait, and their connections are closed when the new master is ready.

use std::time::Duration;

use resp::Value;

use crate::addr::Addr;
use crate::event::EventLevel;
use crate::link::{LinkId, MAX_PENDING_REPLIES, PendingReply};
use crate::master::Master;
use crate::master::failovers::{FailoverCause, FailoverPhase};
use crate::master::instance::ReconfigurationState;
use crate::shared::Context;
use crate::writes::Condition;

/// Time limit for a handover that an operator requested. After it, the replica is promoted without the master. It is
/// shorter than the interval for repeating a promotion.
const HANDOVER_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long a server that rejected a command is avoided if there is another candidate.
pub(crate) const REFUSAL_LIFETIME: Duration = Duration::from_secs(10);

/// The purpose of a transaction, which decides how its reply is handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transaction {
    /// Make the server at this address a replica of another one, or a master.
    Follow(Addr),
    /// Make the master hand over to a replica.
    HandOver,
}

impl Transaction {
    /// The index of the command in the transaction whose reply shows the result.
    fn result_index(&self) -> usize {
        match self {
            Self::Follow(_) => 0,
            Self::HandOver => 1,
        }
    }
}

impl Master {
    /// Makes the replica at `addr` follow `to` or, with `None`, become a master, and sends the other commands of a role
    /// change in the same transaction. Returns false if the transaction cannot be sent now.
    pub(crate) fn send_slaveof(&self, cx: &mut Context<'_>, addr: &Addr, to: Option<&Addr>) -> bool {
        let Some(replica) = self.servers.replica(addr) else { return false };
        // The documentation grants the right to use SLAVEOF but not REPLICAOF.
        let renamed = self.settings.renamed.get("SLAVEOF").or_else(|| self.settings.renamed.get("REPLICAOF"));
        let slaveof = renamed.cloned().unwrap_or_else(|| "SLAVEOF".into());
        let (host, port) = match to {
            Some(addr) => (cx.shared.display_host(&addr.host).to_owned(), addr.port.to_string()),
            None => ("NO".into(), "ONE".into()),
        };
        let mut commands = vec![vec![slaveof, host, port]];
        commands.extend(self.role_change_commands());
        self.send_transaction(
            cx,
            replica.command_link(),
            commands,
            PendingReply::Transaction(self.name.clone(), Transaction::Follow(addr.clone())),
        )
    }

    /// The commands that follow a role change: rewrite the configuration file and disconnect the clients.
    fn role_change_commands(&self) -> [Vec<String>; 3] {
        let (client, config) = (self.settings.command("CLIENT"), self.settings.command("CONFIG"));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        [
            words(&[config, "REWRITE"]),
            words(&[client, "KILL", "TYPE", "normal"]),
            words(&[client, "KILL", "TYPE", "pubsub"]),
        ]
    }

    /// Asks the master to pause its clients' writes and to hand over to `target`. Returns false if the transaction
    /// cannot be sent now.
    pub(crate) fn request_handover(&self, cx: &mut Context<'_>, target: &Addr) -> bool {
        let only_so =
            self.failovers.current().is_some_and(|failover| failover.cause() == FailoverCause::Coordinated);
        let most = if only_so { Duration::MAX } else { HANDOVER_TIMEOUT };
        let (host, port) = (cx.shared.display_host(&target.host), target.port.to_string());
        let timeout = self.settings.failover_timeout.min(most).as_millis().to_string();
        let (client, failover) = (self.settings.command("CLIENT"), self.settings.command("FAILOVER"));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let commands = vec![
            words(&[client, "PAUSE", &timeout, "WRITE"]),
            words(&[failover, "TO", host, &port, "TIMEOUT", &timeout]),
        ];
        self.send_transaction(
            cx,
            self.servers.master().command_link(),
            commands,
            PendingReply::Transaction(self.name.clone(), Transaction::HandOver),
        )
    }

    /// Cancels a requested handover, whether or not it has begun.
    pub(crate) fn cancel_handover(&self, cx: &mut Context<'_>) {
        let link = self.servers.master().command_link();
        cx.send(link, PendingReply::Ignored, &[self.settings.command("FAILOVER"), "ABORT"]);
        self.resume_writes(cx);
    }

    fn resume_writes(&self, cx: &mut Context<'_>) {
        cx.send(
            self.servers.master().command_link(),
            PendingReply::Ignored,
            &[self.settings.command("CLIENT"), "UNPAUSE"],
        );
    }

    /// After a handover, makes the old and the new master rewrite their configuration files and disconnect their
    /// clients. The failover remembers the servers that cannot be reached.
    pub(crate) fn send_final_commands(&mut self, cx: &mut Context<'_>) {
        let Some(failover) = self.failovers.current_mut() else { return };
        let asked = matches!(failover.cause(), FailoverCause::Operator | FailoverCause::Coordinated);
        let links = failover.set_awaiting_final_commands(Vec::new());
        let mut commands = self.role_change_commands().to_vec();
        if asked {
            commands.push(vec![self.settings.command("CLIENT").to_owned(), "UNPAUSE".into()]);
        }
        let unreached =
            |link: &LinkId| !self.send_transaction(cx, *link, commands.clone(), PendingReply::Ignored);
        let left: Vec<LinkId> = links.into_iter().filter(unreached).collect();
        if let Some(failover) = self.failovers.current_mut() {
            failover.set_awaiting_final_commands(left);
        }
    }

    /// Sends a transaction; `pending` describes how to handle the reply to EXEC. Returns false if the link is down or
    /// has too many pending replies, or if this sentinel's votes are not on disk yet.
    fn send_transaction(
        &self,
        cx: &mut Context<'_>,
        link: LinkId,
        commands: Vec<Vec<String>>,
        pending: PendingReply,
    ) -> bool {
        if !self.consensus.is_saved(cx.shared.durable_record) {
            return false;
        }
        let Some(state) = cx.shared.links.find(link) else { return false };
        if !state.is_up() || state.pending.len() + commands.len() + 2 > MAX_PENDING_REPLIES {
            return false;
        }
        state.last_error = None;
        let alone = |command| vec![self.settings.command(command).to_owned()];
        let begin = std::iter::once((alone("MULTI"), PendingReply::Ignored));
        let middle = commands.into_iter().map(|command| (command, PendingReply::Ignored));
        for (command, pending) in begin.chain(middle).chain([(alone("EXEC"), pending)]) {
            let words = command.into_iter().map(String::into_bytes).collect();
            cx.send_after(Condition::Nothing, link, pending, words);
        }
        true
    }

    /// Handles the reply to the EXEC of a transaction.
    pub(crate) fn on_transaction_reply(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        order: &Transaction,
        value: &Value,
    ) {
        let last_error = cx.shared.links.find(link).and_then(|state| state.last_error.take());
        let why = match value {
            // The error of the individual command explains why the transaction was rejected.
            Value::Error(text) => last_error.unwrap_or_else(|| text.clone()),
            Value::Array(replies) => match replies.get(order.result_index()) {
                Some(Value::Error(text)) => text.clone(),
                _ => return,
            },
            _ => return,
        };
        match order {
            Transaction::Follow(addr) => self.on_replicaof_refused(cx, addr, &why),
            Transaction::HandOver => {
                if matches!(value, Value::Array(_)) {
                    self.resume_writes(cx);
                }
                self.on_handover_refused(cx, &why);
            }
        }
        self.advance_failover(cx);
    }

    fn on_replicaof_refused(&mut self, cx: &mut Context<'_>, addr: &Addr, why: &str) {
        let Some(replica) = self.servers.replica_mut(addr) else { return };
        replica.set_refused(cx.now);
        let (reconf, link) = (replica.reconfiguration(), replica.command_link());
        cx.log(EventLevel::Warning, format!("{addr} did not do what it was told to: {why}"));
        if why.contains("while failing over") {
            // An operator may have requested a handover to a target that never becomes ready.
            cx.send(link, PendingReply::Ignored, &[self.settings.command("FAILOVER"), "ABORT"]);
        }
        let Some(failover) = self.failovers.current() else { return };
        match failover.phase() {
            FailoverPhase::Promote { target, .. } if target == addr => {
                self.record_failover_step(cx, format!("{addr} refused to be promoted: {why}"));
                self.abort_failover(cx, "-failover-abort-slave-timeout");
            }
            FailoverPhase::Reconf { .. } if reconf == ReconfigurationState::Sent => {
                self.record_failover_step(cx, format!("{addr} refused to follow: {why}"));
                self.servers.set_reconfiguration(cx.now, addr, ReconfigurationState::Refused);
            }
            FailoverPhase::Elect
            | FailoverPhase::Select { .. }
            | FailoverPhase::Agree { .. }
            | FailoverPhase::Promote { .. }
            | FailoverPhase::Confirm { .. }
            | FailoverPhase::Reconf { .. } => {}
        }
    }

    fn on_handover_refused(&mut self, cx: &mut Context<'_>, why: &str) {
        let Some(failover) = self.failovers.current_mut() else { return };
        if !matches!(failover.phase(), FailoverPhase::Promote { .. }) {
            return;
        }
        let only_so = failover.cause() == FailoverCause::Coordinated;
        failover.set_promotion_sent(None);
        if !only_so {
            failover.force();
        }
        cx.log(
            EventLevel::Warning,
            format!("The master {} refused to hand over: {why}", self.servers.master().addr()),
        );
        self.record_failover_step(cx, format!("the master refused to hand over: {why}"));
        if only_so {
            self.abort_failover(cx, "-failover-abort-slave-timeout");
        }
    }
}
