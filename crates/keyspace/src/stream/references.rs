//! Deletes entries together with their references in groups, or only once every group has acknowledged them.

use std::sync::Arc;

use super::node::NodeRef;
use super::{Stream, StreamId, StreamTrim, TrimPrecision, live_entries};

impl Stream {
    /// Returns whether every group has received and acknowledged entry `id`. Without groups, every entry counts as
    /// acknowledged.
    #[must_use]
    pub fn is_acknowledged(&self, id: StreamId) -> bool {
        self.groups.iter().all(|(_, group)| group.last_delivered >= id && !group.pending.contains(&id))
    }

    /// Removes an entry from the pending entries of all groups. Returns the groups that had it pending.
    pub fn remove_pending_references(&mut self, id: StreamId) -> Vec<Arc<[u8]>> {
        let with = self.groups.iter().filter(|(_, group)| group.pending.contains(&id));
        let names: Vec<Arc<[u8]>> = with.map(|(name, _)| name.clone()).collect();
        for name in &names {
            if let Some(group) = self.groups.get_mut(&**name) {
                group.acknowledge(id);
            }
        }
        names
    }

    /// Returns the entries beyond the threshold of a trim for which `is_deletable` returns true. Stops before a
    /// node with which the total could exceed `limit`; 0 means unlimited.
    pub fn trimmable_entries(
        &self,
        trim: StreamTrim,
        limit: u64,
        mut is_deletable: impl FnMut(StreamId) -> bool,
    ) -> Vec<StreamId> {
        let (mut ids, mut len) = (Vec::new(), self.head.len);
        let nodes = self.nodes.iter().filter_map(|(id, node)| NodeRef::decode(*id, &node.bytes));
        for node in nodes {
            if limit > 0 && ids.len() as u64 + node.live_count > limit {
                break;
            }
            for entry in live_entries(node.records_from(StreamId::MIN)) {
                let stops = match trim {
                    StreamTrim::MaxLen(most) => len <= most,
                    StreamTrim::MinId(least) => entry.id >= least,
                };
                if stops {
                    return ids;
                }
                if is_deletable(entry.id) {
                    ids.push(entry.id);
                    len -= 1;
                }
            }
        }
        ids
    }

    /// Returns whether the stream starts with entries that have these ascending ids.
    #[must_use]
    pub fn starts_with_ids(&self, ids: &[StreamId]) -> bool {
        let mut first = self.range(StreamId::MIN, StreamId::MAX);
        ids.iter().all(|id| first.next().is_some_and(|entry| entry.id == *id))
    }

    /// Removes all entries up to and including `last`. Returns the removed nodes for the caller to drop.
    pub fn trim_through(&mut self, last: StreamId) -> Self {
        let trim = last.next().map_or(StreamTrim::MaxLen(0), StreamTrim::MinId);
        self.trim(trim, TrimPrecision::Exact).1
    }
}
