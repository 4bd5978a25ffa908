//! SHUTDOWN and termination signals: performs the actions of [`replication::ShutdownSequence`]. Each command or signal
//! runs its own sequence.
//!
//! First, writes are paused and running commands finish, so that all acknowledged writes are in the data and in the
//! log. Then the replicas get `shutdown-timeout` seconds to catch up. Then one of them takes over and the data is
//! saved, if requested. Finally the server exits without replying to blocked clients. SHUTDOWN ABORT during the wait
//! for replicas, or a failed save, cancels the shutdown.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use config::{ShutdownWord, keys};
use driver::Driver as _;
use durability::append_only::UnfinishedAofPolicy;
use durability::saving::{self, ShutdownSave};
use parking_lot::Mutex;
use process::{daemon, time};
use replication::ShutdownSequence;
use replication::shutdown::{CancelReason, PausedLog, ShutdownAction, ShutdownEvent, ShutdownOptions};
use replication::wait::{CopyCount, RequiredCopies};
use slot_routing::{NodeId, ReplOffset, Slot};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::replication::copy_waiters::{WaitStart, WaiterToken};
use crate::server::{Server, ServerIdentity};

/// The options of one SHUTDOWN command or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShutdownPlan {
    pub(crate) save: ShutdownSave,
    /// Whether to refuse the shutdown while the cluster depends on this node (SAFE).
    is_safe: bool,
    options: ShutdownOptions,
}

/// Executes the same program with the same arguments in this process (DEBUG RESTART). Returns only on failure. The
/// kernel closes files and sockets.
pub(crate) fn restart_process(identity: &ServerIdentity) -> std::io::Error {
    let mut words = process::title::original_arguments().iter().skip(1).cloned().collect::<Vec<_>>();
    if let (Some(argument), Some(file)) = (&identity.config_argument, &identity.config_file) {
        use_absolute_path(&mut words, argument, file);
    }
    std::process::Command::new(&identity.executable).args(words).exec()
}

/// Replaces the argument that named the configuration file by its absolute path, since the working directory may have
/// changed.
fn use_absolute_path(words: &mut [OsString], argument: &str, file: &str) {
    if let Some(word) = words.iter_mut().find(|word| *word == argument) {
        *word = file.into();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShutdownCommand {
    Stop(ShutdownPlan),
    Abort,
}

/// State shared by all running shutdowns.
#[derive(Debug, Default)]
pub(crate) struct ShutdownState {
    running_count: Mutex<usize>,
    replica_waits: Mutex<WaitCounters>,
    /// When the wait for replicas ends, in Unix milliseconds.
    wait_deadline: AtomicI64,
    wait_aborted: Notify,
    /// Signalled when a wait for replicas has ended.
    wait_ended: Notify,
}

/// Counters of waits for replicas.
#[derive(Debug, Clone, Copy, Default)]
struct WaitCounters {
    started_count: u64,
    ended_count: u64,
    /// How many of the ended waits were aborted.
    aborted_count: u64,
}

impl ShutdownState {
    /// Returns how many milliseconds a shutdown may still wait for replicas. `None` if no shutdown is waiting.
    pub(crate) fn remaining_wait_millis(&self) -> Option<i64> {
        let waits = *self.replica_waits.lock();
        (waits.started_count > waits.ended_count)
            .then(|| (self.wait_deadline.load(Ordering::Relaxed) - time::now().0).max(0))
    }
}

/// A pause of writes while a shutdown runs. On drop the writes resume.
struct WritePause<'a>(&'a Server);

impl<'a> WritePause<'a> {
    /// Pauses writes. When this returns, all earlier writes have finished.
    fn start(server: &'a Server, plan: ShutdownPlan) -> Self {
        *server.shutdown.running_count.lock() += 1;
        server.engine.scripting.scripts.begin_shutdown(!plan.skips_save());
        server.pause_gate.pause_for_shutdown();
        server.engine.wait_for_admitted_commands();
        Self(server)
    }

    /// Stops the server without ending the pause.
    fn stop_server(self) {
        self.0.stop_signal.stop();
        std::mem::forget(self);
    }
}

impl Drop for WritePause<'_> {
    fn drop(&mut self) {
        let mut under_way = self.0.shutdown.running_count.lock();
        *under_way -= 1;
        if *under_way == 0 {
            self.0.replication.log.lock().unseal();
            self.0.replication.log.wake_readers();
            self.0.pause_gate.resume_after_shutdown();
            self.0.engine.scripting.scripts.cancel_shutdown();
        }
    }
}

