//! The inner nodes above the leaves.
//!
//! An inner node has up to [`MAX_CHILDREN`] children, and the first element and element count of each. All leaves have
//! equal depth. A full leaf is split; at either end of the tree the new leaf gets only the new element, so inserting
//! elements in order fills the leaves completely. A nearly empty node is merged with a neighbour.

use std::ops::Range;

use smallvec::SmallVec;

use super::leaf::{LEAF_CAPACITY, LEAF_HEAP_BYTES, Leaf};
use super::{ElementBoundary, ElementSource};

const MAX_CHILDREN: usize = 48;
/// Two neighbours are merged if one is less than a quarter full and both together are at most three quarters full.
const MIN_FILL_DIVISOR: usize = 4;
const MAX_MERGED_FILL: (usize, usize) = (3, 4);

#[derive(Debug)]
enum Node {
    Leaf(Box<Leaf>),
    Inner(Vec<Child>),
}

/// A node with its first element and element count.
#[derive(Debug)]
struct Child {
    /// The score of the node's first element, as ordered bits.
    score_bits: u64,
    /// Reference of the node's first element, or any value in an empty root.
    first_element: u32,
    len: u32,
    node: Node,
}

/// All elements of a sorted set, in order.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Child,
}

/// The path to an element: the child index per node, then the index in the leaf.
#[derive(Debug)]
pub(crate) struct Position(SmallVec<[u8; 8]>);

/// An element to be inserted, and whether it becomes the last of the tree.
struct NewElement<'a> {
    reference: u32,
    score_bits: u64,
    boundary: ElementBoundary<'a>,
    /// Whether the element sorts after all others.
    is_last: bool,
}

/// Whether a node is the first or last at its depth.
#[derive(Clone, Copy)]
struct NodeEdges {
    is_first: bool,
    is_last: bool,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            root: Child { score_bits: 0, first_element: 0, len: 0, node: Node::Leaf(Box::new(Leaf::new(0))) },
        }
    }
}

impl Tree {
    pub(super) fn insert(&mut self, reference: u32, source: &impl ElementSource) {
        let bits = source.score_bits(reference);
        if self.root.len == 0 {
            self.root = Child::with_element(reference, bits, source);
            return;
        }
        let cut = ElementBoundary::before_element(bits, source.name(reference));
        let last = self.last_element();
        let is_last = cut.is_after(source.score_bits(last), || source.name(last));
        let new = NewElement { reference, score_bits: bits, boundary: cut, is_last };
        let Some(right) = self.root.add(&new, NodeEdges { is_first: true, is_last: true }, source) else {
            return;
        };
        let (bits, first, len) = (self.root.score_bits, self.root.first_element, self.root.len + right.len);
        let root =
            Child { score_bits: bits, first_element: first, len, node: Node::Inner(Vec::with_capacity(4)) };
        let left = std::mem::replace(&mut self.root, root);
        if let Node::Inner(children) = &mut self.root.node {
            children.extend([left, right]);
        }
    }

    /// Returns the last element, which must exist.
    fn last_element(&self) -> u32 {
        let mut node = &self.root.node;
        loop {
            match node {
                Node::Inner(children) => node = &children.last().expect("a node has children").node,
                Node::Leaf(leaf) => return *leaf.references().last().expect("no leaf of several is empty"),
            }
        }
    }

    /// Removes an element, which must exist.
    pub(super) fn remove_element(&mut self, reference: u32, source: &impl ElementSource) {
        let (bits, name) = (source.score_bits(reference), source.name(reference));
        self.root.remove(bits, name, reference, source);
        while let Node::Inner(children) = &mut self.root.node
            && children.len() == 1
            && let Some(only) = children.pop()
        {
            self.root = only;
        }
    }

    /// Returns the position of an element, which must exist.
    pub(super) fn position(&self, reference: u32, source: &impl ElementSource) -> Position {
        let (bits, name) = (source.score_bits(reference), source.name(reference));
        let mut position = SmallVec::new();
        let mut node = &self.root.node;
        loop {
            match node {
                Node::Inner(children) => {
                    let index = child_at(children, &ElementBoundary::after_element(bits, name), source);
                    position.push(index as u8);
                    node = &children[index].node;
                }
                Node::Leaf(leaf) => {
                    let index = leaf.count_before(&ElementBoundary::before_element(bits, name), source);
                    assert_eq!(
                        leaf.references().get(index),
                        Some(&reference),
                        "an element is where it belongs"
                    );
                    position.push(index as u8);
                    return Position(position);
                }
            }
        }
    }

    pub(super) fn replace_reference(&mut self, position: &Position, old: u32, new: u32) {
        let mut child = &mut self.root;
        for &index in &position.0 {
            if child.first_element == old {
                child.first_element = new;
            }
            match &mut child.node {
                Node::Inner(children) => child = &mut children[usize::from(index)],
                Node::Leaf(leaf) => return leaf.set(usize::from(index), new),
            }
        }
    }

