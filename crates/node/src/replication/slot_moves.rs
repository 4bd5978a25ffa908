//! Slots on the move, on their way from the machine of a master (`gossip`) to those of its replicas: by SETSLOT in the
//! stream, and in each snapshot for replicas, as Valkey has both since version 8.
//!
//! Invariant: a change that the stream tells reaches the replica's machine before the machine hears that the stream is
//! processed so far. So it is put down here before the stream's bytes are logged, and the driver of the machine looks
//! here after it has read how far that is. And a snapshot has every change that the stream told before its cut, also
//! those that the telling machine has not carried out yet.

use engine::Engine;
use gossip::{Input, SlotChange};
use parking_lot::Mutex;
use resp::Args;
use slot_routing::{ReplOffset, Slot};
use tokio::sync::Notify;

use super::Replication;

/// The slot changes that are on their way.
#[derive(Debug, Default)]
pub(crate) struct SlotMoves {
    /// Changes that a master told, for this node's machine.
    heard: Mutex<Vec<Input>>,
    /// A change has come from the master.
    pub(crate) arrived: Notify,
    /// Changes that this node's machine has told, and carries out once the replicas have them.
    said: Mutex<Vec<(u64, Slot, SlotChange)>>,
}

impl SlotMoves {
    /// Takes the changes that have come since the last call.
    pub(crate) fn take(&self) -> Vec<Input> {
        std::mem::take(&mut *self.heard.lock())
    }

    fn put_down(&self, input: Input) {
        self.heard.lock().push(input);
        self.arrived.notify_one();
    }

    /// A master's stream brought CLUSTER SETSLOT.
    pub(super) fn on_stream(&self, args: Args<'_>) {
        let words: Vec<String> =
            args.iter().skip(2).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let slot = words.first().and_then(|word| word.parse().ok()).and_then(Slot::new);
        match slot.zip(SlotChange::parse(words.get(1..).unwrap_or_default())) {
            Some((slot, change)) => self.put_down(Input::SlotChanged { slot, change }),
            None => tracing::warn!("The master says of a slot what makes no sense: {words:?}"),
        }
    }

    /// A master's snapshot is the data from now on; these slots, and no others, were on the move in it.
    pub(super) fn on_loaded(&self, states: &[u8]) {
        self.put_down(Input::MovesLoaded(parse(states)));
    }

    /// The machine has carried out what it said, or will not.
    pub(crate) fn on_carried_out(&self, token: u64) {
        self.said.lock().retain(|(other, ..)| *other != token);
    }

    /// The slots that are on the move, as a snapshot says it.
    pub(crate) fn states(&self, engine: &Engine) -> String {
        let Some(topology) = &engine.topology else { return String::new() };
        // In this order: what is no longer said is published.
        let said = self.said.lock().clone();
        let topology = topology.load();
        let (mut to, mut from) = (topology.migrating().clone(), topology.importing().clone());
        for (_, slot, change) in said {
            match change {
                SlotChange::Migrating { to: node } => to.extend(node.parse().ok().map(|node| (slot, node))),
                SlotChange::Importing { from: node } => {
                    from.extend(node.parse().ok().map(|node| (slot, node)));
                }
                SlotChange::Stable | SlotChange::Node(_) => {
                    to.remove(&slot);
                    from.remove(&slot);
                }
            }
        }
        let to = to.iter().map(|(slot, node)| format!("{slot}>{node},"));
        to.chain(from.iter().map(|(slot, node)| format!("{slot}<{node},"))).collect()
    }
}

/// `slot>node,` for each that leaves and `slot<node,` for each that comes. A part that makes no sense is passed over,
/// as all else that a snapshot says beside the data.
fn parse(states: &[u8]) -> Vec<(Slot, SlotChange)> {
    let text = String::from_utf8_lossy(states);
    let one = |word: &str| {
        let at = word.find(['<', '>'])?;
        let (slot, node) = (Slot::new(word[..at].parse().ok()?)?, word[at + 1..].to_owned());
        let change = match word.as_bytes()[at] {
            b'>' => SlotChange::Migrating { to: node },
            _ => SlotChange::Importing { from: node },
        };
        Some((slot, change))
    };
    text.split(',').filter_map(one).collect()
}

impl Replication {
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
        self.slot_moves.said.lock().extend(token.map(|token| (token, slot, change.clone())));
        Some((self.log.append_control(&command), readers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_says_where_slots_go_and_come_from() {
        let (to, from) = ("a".repeat(40), "b".repeat(40));
        let text = format!("100>{to},16383<{from},");
        let slot = |number| Slot::new(number).unwrap();
        let expected = [
            (slot(100), SlotChange::Migrating { to: to.clone() }),
            (slot(16383), SlotChange::Importing { from }),
        ];
        assert_eq!(parse(text.as_bytes()), expected);
        let odd = format!(",x>{to},16384>{to},7={to},\u{e9}>{to},5,\u{ff}<,100>{to}");
        assert_eq!(parse(odd.as_bytes()), expected[..1]);
        assert_eq!(parse(b""), []);
    }
}