/// A shutdown's wait for replicas. [`WaitCounters`] counts it while this value exists.
struct ReplicaWait<'a> {
    server: &'a Server,
    log_end: ReplOffset,
    waiter_token: Option<WaiterToken>,
    /// Completes once enough replicas have caught up. `None` if the wait has failed.
    catch_up_future: Pin<Box<dyn Future<Output = Option<CopyCount>> + Send>>,
    abort_notified: Pin<Box<Notified<'a>>>,
    is_aborted: bool,
}

impl<'a> ReplicaWait<'a> {
    fn new(server: &'a Server, log_end: ReplOffset, replica_count: usize, max_duration: Duration) -> Self {
        let aborted = Box::pin(server.shutdown.wait_aborted.notified());
        let longest = i64::try_from(max_duration.as_millis()).unwrap_or(i64::MAX);
        server.shutdown.wait_deadline.store(time::now().0.saturating_add(longest), Ordering::Relaxed);
        server.shutdown.replica_waits.lock().started_count += 1;
        let (token, reached): (_, Pin<Box<dyn Future<Output = _> + Send>>) =
            match server.replication.start_waiting(log_end, RequiredCopies::Acknowledged { replica_count }) {
                WaitStart::Finished(copies) => (None, Box::pin(std::future::ready(copies.ok()))),
                WaitStart::Waiting(token, woken) => {
                    tracing::info!("Waiting for replicas before shutting down.");
                    (Some(token), Box::pin(async { woken.await.ok()?.ok() }))
                }
            };
        Self {
            server,
            log_end,
            waiter_token: token,
            catch_up_future: reached,
            abort_notified: aborted,
            is_aborted: false,
        }
    }

    /// Waits for the next event, at most until `deadline`.
    async fn next_events(&mut self, deadline: clock::Instant) -> Vec<ShutdownEvent> {
        tokio::select! {
            // With `biased`, an abort that arrived during this wait takes precedence.
            biased;
            () = &mut self.abort_notified => {
                self.is_aborted = true;
                vec![ShutdownEvent::Aborted]
            }
            Some(copies) = &mut self.catch_up_future => vec![ShutdownEvent::InSync(copies.replica_count)],
            () = tokio::time::sleep(deadline.since(time::monotonic_now())) => {
                vec![ShutdownEvent::InSync(self.server.replication.count_replicas_acknowledging(self.log_end)), ShutdownEvent::Deadline]
            }
        }
    }
}

impl Drop for ReplicaWait<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.waiter_token {
            self.server.replication.remove_waiter(token, self.log_end);
        }
        let shutdown = &self.server.shutdown;
        {
            let mut waits = shutdown.replica_waits.lock();
            waits.ended_count += 1;
            waits.aborted_count += u64::from(self.is_aborted);
        }
        shutdown.wait_ended.notify_waiters();
    }
}

/// Why the shutdown was refused or cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShutdownError {
    Aborted,
    SaveFailed,
    /// SAFE was given, and the cluster depends on this node.
    NodeNeeded,
}

