//! The state machine of the append-only file.

use std::time::Duration;

use clock::{Instant, Millis};
use persistence::aof::{Manifest, NamedFile};
use replication::{Position, ReplId};
use slot_routing::ReplOffset;

use crate::increment::{Increment, Write};
use crate::{
    Effect, Failure, Input, LogEnd, Lost, NotTaken, Operation, Policy, RewriteId, Settings, Standing,
};

/// Sync interval of `everysec`.
const SYNC_PERIOD: Duration = Duration::from_secs(1);
/// A write counts as delayed if it waits longer than this for a sync. Redis then writes in parallel with the sync.
const DELAYED: Duration = Duration::from_secs(2);
/// Delay before a failed operation is retried.
const RETRY: Duration = Duration::from_secs(1);
/// Replies to writes wait, regardless of `appendfsync`, if more bytes than this are unwritten. They resume below a
/// quarter of it. If the file falls behind further than the log reaches, a new base is needed.
const MOST_BEHIND: u64 = 64 << 20;
/// The id of increments that no rewrite asked for.
const NO_REWRITE: RewriteId = RewriteId(0);

/// The append-only file while it is enabled.
#[derive(Debug)]
pub struct AppendOnly {
    settings: Settings,
    /// The manifest on disk. After a failed write of the manifest it may also be the previous one; both name files that
    /// contain a prefix of the history.
    manifest: Manifest,
    standing: Standing,
    log: LogEnd,
    open: Option<Increment>,
    beginning: Option<Beginning>,
    /// Where the next increment begins. No operation has been issued for it yet.
    next: Option<Cut>,
    base: Option<Base>,
    in_flight: Option<InFlight>,
    /// Obsolete files are deleted, but still named in the manifest.
    forgets_history: bool,
    synced: Option<ReplOffset>,
    last_sync: Instant,
    /// When the current or last sync began.
    sync_begun: Instant,
    /// Number of syncs that delayed a write.
    delays: u64,
    /// Earliest time for retrying failed operations, and for truncating the increment again.
    retry_at: Instant,
    mend_at: Instant,
    error: Option<String>,
    /// Number of failed operations.
    failures: u64,
    /// Offset up to which a caller waits for the log to be synced.
    asked: Option<ReplOffset>,
    holding: bool,
    /// The last published commit point.
    committed: Option<ReplOffset>,
}

/// Where an increment is to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    rewrite: RewriteId,
    at: Position,
    db: Option<u16>,
}

/// An increment whose creation has been attempted. The manifest on disk may name it already.
#[derive(Debug, Clone)]
struct Beginning {
    cut: Cut,
    file: NamedFile,
    /// The new increment, used if the log can still be followed.
    increment: Increment,
    is_lost: bool,
}

/// A base that a rewrite is writing.
#[derive(Debug, Clone)]
struct Base {
    rewrite: RewriteId,
    /// The increment that begins at the base's snapshot, once it exists.
    increment: Option<String>,
    /// Whether it is an RDB file; set when it is written.
    ready: Option<bool>,
}

/// The running file operation.
#[derive(Debug)]
enum InFlight {
    Write(Write),
    Sync,
    CutBack,
    Begin(Manifest),
    PutBase(RewriteId, Manifest),
    PutManifest(Manifest),
}

impl AppendOnly {
    /// Starts without usable files: nothing is written until a rewrite takes its snapshot. `manifest` names files with
    /// older data.
    #[must_use]
    pub fn fresh(settings: Settings, manifest: Manifest, now: Instant) -> Self {
        let end = Position { id: ReplId::NONE, offset: ReplOffset(0) };
        Self {
            settings,
            manifest,
            standing: Standing::Fresh,
            log: LogEnd { end, second: None, wall: Millis(0) },
            open: None,
            beginning: None,
            next: None,
            base: None,
            in_flight: None,
            forgets_history: false,
            synced: None,
            last_sync: now,
            retry_at: now,
            sync_begun: now,
            delays: 0,
            mend_at: now,
            error: None,
            failures: 0,
            asked: None,
            holding: false,
            committed: None,
        }
    }

