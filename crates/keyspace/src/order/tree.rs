//! The tree above the leaves.
//!
//! A node has up to [`CHILDREN`] children, of each its first element and how many there are in it. All leaves are
//! equally deep. A leaf that is full becomes two; at either end of the tree the new one gets only the new element, so
//! what comes in order fills leaves to the last place. One that is nearly empty joins its neighbour.

use std::ops::Range;

use smallvec::SmallVec;

use super::leaf::{LEAF, LEAF_BYTES, Leaf};
use super::{Cut, Elements};

const CHILDREN: usize = 48;
/// Two neighbours join when one has fewer than a quarter and both together not more than three quarters.
const FEW: usize = 4;
const JOINED: (usize, usize) = (3, 4);

#[derive(Debug)]
enum Node {
    Leaf(Box<Leaf>),
    Inner(Vec<Child>),
}

/// A node, with its first element and its number of elements.
#[derive(Debug)]
struct Child {
    /// The score of its first element.
    bits: u64,
    /// The first element. Of no meaning while there is none, which only a root is.
    first: u32,
    /// How many elements there are.
    len: u32,
    node: Node,
}

/// The elements in order.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Child,
}

/// The way to an element: which child of each node, and which element of the leaf.
#[derive(Debug)]
pub(crate) struct Position(SmallVec<[u8; 8]>);

/// An element that is added, and whether it goes to an end of the tree.
struct New<'a> {
    reference: u32,
    bits: u64,
    cut: Cut<'a>,
    /// It stands behind all others.
    is_last: bool,
}

/// Whether a node is the first or the last of all at its depth.
#[derive(Clone, Copy)]
struct Ends {
    first: bool,
    last: bool,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: Child { bits: 0, first: 0, len: 0, node: Node::Leaf(Box::new(Leaf::new(0))) } }
    }
}

impl Tree {
    pub(super) fn insert(&mut self, reference: u32, of: &impl Elements) {
        let bits = of.bits(reference);
        if self.root.len == 0 {
            self.root = Child::only(reference, bits, of);
            return;
        }
        let cut = Cut::before(bits, of.name(reference));
        let last = self.last();
        let is_last = cut.passes(of.bits(last), || of.name(last));
        let new = New { reference, bits, cut, is_last };
        let Some(right) = self.root.add(&new, Ends { first: true, last: true }, of) else { return };
        let (bits, first, len) = (self.root.bits, self.root.first, self.root.len + right.len);
        let root = Child { bits, first, len, node: Node::Inner(Vec::with_capacity(4)) };
        let left = std::mem::replace(&mut self.root, root);
        if let Node::Inner(children) = &mut self.root.node {
            children.extend([left, right]);
        }
    }

    /// The last element; there must be one.
    fn last(&self) -> u32 {
        let mut node = &self.root.node;
        loop {
            match node {
                Node::Inner(children) => node = &children.last().expect("a node has children").node,
                Node::Leaf(leaf) => return *leaf.references().last().expect("no leaf of several is empty"),
            }
        }
    }

    /// Takes an element out, which must be there.
    pub(super) fn take(&mut self, reference: u32, of: &impl Elements) {
        let (bits, name) = (of.bits(reference), of.name(reference));
        self.root.remove(bits, name, reference, of);
        while let Node::Inner(children) = &mut self.root.node
            && children.len() == 1
            && let Some(only) = children.pop()
        {
            self.root = only;
        }
    }

