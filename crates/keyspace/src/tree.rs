//! A tree that is copied at once, whatever its size.
//!
//! A B-tree whose nodes are shared: a copy has the same root, and a node that both have is copied when either first
//! changes something below it. So a snapshot captures a value by taking a copy, and while that is written out, only the
//! nodes on the way to a change are there twice.
//!
//! The structure knows neither keys nor indexes. Its user says what the items of a leaf are, and what an inner node says
//! of each of its children, the label ([`Item`]); and finds its way by these ([`Seek`]). There are two users: the
//! ordered map ([`map`]), whose labels are keys, and lists, whose labels are sizes.
//!
//! All changes go through one function ([`Tree::change`]), which afterwards sees to labels and sizes on the way back.
//! Items that are added at an end of the tree fill its nodes, for there a full node is not halved. A node that has grown
//! small is merged with one beside it where both fit into one; an inner node may so have few children, beside large ones.

mod map;

use std::fmt::Debug;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use map::Map;

use crate::overflow::Counted;

/// Items of a node.
const MOST: usize = 32;
/// With fewer a node is merged with the one beside it, if both have so many together.
const FEW: usize = MOST / 4;
const MERGED: usize = MOST * 3 / 4;

/// An item of a leaf.
pub(crate) trait Item: Debug + Clone {
    /// By which an inner node knows a child.
    type Label: Debug + Clone;

    /// The label of a leaf with these items, of which there is one at least.
    fn label(items: &[Self]) -> Self::Label;

    /// The label of an inner node with these children, of which there is one at least.
    fn label_above(children: &[Child<Self>]) -> Self::Label;

    /// The items or children below a label have changed.
    fn relabel(label: &mut Self::Label, below: &Items<Self>) {
        *label = below.label();
    }
}

/// A way to an item, by the labels. It may change at each step: an index is one within the child from there on.
pub(crate) trait Seek<T: Item>: Clone {
    /// In an inner node, the child through which the way goes on.
    fn child(&mut self, children: &[Child<T>]) -> usize;

    /// In a leaf, which item it is; or before which it would be.
    fn item(&mut self, items: &[T]) -> Result<usize, usize>;
}

/// The way to the first item, or to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    First,
    Last,
}

impl<T: Item> Seek<T> for End {
    fn child(&mut self, children: &[Child<T>]) -> usize {
        if *self == Self::First { 0 } else { children.len() - 1 }
    }

    fn item(&mut self, items: &[T]) -> Result<usize, usize> {
        let last = items.len().checked_sub(1).ok_or(0_usize)?;
        Ok(if *self == Self::First { 0 } else { last })
    }
}

/// A child of an inner node.
#[derive(Debug)]
pub(crate) struct Child<T: Item> {
    pub(crate) label: T::Label,
    node: Arc<Node<T>>,
}

impl<T: Item> Clone for Child<T> {
    fn clone(&self) -> Self {
        Self { label: self.label.clone(), node: self.node.clone() }
    }
}

impl<T: Item> Child<T> {
    fn of(items: Items<T>) -> Self {
        Self { label: items.label(), node: Arc::new(Node::new(items)) }
    }

    fn relabel(&mut self) {
        T::relabel(&mut self.label, &self.node.items);
    }
}

/// The contents of a node, which is never empty but while it is changed.
#[derive(Debug, Clone)]
pub(crate) enum Items<T: Item> {
    Leaf(Vec<T>),
    Inner(Vec<Child<T>>),
}

