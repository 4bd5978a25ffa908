//! Effects: what commands changed, encoded for the log and the replicas.

use std::ops::Range;
use std::sync::Arc;

use resp::Args;
use scripting::ReplicationTargets;
use slot_routing::ReplOffset;

/// The log to which effects are appended, provided by the server process.
pub trait EffectLog: Send + Sync + std::fmt::Debug {
    /// Returns whether the log has readers; otherwise nothing is encoded.
    fn has_readers(&self) -> bool;

    /// Appends encoded commands of database `db`; returns the end offset. Called with the affected slots locked, so the
    /// log order matches the execution order within each slot.
    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset;

    /// Appends effects like [`EffectLog::append`]. In the append-only file, other commands replace some ranges of
    /// `commands`.
    fn append_with_aof_versions(&self, db: u16, commands: &[u8], versions: &[AofEffects]) -> ReplOffset {
        let _ = versions;
        self.append(db, commands)
    }

    /// Returns the memory in bytes that the log retains beyond the backlog for lagging replicas or the AOF.
    fn retained_bytes(&self) -> usize {
        0
    }

    /// Updates the number of unsent bytes that CLIENT LIST shows for each replica.
    fn update_unsent_output(&self) {}

    /// Returns the number of replicas that receive the log.
    fn replica_count(&self) -> usize {
        0
    }
}

/// A log without readers, for tests and for sentinels.
#[derive(Debug)]
pub struct NoLog;

impl EffectLog for NoLog {
    fn has_readers(&self) -> bool {
        false
    }

    fn append(&self, _db: u16, _commands: &[u8]) -> ReplOffset {
        ReplOffset(0)
    }
}

/// Effects that the append-only file records in a different version than the replication stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AofEffects {
    /// The range of the appended commands that is omitted from the file; never empty.
    pub range: Range<usize>,
    /// The commands that the file gets instead of the range; may be empty.
    pub commands: Arc<[u8]>,
}

/// Maximum capacity in bytes that an empty effect buffer retains.
const MAX_RETAINED_WIRE_BYTES: usize = 1 << 20;

/// A PING for the replicas when a group has no other effect for them. It gives the group's commands in the append-only
/// file an offset, for which replies can wait.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The effects of one group that share the same targets, in the order of execution.
#[derive(Debug)]
struct TargetedEffects {
    targets: ReplicationTargets,
    /// Offset in [`Effects::wire`] at which the effects begin.
    start: usize,
    effect_count: usize,
    /// Whether there are effects other than SELECT.
    has_commands: bool,
}

/// Effects that are not appended to the log yet: those of completed commands, followed by those of the running command.
/// The changed slots stay locked until their effects are appended.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The encoded commands, one after another.
    wire: Vec<u8>,
    /// Length in bytes of the part of `wire` that belongs to completed commands.
    completed_len: usize,
    /// Length in bytes of the effects of the last completed command, including those that were logged together with it.
    last_len: usize,
    /// Number of effects of the running command.
    effect_count: usize,
    pub(crate) has_readers: bool,
    /// Number of changes of the running command. If it is above zero, the command is logged as sent unless the handler
    /// replaced it.
    pub(crate) change_count: u64,
    /// Number of changes of all commands since [`Effects::begin`].
    total_change_count: u64,
    /// Whether any queued effect changes data.
    changes_data: bool,
    /// Whether there are effects other than SELECT.
    pub(crate) has_commands: bool,
    /// Whether the handler replaced the command to be logged.
    pub(crate) is_rewritten: bool,
    /// The targets of a script's next effects (`redis.set_repl`).
    targets: ReplicationTargets,
    /// The effects of the running group by target, once there are different targets; otherwise empty.
    effects_by_target: Vec<TargetedEffects>,
    /// The completed effects that the append-only file records in a different version.
    aof_effects: Vec<AofEffects>,
}

impl Effects {
    /// Starts a command, or a group that is logged as one; `has_readers` says whether the log has readers.
    pub(crate) fn begin(&mut self, has_readers: bool) {
        debug_assert!(!self.has_begun(), "what a command did is sealed when it ends");
        self.has_readers = has_readers;
        self.targets = ReplicationTargets::All;
    }

    /// Sets which readers get the following effects.
    pub(crate) fn set_targets(&mut self, targets: ReplicationTargets) {
        self.targets = targets;
        let is_split = matches!(targets, ReplicationTargets::AppendOnlyFile | ReplicationTargets::Replicas);
        if self.effects_by_target.is_empty() && is_split {
            let (begin, count, any) = (self.completed_len, self.effect_count, self.has_commands);
            self.effects_by_target.push(TargetedEffects {
                targets: ReplicationTargets::All,
                start: begin,
                effect_count: count,
                has_commands: any,
            });
        }
    }