    pub(crate) fn rank(&self, boundary: &ElementBoundary<'_>, source: &impl ElementSource) -> usize {
        let (mut rank, mut node) = (0, &self.root.node);
        loop {
            match node {
                Node::Inner(children) => {
                    let index = child_at(children, boundary, source);
                    rank += children[..index].iter().map(|child| child.len as usize).sum::<usize>();
                    node = &children[index].node;
                }
                Node::Leaf(leaf) => return rank + leaf.count_before(boundary, source),
            }
        }
    }

    /// Visits the elements whose ranks are in a range, ascending or descending, until `visit` returns false.
    pub(crate) fn visit(
        &self,
        ranks: Range<usize>,
        reversed: bool,
        source: &impl ElementSource,
        visit: &mut dyn FnMut(u32) -> bool,
    ) {
        self.visit_runs(ranks, reversed, &mut |run| {
            run.iter().for_each(|&reference| source.prefetch(reference));
            if reversed {
                run.iter().rev().all(|&reference| visit(reference))
            } else {
                run.iter().all(|&reference| visit(reference))
            }
        });
    }

    /// Visits the elements whose ranks are in a range, as ordered slices of references.
    pub(crate) fn visit_runs(
        &self,
        ranks: Range<usize>,
        reversed: bool,
        visit: &mut dyn FnMut(&[u32]) -> bool,
    ) {
        let ranks = ranks.start..ranks.end.min(self.root.len as usize);
        if !ranks.is_empty() {
            self.root.node.visit_runs(ranks, reversed, visit);
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        fn leaf_count(node: &Node) -> usize {
            match node {
                Node::Leaf(_) => 1,
                Node::Inner(children) => children.iter().map(|child| leaf_count(&child.node)).sum(),
            }
        }
        leaf_count(&self.root.node) * LEAF_HEAP_BYTES
    }
}

/// Returns the last child whose first element lies before the boundary, or the first child.
#[inline]
fn child_at(children: &[Child], boundary: &ElementBoundary<'_>, source: &impl ElementSource) -> usize {
    children
        .partition_point(|child| boundary.is_after(child.score_bits, || source.name(child.first_element)))
        .saturating_sub(1)
}

impl Node {
    fn visit_runs(&self, ranks: Range<usize>, reversed: bool, visit: &mut dyn FnMut(&[u32]) -> bool) -> bool {
        match self {
            Self::Leaf(leaf) => visit(&leaf.references()[ranks]),
            Self::Inner(children) => {
                let mut start = if reversed { self.len() } else { 0 };
                let mut go = |child: &Child| {
                    let len = child.len as usize;
                    start -= if reversed { len } else { 0 };
                    let from = ranks.start.clamp(start, start + len) - start;
                    let to = ranks.end.clamp(start, start + len) - start;
                    start += if reversed { 0 } else { len };
                    from == to || child.node.visit_runs(from..to, reversed, visit)
                };
                if reversed { children.iter().rev().all(&mut go) } else { children.iter().all(&mut go) }
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.len(),
            Self::Inner(children) => children.iter().map(|child| child.len as usize).sum(),
        }
    }
}

impl Child {
    fn with_element(reference: u32, bits: u64, source: &impl ElementSource) -> Self {
        let mut leaf = Box::new(Leaf::new(bits));
        leaf.insert(0, reference, bits, source);
        Self { score_bits: bits, first_element: reference, len: 1, node: Node::Leaf(leaf) }
    }

    /// Inserts an element. If the node was split, returns the new node after it.
    fn add(&mut self, new: &NewElement<'_>, edges: NodeEdges, source: &impl ElementSource) -> Option<Self> {
        // An element that sorts before all others goes to the first child.
        let leads =
            !new.is_last && !new.boundary.is_after(self.score_bits, || source.name(self.first_element));
        self.len += 1;
        let right = match &mut self.node {
            Node::Leaf(leaf) => add_to_leaf(leaf, new, edges, source),
            Node::Inner(children) => {
                let index =
                    if new.is_last { children.len() - 1 } else { child_at(children, &new.boundary, source) };
                let (first, last) =
                    (edges.is_first && index == 0, edges.is_last && index + 1 == children.len());
                let right = children[index].add(new, NodeEdges { is_first: first, is_last: last }, source);
                right.and_then(|right| add_child(children, index + 1, right, edges))
            }
        };
        if leads {
            (self.score_bits, self.first_element) = (new.score_bits, new.reference);
        }
        self.len -= right.as_ref().map_or(0, |right| right.len);
        right
    }

