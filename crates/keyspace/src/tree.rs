//! A persistent B-tree: copying it is O(1).
//!
//! Nodes are shared: a copy has the same root, and a shared node is copied when either tree first changes something
//! below it. A snapshot captures a value by copying its tree; until the copy is dropped, only the nodes on the paths to
//! changed items exist twice.
//!
//! The tree does not depend on keys and indexes. Its user defines the items of a leaf, the summary that an inner node
//! has of each child ([`Item`]), and how a search uses the summaries ([`Seek`]). There are two users: the ordered map
//! ([`map`]), whose summaries are keys, and lists, whose summaries are sizes.
//!
//! All edits of leaves go through [`Tree::edit_at`], which updates summaries and node sizes on the way back to the
//! root. A full node at an end of the tree is not halved, so adding items at an end fills the nodes completely. A node
//! that has become small is merged with a neighbour if both fit into one node; an inner node between large neighbours
//! may stay small.

mod map;

use std::fmt::Debug;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use map::Map;

use crate::overflow::CountedBytes;

/// Maximum number of items per node.
const MAX_ITEMS: usize = 32;
/// A node with fewer items is merged with a neighbour, if both together have at most `MAX_MERGED_ITEMS`.
const MIN_ITEMS: usize = MAX_ITEMS / 4;
const MAX_MERGED_ITEMS: usize = MAX_ITEMS * 3 / 4;

pub(crate) trait Item: Debug + Clone {
    /// What an inner node stores about each child.
    type Summary: Debug + Clone;

    /// Returns the summary of a leaf with these items, of which there is at least one.
    fn summary(items: &[Self]) -> Self::Summary;

    /// Returns the summary of an inner node with these children, of which there is at least one.
    fn summary_of_children(children: &[Child<Self>]) -> Self::Summary;

    /// Updates a node's summary after its items or children changed.
    fn update_summary(summary: &mut Self::Summary, items: &Items<Self>) {
        *summary = items.summary();
    }
}

/// A search guided by the summaries of nodes. Its state may change at each step: an index, for example, becomes
/// relative to the chosen child.
pub(crate) trait Seek<T: Item>: Clone {
    /// Selects the child to descend into.
    fn child_index(&mut self, children: &[Child<T>]) -> usize;

    /// Returns the index of the item in a leaf (`Ok`), or the index at which it would be inserted (`Err`).
    fn item_index(&mut self, items: &[T]) -> Result<usize, usize>;
}

/// A search for the first or last item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeEnd {
    First,
    Last,
}

impl<T: Item> Seek<T> for TreeEnd {
    fn child_index(&mut self, children: &[Child<T>]) -> usize {
        if *self == Self::First { 0 } else { children.len() - 1 }
    }

    fn item_index(&mut self, items: &[T]) -> Result<usize, usize> {
        let last = items.len().checked_sub(1).ok_or(0_usize)?;
        Ok(if *self == Self::First { 0 } else { last })
    }
}

/// A child of an inner node, with its summary.
#[derive(Debug)]
pub(crate) struct Child<T: Item> {
    pub(crate) summary: T::Summary,
    node: Arc<Node<T>>,
}

impl<T: Item> Clone for Child<T> {
    fn clone(&self) -> Self {
        Self { summary: self.summary.clone(), node: self.node.clone() }
    }
}

impl<T: Item> Child<T> {
    fn from_items(items: Items<T>) -> Self {
        Self { summary: items.summary(), node: Arc::new(Node::new(items)) }
    }

    fn update_summary(&mut self) {
        T::update_summary(&mut self.summary, &self.node.items);
    }
}

/// The contents of a node, which are never empty except during a change.
#[derive(Debug, Clone)]
pub(crate) enum Items<T: Item> {
    Leaf(Vec<T>),
    Inner(Vec<Child<T>>),
}

