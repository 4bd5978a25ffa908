//! The source whose changes the data and the log take: clients, the stream of one master, or none.
//!
//! A node that is promoted, demoted or stopped must not lose what it has acknowledged and must not mix two
//! histories. Four steps make each of these one mechanism:
//!
//! 1. *Publish.* The new answer stands where every write asks for it, under the locks of its slots. From here
//!    on no write begins that the answer forbids.
//! 2. *Drain.* Each slot is seen free once. What had begun before has ended then, and is in the log.
//! 3. *Note.* The log's end is final now: the position from which this node asks to go on as a replica, the
//!    offset that replicas must have, the cut that is saved.
//! 4. *Go on* as a replica, as a master, or not at all.
//!
//! | | [`demote`] | [`promote`] | a pause | a shutdown |
//! | --- | --- | --- | --- | --- |
//! | publish | `Yielding` | `Master`, once no piece of the stream is applied | the shell's gate | the shell's gate |
//! | drain | the slots | the stream's turn | the slots | the slots |
//! | note | [`drained`] | the log's new name | the log's end | the cut, then [`seal`] |
//!
//! A stream that is applied has a [`Generation`]. It is asked for with each piece, in the turn in which that piece
//! is applied: what an older stream still brings is dropped, its effects and its bytes.
//!
//! [`demote`]: Authority::demote
//! [`promote`]: Authority::promote
//! [`drained`]: Authority::drained
//! [`seal`]: Authority::seal

/// Names one stream that this node applies, in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Generation(u64);

/// The role of this node towards its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Clients' writes are executed, logged and acknowledged.
    Master,
    /// A master until now: no write begins; those that have begun are still logged.
    Yielding,
    /// The stream of one master is applied and logged as it came. What clients write here, if they may, is
    /// logged nowhere and moves no offset.
    Replica,
}

/// The decision, and what changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    mode: Mode,
    generation: Generation,
    sealed: bool,
}

impl Default for Authority {
    /// A master that has not been anything else.
    fn default() -> Self {
        Self { mode: Mode::Master, generation: Generation::default(), sealed: false }
    }
}

impl Authority {
    /// Returns the role of this node towards its data.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether a client's write may begin that is to be logged and acknowledged. To be asked under the locks of
    /// its slots, or a copy of the answer that was published before they were locked.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        self.mode == Mode::Master && !self.sealed
    }

    /// Whether the log takes what this node did itself.
    #[must_use]
    pub fn logs_own(&self) -> bool {
        self.mode != Mode::Replica && !self.sealed
    }

    /// Whether a piece of this stream may be applied, and the log takes its bytes.
    #[must_use]
    pub fn applies(&self, stream: Generation) -> bool {
        self.mode == Mode::Replica && stream == self.generation && !self.sealed
    }

    /// Whether this stream is the one that is, or is to be, applied.
    #[must_use]
    pub fn is_current(&self, stream: Generation) -> bool {
        self.mode != Mode::Master && stream == self.generation
    }

    /// This node will follow a master, or another one than before. Returns the new stream's generation; older
    /// streams are over.
    pub fn demote(&mut self) -> Generation {
        self.generation.0 += 1;
        if self.mode == Mode::Master {
            self.mode = Mode::Yielding;
        }
        self.generation
    }

    /// Every write that began before [`Authority::demote`] has ended: the log's end is where this node stands
    /// in the history that it leaves, and `stream` may be applied. Says no if that stream is over already.
    pub fn drained(&mut self, stream: Generation) -> bool {
        let current = self.is_current(stream);
        if current {
            self.mode = Mode::Replica;
        }
        current
    }

    /// This node takes writes from now on, and every stream is over. Must not happen while a piece of a stream
    /// is being applied. Says whether that changes anything.
    pub fn promote(&mut self) -> bool {
        if self.mode == Mode::Master {
            return false;
        }
        self.generation.0 += 1;
        self.mode = Mode::Master;
        true
    }

    /// The last cut has been made: whatever happens now would be lost with this process, so nothing is taken.
    pub fn seal(&mut self) {
        self.sealed = true;
    }

    /// The process lives on: what could not be saved must not be left.
    pub fn unseal(&mut self) {
        self.sealed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_replica_logs_what_had_begun_and_applies_nothing_before_that_has_ended() {
        let mut node = Authority::default();
        assert!(node.takes_writes() && node.logs_own());
        let stream = node.demote();
        assert!(!node.takes_writes(), "no write begins");
        assert!(node.logs_own(), "those that had begun are logged");
        assert!(!node.applies(stream), "the position is not known yet");
        assert!(node.drained(stream));
        assert!(!node.logs_own(), "what clients write here now is nobody else's");
        assert!(node.applies(stream));
    }

    #[test]
    fn what_an_older_stream_still_brings_is_not_applied() {
        let mut node = Authority::default();
        let first = node.demote();
        assert!(node.drained(first));
        let second = node.demote();
        assert!(!node.applies(first), "its master is no longer this node's");
        assert!(node.applies(second), "a replica has nothing to drain");
        assert!(node.promote());
        assert!(!node.applies(second) && !node.is_current(second));
        assert!(node.takes_writes());
        assert!(!node.promote());
    }

    #[test]
    fn a_demotion_that_was_taken_back_is_not_carried_on() {
        let mut node = Authority::default();
        let stream = node.demote();
        assert!(node.promote());
        assert!(!node.drained(stream), "it is a master again");
        assert_eq!(node.mode(), Mode::Master);
        let (old, new) = (node.demote(), node.demote());
        assert!(!node.drained(old));
        assert!(node.drained(new));
    }

    #[test]
    fn after_the_last_cut_nothing_is_taken() {
        let mut node = Authority::default();
        node.seal();
        assert!(!node.takes_writes() && !node.logs_own());
        node.unseal();
        assert!(node.takes_writes());
        let stream = node.demote();
        assert!(node.drained(stream));
        node.seal();
        assert!(!node.applies(stream));
    }
}