impl<T: Item> Items<T> {
    pub(crate) fn label(&self) -> T::Label {
        match self {
            Self::Leaf(items) => T::label(items),
            Self::Inner(children) => T::label_above(children),
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
    /// Bytes that the items take, as they are counted to memory in use.
    counted: Counted,
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

/// Whether a node is the first or the last of all at its depth.
#[derive(Debug, Clone, Copy)]
struct Ends {
    first: bool,
    last: bool,
}

/// The items of a node while it is changed: what finds no room there stands behind it.
#[derive(Debug)]
pub(crate) struct Row<'a, I> {
    items: &'a mut Vec<I>,
    behind: Vec<I>,
    ends: Ends,
}

impl<'a, I> Row<'a, I> {
    fn new(items: &'a mut Vec<I>, ends: Ends) -> Self {
        Self { items, behind: Vec::new(), ends }
    }

    /// The items that are there; those that were put in may stand behind them.
    pub(crate) fn items(&mut self) -> &mut [I] {
        self.items
    }

    pub(crate) fn remove(&mut self, index: usize) -> I {
        self.items.remove(index)
    }

    /// Puts an item before item `index`. A full node becomes two: at an end of the tree what is there stays together.
    pub(crate) fn insert(&mut self, index: usize, item: I) {
        let len = self.items.len();
        let is_last = index == len && (self.ends.last || !self.behind.is_empty());
        if len == MOST && index <= len && !is_last {
            let keep = if self.ends.first && index <= 1 { index } else { len / 2 };
            let rest = self.items.split_off(keep);
            self.behind.splice(..0, rest);
        }
        let len = self.items.len();
        if index <= len && len < MOST {
            self.items.insert(index, item);
        } else {
            self.behind.insert(index - len, item);
        }
    }
}

impl<T: Item> Node<T> {
    fn new(items: Items<T>) -> Self {
        let mut node = Self { items, counted: Counted::default() };
        node.count();
        node
    }

    fn count(&mut self) {
        self.counted.set(self.items.bytes() + size_of::<Self>());
    }

    fn find(&self, seek: &mut impl Seek<T>) -> Option<&T> {
        let mut node = self;
        loop {
            match &node.items {
                Items::Inner(children) => node = &children[seek.child(children)].node,
                Items::Leaf(items) => return seek.item(items).ok().map(|index| &items[index]),
            }
        }
    }

    /// A node to be changed. One that is shared is copied; if that is to be `found`, only where there is an item.
    fn own<'a>(node: &'a mut Arc<Self>, seek: &impl Seek<T>, found: bool) -> Option<&'a mut Self> {
        if found && Arc::strong_count(node) > 1 {
            node.find(&mut seek.clone())?;
        }
        Some(Arc::make_mut(node))
    }

    fn find_mut(&mut self, mut seek: impl Seek<T>) -> Option<&mut T> {
        match &mut self.items {
            Items::Inner(children) => {
                let index = seek.child(children);
                Self::own(&mut children[index].node, &seek, true)?.find_mut(seek)
            }
            Items::Leaf(items) => seek.item(items).ok().map(|index| &mut items[index]),
        }
    }

    /// See [`Tree::change`]; says whether there was something to change.
    fn change<S: Seek<T>>(&mut self, way: &mut Way<T, S>, change: &mut impl Change<T, S>) -> bool {
        let ends = way.ends;
        match &mut self.items {
            Items::Leaf(items) => {
                let place = way.seek.item(items);
                if way.found && place.is_err() {
                    return false;
                }
                let mut row = Row::new(items, ends);
                change(&mut row, place, &way.seek);
                if !row.behind.is_empty() {
                    way.behind = Some(Items::Leaf(row.behind));
                }
            }
            Items::Inner(children) => {
                let index = way.seek.child(children);
                way.ends.first &= index == 0;
                way.ends.last &= index + 1 == children.len();
                let child = &mut children[index];
                let Some(node) = Self::own(&mut child.node, &way.seek, way.found) else { return false };
                let before = node.items.len();
                if !node.change(way, change) {
                    return false;
                }
                let after = node.items.len();
                if after > 0 {
                    child.relabel();
                }
                if let Some(behind) = way.behind.take() {
                    let mut row = Row::new(children, ends);
                    row.insert(index + 1, Child::of(behind));
                    if !row.behind.is_empty() {
                        way.behind = Some(Items::Inner(row.behind));
                    }
                } else if after < before.min(FEW) {
                    merge(children, index);
                }
            }
        }
        self.count();
        true
    }