impl<T: Item> Items<T> {
    pub(crate) fn summary(&self) -> T::Summary {
        match self {
            Self::Leaf(items) => T::summary(items),
            Self::Inner(children) => T::summary_of_children(children),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Leaf(items) => items.len(),
            Self::Inner(children) => children.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Leaf(items) => items.capacity() * size_of::<T>(),
            Self::Inner(children) => children.capacity() * size_of::<Child<T>>(),
        }
    }
}

#[derive(Debug, Clone)]
struct Node<T: Item> {
    items: Items<T>,
    /// Bytes of the items, as counted in the used memory.
    counted_bytes: CountedBytes,
}

#[derive(Debug, Clone)]
pub(crate) struct Tree<T: Item> {
    root: Option<Arc<Node<T>>>,
}

impl<T: Item> Default for Tree<T> {
    fn default() -> Self {
        Self { root: None }
    }
}

/// Whether a node is the first or last at its depth.
#[derive(Debug, Clone, Copy)]
struct NodeEdges {
    is_first: bool,
    is_last: bool,
}

/// The items of a node during a change. If there are too many, the overflow becomes a new node to the right.
#[derive(Debug)]
pub(crate) struct NodeEdit<'a, I> {
    items: &'a mut Vec<I>,
    overflow: Vec<I>,
    edges: NodeEdges,
}

impl<'a, I> NodeEdit<'a, I> {
    fn new(items: &'a mut Vec<I>, edges: NodeEdges) -> Self {
        Self { items, overflow: Vec::new(), edges }
    }

    /// Returns the items of the node. An item that was just inserted may be in the overflow instead.
    pub(crate) fn items(&mut self) -> &mut [I] {
        self.items
    }

    pub(crate) fn remove(&mut self, index: usize) -> I {
        self.items.remove(index)
    }

    /// Inserts an item before `index`. A full node is halved, except at an end of the tree, where the existing items
    /// stay together.
    pub(crate) fn insert(&mut self, index: usize, item: I) {
        let len = self.items.len();
        let is_last = index == len && (self.edges.is_last || !self.overflow.is_empty());
        if len == MAX_ITEMS && index <= len && !is_last {
            let keep = if self.edges.is_first && index <= 1 { index } else { len / 2 };
            let rest = self.items.split_off(keep);
            self.overflow.splice(..0, rest);
        }
        let len = self.items.len();
        if index <= len && len < MAX_ITEMS {
            self.items.insert(index, item);
        } else {
            self.overflow.insert(index - len, item);
        }
    }
}

impl<T: Item> Node<T> {
    fn new(items: Items<T>) -> Self {
        let mut node = Self { items, counted_bytes: CountedBytes::default() };
        node.count();
        node
    }

    fn count(&mut self) {
        self.counted_bytes.set(self.items.bytes() + size_of::<Self>());
    }

    fn find(&self, seek: &mut impl Seek<T>) -> Option<&T> {
        let mut node = self;
        loop {
            match &node.items {
                Items::Inner(children) => node = &children[seek.child_index(children)].node,
                Items::Leaf(items) => return seek.item_index(items).ok().map(|index| &items[index]),
            }
        }
    }

