//! The words of a master's machine (`gossip`) to those of its replicas that go with the data.
//!
//! Slots on the move: by SETSLOT in the stream, and in each snapshot for replicas, as Valkey has both since version 8;
//! and to a replica of ours that goes on after it was away, as this node may have forgotten a change that the replica
//! has: by a power failure. And by FAILOVER with a REPLICAID, as in Valkey 9, which replica is to take the place of a
//! master that stops.
//!
//! Invariant: a change that the stream tells reaches the replica's machine before the machine hears that the stream is
//! processed so far. So it is put down here before the stream's bytes are logged, and the driver of the machine looks
//! here after it has read how far that is. And a snapshot has every change that the stream told before its cut, also
//! those that the telling machine has not carried out yet.

use engine::Engine;
use gossip::{ClusterInput, SlotChange};
use parking_lot::Mutex;
use resp::Args;
use slot_routing::{NodeId, ReplOffset, Slot};
use tokio::sync::Notify;

use super::Replication;

/// The words that are on their way.
#[derive(Debug, Default)]
pub(crate) struct ClusterStream {
    /// Inputs for this node's machine that a master told.
    heard: Mutex<Vec<ClusterInput>>,
    /// One has come from the master.
    pub(crate) arrived: Notify,
    /// Changes that this node's machine has told, and carries out once the replicas have them.
    said: Mutex<Vec<(u64, Slot, SlotChange)>>,
}

impl ClusterStream {
    /// Takes those that have come since the last call.
    pub(crate) fn take(&self) -> Vec<ClusterInput> {
        std::mem::take(&mut *self.heard.lock())
    }

    fn put_down(&self, input: ClusterInput) {
        self.heard.lock().push(input);
        self.arrived.notify_one();
    }

    /// A master's stream brought CLUSTER FAILOVER: the named replica takes its place.
    pub(super) fn on_failover(&self, engine: &Engine, args: Args<'_>) {
        let Some(topology) = &engine.topology else { return };
        let words: Vec<&[u8]> = args.iter().skip(2).collect();
        let named = words.windows(2).find(|pair| pair[0].eq_ignore_ascii_case(b"replicaid"));
        let named = named.and_then(|pair| NodeId::from_bytes(pair[1]).ok());
        if named == Some(topology.load().myself) {
            self.put_down(ClusterInput::MasterShutdown);
        }
    }

    /// A master's stream brought CLUSTER SETSLOT.
    pub(super) fn on_set_slot(&self, args: Args<'_>) {
        let words: Vec<String> =
            args.iter().skip(2).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let slot = words.first().and_then(|word| word.parse().ok()).and_then(Slot::new);
        match slot.zip(SlotChange::parse(words.get(1..).unwrap_or_default())) {
            Some((slot, change)) => self.put_down(ClusterInput::SlotChanged { slot, change }),
            None => tracing::warn!("The master says of a slot what makes no sense: {words:?}"),
        }
    }

    /// These slots, and no others, are on the move at the master: in the snapshot that is the data from now on, or where
    /// its stream goes on.
    pub(super) fn on_states(&self, states: &[u8]) {
        self.put_down(ClusterInput::MovesLoaded(gossip::parse_slot_states(states)));
    }

    /// The machine has carried out what it said, or will not.
    pub(crate) fn on_carried_out(&self, token: u64) {
        self.said.lock().retain(|(other, ..)| *other != token);
    }

    /// The slots that are on the move, as replicas are told beside the data.
    pub(crate) fn states(&self, engine: &Engine) -> String {
        let Some(topology) = &engine.topology else { return String::new() };
        // In this order: what is no longer said is published.
        let said = self.said.lock().clone();
        gossip::slot_states(&topology.load(), said.iter().map(|(_, slot, change)| (*slot, change)))
    }
}

impl Replication {
    /// Says to the replicas which of them is to take this master's place.
    pub(crate) fn say_failover(&self, to: NodeId) {
        let to = to.to_string();
        let mut command = Vec::new();
        resp::encode_request(
            &mut command,
            ["CLUSTER", "FAILOVER", "FORCE", "REPLICAID", &to].map(str::as_bytes),
        );
        self.log.append_control(&command);
    }

    /// The replicas of which it may be said: those that have everything before `offset`. None if a replica may not know
    /// what it means.
    pub(crate) fn successors(&self, offset: ReplOffset) -> Option<Vec<NodeId>> {
        self.serving.lock().master().successors(offset)
    }

    /// Says to the replicas what becomes of a slot. `None` if they are not told: there are none, or there is one of a
    /// kind that takes no SETSLOT from its master. Otherwise what they are to acknowledge, and how many are to.
    pub(crate) fn say_slot_change(
        &self,
        slot: Slot,
        change: &SlotChange,
        token: Option<u64>,
    ) -> Option<(ReplOffset, usize)> {
        let readers = self.serving.lock().master().readers_of_slot_moves()?;
        let number = slot.number().to_string();
        let words = [&["CLUSTER", "SETSLOT", &number], change.words().as_slice()].concat();
        let mut command = Vec::new();
        resp::encode_request(&mut command, words.iter().map(|word| word.as_bytes()));
        // Before the log has it: a cut behind that finds it here.
        self.cluster_stream.said.lock().extend(token.map(|token| (token, slot, change.clone())));
        Some((self.log.append_control(&command), readers))
    }
}