    /// Takes out what lies from the place on.
    fn split_off(&mut self, mut seek: impl Seek<T>) -> Items<T> {
        let rest = match &mut self.items {
            Items::Leaf(items) => {
                let (Ok(index) | Err(index)) = seek.item(items);
                Items::Leaf(items.split_off(index))
            }
            Items::Inner(children) => {
                let index = seek.child(children);
                let mut rest = children.split_off(index + 1);
                let child = &mut children[index];
                let behind = Arc::make_mut(&mut child.node).split_off(seek);
                if behind.len() > 0 {
                    rest.insert(0, Child::of(behind));
                }
                if child.node.items.len() > 0 {
                    child.relabel();
                } else {
                    children.pop();
                }
                Items::Inner(rest)
            }
        };
        self.count();
        rest
    }

    /// Adds the items of the node behind.
    fn append(&mut self, behind: &Self) {
        match (&mut self.items, &behind.items) {
            (Items::Leaf(items), Items::Leaf(more)) => items.extend_from_slice(more),
            (Items::Inner(items), Items::Inner(more)) => items.extend_from_slice(more),
            _ => panic!("nodes of one height are merged"),
        }
        self.count();
    }
}

/// A child has grown small: it goes if it is empty, or joins one beside it if they fit together.
fn merge<T: Item>(children: &mut Vec<Child<T>>, index: usize) {
    let len = |index: usize| children.get(index).map_or(MOST, |child| child.node.items.len());
    if len(index) == 0 {
        children.remove(index);
        return;
    }
    let fits = |left: usize| len(left) + len(left + 1) <= MERGED;
    let left = if fits(index) { Some(index) } else { index.checked_sub(1).filter(|left| fits(*left)) };
    if let Some(left) = left {
        let behind = children.remove(left + 1);
        let child = &mut children[left];
        Arc::make_mut(&mut child.node).append(&behind.node);
        child.relabel();
    }
}