    /// Returns a node for editing; a shared node is copied first. If `must_exist` is set, returns `None` without
    /// copying a shared node that does not contain the item.
    fn make_unique<'a>(
        node: &'a mut Arc<Self>,
        seek: &impl Seek<T>,
        must_exist: bool,
    ) -> Option<&'a mut Self> {
        if must_exist && Arc::strong_count(node) > 1 {
            node.find(&mut seek.clone())?;
        }
        Some(Arc::make_mut(node))
    }

    fn find_mut(&mut self, mut seek: impl Seek<T>) -> Option<&mut T> {
        match &mut self.items {
            Items::Inner(children) => {
                let index = seek.child_index(children);
                Self::make_unique(&mut children[index].node, &seek, true)?.find_mut(seek)
            }
            Items::Leaf(items) => seek.item_index(items).ok().map(|index| &mut items[index]),
        }
    }

    /// Edits the leaf that the search finds, like [`Tree::edit_item`]. Returns whether anything changed.
    fn edit_item<S: Seek<T>>(
        &mut self,
        path: &mut ChangeState<T, S>,
        change: &mut impl ItemEdit<T, S>,
    ) -> bool {
        let ends = path.edges;
        match &mut self.items {
            Items::Leaf(items) => {
                let place = path.seek.item_index(items);
                if path.must_exist && place.is_err() {
                    return false;
                }
                let mut row = NodeEdit::new(items, ends);
                change(&mut row, place, &path.seek);
                if !row.overflow.is_empty() {
                    path.overflow = Some(Items::Leaf(row.overflow));
                }
            }
            Items::Inner(children) => {
                let index = path.seek.child_index(children);
                path.edges.is_first &= index == 0;
                path.edges.is_last &= index + 1 == children.len();
                let child = &mut children[index];
                let Some(node) = Self::make_unique(&mut child.node, &path.seek, path.must_exist) else {
                    return false;
                };
                let before = node.items.len();
                if !node.edit_item(path, change) {
                    return false;
                }
                let after = node.items.len();
                if after > 0 {
                    child.update_summary();
                }
                if let Some(behind) = path.overflow.take() {
                    let mut row = NodeEdit::new(children, ends);
                    row.insert(index + 1, Child::from_items(behind));
                    if !row.overflow.is_empty() {
                        path.overflow = Some(Items::Inner(row.overflow));
                    }
                } else if after < before.min(MIN_ITEMS) {
                    merge(children, index);
                }
            }
        }
        self.count();
        true
    }

    /// Splits off the items that start at the searched position.
    fn split_off(&mut self, mut seek: impl Seek<T>) -> Items<T> {
        let rest = match &mut self.items {
            Items::Leaf(items) => {
                let (Ok(index) | Err(index)) = seek.item_index(items);
                Items::Leaf(items.split_off(index))
            }
            Items::Inner(children) => {
                let index = seek.child_index(children);
                let mut rest = children.split_off(index + 1);
                let child = &mut children[index];
                let behind = Arc::make_mut(&mut child.node).split_off(seek);
                if behind.len() > 0 {
                    rest.insert(0, Child::from_items(behind));
                }
                if child.node.items.len() > 0 {
                    child.update_summary();
                } else {
                    children.pop();
                }
                Items::Inner(rest)
            }
        };
        self.count();
        rest
    }

    fn append(&mut self, next: &Self) {
        match (&mut self.items, &next.items) {
            (Items::Leaf(items), Items::Leaf(more)) => items.extend_from_slice(more),
            (Items::Inner(items), Items::Inner(more)) => items.extend_from_slice(more),
            _ => panic!("nodes of one height are merged"),
        }
        self.count();
    }
}

/// Removes an empty child, or merges a small one with a neighbour if both fit into one node.
fn merge<T: Item>(children: &mut Vec<Child<T>>, index: usize) {
    let len = |index: usize| children.get(index).map_or(MAX_ITEMS, |child| child.node.items.len());
    if len(index) == 0 {
        children.remove(index);
        return;
    }
    let fits = |left: usize| len(left) + len(left + 1) <= MAX_MERGED_ITEMS;
    let left = if fits(index) { Some(index) } else { index.checked_sub(1).filter(|left| fits(*left)) };
    if let Some(left) = left {
        let behind = children.remove(left + 1);
        let child = &mut children[left];
        Arc::make_mut(&mut child.node).append(&behind.node);
        child.update_summary();
    }
}

