//! Text format for migrating and importing slots, used in snapshots and partial resyncs.

use std::collections::BTreeMap;

use slot_routing::{NodeId, Slot, Topology};

use crate::commands::SlotChange;

/// Formats `slot>node,` for each migrating and `slot<node,` for each importing slot. The states are those of
/// `topology`, updated by the changes in `replicated_changes`, which are already in the replication stream.
pub fn format_slot_states<'a>(
    topology: &Topology,
    replicated_changes: impl IntoIterator<Item = (Slot, &'a SlotChange)>,
) -> String {
    let (mut to, mut from) = (topology.migrating().clone(), topology.importing().clone());
    let put = |marks: &mut BTreeMap<Slot, NodeId>, slot, node: &str| {
        marks.extend(node.parse().ok().map(|node| (slot, node)));
    };
    for (slot, change) in replicated_changes {
        match change {
            SlotChange::Migrating { target: node } => put(&mut to, slot, node),
            SlotChange::Importing { source: node } => put(&mut from, slot, node),
            SlotChange::Stable | SlotChange::AssignTo(_) => {
                to.remove(&slot);
                from.remove(&slot);
            }
        }
    }
    let to = to.iter().map(|(slot, node)| format!("{slot}>{node},"));
    to.chain(from.iter().map(|(slot, node)| format!("{slot}<{node},"))).collect()
}

/// Parses the text that [`format_slot_states`] formats. Malformed entries are skipped.
#[must_use]
pub fn parse_slot_states(states: &[u8]) -> Vec<(Slot, SlotChange)> {
    let text = String::from_utf8_lossy(states);
    let one = |word: &str| {
        let at = word.find(['<', '>'])?;
        let (slot, node) = (Slot::new(word[..at].parse().ok()?)?, word[at + 1..].to_owned());
        let change = match word.as_bytes()[at] {
            b'>' => SlotChange::Migrating { target: node },
            _ => SlotChange::Importing { source: node },
        };
        Some((slot, change))
    };
    text.split(',').filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_states_are_parsed_and_malformed_entries_skipped() {
        let (to, from) = ("a".repeat(40), "b".repeat(40));
        let text = format!("100>{to},16383<{from},");
        let slot = |number| Slot::new(number).unwrap();
        let expected = [
            (slot(100), SlotChange::Migrating { target: to.clone() }),
            (slot(16383), SlotChange::Importing { source: from }),
        ];
        assert_eq!(parse_slot_states(text.as_bytes()), expected);
        let odd = format!(",x>{to},16384>{to},7={to},\u{e9}>{to},5,\u{ff}<,100>{to}");
        assert_eq!(parse_slot_states(odd.as_bytes()), expected[..1]);
        assert_eq!(parse_slot_states(b""), []);
    }
}
