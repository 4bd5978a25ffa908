//! Decides who may change the data and the log: local clients, the stream of one master, or nobody.
//!
//! A role change must neither lose acknowledged writes nor mix two histories. Promotion, demotion, pause and shutdown
//! all follow the same four steps:
//!
//! 1. *Publish* the new authority where every write checks it while holding the locks of its slots. No write that the
//!    new authority forbids can start after that.
//! 2. *Drain*: lock each slot once. Every write that started earlier has then finished and is in the log.
//! 3. *Record* the end of the log, which is now final: the PSYNC position of a new replica, the offset that replicas
//!    must reach, or the bound of the snapshot.
//! 4. *Continue* as a replica, as a master, or exit.
//!
//! | | [`demote`] | [`promote`] | pause | shutdown |
//! | --- | --- | --- | --- | --- |
//! | publish | `Demoting` | `Master`, once no batch of the stream is being applied | the node's gate | the node's gate |
//! | drain | the slots | the stream's lock | the slots | the slots |
//! | record | [`admit_stream`] | the new replication id | the end of the log | the snapshot, then [`seal`] |
//!
//! Each stream has a [`StreamEpoch`], which is checked under the stream's lock before each batch is applied. Data that
//! arrives from an older stream is dropped and not logged.
//!
//! [`demote`]: WriteAuthority::demote
//! [`promote`]: WriteAuthority::promote
//! [`admit_stream`]: WriteAuthority::admit_stream
//! [`seal`]: WriteAuthority::seal

/// The number of a master's stream. Newer streams have higher numbers, and only the newest stream is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StreamEpoch(u64);

/// Who may write to the data of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Clients' writes are executed, logged and acknowledged.
    Master,
    /// The node is a master that is being demoted: new writes are refused, running writes are still logged.
    Demoting,
    /// The master's stream is applied and logged byte for byte. Local clients may write to a writable replica, but
    /// their writes are not logged and do not advance the offset.
    Replica,
}

/// The current write authority of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteAuthority {
    mode: WriteMode,
    stream_epoch: StreamEpoch,
    is_sealed: bool,
}

impl Default for WriteAuthority {
    /// A new node starts as a master.
    fn default() -> Self {
        Self { mode: WriteMode::Master, stream_epoch: StreamEpoch::default(), is_sealed: false }
    }
}

impl WriteAuthority {
    /// Returns who may write to the data of this node.
    #[must_use]
    pub fn mode(&self) -> WriteMode {
        self.mode
    }

    /// Returns whether a client's write may start. The caller must hold the locks of the written slots when it reads
    /// this mode or a published copy of it; otherwise a demotion could miss the write.
    #[must_use]
    pub fn accepts_writes(&self) -> bool {
        self.mode == WriteMode::Master && !self.is_sealed
    }

    /// Returns whether effects of local commands are logged.
    #[must_use]
    pub fn logs_local_effects(&self) -> bool {
        self.mode != WriteMode::Replica && !self.is_sealed
    }

    /// Returns whether data of this stream may be applied and logged.
    #[must_use]
    pub fn accepts_stream(&self, stream: StreamEpoch) -> bool {
        self.mode == WriteMode::Replica && stream == self.stream_epoch && !self.is_sealed
    }

    /// Returns whether this is the newest stream, even if it is not applied yet because earlier writes are still
    /// running.
    #[must_use]
    pub fn is_current_stream(&self, stream: StreamEpoch) -> bool {
        self.mode != WriteMode::Master && stream == self.stream_epoch
    }

    /// Starts to follow a master, or a different master than before. Invalidates older streams and returns the epoch of
    /// the new stream.
    pub fn demote(&mut self) -> StreamEpoch {
        self.stream_epoch.0 += 1;
        if self.mode == WriteMode::Master {
            self.mode = WriteMode::Demoting;
        }
        self.stream_epoch
    }

    /// Allows `stream` to be applied. Must be called once every write that started before [`WriteAuthority::demote`]
    /// has finished, because the end of the log is final from then on. Returns false if a newer stream has replaced
    /// `stream`.
    pub fn admit_stream(&mut self, stream_epoch: StreamEpoch) -> bool {
        let current = self.is_current_stream(stream_epoch);
        if current {
            self.mode = WriteMode::Replica;
        }
        current
    }

    /// Makes this node a master and invalidates every stream. Must not be called while a batch of a stream is being
    /// applied. Returns false if the node already was a master.
    pub fn promote(&mut self) -> bool {
        if self.mode == WriteMode::Master {
            return false;
        }
        self.stream_epoch.0 += 1;
        self.mode = WriteMode::Master;
        true
    }

    /// Refuses all changes, because the last snapshot before the exit has been taken and later writes would be lost.
    pub fn seal(&mut self) {
        self.is_sealed = true;
    }

    /// Accepts changes again, because the shutdown was cancelled or the snapshot could not be saved.
    pub fn unseal(&mut self) {
        self.is_sealed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demoted_master_logs_running_writes_and_applies_the_stream_only_after_draining() {
        let mut node = WriteAuthority::default();
        assert!(node.accepts_writes() && node.logs_local_effects());
        let stream = node.demote();
        assert!(!node.accepts_writes(), "new writes are refused");
        assert!(node.logs_local_effects(), "running writes are logged");
        assert!(!node.accepts_stream(stream), "the position is not final yet");
        assert!(node.admit_stream(stream));
        assert!(!node.logs_local_effects(), "writes of local clients are not replicated");
        assert!(node.accepts_stream(stream));
    }

    #[test]
    fn data_of_an_older_stream_is_not_applied() {
        let mut node = WriteAuthority::default();
        let first = node.demote();
        assert!(node.admit_stream(first));
        let second = node.demote();
        assert!(!node.accepts_stream(first), "the node follows another master");
        assert!(node.accepts_stream(second), "a replica has no writes to drain");
        assert!(node.promote());
        assert!(!node.accepts_stream(second) && !node.is_current_stream(second));
        assert!(node.accepts_writes());
        assert!(!node.promote());
    }

    #[test]
    fn demotion_is_not_completed_after_a_promotion() {
        let mut node = WriteAuthority::default();
        let stream = node.demote();
        assert!(node.promote());
        assert!(!node.admit_stream(stream), "it is a master again");
        assert_eq!(node.mode(), WriteMode::Master);
        let (old, new) = (node.demote(), node.demote());
        assert!(!node.admit_stream(old));
        assert!(node.admit_stream(new));
    }

    #[test]
    fn sealed_authority_refuses_all_changes() {
        let mut node = WriteAuthority::default();
        node.seal();
        assert!(!node.accepts_writes() && !node.logs_local_effects());
        node.unseal();
        assert!(node.accepts_writes());
        let stream = node.demote();
        assert!(node.admit_stream(stream));
        node.seal();
        assert!(!node.accepts_stream(stream));
    }
}