/// A function that edits a leaf. It receives the leaf's items, the position found, and the final state of the search.
trait ItemEdit<T, S>: FnMut(&mut NodeEdit<'_, T>, Result<usize, usize>, &S) {}
impl<T, S, F: FnMut(&mut NodeEdit<'_, T>, Result<usize, usize>, &S)> ItemEdit<T, S> for F {}

/// The state of a change. It is passed between nodes by reference, because moving it would cost as much as a search.
struct ChangeState<T: Item, S> {
    seek: S,
    /// Whether the change requires that the item exists.
    must_exist: bool,
    /// Whether the current node is the first or last at its depth.
    edges: NodeEdges,
    /// Items that did not fit in the node, for its parent to insert as a new node.
    overflow: Option<Items<T>>,
}

impl<T: Item> Tree<T> {
    /// Returns the summary of the root; `None` for an empty tree.
    pub(crate) fn summary(&self) -> Option<T::Summary> {
        self.root.as_ref().map(|root| root.items.summary())
    }

    /// Returns the item that the search finds.
    pub(crate) fn find(&self, seek: &mut impl Seek<T>) -> Option<&T> {
        self.root.as_ref()?.find(seek)
    }

    /// Returns the item that the search finds, for editing. The edit must not change the summary of any node.
    pub(crate) fn find_mut(&mut self, seek: impl Seek<T>) -> Option<&mut T> {
        Node::make_unique(self.root.as_mut()?, &seek, true)?.find_mut(seek)
    }

    /// Edits the leaf that the search finds, even if the item does not exist.
    pub(crate) fn edit_item<S: Seek<T>, R>(
        &mut self,
        seek: S,
        change: impl FnOnce(&mut NodeEdit<'_, T>, Result<usize, usize>, &S) -> R,
    ) -> Option<R> {
        self.root.get_or_insert_with(|| Arc::new(Node::new(Items::Leaf(Vec::with_capacity(1)))));
        self.edit_at(seek, false, change)
    }

    /// Edits the leaf that contains the item. If the item does not exist, returns `None` and copies nothing.
    pub(crate) fn edit_existing<S: Seek<T>, R>(
        &mut self,
        seek: S,
        change: impl FnOnce(&mut NodeEdit<'_, T>, Result<usize, usize>, &S) -> R,
    ) -> Option<R> {
        self.edit_at(seek, true, change)
    }

    fn edit_at<S: Seek<T>, R>(
        &mut self,
        seek: S,
        must_exist: bool,
        change: impl FnOnce(&mut NodeEdit<'_, T>, Result<usize, usize>, &S) -> R,
    ) -> Option<R> {
        let root = Node::make_unique(self.root.as_mut()?, &seek, must_exist)?;
        let mut way = ChangeState {
            seek,
            must_exist,
            edges: NodeEdges { is_first: true, is_last: true },
            overflow: None,
        };
        let (mut change, mut result) = (Some(change), None);
        root.edit_item(&mut way, &mut |row, place, seek| {
            result = change.take().map(|change| change(row, place, seek));
        });
        if let Some(behind) = way.overflow {
            let label = root.items.summary();
            let first = self.root.take().map(|node| Child { summary: label, node });
            let children = first.into_iter().chain([Child::from_items(behind)]).collect();
            self.root = Some(Arc::new(Node::new(Items::Inner(children))));
        }
        self.collapse_root();
        result
    }

    /// Splits off the items that start at the searched position.
    pub(crate) fn split_off(&mut self, seek: impl Seek<T>) -> Self {
        let Some(root) = &mut self.root else { return Self::default() };
        let rest = Arc::make_mut(root).split_off(seek);
        let mut rest = Self { root: Some(Arc::new(Node::new(rest))) };
        self.collapse_root();
        rest.collapse_root();
        rest
    }

    /// Removes an empty root, and replaces a root that has one child by that child.
    fn collapse_root(&mut self) {
        while let Some(root) = &self.root {
            self.root = match &root.items {
                Items::Leaf(items) if items.is_empty() => None,
                Items::Inner(children) if children.is_empty() => None,
                Items::Inner(children) if children.len() == 1 => Some(children[0].node.clone()),
                _ => break,
            };
        }
    }

    pub(crate) fn iter(&self) -> Iter<'_, T> {
        self.iter_from(&mut TreeEnd::First)
    }

    /// Iterates forward from the searched position.
    pub(crate) fn iter_from(&self, seek: &mut impl Seek<T>) -> Iter<'_, T> {
        self.iter_in_direction(seek, false)
    }

    /// Iterates backward from the searched position.
    pub(crate) fn backward_from(&self, seek: &mut impl Seek<T>) -> Iter<'_, T> {
        self.iter_in_direction(seek, true)
    }

    fn iter_in_direction(&self, seek: &mut impl Seek<T>, is_backward: bool) -> Iter<'_, T> {
        let mut iter = Iter { inner: SmallVec::new(), leaf: [].iter(), is_backward };
        let mut node = self.root.as_ref();
        while let Some(here) = node {
            match &here.items {
                Items::Inner(children) => {
                    let index = seek.child_index(children);
                    let rest = if is_backward { &children[..index] } else { &children[index + 1..] };
                    iter.inner.push(rest.iter());
                    node = Some(&children[index].node);
                }
                Items::Leaf(items) => {
                    iter.leaf = match (seek.item_index(items), is_backward) {
                        (Ok(index) | Err(index), false) => items[index..].iter(),
                        (Ok(index), true) => items[..=index].iter(),
                        (Err(index), true) => items[..index].iter(),
                    };
                    node = None;
                }
            }
        }
        iter
    }
}

/// An iterator: for each inner node on the path, and the leaf, the items that remain to be visited.
pub(crate) struct Iter<'a, T: Item> {
    inner: SmallVec<[slice::Iter<'a, Child<T>>; 4]>,
    leaf: slice::Iter<'a, T>,
    is_backward: bool,
}

impl<'a, T: Item> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        fn step<'a, I>(items: &mut slice::Iter<'a, I>, is_backward: bool) -> Option<&'a I> {
            if is_backward { items.next_back() } else { items.next() }
        }
        loop {
            if let Some(item) = step(&mut self.leaf, self.is_backward) {
                return Some(item);
            }
            let child = loop {
                match step(self.inner.last_mut()?, self.is_backward) {
                    Some(child) => break child,
                    None => drop(self.inner.pop()),
                }
            };
            match &child.node.items {
                Items::Leaf(items) => self.leaf = items.iter(),
                Items::Inner(children) => self.inner.push(children.iter()),
            }
        }
    }
}

