//! An ordered map that is copied at once, whatever its size.
//!
//! A B-tree whose nodes are shared: a copy has the same root, and a node that both have is copied when either first
//! changes something below it. So a snapshot captures an ordered value by taking a copy, and while that is written
//! out, only the nodes on the way to a change are there twice.
//!
//! Keys that are added behind all others fill their nodes, for then a full node is not halved. A node that has grown
//! small is merged with one beside it where both fit into one; an inner node may so have few children, beside large
//! ones. In an inner node each child stands behind a key that none of the child's keys is below.

use std::borrow::Borrow;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::outside::Counted;

/// Items of a node.
const MOST: usize = 32;
/// With fewer a node is merged with the one beside it, if both have so many together.
const FEW: usize = MOST / 4;
const MERGED: usize = MOST * 3 / 4;

#[derive(Debug, Clone)]
enum Items<K, V> {
    Leaf(Vec<(K, V)>),
    Inner(Vec<(K, Arc<Node<K, V>>)>),
}

#[derive(Debug, Clone)]
struct Node<K, V> {
    items: Items<K, V>,
    /// Bytes that the items take, as they are counted to memory in use.
    counted: Counted,
}

#[derive(Debug, Clone)]
pub(crate) struct Tree<K, V> {
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

/// The outcome of an insertion: the key's old value, and the node that was split off behind with its least key.
type Inserted<K, V> = (Option<V>, Option<(K, Arc<Node<K, V>>)>);

/// Where in an inner node the way to `key` goes on.
fn child_of<K: Borrow<Q>, Q: Ord + ?Sized, C>(children: &[(K, C)], key: &Q) -> usize {
    children.partition_point(|(lower, _)| lower.borrow() <= key).saturating_sub(1)
}

/// Splits a full vector before something is put in at `index`: behind the end nothing moves.
fn split<T>(items: &mut Vec<T>, index: usize, item: T) -> Vec<T> {
    if index == items.len() {
        return vec![item];
    }
    let mut right = items.split_off(MOST / 2);
    match index.checked_sub(MOST / 2) {
        Some(index) => right.insert(index, item),
        None => items.insert(index, item),
    }
    right
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    fn new(items: Items<K, V>) -> Self {
        let mut node = Self { items, counted: Counted::default() };
        node.count();
        node
    }

    fn count(&mut self) {
        let bytes = match &self.items {
            Items::Leaf(items) => items.capacity() * size_of::<(K, V)>(),
            Items::Inner(items) => items.capacity() * size_of::<(K, Arc<Self>)>(),
        };
        self.counted.set(bytes + size_of::<Self>());
    }

    fn len(&self) -> usize {
        match &self.items {
            Items::Leaf(items) => items.len(),
            Items::Inner(items) => items.len(),
        }
    }

    fn insert(&mut self, key: K, value: V) -> Inserted<K, V> {
        let outcome = match &mut self.items {
            Items::Leaf(items) => match items.binary_search_by(|(other, _)| other.cmp(&key)) {
                Ok(index) => return (Some(std::mem::replace(&mut items[index].1, value)), None),
                Err(index) if items.len() < MOST => {
                    items.insert(index, (key, value));
                    (None, None)
                }
                Err(index) => {
                    let right = split(items, index, (key, value));
                    (None, Some((right[0].0.clone(), Arc::new(Self::new(Items::Leaf(right))))))
                }
            },
            Items::Inner(children) => {
                let index = child_of(children, &key);
                if key < children[index].0 {
                    children[index].0 = key.clone();
                }
                let (before, behind) = Arc::make_mut(&mut children[index].1).insert(key, value);
                let Some(child) = behind else { return (before, None) };
                if children.len() < MOST {
                    children.insert(index + 1, child);
                    (before, None)
                } else {
                    let right = split(children, index + 1, child);
                    (before, Some((right[0].0.clone(), Arc::new(Self::new(Items::Inner(right))))))
                }
            }
        };
        self.count();
        outcome
    }

    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let removed = match &mut self.items {
            Items::Leaf(items) => {
                let index = items.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
                Some(items.remove(index).1)
            }
            Items::Inner(children) => {
                let index = child_of(children, key);
                let child = Self::own(&mut children[index].1, key)?;
                let removed = child.remove(key)?;
                if child.len() < FEW {
                    merge(children, index);
                }
                Some(removed)
            }
        };
        self.count();
        removed
    }

    fn last_mut(&mut self) -> Option<&mut V> {
        match &mut self.items {
            Items::Leaf(items) => items.last_mut().map(|(_, value)| value),
            Items::Inner(children) => Arc::make_mut(&mut children.last_mut()?.1).last_mut(),
        }
    }

