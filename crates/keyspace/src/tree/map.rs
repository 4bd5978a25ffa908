//! A persistent ordered map: copying it is O(1).
//!
//! The summary of a child node is a lower bound of its keys.

use std::borrow::Borrow;
use std::fmt::Debug;

use super::{Child, Item, Items, Seek, Tree, TreeEnd};

impl<K: Debug + Ord + Clone, V: Debug + Clone> Item for (K, V) {
    type Summary = K;

    fn summary(items: &[Self]) -> K {
        items[0].0.clone()
    }

    fn summary_of_children(children: &[Child<Self>]) -> K {
        children[0].summary.clone()
    }

    /// Lowers the bound if necessary, but never raises it: a bound that is too low is harmless, and raising it would
    /// clone a key.
    fn update_summary(bound: &mut K, items: &Items<Self>) {
        let least = match items {
            Items::Leaf(items) => &items[0].0,
            Items::Inner(children) => &children[0].summary,
        };
        if least < bound {
            *bound = least.clone();
        }
    }
}

#[derive(Debug)]
struct KeySeek<'a, Q: ?Sized>(&'a Q);

impl<Q: ?Sized> Clone for KeySeek<'_, Q> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<K: Debug + Ord + Clone + Borrow<Q>, V: Debug + Clone, Q: Ord + ?Sized> Seek<(K, V)> for KeySeek<'_, Q> {
    fn child_index(&mut self, children: &[Child<(K, V)>]) -> usize {
        children.partition_point(|child| child.summary.borrow() <= self.0).saturating_sub(1)
    }

    fn item_index(&mut self, items: &[(K, V)]) -> Result<usize, usize> {
        items.binary_search_by(|(other, _)| other.borrow().cmp(self.0))
    }
}

/// A search for the position at which a key will be inserted.
#[derive(Debug, Clone)]
struct InsertSeek<K>(K);

impl<K: Debug + Ord + Clone, V: Debug + Clone> Seek<(K, V)> for InsertSeek<K> {
    fn child_index(&mut self, children: &[Child<(K, V)>]) -> usize {
        KeySeek(&self.0).child_index(children)
    }

    fn item_index(&mut self, items: &[(K, V)]) -> Result<usize, usize> {
        KeySeek(&self.0).item_index(items)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Map<K: Debug + Ord + Clone, V: Debug + Clone> {
    tree: Tree<(K, V)>,
    len: usize,
}

impl<K: Debug + Ord + Clone, V: Debug + Clone> Default for Map<K, V> {
    fn default() -> Self {
        Self { tree: Tree::default(), len: 0 }
    }
}

impl<K: Debug + Ord + Clone, V: Debug + Clone> Map<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.tree.find(&mut KeySeek(key)).map(|(_, value)| value)
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.tree.find_mut(KeySeek(key)).map(|(_, value)| value)
    }

    pub(crate) fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.tree.edit_item(InsertSeek(key), |row, place, InsertSeek(key)| match place {
            Ok(index) => Some(std::mem::replace(&mut row.items()[index].1, value)),
            Err(index) => {
                row.insert(index, (key.clone(), value));
                None
            }
        });
        let before = before.flatten();
        self.len += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let removed = self.tree.edit_existing(KeySeek(key), |row, place, _| {
            let (Ok(index) | Err(index)) = place;
            row.remove(index).1
        })?;
        self.len -= 1;
        Some(removed)
    }

    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.tree.find(&mut TreeEnd::First).map(pair)
    }

    pub(crate) fn last(&self) -> Option<(&K, &V)> {
        self.tree.find(&mut TreeEnd::Last).map(pair)
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut V> {
        self.tree.find_mut(TreeEnd::Last).map(|(_, value)| value)
    }

    /// Returns the first item whose key is greater than `key`; without a key, the first of all items.
    pub(crate) fn first_after<Q: Ord + ?Sized>(&self, key: Option<&Q>) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        match key {
            None => self.first(),
            Some(key) => self.iter_from(key).find(|(other, _)| (*other).borrow() != key),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.tree.iter().map(pair)
    }

    pub(crate) fn iter_from<Q: Ord + ?Sized>(
        &self,
        key: &Q,
    ) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V, Q>
    where
        K: Borrow<Q>,
    {
        self.tree.iter_from(&mut KeySeek(key)).map(pair)
    }

    pub(crate) fn backward_from<Q: Ord + ?Sized>(
        &self,
        key: &Q,
    ) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V, Q>
    where
        K: Borrow<Q>,
    {
        self.tree.backward_from(&mut KeySeek(key)).map(pair)
    }
}

fn pair<K, V>((key, value): &(K, V)) -> (&K, &V) {
    (key, value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::*;
    use crate::tree::MAX_ITEMS;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16),
        Remove(u16),
        /// Copies the map. The copy must not be affected by later steps.
        Keep,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..2000u16).prop_map(Step::Insert),
            5 => (0..2000u16).prop_map(Step::Remove),
            1 => Just(Step::Keep),
        ];
        prop::collection::vec(step, 0..3000)
    }

    fn assert_same(tree: &Map<u16, usize>, map: &BTreeMap<u16, usize>) {
        assert_eq!(tree.len(), map.len());
        assert!(tree.iter().eq(map.iter()));
        assert!(tree.backward_from(&u16::MAX).eq(map.iter().rev()));
        tree.tree.check(&|label, below| *label <= below.summary());
        assert_eq!((tree.first(), tree.last()), (map.first_key_value(), map.last_key_value()));
        for key in (0..2000).step_by(37) {
            assert_eq!(tree.get(&key), map.get(&key));
            assert!(tree.iter_from(&key).eq(map.range(key..)));
            assert!(tree.backward_from(&key).eq(map.range(..=key).rev()));
            let behind = (Bound::Excluded(key), Bound::Unbounded);
            assert_eq!(tree.first_after(Some(&key)), map.range(behind).next());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn map_matches_btree_map_and_copies_are_unaffected(steps in steps()) {
            let (mut tree, mut map) = (Map::default(), BTreeMap::new());
            let mut kept = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(key) => assert_eq!(tree.insert(key, number), map.insert(key, number)),
                    Step::Remove(key) => assert_eq!(tree.remove(&key), map.remove(&key)),
                    Step::Keep => kept.push((tree.clone(), map.clone())),
                }
                if let Some(value) = tree.get_mut(&7) {
                    *value += 1;
                    *map.get_mut(&7).expect("it is in both") += 1;
                }
            }
            kept.push((tree, map));
            kept.iter().for_each(|(tree, map)| assert_same(tree, map));
        }
    }

    #[test]
    fn removing_a_missing_key_copies_no_nodes() {
        let mut tree = Map::default();
        for key in 0..600u32 {
            tree.insert(2 * key, ());
        }
        let kept = tree.clone();
        // The tree now owns its root and first leaf alone; all other nodes are shared.
        tree.remove(&0);
        let before = tree.tree.root_children().1;
        assert_eq!(before[1..], kept.tree.root_children().1[1..]);
        for key in 0..600 {
            assert_eq!((tree.remove(&(2 * key + 1)), tree.get_mut(&(2 * key + 1))), (None, None));
        }
        assert_eq!(tree.tree.root_children().1, before);
    }

    #[test]
    fn ordered_inserts_fill_nodes() {
        let mut tree = Map::default();
        for key in 0..1024u32 {
            tree.insert(key, ());
        }
        assert_eq!(tree.tree.root_children().0, 1024 / MAX_ITEMS);
        (0..1024u32).for_each(|key| assert_eq!(tree.remove(&key), Some(())));
        assert_eq!(tree.tree.root_children().0, 0);
    }
}