#[cfg(test)]
impl<T: Item> Tree<T> {
    /// Returns the number of items in the root, and the addresses of its child nodes.
    pub(crate) fn root_children(&self) -> (usize, Vec<*const ()>) {
        match self.root.as_ref().map(|root| &root.items) {
            None => (0, Vec::new()),
            Some(Items::Leaf(items)) => (items.len(), Vec::new()),
            Some(Items::Inner(children)) => {
                let nodes = children.iter().map(|child| Arc::as_ptr(&child.node).cast()).collect();
                (children.len(), nodes)
            }
        }
    }

    /// Checks the structure: all leaves have equal depth, no node is empty or oversized, and `is_valid_summary` accepts
    /// each summary. Returns the height.
    pub(crate) fn check(&self, is_valid_summary: &impl Fn(&T::Summary, &Items<T>) -> bool) -> usize {
        fn height<T: Item>(
            items: &Items<T>,
            is_valid_summary: &impl Fn(&T::Summary, &Items<T>) -> bool,
        ) -> usize {
            assert!((1..=MAX_ITEMS).contains(&items.len()), "{} items", items.len());
            let Items::Inner(children) = items else { return 1 };
            let mut heights = children.iter().map(|child| {
                assert!(is_valid_summary(&child.summary, &child.node.items), "a label is wrong");
                height(&child.node.items, is_valid_summary)
            });
            let first = heights.next().unwrap_or_default();
            assert!(heights.all(|height| height == first), "leaves are equally deep");
            first + 1
        }
        self.root.as_ref().map_or(0, |root| height(&root.items, is_valid_summary))
    }
}