    /// Continues the last increment of `manifest`, which has `bytes` bytes and ends at the end of the log.
    #[must_use]
    pub fn resumed(settings: Settings, manifest: Manifest, bytes: u64, log: LogEnd, now: Instant) -> Self {
        let at = log.end.offset;
        Self {
            standing: Standing::Whole,
            log,
            open: Some(Increment::resumed(bytes, at)),
            synced: Some(at),
            ..Self::fresh(settings, manifest, now)
        }
    }

    /// Continues after the base of `manifest`, which has no increments and ends at the end of the log. The first
    /// operation creates an increment. `db` is the database selected by the master's stream.
    #[must_use]
    pub fn resumed_behind_base(
        settings: Settings,
        manifest: Manifest,
        log: LogEnd,
        db: u16,
        now: Instant,
    ) -> Self {
        let (standing, synced) = (Standing::Whole, Some(log.end.offset));
        let mut machine = Self { standing, log, synced, ..Self::fresh(settings, manifest, now) };
        // A rewrite that takes its snapshot before that must wait.
        machine.reserve(Cut { rewrite: NO_REWRITE, at: log.end, db: Some(db) });
        machine
    }

    /// The state of the files.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The current manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Log offset up to which complete files are synced, if there are any.
    #[must_use]
    pub fn synced(&self) -> Option<ReplOffset> {
        self.synced
    }

    /// Log offset up to which the file is written, if the log is being followed.
    #[must_use]
    pub fn written(&self) -> Option<ReplOffset> {
        self.open.as_ref().map(|open| open.written.mark.at)
    }