    /// Records an effect that was just encoded, starting at offset `start`.
    fn record_effect(&mut self, targets: ReplicationTargets, start: usize, is_select: bool) {
        self.effect_count += 1;
        self.has_commands |= !is_select;
        if self.effects_by_target.is_empty() {
            return;
        }
        match self.effects_by_target.last_mut() {
            Some(last) if last.targets == targets => {
                last.effect_count += 1;
                last.has_commands |= !is_select;
            }
            _ => self.effects_by_target.push(TargetedEffects {
                targets,
                start,
                effect_count: 1,
                has_commands: !is_select,
            }),
        }
    }

    fn is_recorded(&self) -> bool {
        self.has_readers && self.targets != ReplicationTargets::Nowhere
    }

    /// Returns whether anything was changed or queued since [`Effects::begin`].
    pub(crate) fn has_begun(&self) -> bool {
        self.total_change_count != 0 || self.effect_count != 0
    }

    /// Returns the size in bytes of the effects of completed commands that are not appended yet.
    pub(crate) fn completed_len(&self) -> usize {
        self.completed_len
    }

    /// Returns the bytes logged by commands completed since the last call.
    pub(crate) fn take_last_effects_len(&mut self) -> usize {
        std::mem::take(&mut self.last_len)
    }

    pub(crate) fn push<'a, I>(&mut self, args: I)
    where
        I: IntoIterator<Item = &'a [u8]>,
        I::IntoIter: ExactSizeIterator,
    {
        if self.is_recorded() {
            let begin = self.wire.len();
            resp::encode_request(&mut self.wire, args);
            self.record_effect(self.targets, begin, false);
        }
    }

    /// Adds the request itself. If its original bytes are in canonical form, they are copied.
    pub(crate) fn push_request(&mut self, args: Args<'_>) {
        if !self.is_recorded() {
            return;
        }
        match args.wire_bytes() {
            Some(wire) => {
                let begin = self.wire.len();
                self.wire.extend_from_slice(wire);
                self.record_effect(self.targets, begin, false);
            }
            None => self.push(args.iter()),
        }
    }

    /// Completes a command: if it changed something and the handler logged nothing else, logs the request as sent.
    #[inline]
    pub(crate) fn end_command(&mut self, args: Args<'_>) {
        if self.change_count > 0 && !self.is_rewritten {
            self.push_request(args);
        }
        self.total_change_count += self.change_count;
        self.change_count = 0;
        self.is_rewritten = false;
    }

    /// Adds a SELECT before effects in another database, for all targets.
    pub(crate) fn add_select(&mut self, db: u16) {
        if self.has_readers {
            let begin = self.wire.len();
            resp::encode_request(&mut self.wire, [&b"SELECT"[..], itoa::Buffer::new().format(db).as_bytes()]);
            self.record_effect(ReplicationTargets::All, begin, true);
        }
    }

    /// Completes a group of effects. Several effects are wrapped in MULTI and EXEC, so that readers of the log apply
    /// all or none. Returns the number of changes.
    #[inline]
    pub(crate) fn finish_group(&mut self) -> u64 {
        if self.effect_count > 0 {
            self.wrap_in_multi();
        }
        self.finish_without_multi()
    }

    fn wrap_in_multi(&mut self) {
        if !self.effects_by_target.is_empty() {
            self.split_by_target();
        } else if !self.has_commands {
            self.wire.truncate(self.completed_len);
        } else if self.effect_count > 1 {
            let effects = self.wire.split_off(self.completed_len);
            wrap_transaction(&mut self.wire, &effects);
        }
    }

    /// Replaces a group with different targets by the effects for replicas, and stores those for the append-only file.
    #[cold]
    fn split_by_target(&mut self) {
        let (parts, begin) = (std::mem::take(&mut self.effects_by_target), self.completed_len);
        let effects = self.wire.split_off(begin);
        let version = |target: ReplicationTargets| {
            let (mut out, mut count, mut any) = (Vec::new(), 0, false);
            for (number, part) in parts.iter().enumerate() {
                if part.targets == ReplicationTargets::All || part.targets == target {
                    let end = parts.get(number + 1).map_or(effects.len(), |next| next.start - begin);
                    out.extend_from_slice(&effects[part.start - begin..end]);
                    (count, any) = (count + part.effect_count, any | part.has_commands);
                }
            }
            let mut wrapped = Vec::new();
            match (any, count) {
                (false, _) => {}
                (true, 1) => wrapped = out,
                (true, _) => wrap_transaction(&mut wrapped, &out),
            }
            wrapped
        };
        let stream = version(ReplicationTargets::Replicas);
        let commands = version(ReplicationTargets::AppendOnlyFile);
        match (stream.is_empty(), commands.is_empty()) {
            (true, true) => return,
            (true, false) => self.wire.extend_from_slice(PING),
            (false, _) => self.wire.extend_from_slice(&stream),
        }
        if stream != commands {
            self.aof_effects.push(AofEffects { range: begin..self.wire.len(), commands: commands.into() });
        }
    }

    /// Completes a group of effects that need not be atomic.
    #[inline]
    pub(crate) fn finish_without_multi(&mut self) -> u64 {
        self.last_len = self.wire.len() - self.completed_len;
        self.completed_len = self.wire.len();
        self.effect_count = 0;
        self.has_commands = false;
        self.effects_by_target.clear();
        self.changes_data |= self.total_change_count > 0;
        std::mem::take(&mut self.total_change_count)
    }

