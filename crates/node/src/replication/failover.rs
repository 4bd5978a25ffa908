//! FAILOVER: performs the actions of [`replication::Handover`].
//!
//! One task performs the actions in order and reports the results to the state machine. The task exists only while a
//! failover is running.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use config::{Config, MasterAddress, keys};
use driver::Driver;
use engine::Engine;
use net::pauses::PauseGate;
use parking_lot::Mutex;
use process::time;
use replication::Handover;
use replication::handover::{HandoverAction, HandoverCommand, HandoverContext, HandoverEvent};
use tokio::sync::Notify;

use crate::replication::{LinkStatus, Replication};

/// The state of the running failover, if any, and the components that its actions use.
#[derive(Debug)]
pub(crate) struct Failover {
    engine: Arc<Engine>,
    config: Arc<Config>,
    replication: Arc<Replication>,
    pause_gate: Arc<PauseGate>,
    progress: Mutex<FailoverProgress>,
    /// Signalled when an operator has issued a command.
    command_issued: Notify,
}

#[derive(Debug, Default)]
struct FailoverProgress {
    machine: Handover,
    /// Actions that have not been performed yet.
    pending_actions: VecDeque<HandoverAction>,
    is_task_running: bool,
}

/// Parses the arguments of FAILOVER.
pub(crate) fn parse_failover(words: &[&[u8]]) -> Result<HandoverCommand, &'static str> {
    let (mut target, mut force, mut timeout) = (None, false, None);
    let mut left = words;
    loop {
        let is = |word: &str| left.first().is_some_and(|first| first.eq_ignore_ascii_case(word.as_bytes()));
        left = match left {
            [] => break,
            [_] if is("abort") && words.len() == 1 => return Ok(HandoverCommand::Abort),
            [_, host, port, rest @ ..] if is("to") && target.is_none() => {
                let port = resp::parse_i64(port).ok_or("ERR value is not an integer or out of range")?;
                let port = u16::try_from(port).unwrap_or(0);
                target = Some((String::from_utf8_lossy(host).into_owned(), port));
                rest
            }
            [_, millis, rest @ ..] if is("timeout") && timeout.is_none() => {
                let millis = resp::parse_i64(millis).ok_or("ERR value is not an integer or out of range")?;
                let millis = u64::try_from(millis).ok().filter(|millis| *millis > 0);
                timeout =
                    Some(Duration::from_millis(millis.ok_or("ERR FAILOVER timeout must be greater than 0")?));
                rest
            }
            [_, rest @ ..] if is("force") && !force => {
                force = true;
                rest
            }
            _ => return Err("ERR syntax error"),
        };
    }
    Ok(HandoverCommand::Start { target, is_forced: force, timeout })
}

impl Failover {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: Arc<Config>,
        replication: Arc<Replication>,
        pauses: Arc<PauseGate>,
    ) -> Self {
        Self {
            engine,
            config,
            replication,
            pause_gate: pauses,
            progress: Mutex::default(),
            command_issued: Notify::new(),
        }
    }

    /// Returns the failover state as INFO shows it.
    pub(crate) fn state_name(&self) -> &'static str {
        self.progress.lock().machine.state_name()
    }

    /// Returns whether a failover is running.
    pub(crate) fn is_running(&self) -> bool {
        self.progress.lock().machine.is_in_progress()
    }

    fn handover_context(&self) -> HandoverContext {
        let named = |(MasterAddress { host, port }, online)| ((host, port), online);
        let replicas = self.replication.list_replicas().into_iter().map(named).collect();
        HandoverContext { is_replica: self.replication.is_replica(), replicas }
    }

    fn process_event(&self, event: HandoverEvent) {
        let mut actions = Vec::new();
        let mut steps = self.progress.lock();
        steps.machine.handle(time::monotonic_now(), event, &mut actions);
        steps.pending_actions.extend(actions);
    }

    fn perform_action(&self, action: HandoverAction) {
        match action {
            HandoverAction::PauseWrites(_) => {
                tracing::info!("FAILOVER requested.");
                // Each slot is locked once, so that every command admitted before the pause has been logged.
                self.engine.wait_for_admitted_commands();
                self.process_event(HandoverEvent::WritesPaused);
            }
            HandoverAction::RequestAcknowledgements => self.replication.request_acknowledgements(),
            HandoverAction::Follow((host, port)) => {
                tracing::info!("Failover target is {host}:{port}, it is asked to take over.");
                self.replication.hand_over_to(MasterAddress { host, port });
            }
            HandoverAction::RecordMaster((host, port)) => {
                self.config.set_value(keys::REPLICAOF, Some(MasterAddress { host, port }));
                self.replication.complete_handover();
            }
            HandoverAction::StayMaster => {
                self.replication.become_master();
            }
            HandoverAction::ResumeWrites { has_handed_over: done } => {
                let how = if done { "done: this node is a replica now" } else { "aborted" };
                tracing::info!("Failover {how}.");
                self.pause_gate.resume_after_failover();
            }
        }
    }

    fn next_action(&self) -> Option<HandoverAction> {
        self.progress.lock().pending_actions.pop_front()
    }

    /// Returns whether no actions are left, in which case the task ends. The next command starts a new task.
    fn has_no_actions(&self) -> bool {
        let mut steps = self.progress.lock();
        let is_finished = steps.pending_actions.is_empty() && !steps.machine.is_in_progress();
        steps.is_task_running &= !is_finished;
        is_finished
    }
}