    /// Size of the current increment in bytes.
    #[must_use]
    pub fn increment_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.written.bytes)
    }

    /// The current write error, if any.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// `appendfsync`
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.settings.policy
    }

    /// Whether a caller waits for the whole log to be synced.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The last known end of the log.
    #[must_use]
    pub fn log_end(&self) -> ReplOffset {
        self.log.end.offset
    }

    /// Number of failed operations so far.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Number of syncs since [`Self::reset_delays`] that delayed a write.
    #[must_use]
    pub fn delays(&self) -> u64 {
        self.delays
    }

    pub fn reset_delays(&mut self) {
        self.delays = 0;
    }

    /// The oldest log offset still needed. Bytes that are written but not synced may have to be written again.
    #[must_use]
    pub fn keeps_from(&self) -> Option<ReplOffset> {
        let beginning = self.beginning.as_ref().filter(|beginning| !beginning.is_lost);
        let open = self.open.as_ref().map(|open| open.synced.mark.at);
        open.or(beginning.map(|beginning| beginning.cut.at.offset)).or(self.next.map(|next| next.at.offset))
    }

    /// Whether the log is synced up to `at`, as far as it is followed, and no operation is running.
    #[must_use]
    pub fn has_synced(&self, at: ReplOffset) -> bool {
        let is_all = self.open.as_ref().is_none_or(|open| open.synced.mark.at >= at);
        is_all && self.beginning.is_none() && self.in_flight.is_none()
    }

    /// Whether deleted files are still to be removed from the manifest.
    #[must_use]
    pub fn forgets_history(&self) -> bool {
        self.forgets_history || matches!(self.in_flight, Some(InFlight::PutManifest(_)))
    }

    /// Processes an event.
    pub fn handle(&mut self, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::LogGrew(log) => self.log = log,
            Input::FellOff(lost) => self.lose(lost, out),
            Input::Cut { rewrite, at, db } => {
                self.log.end = at;
                // A previous cut belongs to a failed rewrite. The current increment simply continues past it.
                self.next = Some(Cut { rewrite, at, db });
                self.base = Some(Base { rewrite, increment: None, ready: None });
            }
            Input::BaseReady { rewrite, rdb } => match &mut self.base {
                Some(base) if base.rewrite == rewrite => base.ready = Some(rdb),
                _ => out.push(Effect::Rewritten { rewrite, outcome: Err(NotTaken::Lost) }),
            },
            Input::RewriteFailed(rewrite) => {
                self.base.take_if(|base| base.rewrite == rewrite);
                self.next.take_if(|next| next.rewrite == rewrite);
            }
            Input::HistoryDeleted => self.forgets_history = !self.manifest.history.is_empty(),
            Input::Configured(settings) => self.settings = settings,
            Input::Asked => {
                self.asked = Some(self.log.end.offset).filter(|end| !self.has_synced(*end));
                (self.retry_at, self.mend_at) = (Instant::ORIGIN, Instant::ORIGIN);
            }
        }
        self.decide_replies(out);
        self.publish(out);
    }

    /// The next file operation. `None` while one is running.
    pub fn next_operation(&mut self, now: Instant) -> Option<Operation> {
        if self.in_flight.is_some() {
            return None;
        }
        let (in_flight, operation) = self.choose(now)?;
        if matches!(in_flight, InFlight::Sync) {
            self.sync_begun = now;
        }
        self.in_flight = Some(in_flight);
        Some(operation)
    }

    /// When to ask for an operation again if no event occurs before. Later than `now` if no operation is due.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let open = self.open.as_ref();
        let mend = open.filter(|open| open.torn).map(|_| self.mend_at);
        // If the time has passed, nothing is left to retry, because the data was replaced.
        let retry = self.error.as_ref().map(|_| self.retry_at).filter(|at| *at > now);
        let everysec = self.settings.policy == Policy::EverySecond;
        let sync = open.filter(|open| everysec && !open.is_synced()).map(|_| self.last_sync + SYNC_PERIOD);
        // A due sync is put off while a rewrite has the disk to itself.
        let sync = sync.filter(|sync| !self.is_disk_spared() || *sync > now);
        mend.or(retry).or(sync)
    }

    /// Completes the running operation. A failed operation may have been done partly or completely.
    ///
    /// # Panics
    /// If no operation is running, which is a bug in the driver.
    pub fn done(&mut self, now: Instant, outcome: Result<(), Failure>, out: &mut Vec<Effect>) {
        let in_flight = self.in_flight.take().expect("an operation was being done");
        match outcome {
            Err(Failure::FellOff(lost)) => self.lose(lost, out),
            Err(Failure::Io(error)) => self.on_done(now, in_flight, Err(error), out),
            Ok(()) => self.on_done(now, in_flight, Ok(()), out),
        }
        self.asked = self.asked.filter(|end| !self.has_synced(*end));
        self.decide_replies(out);
        self.publish(out);
    }

    fn on_done(
        &mut self,
        now: Instant,
        in_flight: InFlight,
        outcome: Result<(), String>,
        out: &mut Vec<Effect>,
    ) {
        match in_flight {
            InFlight::Write(write) => self.on_written(now, &write, outcome, out),
            InFlight::Sync => self.on_synced(now, outcome, out),
            InFlight::CutBack => self.on_cut_back(now, outcome, out),
            InFlight::Begin(manifest) => self.on_begun(now, manifest, outcome, out),
            InFlight::PutBase(rewrite, manifest) => self.on_base_put(rewrite, manifest, outcome, out),
            InFlight::PutManifest(manifest) => {
                if outcome.is_ok() {
                    self.manifest = manifest;
                }
            }
        }
    }

    fn choose(&mut self, now: Instant) -> Option<(InFlight, Operation)> {
        if let Some(open) = self.open.as_ref().filter(|open| open.torn) {
            let operation = (InFlight::CutBack, Operation::CutBack(open.written.bytes));
            return (now >= self.mend_at).then_some(operation);
        }
        if self.error.is_some() && now < self.retry_at {
            return None;
        }
        // These operations are rare. A steady stream of writes must not starve them.
        if let Some(put) = self.put_base().or_else(|| self.put_manifest()) {
            return Some(put);
        }
        // Once the next increment may exist, this one must end where the next begins, and must be synced.
        if let Some(open) = self.open.as_ref().filter(|_| self.beginning.is_none()) {
            let until = self.bound();
            // One sync covers everything written while the previous one ran.
            let write = open.next_write(&self.log, until, self.settings.stamps);
            let is_end = write.is_none() && self.next.is_some();
            if !open.is_synced() && (is_end || self.is_sync_due(now)) {
                return Some((InFlight::Sync, Operation::Sync));
            }
            if let Some(write) = write {
                let operation = write.operation();
                return Some((InFlight::Write(write), operation));
            }
        }
        self.begin()
    }

    /// Log offset up to which the current increment is written, as far as is known.
    fn bound(&self) -> ReplOffset {
        self.next.map_or(self.log.end.offset, |next| next.at.offset.min(self.log.end.offset))
    }

    fn is_sync_due(&self, now: Instant) -> bool {
        match self.settings.policy {
            _ if self.asked.is_some() => true,
            Policy::Always => true,
            Policy::EverySecond => now.since(self.last_sync) >= SYNC_PERIOD && !self.is_disk_spared(),
            Policy::Never => false,
        }
    }

    fn is_disk_spared(&self) -> bool {
        self.settings.spares_disk && self.base.is_some() && self.asked.is_none()
    }

    /// Creates the next increment. The current one is complete and synced at this point.
    fn begin(&mut self) -> Option<(InFlight, Operation)> {
        if self.beginning.is_none() {
            let cut = self.next.take()?;
            self.reserve(cut);
        }
        let file = self.beginning.as_ref()?.file.clone();
        let mut manifest = self.manifest.clone();
        manifest.append_increment(file.clone());
        // Before there is a base, the manifest must keep naming the older data.
        let text = (self.standing == Standing::Whole).then(|| manifest.text());
        let operation = Operation::BeginIncrement { name: file.name, manifest: text };
        Some((InFlight::Begin(manifest), operation))
    }

    fn reserve(&mut self, cut: Cut) {
        let file = self.manifest.reserve_increment(&self.settings.name);
        let stamp = self.settings.stamps.then_some(self.log.wall.secs());
        let increment = Increment::begun(cut.at, cut.db, stamp);
        self.beginning = Some(Beginning { cut, file, increment, is_lost: false });
    }

    fn put_base(&mut self) -> Option<(InFlight, Operation)> {
        let Base { rewrite, increment: Some(first), ready: Some(rdb) } = self.base.clone()? else {
            return None;
        };
        let base = self.manifest.reserve_base(&self.settings.name, rdb);
        let mut manifest = self.manifest.clone();
        manifest.replace_base(base.clone(), &first);
        let operation = Operation::PutBase { rewrite, name: base.name, manifest: manifest.text() };
        Some((InFlight::PutBase(rewrite, manifest), operation))
    }

    fn put_manifest(&mut self) -> Option<(InFlight, Operation)> {
        // Otherwise the manifest has increments that must not be named before their base is installed.
        if self.standing != Standing::Whole || !std::mem::take(&mut self.forgets_history) {
            return None;
        }
        let mut manifest = self.manifest.clone();
        manifest.history.clear();
        let text = manifest.text();
        Some((InFlight::PutManifest(manifest), Operation::PutManifest(text)))
    }

    fn on_written(
        &mut self,
        now: Instant,
        write: &Write,
        outcome: Result<(), String>,
        out: &mut Vec<Effect>,
    ) {
        // The log was lost meanwhile, and the write went to a file that no longer counts.
        let Some(open) = &mut self.open else { return };
        match outcome {
            Ok(()) => {
                open.note_written(write);
                self.note_success(out);
            }
            Err(error) => {
                open.torn = true;
                self.note_failure(now, error, out);
            }
        }
    }

    fn on_synced(&mut self, now: Instant, outcome: Result<(), String>, out: &mut Vec<Effect>) {
        self.last_sync = now;
        let Some(open) = &mut self.open else { return };
        let waits = self.log.end.offset > open.written.mark.at;
        let is_delay =
            self.settings.policy == Policy::EverySecond && waits && now.since(self.sync_begun) > DELAYED;
        self.delays += u64::from(is_delay);
        match outcome {
            Ok(()) => {
                open.synced = open.written;
                self.note_success(out);
            }
            Err(error) => {
                open.forget_unsynced();
                self.note_failure(now, error, out);
            }
        }
    }

    fn on_cut_back(&mut self, now: Instant, outcome: Result<(), String>, out: &mut Vec<Effect>) {
        match (outcome, &mut self.open) {
            (Ok(()), Some(open)) => open.torn = false,
            (Ok(()), None) => {}
            (Err(error), _) => {
                self.mend_at = now + RETRY;
                self.note_failure(now, error, out);
            }
        }
    }

    fn on_begun(
        &mut self,
        now: Instant,
        manifest: Manifest,
        outcome: Result<(), String>,
        out: &mut Vec<Effect>,
    ) {
        match outcome {
            Err(error) => {
                // Retried, unless the log was lost. Its file name is then never used.
                self.beginning.take_if(|beginning| beginning.is_lost);
                self.note_failure(now, error, out);
            }
            Ok(()) => {
                self.manifest = manifest;
                self.note_success(out);
                let begun = self.beginning.take().filter(|beginning| !beginning.is_lost);
                let Some(Beginning { cut, file, increment, .. }) = begun else { return };
                self.open = Some(increment);
                if let Some(base) = self.base.as_mut().filter(|base| base.rewrite == cut.rewrite) {
                    base.increment = Some(file.name);
                }
            }
        }
    }

    fn on_base_put(
        &mut self,
        rewrite: RewriteId,
        manifest: Manifest,
        outcome: Result<(), String>,
        out: &mut Vec<Effect>,
    ) {
        let base = self.base.take_if(|base| base.rewrite == rewrite);
        if outcome.is_ok() {
            self.manifest = manifest;
        }
        let outcome = match (outcome, base) {
            (Err(error), _) => Err(NotTaken::Io(error)),
            (Ok(()), None) => Err(NotTaken::Lost),
            (Ok(()), Some(_)) => {
                self.standing = Standing::Whole;
                Ok(self.manifest.history.iter().map(|file| file.name.clone()).collect())
            }
        };
        out.push(Effect::Rewritten { rewrite, outcome });
    }

    /// Ends the current files. A new base is needed for what follows.
    fn lose(&mut self, lost: Lost, out: &mut Vec<Effect>) {
        self.open = None;
        self.next = None;
        match (&mut self.beginning, &self.in_flight) {
            (Some(beginning), Some(InFlight::Begin(_))) => beginning.is_lost = true,
            (beginning, _) => *beginning = None,
        }
        self.standing = match (lost, self.standing) {
            (Lost::LetGo, Standing::Whole | Standing::Behind) => Standing::Behind,
            (Lost::LetGo, Standing::Fresh) => Standing::Fresh,
            (Lost::Replaced, _) => {
                self.synced = None;
                Standing::Fresh
            }
        };
        let is_being_put = matches!(self.in_flight, Some(InFlight::PutBase(..)));
        if let Some(base) = self.base.take().filter(|base| base.ready.is_some() && !is_being_put) {
            out.push(Effect::Rewritten { rewrite: base.rewrite, outcome: Err(NotTaken::Lost) });
        }
        out.push(Effect::BaseNeeded);
    }

    /// Announces the offset up to which replies to writes may be sent.
    fn publish(&mut self, out: &mut Vec<Effect>) {
        let open = self.open.as_ref().map(|open| (open.written.mark.at, open.synced.mark.at));
        let commit = match (self.standing, open) {
            (Standing::Whole, Some((written, synced))) => {
                self.synced = Some(synced);
                if self.settings.policy == Policy::Always { synced } else { written }
            }
            (Standing::Fresh, Some((written, _))) => written,
            // Replies do not wait for a file that does not exist.
            (Standing::Fresh, None) => self.log.end.offset,
            (Standing::Behind, _) | (Standing::Whole, None) => return,
        };
        if self.committed.replace(commit) != Some(commit) {
            out.push(Effect::Publish(commit));
        }
    }

    /// Decides whether replies to writes must wait: always under `always`, and while the disk cannot keep up.
    fn decide_replies(&mut self, out: &mut Vec<Effect>) {
        let behind = self.written().map_or(0, |written| self.log.end.offset.0.saturating_sub(written.0));
        let most = if self.holding { MOST_BEHIND / 4 } else { MOST_BEHIND };
        let holds = match self.standing {
            Standing::Whole => self.settings.policy == Policy::Always || behind > most,
            Standing::Behind => true,
            Standing::Fresh => behind > most,
        };
        if holds != self.holding {
            self.holding = holds;
            out.push(Effect::Hold(holds));
        }
    }

    fn note_success(&mut self, out: &mut Vec<Effect>) {
        if self.error.take().is_some() {
            out.push(Effect::Failing(None));
        }
    }

    fn note_failure(&mut self, now: Instant, error: String, out: &mut Vec<Effect>) {
        self.retry_at = now + RETRY;
        self.failures += 1;
        if self.error.as_ref() != Some(&error) {
            out.push(Effect::Failing(Some(error.clone())));
            self.error = Some(error);
        }
    }
}