    /// Returns whether the queued effects change data, rather than only notify replicas (PUBLISH). Called before they
    /// are appended.
    pub(crate) fn changes_data(&self) -> bool {
        self.changes_data
    }

    /// Appends the queued effects, all of database `db`; returns the end offset if there were any.
    pub(crate) fn append(&mut self, log: &dyn EffectLog, db: u16) -> Option<ReplOffset> {
        if self.completed_len == 0 {
            return None;
        }
        let commands = &self.wire[..self.completed_len];
        let end = if self.aof_effects.is_empty() {
            log.append(db, commands)
        } else {
            let versions = std::mem::take(&mut self.aof_effects);
            log.append_with_aof_versions(db, commands, &versions)
        };
        self.wire.drain(..self.completed_len);
        if self.wire.is_empty() && self.wire.capacity() > MAX_RETAINED_WIRE_BYTES {
            self.wire = Vec::new();
        }
        self.completed_len = 0;
        self.changes_data = false;
        Some(end)
    }
}

fn wrap_transaction(out: &mut Vec<u8>, effects: &[u8]) {
    resp::encode_request(out, [&b"MULTI"[..]]);
    out.extend_from_slice(effects);
    resp::encode_request(out, [&b"EXEC"[..]]);
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Collects the replication stream and the append-only file, as a log that supports different versions of effects.
    #[derive(Debug, Default)]
    struct StreamAndAofLog(Mutex<(Vec<u8>, Vec<u8>)>);

    impl EffectLog for StreamAndAofLog {
        fn has_readers(&self) -> bool {
            true
        }

        fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
            self.append_with_aof_versions(db, commands, &[])
        }

        fn append_with_aof_versions(&self, _: u16, commands: &[u8], versions: &[AofEffects]) -> ReplOffset {
            let (stream, file) = &mut *self.0.lock();
            stream.extend_from_slice(commands);
            let mut from = 0;
            for AofEffects { range, commands: own } in versions {
                file.extend_from_slice(&commands[from..range.start]);
                file.extend_from_slice(own);
                from = range.end;
            }
            file.extend_from_slice(&commands[from..]);
            ReplOffset(stream.len() as u64)
        }
    }

    /// Runs groups of words, one group per text. `+aof`, `+replicas`, `+all` and `+none` set the targets, a number
    /// selects a database, and other words are effects. Returns the stream and the file as words.
    fn log_groups(groups: &[&str]) -> [String; 2] {
        let (mut effects, log) = (Effects::default(), StreamAndAofLog::default());
        for group in groups {
            effects.begin(true);
            for word in group.split(' ') {
                match word {
                    "+aof" => effects.set_targets(ReplicationTargets::AppendOnlyFile),
                    "+replicas" => effects.set_targets(ReplicationTargets::Replicas),
                    "+all" => effects.set_targets(ReplicationTargets::All),
                    "+none" => effects.set_targets(ReplicationTargets::Nowhere),
                    _ => match word.parse() {
                        Ok(db) => effects.add_select(db),
                        Err(_) => effects.push([word.as_bytes()]),
                    },
                }
            }
            effects.finish_group();
        }
        effects.append(&log, 0);
        let (stream, file) = log.0.into_inner();
        [stream, file].map(|bytes| {
            let text = String::from_utf8(bytes).expect("plain words");
            let is_word = |line: &&str| !line.starts_with(['*', '$']);
            text.split("\r\n").filter(is_word).collect::<Vec<_>>().join(" ").trim().to_owned()
        })
    }

    #[test]
    fn each_target_gets_its_own_effects_in_order() {
        for (groups, stream, file) in [
            (&["a b", "c"][..], "MULTI a b EXEC c", "MULTI a b EXEC c"),
            (&["a", "+aof b", "c"], "a PING c", "a b c"),
            (&["a", "+replicas b", "c"], "a b c", "a c"),
            (&["+aof b +replicas c", "d"], "c d", "b d"),
            (&["a +aof b +replicas c +all d"], "MULTI a c d EXEC", "MULTI a b d EXEC"),
            (&["+none a +aof b +none c", "d"], "PING d", "b d"),
            (&["+none a", "b"], "b", "b"),
            (&["+none a +all b +aof +none c"], "b", "b"),
            // A SELECT reaches every target that receives effects after it.
            (&["+none 2 a +all b 0"], "MULTI SELECT 2 b SELECT 0 EXEC", "MULTI SELECT 2 b SELECT 0 EXEC"),
            (
                &["+aof 2 a +replicas b +none 0"],
                "MULTI SELECT 2 b SELECT 0 EXEC",
                "MULTI SELECT 2 a SELECT 0 EXEC",
            ),
            (&["+aof 2 a 0"], "PING", "MULTI SELECT 2 a SELECT 0 EXEC"),
            (&["+aof 2 +none a 0", "b"], "b", "b"),
        ] {
            assert_eq!(log_groups(groups), [stream, file], "{groups:?}");
        }
    }
}