/// A change of a leaf: of its items, at the place that was found, with what is left of the way.
trait Change<T, S>: FnMut(&mut Row<'_, T>, Result<usize, usize>, &S) {}
impl<T, S, F: FnMut(&mut Row<'_, T>, Result<usize, usize>, &S)> Change<T, S> for F {}

/// The way to a change. It goes from node to node by reference, as the change does: to hand all this over by value costs
/// as much as a search.
struct Way<T: Item, S> {
    seek: S,
    /// Whether an item must be found there.
    found: bool,
    /// Where the node is that it has come to.
    ends: Ends,
    /// On the way back: what the node has no room for.
    behind: Option<Items<T>>,
}

impl<T: Item> Tree<T> {
    /// The label that a node above would have; `None` of an empty tree.
    pub(crate) fn label(&self) -> Option<T::Label> {
        self.root.as_ref().map(|root| root.items.label())
    }

    /// The item that the way leads to.
    pub(crate) fn find(&self, seek: &mut impl Seek<T>) -> Option<&T> {
        self.root.as_ref()?.find(seek)
    }

    /// The same, to be changed; labels stay as they are.
    pub(crate) fn find_mut(&mut self, seek: impl Seek<T>) -> Option<&mut T> {
        Node::own(self.root.as_mut()?, &seek, true)?.find_mut(seek)
    }

    /// Changes the leaf that the way leads to, whether or not there is an item.
    pub(crate) fn change<S: Seek<T>, R>(
        &mut self,
        seek: S,
        change: impl FnOnce(&mut Row<'_, T>, Result<usize, usize>, &S) -> R,
    ) -> Option<R> {
        self.root.get_or_insert_with(|| Arc::new(Node::new(Items::Leaf(Vec::with_capacity(1)))));
        self.change_by(seek, false, change)
    }

    /// Changes the leaf that has the item to which the way leads; `None` if there is no such item, and then nothing is
    /// copied either.
    pub(crate) fn change_found<S: Seek<T>, R>(
        &mut self,
        seek: S,
        change: impl FnOnce(&mut Row<'_, T>, Result<usize, usize>, &S) -> R,
    ) -> Option<R> {
        self.change_by(seek, true, change)
    }

    fn change_by<S: Seek<T>, R>(
        &mut self,
        seek: S,
        found: bool,
        change: impl FnOnce(&mut Row<'_, T>, Result<usize, usize>, &S) -> R,
    ) -> Option<R> {
        let root = Node::own(self.root.as_mut()?, &seek, found)?;
        let mut way = Way { seek, found, ends: Ends { first: true, last: true }, behind: None };
        let (mut change, mut result) = (Some(change), None);
        root.change(&mut way, &mut |row, place, seek| {
            result = change.take().map(|change| change(row, place, seek));
        });
        if let Some(behind) = way.behind {
            let label = root.items.label();
            let first = self.root.take().map(|node| Child { label, node });
            let children = first.into_iter().chain([Child::of(behind)]).collect();
            self.root = Some(Arc::new(Node::new(Items::Inner(children))));
        }
        self.lower();
        result
    }

    /// Takes out what lies from the place on.
    pub(crate) fn split_off(&mut self, seek: impl Seek<T>) -> Self {
        let Some(root) = &mut self.root else { return Self::default() };
        let rest = Arc::make_mut(root).split_off(seek);
        let mut rest = Self { root: Some(Arc::new(Node::new(rest))) };
        self.lower();
        rest.lower();
        rest
    }

    /// A root without items goes, and one with a single child gives way to it.
    fn lower(&mut self) {
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
        self.iter_from(&mut End::First)
    }

    /// From a place on.
    pub(crate) fn iter_from(&self, seek: &mut impl Seek<T>) -> Iter<'_, T> {
        self.iter_by(seek, false)
    }

    /// From a place on to the first.
    pub(crate) fn backward_from(&self, seek: &mut impl Seek<T>) -> Iter<'_, T> {
        self.iter_by(seek, true)
    }

    fn iter_by(&self, seek: &mut impl Seek<T>, back: bool) -> Iter<'_, T> {
        let mut iter = Iter { inner: SmallVec::new(), leaf: [].iter(), back };
        let mut node = self.root.as_ref();
        while let Some(here) = node {
            match &here.items {
                Items::Inner(children) => {
                    let index = seek.child(children);
                    let rest = if back { &children[..index] } else { &children[index + 1..] };
                    iter.inner.push(rest.iter());
                    node = Some(&children[index].node);
                }
                Items::Leaf(items) => {
                    iter.leaf = match (seek.item(items), back) {
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

/// The items still to come of each inner node on the way, and of a leaf.
pub(crate) struct Iter<'a, T: Item> {
    inner: SmallVec<[slice::Iter<'a, Child<T>>; 4]>,
    leaf: slice::Iter<'a, T>,
    back: bool,
}

impl<'a, T: Item> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        fn step<'a, I>(items: &mut slice::Iter<'a, I>, back: bool) -> Option<&'a I> {
            if back { items.next_back() } else { items.next() }
        }
        loop {
            if let Some(item) = step(&mut self.leaf, self.back) {
                return Some(item);
            }
            let child = loop {
                match step(self.inner.last_mut()?, self.back) {
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
    /// The items of the root: how many, and where they lie if they are nodes.
    pub(crate) fn top(&self) -> (usize, Vec<*const ()>) {
        match self.root.as_ref().map(|root| &root.items) {
            None => (0, Vec::new()),
            Some(Items::Leaf(items)) => (items.len(), Vec::new()),
            Some(Items::Inner(children)) => {
                let nodes = children.iter().map(|child| Arc::as_ptr(&child.node).cast()).collect();
                (children.len(), nodes)
            }
        }
    }

    /// Sees that the tree is as it should be: its leaves are equally deep, no node is empty or too large, and the user
    /// finds nothing wrong with a label. Returns how many nodes lie on each other.
    pub(crate) fn check(&self, fits: &impl Fn(&T::Label, &Items<T>) -> bool) -> usize {
        fn height<T: Item>(items: &Items<T>, fits: &impl Fn(&T::Label, &Items<T>) -> bool) -> usize {
            assert!((1..=MOST).contains(&items.len()), "{} items", items.len());
            let Items::Inner(children) = items else { return 1 };
            let mut heights = children.iter().map(|child| {
                assert!(fits(&child.label, &child.node.items), "a label is wrong");
                height(&child.node.items, fits)
            });
            let first = heights.next().unwrap_or_default();
            assert!(heights.all(|height| height == first), "leaves are equally deep");
            first + 1
        }
        self.root.as_ref().map_or(0, |root| height(&root.items, fits))
    }
}
