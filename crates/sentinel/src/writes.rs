//! Orders the writes to the journal and the configuration file, and holds back the actions that depend on them.
//!
//! Only one write is in progress at a time. Records that arrive during a write are written together by the next one.
//! Requests on a link and replies to a client keep their order, so an action that waits for a write also delays the
//! later actions to the same destination, but not those to others.
//!
//! After a failed append the end of the journal is unknown, and records may be missing, so the whole journal is
//! replaced. As long as replacing it fails, votes are held back. To the other sentinels, this one appears slow, which
//! the protocol tolerates.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use clock::Instant;
use consensus::{GroupRecord, SavedGroup};

use crate::link::LinkId;
use crate::machine::{ClientId, FileWrite, SentinelAction};

/// Size in bytes above which the journal is compacted.
const MAX_JOURNAL_BYTES: u64 = 256 * 1024;
/// Delay before a failed write is repeated, unless there is something new to write.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of actions held back per client. A client that exceeds it is disconnected.
const MAX_HELD_ACTIONS: usize = 1024;
/// The error reply to a change that could not be saved.
const NOT_SAVED_REPLY: &[u8] = b"-ERR Failed to save config file. Check server logs.\r\n";

/// What must be on disk before an action is performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Nothing,
    /// The journal record with this number must be on disk. Zero means none.
    Record(u64),
    /// The configuration of this step must be on disk. If it cannot be written, the reply becomes an error.
    Config,
}

/// A journal record with the number by which actions refer to it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JournalRecord {
    pub(crate) number: u64,
    pub(crate) record: GroupRecord,
}

/// The output of a step of the machine.
#[derive(Debug, Default)]
pub(crate) struct StepOutput {
    /// Records to append to the journal, in this order.
    pub(crate) records: Vec<JournalRecord>,
    /// The configuration to write; `None` if it is unchanged.
    pub(crate) config: Option<Vec<u8>>,
    /// The actions in the order in which they are performed.
    pub(crate) actions: Vec<(Condition, SentinelAction)>,
}

impl StepOutput {
    pub(crate) fn push(&mut self, action: SentinelAction) {
        self.push_after(Condition::Nothing, action);
    }

    pub(crate) fn push_after(&mut self, condition: Condition, action: SentinelAction) {
        self.actions.push((condition, action));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Link(LinkId),
    Client(ClientId),
}

/// The write that an action waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Nothing,
    Record(u64),
    /// The configuration with this number.
    Config(u64),
}

#[derive(Debug)]
struct HeldAction {
    awaited: Awaited,
    action: SentinelAction,
}

/// The write in progress, with the number of the newest record or configuration that it contains.
#[derive(Debug, Clone, Copy)]
enum InFlight {
    Append { newest: u64 },
    Replace { newest: u64 },
    Config { number: u64 },
}

/// How the next records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JournalState {
    /// Records are appended.
    Intact,
    /// The journal is too long, or its end is unknown. The whole journal is replaced.
    Replace,
    /// Replacing the journal has failed. It is repeated at this time.
    Failed(Instant),
}

/// The numbers of configurations, which start at 1.
#[derive(Debug, Default)]
struct ConfigFile {
    /// The newest configuration, if its write has not begun.
    unwritten: Option<Vec<u8>>,
    newest: u64,
    written: u64,
    failed: u64,
}

/// The writes of a sentinel and the actions that wait for them.
#[derive(Debug)]
pub(crate) struct FileWrites {
    in_flight: Option<InFlight>,
    /// Records whose write has not begun.
    records: Vec<GroupRecord>,
    /// Numbers of the newest record, and of the newest one that is on disk with all earlier records.
    newest: u64,
    durable: u64,
    journal: JournalState,
    config: ConfigFile,
    held: BTreeMap<Destination, VecDeque<HeldAction>>,
}

impl FileWrites {
    /// Creates the state after a start. `journal_bytes` is the size of the journal.
    pub(crate) fn new(journal_bytes: u64) -> Self {
        Self {
            in_flight: None,
            records: Vec::new(),
            newest: 0,
            durable: 0,
            journal: journal_state(journal_bytes),
            config: ConfigFile::default(),
            held: BTreeMap::new(),
        }
    }