    fn find_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match &mut self.items {
            Items::Leaf(items) => {
                let index = items.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
                Some(&mut items[index].1)
            }
            Items::Inner(children) => {
                let index = child_of(children, key);
                Self::own(&mut children[index].1, key)?.find_mut(key)
            }
        }
    }

    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = self;
        loop {
            match &node.items {
                Items::Inner(children) => node = &children[child_of(children, key)].1,
                Items::Leaf(items) => {
                    let index = items.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
                    return Some(&items[index].1);
                }
            }
        }
    }

    /// A node in which the value of a key is to be changed. One that is shared is copied, but not for a key that is not
    /// there.
    fn own<'a, Q: Ord + ?Sized>(node: &'a mut Arc<Self>, key: &Q) -> Option<&'a mut Self>
    where
        K: Borrow<Q>,
    {
        if Arc::strong_count(node) > 1 {
            node.find(key)?;
        }
        Some(Arc::make_mut(node))
    }

    /// Adds the items of the node behind.
    fn append(&mut self, behind: &Arc<Self>) {
        match (&mut self.items, &behind.items) {
            (Items::Leaf(items), Items::Leaf(more)) => items.extend_from_slice(more),
            (Items::Inner(items), Items::Inner(more)) => items.extend_from_slice(more),
            _ => panic!("nodes of one height are merged"),
        }
        self.count();
    }
}

/// A child has grown small: it goes if it is empty, or joins one beside it if they fit together.
fn merge<K: Ord + Clone, V: Clone>(children: &mut Vec<(K, Arc<Node<K, V>>)>, index: usize) {
    if children[index].1.len() == 0 {
        children.remove(index);
        return;
    }
    let fits = |left: usize| {
        children.get(left + 1).is_some_and(|right| children[left].1.len() + right.1.len() <= MERGED)
    };
    let left = if fits(index) { Some(index) } else { index.checked_sub(1).filter(|left| fits(*left)) };
    if let Some(left) = left {
        let (_, behind) = children.remove(left + 1);
        Arc::make_mut(&mut children[left].1).append(&behind);
    }
}

impl<K: Ord + Clone, V: Clone> Tree<K, V> {
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
        self.root.as_ref()?.find(key)
    }

    /// The value of a key, to be changed.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        Node::own(self.root.as_mut()?, key)?.find_mut(key)
    }

    pub(crate) fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Puts a value under a key; returns the one that was there.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::new(Items::Leaf(vec![(key, value)]))));
            self.len = 1;
            return None;
        };
        let (before, behind) = Arc::make_mut(root).insert(key, value);
        if let Some(behind) = behind {
            let lowest = match &root.items {
                Items::Leaf(items) => items[0].0.clone(),
                Items::Inner(children) => children[0].0.clone(),
            };
            let children = vec![(lowest, root.clone()), behind];
            self.root = Some(Arc::new(Node::new(Items::Inner(children))));
        }
        self.len += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let removed = Node::own(self.root.as_mut()?, key)?.remove(key)?;
        self.len -= 1;
        while let Some(root) = &self.root {
            self.root = match &root.items {
                Items::Leaf(items) if items.is_empty() => None,
                Items::Inner(children) if children.is_empty() => None,
                Items::Inner(children) if children.len() == 1 => Some(children[0].1.clone()),
                _ => break,
            };
        }
        Some(removed)
    }

    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    pub(crate) fn last(&self) -> Option<(&K, &V)> {
        self.backward().next()
    }

    /// The last value, to be changed.
    pub(crate) fn last_mut(&mut self) -> Option<&mut V> {
        Arc::make_mut(self.root.as_mut()?).last_mut()
    }

    /// The item next behind a key, or the first of all.
    pub(crate) fn after<Q: Ord + ?Sized>(&self, key: Option<&Q>) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        match key {
            None => self.first(),
            Some(key) => self.iter_from(key).find(|(other, _)| (*other).borrow() != key),
        }
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        self.iter_by(false, |_| 0, |_| 0)
    }

    /// From a key on.
    pub(crate) fn iter_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let place = |items: &[(K, V)]| items.partition_point(|(other, _)| other.borrow() < key);
        self.iter_by(false, |children| child_of(children, key), place)
    }

    /// From the last on to the first.
    pub(crate) fn backward(&self) -> Iter<'_, K, V> {
        self.iter_by(true, |children| children.len() - 1, |items| items.len())
    }

    /// From a key on to the first.
    pub(crate) fn backward_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let place = |items: &[(K, V)]| items.partition_point(|(other, _)| other.borrow() <= key);
        self.iter_by(true, |children| child_of(children, key), place)
    }

    /// `child` says where in an inner node the way goes on, `place` before which item of a leaf it begins.
    fn iter_by(
        &self,
        back: bool,
        child: impl Fn(&[(K, Arc<Node<K, V>>)]) -> usize,
        place: impl Fn(&[(K, V)]) -> usize,
    ) -> Iter<'_, K, V> {
        let mut iter = Iter { inner: SmallVec::new(), leaf: [].iter(), back };
        let mut node = self.root.as_ref();
        while let Some(here) = node {
            match &here.items {
                Items::Inner(children) => {
                    let index = child(children);
                    let rest = if back { &children[..index] } else { &children[index + 1..] };
                    iter.inner.push(rest.iter());
                    node = Some(&children[index].1);
                }
                Items::Leaf(items) => {
                    let index = place(items);
                    iter.leaf = if back { items[..index].iter() } else { items[index..].iter() };
                    node = None;
                }
            }
        }
        iter
    }
}