    /// Where an element is, which must be there.
    pub(super) fn position(&self, reference: u32, of: &impl Elements) -> Position {
        let (bits, name) = (of.bits(reference), of.name(reference));
        let mut position = SmallVec::new();
        let mut node = &self.root.node;
        loop {
            match node {
                Node::Inner(children) => {
                    let index = child_at(children, &Cut::behind(bits, name), of);
                    position.push(index as u8);
                    node = &children[index].node;
                }
                Node::Leaf(leaf) => {
                    let index = leaf.before(&Cut::before(bits, name), of);
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

    /// An element at a position got another reference.
    pub(super) fn exchange(&mut self, position: &Position, from: u32, to: u32) {
        let mut child = &mut self.root;
        for &index in &position.0 {
            if child.first == from {
                child.first = to;
            }
            match &mut child.node {
                Node::Inner(children) => child = &mut children[usize::from(index)],
                Node::Leaf(leaf) => return leaf.set(usize::from(index), to),
            }
        }
    }

    /// How many elements lie before the cut.
    pub(crate) fn rank(&self, cut: &Cut<'_>, of: &impl Elements) -> usize {
        let (mut rank, mut node) = (0, &self.root.node);
        loop {
            match node {
                Node::Inner(children) => {
                    let index = child_at(children, cut, of);
                    rank += children[..index].iter().map(|child| child.len as usize).sum::<usize>();
                    node = &children[index].node;
                }
                Node::Leaf(leaf) => return rank + leaf.before(cut, of),
            }
        }
    }

    /// Visits the elements with these ranks, in order or from the last to the first, until `visit` says no.
    pub(crate) fn visit(
        &self,
        ranks: Range<usize>,
        reversed: bool,
        of: &impl Elements,
        visit: &mut dyn FnMut(u32) -> bool,
    ) {
        self.visit_runs(ranks, reversed, &mut |run| {
            run.iter().for_each(|&reference| of.prefetch(reference));
            if reversed {
                run.iter().rev().all(|&reference| visit(reference))
            } else {
                run.iter().all(|&reference| visit(reference))
            }
        });
    }

    /// Visits runs of them, each in order.
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

    /// Bytes of all its nodes.
    pub(super) fn held_bytes(&self) -> usize {
        fn leaves(node: &Node) -> usize {
            match node {
                Node::Leaf(_) => 1,
                Node::Inner(children) => children.iter().map(|child| leaves(&child.node)).sum(),
            }
        }
        leaves(&self.root.node) * LEAF_BYTES
    }
}

/// The child that a search for the cut goes to: the last whose first element lies before it, or the first.
#[inline]
fn child_at(children: &[Child], cut: &Cut<'_>, of: &impl Elements) -> usize {
    children.partition_point(|child| cut.passes(child.bits, || of.name(child.first))).saturating_sub(1)
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
    /// A leaf with one element.
    fn only(reference: u32, bits: u64, of: &impl Elements) -> Self {
        let mut leaf = Box::new(Leaf::new(bits));
        leaf.insert(0, reference, bits, of);
        Self { bits, first: reference, len: 1, node: Node::Leaf(leaf) }
    }

    /// Adds an element; returns the node that is to stand behind this one, if it became two.
    fn add(&mut self, new: &New<'_>, ends: Ends, of: &impl Elements) -> Option<Self> {
        // An element before the first one goes to the first child.
        let leads = !new.is_last && !new.cut.passes(self.bits, || of.name(self.first));
        self.len += 1;
        let right = match &mut self.node {
            Node::Leaf(leaf) => add_to_leaf(leaf, new, ends, of),
            Node::Inner(children) => {
                let index = if new.is_last { children.len() - 1 } else { child_at(children, &new.cut, of) };
                let (first, last) = (ends.first && index == 0, ends.last && index + 1 == children.len());
                let right = children[index].add(new, Ends { first, last }, of);
                right.and_then(|right| add_child(children, index + 1, right, ends))
            }
        };
        if leads {
            (self.bits, self.first) = (new.bits, new.reference);
        }
        self.len -= right.as_ref().map_or(0, |right| right.len);
        right
    }

    /// Removes an element, which must be there.
    fn remove(&mut self, bits: u64, name: &[u8], reference: u32, of: &impl Elements) {
        self.len -= 1;
        let is_first = self.first == reference;
        match &mut self.node {
            Node::Leaf(leaf) => {
                let index = if is_first { 0 } else { leaf.before(&Cut::before(bits, name), of) };
                assert_eq!(leaf.references().get(index), Some(&reference), "an element is where it belongs");
                leaf.remove(index);
            }
            Node::Inner(children) => {
                let index = if is_first { 0 } else { child_at(children, &Cut::behind(bits, name), of) };
                children[index].remove(bits, name, reference, of);
                tidy(children, index, of);
            }
        }
        if is_first && self.len > 0 {
            (self.bits, self.first) = match &self.node {
                Node::Leaf(leaf) => (of.bits(leaf.references()[0]), leaf.references()[0]),
                Node::Inner(children) => (children[0].bits, children[0].first),
            };
        }
    }

    /// Takes over all that the next one has.
    fn append(&mut self, right: Self, of: &impl Elements) {
        self.len += right.len;
        match (&mut self.node, right.node) {
            (Node::Leaf(leaf), Node::Leaf(right)) => leaf.append(&right, of),
            (Node::Inner(children), Node::Inner(more)) => {
                children.extend(more);
            }
            _ => panic!("all leaves are equally deep"),
        }
    }

    /// How many places are taken.
    fn taken(&self) -> usize {
        match &self.node {
            Node::Leaf(leaf) => leaf.len(),
            Node::Inner(children) => children.len(),
        }
    }

    fn places(&self) -> usize {
        match &self.node {
            Node::Leaf(_) => LEAF,
            Node::Inner(_) => CHILDREN,
        }
    }
}

fn add_to_leaf(leaf: &mut Box<Leaf>, new: &New<'_>, ends: Ends, of: &impl Elements) -> Option<Child> {
    let index = if new.is_last { leaf.len() } else { leaf.before(&new.cut, of) };
    if leaf.len() < LEAF {
        leaf.insert(index, new.reference, new.bits, of);
        return None;
    }
    if ends.last && index == LEAF {
        return Some(Child::only(new.reference, new.bits, of));
    }
    let mut right = if ends.first && index == 0 {
        std::mem::replace(leaf, Box::new(Leaf::new(new.bits)))
    } else {
        leaf.split_off(LEAF / 2, of)
    };
    if index <= leaf.len() {
        leaf.insert(index, new.reference, new.bits, of);
    } else {
        right.insert(index - leaf.len(), new.reference, new.bits, of);
    }
    let first = right.references()[0];
    Some(Child { bits: of.bits(first), first, len: right.len() as u32, node: Node::Leaf(right) })
}

/// Adds a child; returns the node that is to stand behind this one, if it became two.
fn add_child(children: &mut Vec<Child>, index: usize, child: Child, ends: Ends) -> Option<Child> {
    if children.len() == children.capacity() {
        // By half: sets of some hundred members have a few leaves only.
        children.reserve_exact((children.len() / 2).clamp(2, CHILDREN + 1));
    }
    children.insert(index, child);
    if children.len() <= CHILDREN {
        return None;
    }
    let keep = match index {
        _ if ends.last && index == CHILDREN => CHILDREN,
        1 if ends.first => 1,
        _ => CHILDREN / 2,
    };
    let right = children.split_off(keep);
    let len = right.iter().map(|child| child.len).sum();
    let (bits, first) = (right[0].bits, right[0].first);
    Some(Child { bits, first, len, node: Node::Inner(right) })
}

/// After a removal from a child: one without elements goes, one with few joins a neighbour.
fn tidy(children: &mut Vec<Child>, index: usize, of: &impl Elements) {
    if children[index].len == 0 {
        children.remove(index);
        return;
    }
    let (taken, places) = (children[index].taken(), children[index].places());
    if taken >= places / FEW {
        return;
    }
    let most = places * JOINED.0 / JOINED.1;
    let fits = |other: usize| children.get(other).is_some_and(|other| other.taken() + taken <= most);
    let left = match index {
        _ if fits(index + 1) => index,
        1.. if fits(index - 1) => index - 1,
        _ => return,
    };
    let right = children.remove(left + 1);
    children[left].append(right, of);
}