    /// When a failed write is due to be repeated; `None` if no write has failed.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.journal {
            // While a write is in progress, its end is awaited instead.
            JournalState::Failed(retry_at) if self.in_flight.is_none() && self.durable < self.newest => {
                Some(retry_at)
            }
            JournalState::Failed(_) | JournalState::Intact | JournalState::Replace => None,
        }
    }

    /// Takes the output of a step and appends the actions that can be performed now. The caller then calls
    /// [`FileWrites::begin_write`].
    pub(crate) fn add_step(&mut self, step: StepOutput, out: &mut Vec<SentinelAction>) {
        let StepOutput { records, config, actions } = step;
        if let Some(JournalRecord { number, .. }) = records.last() {
            self.newest = *number;
            if let JournalState::Failed(_) = self.journal {
                self.journal = JournalState::Replace;
            }
        }
        self.records.extend(records.into_iter().map(|JournalRecord { record, .. }| record));
        if config.is_some() {
            self.config.unwritten = config;
            self.config.newest += 1;
        }
        for (condition, action) in actions {
            let awaited = match condition {
                Condition::Nothing => Awaited::Nothing,
                Condition::Record(number) => Awaited::Record(number),
                Condition::Config => Awaited::Config(self.config.newest),
            };
            self.add_action(awaited, action, out);
        }
    }

    /// Takes an action that waits for no write. It may still have to wait behind earlier actions to its destination.
    pub(crate) fn add_unconditional(&mut self, action: SentinelAction, out: &mut Vec<SentinelAction>) {
        self.add_action(Awaited::Nothing, action, out);
    }

    fn add_action(&mut self, awaited: Awaited, action: SentinelAction, out: &mut Vec<SentinelAction>) {
        let destination = match &action {
            SentinelAction::Close(link) => {
                self.held.remove(&Destination::Link(*link));
                None
            }
            SentinelAction::Send { link, .. } => Some(Destination::Link(*link)),
            SentinelAction::Reply { client, .. } | SentinelAction::CloseClient(client) => {
                Some(Destination::Client(*client))
            }
            _ => None,
        };
        let Some(destination) = destination else { return out.push(action) };
        let is_fulfilled = self.has_ended(awaited);
        match self.held.get_mut(&destination) {
            None if is_fulfilled => out.push(self.finish_action(awaited, action)),
            None => {
                self.held.insert(destination, VecDeque::from([HeldAction { awaited, action }]));
            }
            Some(queue) if queue.len() < MAX_HELD_ACTIONS => queue.push_back(HeldAction { awaited, action }),
            Some(_) => {
                self.held.remove(&destination);
                out.push(match destination {
                    Destination::Link(link) => SentinelAction::Close(link),
                    Destination::Client(client) => SentinelAction::CloseClient(client),
                });
            }
        }
    }

    /// Drops the held actions for a client that has disconnected.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.held.remove(&Destination::Client(client));
    }

    /// Drops the held actions for a link that is down.
    pub(crate) fn forget_link(&mut self, link: LinkId) {
        self.held.remove(&Destination::Link(link));
    }

    /// Begins the next write if no write is in progress. `groups` is the complete content of the journal.
    pub(crate) fn begin_write<'a>(
        &mut self,
        now: Instant,
        groups: impl Iterator<Item = (&'a str, &'a SavedGroup)>,
        out: &mut Vec<SentinelAction>,
    ) {
        if self.in_flight.is_some() {
            return;
        }
        let is_behind = self.durable < self.newest;
        let journal = match self.journal {
            JournalState::Intact if is_behind => {
                let records = std::mem::take(&mut self.records);
                Some((InFlight::Append { newest: self.newest }, FileWrite::AppendJournal(records)))
            }
            JournalState::Replace if is_behind => Some(self.replace_journal(groups)),
            JournalState::Failed(retry_at) if is_behind && now >= retry_at => {
                Some(self.replace_journal(groups))
            }
            JournalState::Intact | JournalState::Replace | JournalState::Failed(_) => None,
        };
        let ConfigFile { unwritten, newest: number, .. } = &mut self.config;
        let config = || Some((InFlight::Config { number: *number }, FileWrite::Config(unwritten.take()?)));
        let Some((in_flight, write)) = journal.or_else(config) else { return };
        self.in_flight = Some(in_flight);
        out.push(SentinelAction::Write(write));
    }

    fn replace_journal<'a>(
        &mut self,
        groups: impl Iterator<Item = (&'a str, &'a SavedGroup)>,
    ) -> (InFlight, FileWrite) {
        self.records.clear();
        let groups = groups.map(|(name, saved)| (name.to_owned(), saved.clone())).collect();
        (InFlight::Replace { newest: self.newest }, FileWrite::ReplaceJournal(groups))
    }

    /// Handles the success of the write in progress. `journal_bytes` is the size of the journal. The caller then calls
    /// [`FileWrites::begin_write`].
    pub(crate) fn on_written(&mut self, journal_bytes: u64, out: &mut Vec<SentinelAction>) {
        match self.in_flight.take() {
            Some(InFlight::Append { newest } | InFlight::Replace { newest }) => {
                self.durable = newest;
                self.journal = journal_state(journal_bytes);
            }
            Some(InFlight::Config { number }) => self.config.written = number,
            None => {}
        }
        self.release_actions(out);
    }

    /// Handles the failure of the write in progress. The caller then calls [`FileWrites::begin_write`].
    pub(crate) fn on_failed(&mut self, now: Instant, out: &mut Vec<SentinelAction>) {
        match self.in_flight.take() {
            Some(InFlight::Append { .. }) => self.journal = JournalState::Replace,
            Some(InFlight::Replace { .. }) => self.journal = JournalState::Failed(now + RETRY_DELAY),
            Some(InFlight::Config { number }) => self.config.failed = number,
            None => {}
        }
        self.release_actions(out);
    }

    /// Number of the newest record that is on disk, as are all earlier records.
    pub(crate) fn durable_record(&self) -> u64 {
        self.durable
    }

    /// Whether the newest configuration could not be written.
    pub(crate) fn config_is_lost(&self) -> bool {
        self.config.newest > 0 && self.config.failed == self.config.newest
    }

    /// Whether the newest configuration is on disk or could not be written.
    pub(crate) fn config_is_settled(&self) -> bool {
        self.has_ended(Awaited::Config(self.config.newest))
    }

    /// Appends the held actions whose writes have ended.
    fn release_actions(&mut self, out: &mut Vec<SentinelAction>) {
        let mut held = std::mem::take(&mut self.held);
        for queue in held.values_mut() {
            while let Some(HeldAction { awaited, action }) =
                queue.pop_front_if(|held| self.has_ended(held.awaited))
            {
                out.push(self.finish_action(awaited, action));
            }
        }
        held.retain(|_, queue| !queue.is_empty());
        self.held = held;
    }

    /// Whether the write that an action waits for has ended, successfully or not.
    fn has_ended(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Nothing => true,
            Awaited::Record(number) => number <= self.durable,
            Awaited::Config(number) => number <= self.config.written.max(self.config.failed),
        }
    }

    /// Replaces the reply to a change by an error if the configuration could not be written.
    fn finish_action(&self, awaited: Awaited, action: SentinelAction) -> SentinelAction {
        match (awaited, action) {
            (Awaited::Config(number), SentinelAction::Reply { client, .. })
                if number > self.config.written =>
            {
                SentinelAction::Reply { client, reply: NOT_SAVED_REPLY.to_vec() }
            }
            (_, action) => action,
        }
    }
}

fn journal_state(bytes: u64) -> JournalState {
    if bytes > MAX_JOURNAL_BYTES { JournalState::Replace } else { JournalState::Intact }
}

#[cfg(test)]
mod tests;