/// The nodes below an inner node, each with the least key in it.
type Below<'a, K, V> = slice::Iter<'a, (K, Arc<Node<K, V>>)>;

/// The items still to come of each inner node on the way, and of a leaf.
pub(crate) struct Iter<'a, K, V> {
    inner: SmallVec<[Below<'a, K, V>; 4]>,
    leaf: slice::Iter<'a, (K, V)>,
    back: bool,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        fn step<'a, T>(items: &mut slice::Iter<'a, T>, back: bool) -> Option<&'a T> {
            if back { items.next_back() } else { items.next() }
        }
        loop {
            if let Some((key, value)) = step(&mut self.leaf, self.back) {
                return Some((key, value));
            }
            let (_, child) = loop {
                match step(self.inner.last_mut()?, self.back) {
                    Some(child) => break child,
                    None => drop(self.inner.pop()),
                }
            };
            match &child.items {
                Items::Leaf(items) => self.leaf = items.iter(),
                Items::Inner(children) => self.inner.push(children.iter()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16),
        Remove(u16),
        /// The state is kept, and must not change any more.
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

    fn same(tree: &Tree<u16, usize>, map: &BTreeMap<u16, usize>) {
        assert_eq!(tree.len(), map.len());
        assert!(tree.iter().eq(map.iter()));
        assert!(tree.backward().eq(map.iter().rev()));
        assert_eq!((tree.first(), tree.last()), (map.first_key_value(), map.last_key_value()));
        for key in (0..2000).step_by(37) {
            assert_eq!(tree.get(&key), map.get(&key));
            assert!(tree.iter_from(&key).eq(map.range(key..)));
            assert!(tree.backward_from(&key).eq(map.range(..=key).rev()));
            let behind = (Bound::Excluded(key), Bound::Unbounded);
            assert_eq!(tree.after(Some(&key)), map.range(behind).next());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn behaves_as_a_map_and_copies_stay(steps in steps()) {
            let (mut tree, mut map) = (Tree::default(), BTreeMap::new());
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
            kept.iter().for_each(|(tree, map)| same(tree, map));
        }
    }

    /// The nodes below the root.
    fn children(tree: &Tree<u32, ()>) -> Vec<*const Node<u32, ()>> {
        match &tree.root.as_ref().expect("there is something").items {
            Items::Inner(children) => children.iter().map(|(_, child)| Arc::as_ptr(child)).collect(),
            Items::Leaf(_) => panic!("it has several leaves"),
        }
    }

    #[test]
    fn nothing_is_copied_for_a_key_that_is_not_there() {
        let mut tree = Tree::default();
        for key in 0..600u32 {
            tree.insert(2 * key, ());
        }
        let kept = tree.clone();
        // The root and the first leaf are the tree's own from here on, the others are shared.
        tree.remove(&0);
        let before = children(&tree);
        assert_eq!(before[1..], children(&kept)[1..]);
        for key in 0..600 {
            assert_eq!((tree.remove(&(2 * key + 1)), tree.get_mut(&(2 * key + 1))), (None, None));
        }
        assert_eq!(children(&tree), before);
    }

    #[test]
    fn nodes_that_are_filled_in_order_are_full() {
        let mut tree = Tree::default();
        for key in 0..1024u32 {
            tree.insert(key, ());
        }
        let root = tree.root.as_ref().expect("there is something");
        let Items::Inner(children) = &root.items else { panic!("it has several leaves") };
        assert_eq!(children.len(), 1024 / MOST);
        (0..1024u32).for_each(|key| assert_eq!(tree.remove(&key), Some(())));
        assert!(tree.root.is_none());
    }
}