impl ShutdownCommand {
    /// Parses the arguments of SHUTDOWN; `None` on a syntax error.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut plan = ShutdownPlan::CONFIGURED;
        let (mut aborts, mut count) = (false, 0);
        for word in words {
            count += 1;
            match word.to_ascii_lowercase().as_slice() {
                b"nosave" if plan.save != ShutdownSave::Save => plan.save = ShutdownSave::NoSave,
                b"save" if plan.save != ShutdownSave::NoSave => plan.save = ShutdownSave::Save,
                b"now" => plan.options.skips_replicas = true,
                b"force" => plan.options.ignores_save_errors = true,
                b"failover" => plan.options.hands_over = true,
                b"safe" => plan.is_safe = true,
                b"abort" => aborts = true,
                _ => return None,
            }
        }
        match (aborts, count) {
            (true, 1) => Some(Self::Abort),
            (true, _) => None,
            (false, _) => Some(Self::Stop(plan)),
        }
    }
}

impl ShutdownPlan {
    const CONFIGURED: Self = Self {
        save: ShutdownSave::AsConfigured,
        is_safe: false,
        options: ShutdownOptions { skips_replicas: false, ignores_save_errors: false, hands_over: false },
    };

    pub(crate) fn skips_save(self) -> bool {
        self.save == ShutdownSave::NoSave
    }

    /// Returns the shutdown configured by `shutdown-on-sigterm` or `shutdown-on-sigint`.
    pub(crate) fn for_signal(words: &[ShutdownWord]) -> Self {
        let mut plan = Self::CONFIGURED;
        for word in words {
            match word {
                ShutdownWord::Default => {}
                ShutdownWord::Save => plan.save = ShutdownSave::Save,
                ShutdownWord::NoSave => plan.save = ShutdownSave::NoSave,
                ShutdownWord::Now => plan.options.skips_replicas = true,
                ShutdownWord::Force => plan.options.ignores_save_errors = true,
                ShutdownWord::Failover => plan.options.hands_over = true,
                ShutdownWord::Safe => plan.is_safe = true,
            }
        }
        plan
    }
}

/// Runs a shutdown to its end. If it succeeds, the server stops.
pub(crate) async fn run_shutdown(server: &Arc<Server>, plan: ShutdownPlan) -> Result<(), ShutdownError> {
    if plan.is_safe && is_voting_master(server) {
        let end = if plan.options.ignores_save_errors { "Exit anyway." } else { "Refusing to shut down." };
        tracing::warn!("This is a voting primary. Shutting down may cause the cluster to go down. {end}");
        if !plan.options.ignores_save_errors {
            return Err(ShutdownError::NodeNeeded);
        }
    }
    if !plan.options.ignores_save_errors && server.durability.append_only.is_writing_first_base() {
        // This is checked first, so that writes are not paused for a shutdown that cannot happen.
        tracing::warn!("Writing initial AOF, can't exit.");
        return Err(ShutdownError::SaveFailed);
    }
    let mut actions = Vec::new();
    // Only a master in a cluster can hand over.
    let hand_over = plan.options.hands_over && is_voting_master(server);
    let machine =
        ShutdownSequence::new(ShutdownOptions { hands_over: hand_over, ..plan.options }, &mut actions);
    ShutdownTask {
        server,
        plan,
        sequence: machine,
        write_pause: None,
        log_end: ReplOffset(0),
        replica_wait: None,
        is_handing_over: false,
    }
    .run_to_end(actions.into())
    .await
}

/// Runs the state machine of one shutdown from its first action to its last.
struct ShutdownTask<'a> {
    server: &'a Arc<Server>,
    plan: ShutdownPlan,
    sequence: ShutdownSequence,
    // This field is declared before `replica_wait`, so that writes resume before the wait ends when both are dropped.
    write_pause: Option<WritePause<'a>>,
    /// The end of the log when writes were paused. Later bytes are only control commands such as PING.
    log_end: ReplOffset,
    replica_wait: Option<ReplicaWait<'a>>,
    /// Whether a replica was asked to take over.
    is_handing_over: bool,
}