/// Executes FAILOVER. The failover continues after the reply.
pub(crate) fn start_failover(failover: &Arc<Failover>, command: HandoverCommand) -> Result<(), String> {
    if failover.engine.topology.is_some() {
        return Err("ERR FAILOVER not allowed in cluster mode.".to_owned());
    }
    let situation = failover.handover_context();
    let mut actions = Vec::new();
    let mut steps = failover.progress.lock();
    let ordered = steps.machine.handle_command(time::monotonic_now(), command, &situation, &mut actions);
    ordered.map_err(|refusal| refusal.to_string())?;
    // The first actions are performed before the reply, as in Valkey, so that a write sent after the reply waits.
    for action in &actions {
        if let HandoverAction::PauseWrites(longest) = action {
            failover.pause_gate.pause_for_failover(*longest);
        }
    }
    steps.pending_actions.extend(actions);
    failover.command_issued.notify_one();
    if !std::mem::replace(&mut steps.is_task_running, true) {
        tokio::spawn(run_failover(failover.clone()));
    }
    Ok(())
}

/// Runs the failover from its first action to its last.
async fn run_failover(failover: Arc<Failover>) {
    let replication = &failover.replication;
    let mut following = replication.link_status.subscribe();
    loop {
        // Registered before the replicas are checked, so that no acknowledgement is missed.
        let acknowledged = replication.acknowledgements.notified();
        while let Some(action) = failover.next_action() {
            failover.perform_action(action);
        }
        if failover.has_no_actions() {
            return;
        }
        let synced = replication.replicas_in_sync().into_iter();
        failover.process_event(HandoverEvent::InSync(
            synced.map(|MasterAddress { host, port }| (host, port)).collect(),
        ));
        let now_following = *following.borrow_and_update();
        match now_following {
            LinkStatus::Down => {}
            LinkStatus::Streaming => failover.process_event(HandoverEvent::LinkUp),
            LinkStatus::Refused => failover.process_event(HandoverEvent::Refused),
        }
        if !failover.progress.lock().pending_actions.is_empty() {
            continue;
        }
        let deadline = failover.progress.lock().machine.next_deadline();
        let wait = deadline.map(|at| at.since(time::monotonic_now()));
        tokio::select! {
            () = failover.command_issued.notified() => {}
            () = acknowledged => {}
            _ = following.changed() => {}
            () = tokio::time::sleep(wait.unwrap_or(Duration::MAX)), if wait.is_some() => {
                failover.process_event(HandoverEvent::Deadline);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failover_arguments_are_parsed() {
        let parse = |line: &str| {
            let words: Vec<&[u8]> = line.split_ascii_whitespace().map(str::as_bytes).collect();
            super::parse_failover(&words)
        };
        let start = |target: Option<(&str, u16)>, force, millis: Option<u64>| {
            let target = target.map(|(host, port)| (host.to_owned(), port));
            Ok(HandoverCommand::Start {
                target,
                is_forced: force,
                timeout: millis.map(Duration::from_millis),
            })
        };
        let table = [
            ("", start(None, false, None)),
            ("abort", Ok(HandoverCommand::Abort)),
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