    /// Removes an element, which must exist.
    fn remove(&mut self, bits: u64, name: &[u8], reference: u32, source: &impl ElementSource) {
        self.len -= 1;
        let is_first = self.first_element == reference;
        match &mut self.node {
            Node::Leaf(leaf) => {
                let index = if is_first {
                    0
                } else {
                    leaf.count_before(&ElementBoundary::before_element(bits, name), source)
                };
                assert_eq!(leaf.references().get(index), Some(&reference), "an element is where it belongs");
                leaf.remove(index);
            }
            Node::Inner(children) => {
                let index = if is_first {
                    0
                } else {
                    child_at(children, &ElementBoundary::after_element(bits, name), source)
                };
                children[index].remove(bits, name, reference, source);
                merge_after_removal(children, index, source);
            }
        }
        if is_first && self.len > 0 {
            (self.score_bits, self.first_element) = match &self.node {
                Node::Leaf(leaf) => (source.score_bits(leaf.references()[0]), leaf.references()[0]),
                Node::Inner(children) => (children[0].score_bits, children[0].first_element),
            };
        }
    }

    /// Adds the contents of the next node.
    fn append(&mut self, next: Self, source: &impl ElementSource) {
        self.len += next.len;
        match (&mut self.node, next.node) {
            (Node::Leaf(leaf), Node::Leaf(right)) => leaf.append(&right, source),
            (Node::Inner(children), Node::Inner(more)) => {
                children.extend(more);
            }
            _ => panic!("all leaves are equally deep"),
        }
    }

    fn used_len(&self) -> usize {
        match &self.node {
            Node::Leaf(leaf) => leaf.len(),
            Node::Inner(children) => children.len(),
        }
    }

    fn capacity(&self) -> usize {
        match &self.node {
            Node::Leaf(_) => LEAF_CAPACITY,
            Node::Inner(_) => MAX_CHILDREN,
        }
    }
}

fn add_to_leaf(
    leaf: &mut Box<Leaf>,
    new: &NewElement<'_>,
    edges: NodeEdges,
    source: &impl ElementSource,
) -> Option<Child> {
    let index = if new.is_last { leaf.len() } else { leaf.count_before(&new.boundary, source) };
    if leaf.len() < LEAF_CAPACITY {
        leaf.insert(index, new.reference, new.score_bits, source);
        return None;
    }
    if edges.is_last && index == LEAF_CAPACITY {
        return Some(Child::with_element(new.reference, new.score_bits, source));
    }
    let mut right = if edges.is_first && index == 0 {
        std::mem::replace(leaf, Box::new(Leaf::new(new.score_bits)))
    } else {
        leaf.split_off(LEAF_CAPACITY / 2, source)
    };
    if index <= leaf.len() {
        leaf.insert(index, new.reference, new.score_bits, source);
    } else {
        right.insert(index - leaf.len(), new.reference, new.score_bits, source);
    }
    let first = right.references()[0];
    Some(Child {
        score_bits: source.score_bits(first),
        first_element: first,
        len: right.len() as u32,
        node: Node::Leaf(right),
    })
}

/// Inserts a child. If the node was split, returns the new node after it.
fn add_child(children: &mut Vec<Child>, index: usize, child: Child, edges: NodeEdges) -> Option<Child> {
    if children.len() == children.capacity() {
        // Grow by half instead of doubling, because sets of some hundred members have only a few leaves.
        children.reserve_exact((children.len() / 2).clamp(2, MAX_CHILDREN + 1));
    }
    children.insert(index, child);
    if children.len() <= MAX_CHILDREN {
        return None;
    }
    let keep = match index {
        _ if edges.is_last && index == MAX_CHILDREN => MAX_CHILDREN,
        1 if edges.is_first => 1,
        _ => MAX_CHILDREN / 2,
    };
    let right = children.split_off(keep);
    let len = right.iter().map(|child| child.len).sum();
    let (bits, first) = (right[0].score_bits, right[0].first_element);
    Some(Child { score_bits: bits, first_element: first, len, node: Node::Inner(right) })
}

/// Drops a child that became empty by a removal, or merges a nearly empty one with a neighbour.
fn merge_after_removal(children: &mut Vec<Child>, index: usize, source: &impl ElementSource) {
    if children[index].len == 0 {
        children.remove(index);
        return;
    }
    let (taken, places) = (children[index].used_len(), children[index].capacity());
    if taken >= places / MIN_FILL_DIVISOR {
        return;
    }
    let most = places * MAX_MERGED_FILL.0 / MAX_MERGED_FILL.1;
    let fits = |other: usize| children.get(other).is_some_and(|other| other.used_len() + taken <= most);
    let left = match index {
        _ if fits(index + 1) => index,
        1.. if fits(index - 1) => index - 1,
        _ => return,
    };
    let right = children.remove(left + 1);
    children[left].append(right, source);
}