impl<'a> ShutdownTask<'a> {
    async fn run_to_end(mut self, mut actions: VecDeque<ShutdownAction>) -> Result<(), ShutdownError> {
        loop {
            let inputs = match actions.pop_front() {
                None => self.next_events().await,
                Some(ShutdownAction::PauseWrites) => vec![self.pause_writes()],
                Some(ShutdownAction::AwaitReplicas { log_end: end, replica_count: replicas }) => {
                    let longest = self.server.config.get(keys::SHUTDOWN_TIMEOUT);
                    self.replica_wait = Some(ReplicaWait::new(self.server, end, replicas, longest));
                    vec![]
                }
                Some(ShutdownAction::LogInSync { in_sync_count: in_sync, replica_count: of }) => {
                    self.replica_wait = None;
                    tracing::info!("{in_sync} of {of} replicas are in sync when shutting down.");
                    vec![]
                }
                Some(ShutdownAction::HandOver) => self.start_handover(),
                Some(ShutdownAction::Save) => {
                    vec![ShutdownEvent::Saved(save_dataset(self.server, self.plan).await)]
                }
                Some(ShutdownAction::Exit) => {
                    self.write_pause.into_iter().for_each(WritePause::stop_server);
                    return Ok(());
                }
                Some(ShutdownAction::Cancel(CancelReason::Aborted)) => {
                    tracing::warn!("Shutdown manually aborted.");
                    return Err(ShutdownError::Aborted);
                }
                Some(ShutdownAction::Cancel(CancelReason::NotSaved)) => {
                    return Err(ShutdownError::SaveFailed);
                }
            };
            for input in inputs {
                let mut more = Vec::new();
                self.sequence.handle(time::monotonic_now(), input, &mut more);
                actions.extend(more);
            }
        }
    }

    fn pause_writes(&mut self) -> ShutdownEvent {
        let server: &'a Server = self.server;
        self.write_pause = Some(WritePause::start(server, self.plan));
        let replication = &server.replication;
        let end = replication.current_offset();
        self.log_end = end;
        let replicas = if replication.is_replica() { 0 } else { replication.count_shutdown_replicas() };
        let in_sync = replication.count_replicas_acknowledging(end);
        ShutdownEvent::WritesPaused(PausedLog {
            log_end: end,
            replica_count: replicas,
            in_sync_count: in_sync,
            replica_timeout: server.config.get(keys::SHUTDOWN_TIMEOUT),
        })
    }

    /// Asks a replica that has caught up to take over. Without such a replica, the step counts as done.
    fn start_handover(&mut self) -> Vec<ShutdownEvent> {
        match find_successor(self.server, self.log_end) {
            Ok(successor) => {
                tracing::info!("Perform auto failover to replica {successor} on shutdown.");
                self.server.replication.replicate_failover(successor);
                self.is_handing_over = true;
                vec![]
            }
            Err(why) => {
                tracing::warn!("{why}");
                vec![ShutdownEvent::HandedOver]
            }
        }
    }

    /// Waits for the next event that the state machine expects.
    async fn next_events(&mut self) -> Vec<ShutdownEvent> {
        let Some(deadline) = self.sequence.next_deadline() else { return std::future::pending().await };
        if let Some(awaited) = &mut self.replica_wait {
            return awaited.next_events(deadline).await;
        }
        let server = self.server;
        tokio::select! {
            () = server.migrations.wait_for_topology(|| !is_voting_master(server)), if self.is_handing_over => {
                vec![ShutdownEvent::HandedOver]
            }
            () = tokio::time::sleep(deadline.since(time::monotonic_now())) => vec![ShutdownEvent::Deadline],
        }
    }
}

/// Returns a replica that has the whole log. The error says why no replica is asked to take over.
fn find_successor(server: &Server, log_end: ReplOffset) -> Result<NodeId, &'static str> {
    let legacy = "Unable to perform auto failover on shutdown since there are legacy replicas.";
    let in_sync = server.replication.list_successors(log_end).ok_or(legacy)?;
    let topology = server.engine.topology.as_ref().map(|topology| topology.load_full());
    let is_known = |id: &NodeId| {
        let topology = topology.as_ref()?;
        topology.replicas_of(topology.myself).find(|member| member.id == *id && !member.has_failed)
    };
    let successor = in_sync.into_iter().find(|id| is_known(id).is_some());
    successor.ok_or("Unable to find a replica to perform the auto failover on shutdown.")
}

/// Returns whether this node is a master with slots, which has a vote in its cluster.
fn is_voting_master(server: &Server) -> bool {
    let topology = server.engine.topology.as_ref();
    topology.is_some_and(|topology| {
        let topology = topology.load();
        let me = topology.my_member().id;
        Slot::all().any(|slot| topology.owner(slot).is_some_and(|owner| owner.id == me))
    })
}

/// Executes SHUTDOWN ABORT: waits until each shutdown that was waiting for replicas is aborted or has continued.
/// Returns whether one was aborted.
pub(crate) async fn abort_shutdowns(shutdown: &ShutdownState) -> bool {
    let before = *shutdown.replica_waits.lock();
    shutdown.wait_aborted.notify_waiters();
    loop {
        let ended = shutdown.wait_ended.notified();
        let now = *shutdown.replica_waits.lock();
        if now.ended_count >= before.started_count {
            return now.aborted_count > before.aborted_count;
        }
        ended.await;
    }
}

/// Saves the dataset if the options or the configuration require it. Returns false on failure.
async fn save_dataset(server: &Arc<Server>, plan: ShutdownPlan) -> bool {
    daemon::notify_stopping(&server.config);
    let saver = server.clone();
    let unfinished = if plan.options.ignores_save_errors {
        UnfinishedAofPolicy::Ignore
    } else {
        UnfinishedAofPolicy::AbortShutdown
    };
    let finish = move || saving::save_at_shutdown(&saver.durability, plan.save, unfinished);
    let saved = tokio::task::spawn_blocking(finish).await;
    match &saved {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("Error trying to save the DB, can't exit: {error}"),
        Err(_) => tracing::warn!("Error trying to save the DB, can't exit"),
    }
    matches!(saved, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_file_argument_is_replaced_by_an_absolute_path() {
        for argument in ["a.conf", "./a.conf", "../x/a.conf", "link.conf"] {
            let mut words: Vec<OsString> = ["server", argument, "--port", "1"].map(Into::into).to_vec();
            use_absolute_path(&mut words, argument, "/etc/a.conf");
            assert_eq!(words, ["server", "/etc/a.conf", "--port", "1"], "{argument}");
        }
    }

    #[test]
    fn shutdown_arguments_are_parsed() {
        let parse = |line: &str| ShutdownCommand::parse(line.split_ascii_whitespace().map(str::as_bytes));
        let stop = |at_end, steps| {
            Some(ShutdownCommand::Stop(ShutdownPlan { save: at_end, is_safe: false, options: steps }))
        };
        let plan = |at_end, now, force| {
            stop(
                at_end,
                ShutdownOptions { skips_replicas: now, ignores_save_errors: force, hands_over: false },
            )
        };
        let hands_over = ShutdownOptions { hands_over: true, ..ShutdownOptions::default() };
        let forced = ShutdownOptions { ignores_save_errors: true, ..ShutdownOptions::default() };
        let safe = ShutdownPlan { save: ShutdownSave::NoSave, is_safe: true, options: forced };
        let table = [
            ("", plan(ShutdownSave::AsConfigured, false, false)),
            ("NOSAVE", plan(ShutdownSave::NoSave, false, false)),
            ("save now FORCE", plan(ShutdownSave::Save, true, true)),
            ("save save now now", plan(ShutdownSave::Save, true, false)),
            ("nosave SAFE force", Some(ShutdownCommand::Stop(safe))),
            ("failover", stop(ShutdownSave::AsConfigured, hands_over)),
            ("abort", Some(ShutdownCommand::Abort)),
            ("abort safe", None),
            ("save nosave", None),
            ("abort now", None),
            ("abort abort", None),
            ("nonsense", None),
        ];
        for (line, expected) in table {
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
