//! The segments of a large list in their order, found by the index of an element.
//!
//! A tree whose branches know how many elements and bytes are below each of their children: what is asked for by index
//! is found in as many steps as the tree is high, five for a thousand million elements. All its nodes are shared by
//! [`Arc`]: a copy of a tree is a copy of its root, and a change of one of two that share nodes copies those on the
//! way to the change and no others.
//!
//! A branch that is full is split in the middle, or at its end if it is the list that grows there: then branches stay
//! full. A branch that becomes empty goes, a root with a single branch below gives way to
//! it; others are not filled up again, so the tree is as high as it had to be when it was largest.

use std::sync::Arc;

use super::ListEnd;
use super::records::{self, ListItem};
use super::segment::Segment;

/// Most children of a branch; while one is being split, two more.
const WIDTH: usize = 32;
/// Bytes that the allocator takes for a shared segment, with those of its child in the branch above.
const SEGMENT_BYTES: usize = 2 * size_of::<usize>() + size_of::<Segment>() + size_of::<Child>();

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Size {
    /// Elements.
    pub(crate) len: usize,
    /// Bytes of their records.
    pub(crate) bytes: usize,
    pub(crate) segments: usize,
}

impl Size {
    /// About what it takes. Segments have a little room at their ends; that is not counted.
    pub(crate) fn held(&self) -> usize {
        self.bytes + self.segments * SEGMENT_BYTES
    }
}

impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), |sum, size| Self {
            len: sum.len + size.len,
            bytes: sum.bytes + size.bytes,
            segments: sum.segments + size.segments,
        })
    }
}

#[derive(Debug, Clone)]
enum Below {
    Segment(Arc<Segment>),
    Branch { branch: Arc<Branch>, segments: u32 },
}

#[derive(Debug, Clone)]
struct Child {
    len: usize,
    bytes: usize,
    below: Below,
}

#[derive(Debug, Clone, Default)]
struct Branch {
    children: Vec<Child>,
}

/// The segments of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    root: Arc<Branch>,
}

impl From<Segment> for Child {
    fn from(segment: Segment) -> Self {
        Self { len: segment.len(), bytes: segment.bytes(), below: Below::Segment(Arc::new(segment)) }
    }
}

impl From<Branch> for Child {
    fn from(branch: Branch) -> Self {
        Self::of(Arc::new(branch))
    }
}

impl Child {
    fn of(branch: Arc<Branch>) -> Self {
        let Size { len, bytes, segments } = branch.size();
        Self { len, bytes, below: Below::Branch { branch, segments: segments as u32 } }
    }

    fn size(&self) -> Size {
        let segments = match self.below {
            Below::Segment(_) => 1,
            Below::Branch { segments, .. } => segments as usize,
        };
        Size { len: self.len, bytes: self.bytes, segments }
    }

    /// Counts anew after the node below has changed.
    fn measure(&mut self) {
        let size = match &mut self.below {
            Below::Segment(segment) => Size { len: segment.len(), bytes: segment.bytes(), segments: 1 },
            Below::Branch { branch, segments } => {
                let size = branch.size();
                *segments = size.segments as u32;
                size
            }
        };
        (self.len, self.bytes) = (size.len, size.bytes);
    }
}

impl Branch {
    fn size(&self) -> Size {
        self.children.iter().map(Child::size).sum()
    }

    /// The child that has element `index`, and which of its elements that is.
    fn child_with(&self, index: usize) -> (usize, usize) {
        let mut left = index;
        for (place, child) in self.children.iter().enumerate() {
            if left < child.len {
                return (place, left);
            }
            left -= child.len;
        }
        panic!("element {index} is beyond the list's end")
    }

    /// The child in which something is put before element `index`, and before which of its elements. Between two
    /// children it is the first's end.
    fn child_for(&self, index: usize) -> (usize, usize) {
        match index.checked_sub(1) {
            None => (0, 0),
            Some(before) => {
                let (place, index) = self.child_with(before);
                (place, index + 1)
            }
        }
    }

    /// Puts a record before element `index`; `end` if that is an end of the list. What this branch cannot hold comes
    /// back, to stand behind it.
    fn insert(&mut self, index: usize, record: &[u8], end: Option<ListEnd>) -> Option<Self> {
        if self.children.is_empty() {
            self.children.push(Segment::of(record).into());
            return None;
        }
        let (place, index) = self.child_for(index);
        match &mut self.children[place].below {
            Below::Branch { branch, .. } => {
                if let Some(more) = Arc::make_mut(branch).insert(index, record, end) {
                    self.children.insert(place + 1, more.into());
                }
            }
            Below::Segment(segment) if segment.has_room(record.len()) => {
                Arc::make_mut(segment).insert(index, record);
            }
            Below::Segment(segment) => {
                if index > 0 && index < segment.len() {
                    let rest = Arc::make_mut(segment).split_off(index);
                    self.children.insert(place + 1, rest.into());
                }
                self.children.insert(place + usize::from(index > 0), Segment::of(record).into());
            }
        }
        self.children[place].measure();
        (self.children.len() > WIDTH).then(|| {
            let from = match end {
                Some(ListEnd::Head) => 1,
                Some(ListEnd::Tail) => self.children.len() - 1,
                None => self.children.len() / 2,
            };
            Self { children: self.children.split_off(from) }
        })
    }

    /// Changes the segment with element `index`.
    fn edit(&mut self, index: usize, change: &mut dyn FnMut(&mut Segment, usize)) {
        let (place, index) = self.child_with(index);
        let child = &mut self.children[place];
        match &mut child.below {
            Below::Branch { branch, .. } => Arc::make_mut(branch).edit(index, change),
            Below::Segment(segment) => change(Arc::make_mut(segment), index),
        }
        child.measure();
    }

    /// Takes element `index` out.
    fn remove(&mut self, index: usize) {
        let (place, index) = self.child_with(index);
        let child = &mut self.children[place];
        if child.len == 1 {
            self.children.remove(place);
            return;
        }
        match &mut child.below {
            Below::Branch { branch, .. } => Arc::make_mut(branch).remove(index),
            Below::Segment(segment) => Arc::make_mut(segment).remove(index),
        }
        child.measure();
        if !self.join_with_next(place) && place > 0 {
            self.join_with_next(place - 1);
        }
    }

    /// Makes two segments one if they have become small.
    fn join_with_next(&mut self, place: usize) -> bool {
        let [first, second, ..] = &mut self.children[place..] else { return false };
        let (Below::Segment(segment), Below::Segment(next)) = (&mut first.below, &second.below) else {
            return false;
        };
        if !segment.should_join(next) {
            return false;
        }
        Arc::make_mut(segment).join(next);
        first.measure();
        self.children.remove(place + 1);
        true
    }

    /// Takes the elements from `index` on out, which is neither the first nor beyond the last.
    fn split_off(&mut self, index: usize) -> Self {
        let (place, index) = self.child_with(index);
        let mut rest = self.children.split_off(place + usize::from(index > 0));
        if index > 0 {
            let child = &mut self.children[place];
            let split: Self = match &mut child.below {
                Below::Branch { branch, .. } => Arc::make_mut(branch).split_off(index),
                Below::Segment(segment) => {
                    rest.insert(0, Arc::make_mut(segment).split_off(index).into());
                    child.measure();
                    return Self { children: rest };
                }
            };
            rest.insert(0, split.into());
            child.measure();
        }
        Self { children: rest }
    }

    /// Takes the first segment out.
    fn take_first(&mut self) -> Option<Arc<Segment>> {
        let child = self.children.first_mut()?;
        match &mut child.below {
            Below::Branch { branch, .. } => {
                let branch = Arc::make_mut(branch);
                let taken = branch.take_first();
                if branch.children.is_empty() {
                    self.children.remove(0);
                }
                taken
            }
            Below::Segment(_) => match self.children.remove(0).below {
                Below::Segment(segment) => Some(segment),
                Below::Branch { .. } => None,
            },
        }
    }

    fn visit<'a>(&'a self, index: usize, visit: &mut dyn FnMut(ListItem<'a>) -> bool) -> bool {
        let (place, mut index) = self.child_with(index);
        self.children[place..].iter().all(|child| {
            let from = std::mem::take(&mut index);
            match &child.below {
                Below::Branch { branch, .. } => branch.visit(from, visit),
                Below::Segment(segment) => {
                    records::items(&segment.records()[segment.offset(from)..]).all(&mut *visit)
                }
            }
        })
    }

    fn visit_back<'a>(&'a self, index: usize, visit: &mut dyn FnMut(ListItem<'a>) -> bool) -> bool {
        let (place, index) = self.child_with(index);
        let mut index = Some(index);
        self.children[..=place].iter().rev().all(|child| {
            let from = index.take().unwrap_or(child.len - 1);
            match &child.below {
                Below::Branch { branch, .. } => branch.visit_back(from, visit),
                Below::Segment(segment) => {
                    let run = &segment.records()[..segment.offset(from + 1)];
                    records::items_back(run).all(&mut *visit)
                }
            }
        })
    }

    fn visit_segments<'a>(&'a self, visit: &mut dyn FnMut(&'a Segment)) {
        self.children.iter().for_each(|child| match &child.below {
            Below::Branch { branch, .. } => branch.visit_segments(visit),
            Below::Segment(segment) => visit(segment),
        });
    }
}

impl Tree {
    pub(crate) fn size(&self) -> Size {
        self.root.size()
    }

    /// Element `index`, which must be there.
    pub(crate) fn item(&self, mut index: usize) -> ListItem<'_> {
        let mut branch = &*self.root;
        loop {
            let (place, rest) = branch.child_with(index);
            match &branch.children[place].below {
                Below::Segment(segment) => return segment.item(rest),
                Below::Branch { branch: below, .. } => (branch, index) = (below, rest),
            }
        }
    }

    /// Visits the elements from `index` on while `visit` says so; says whether it always did.
    pub(crate) fn visit<'a>(&'a self, index: usize, visit: &mut dyn FnMut(ListItem<'a>) -> bool) -> bool {
        self.root.visit(index, visit)
    }

    /// The same from `index` back to the first.
    pub(crate) fn visit_back<'a>(
        &'a self,
        index: usize,
        visit: &mut dyn FnMut(ListItem<'a>) -> bool,
    ) -> bool {
        self.root.visit_back(index, visit)
    }

    pub(crate) fn visit_segments<'a>(&'a self, visit: &mut dyn FnMut(&'a Segment)) {
        self.root.visit_segments(visit);
    }

    /// Puts a record before element `index`, or at the end.
    pub(crate) fn insert(&mut self, index: usize, record: &[u8]) {
        let end = match index {
            0 => Some(ListEnd::Head),
            index => (index == self.size().len).then_some(ListEnd::Tail),
        };
        let root = Arc::make_mut(&mut self.root);
        if let Some(more) = root.insert(index, record, end) {
            let first = std::mem::take(root);
            root.children.extend([first.into(), more.into()]);
        }
    }

    /// Puts a record in the place of element `index`.
    pub(crate) fn replace(&mut self, index: usize, record: &[u8]) {
        let mut done = false;
        Arc::make_mut(&mut self.root).edit(index, &mut |segment, index| {
            let old = segment.record_len(index);
            done = segment.len() == 1 || segment.has_room(record.len().saturating_sub(old));
            if done {
                segment.replace(index, record);
            }
        });
        if !done {
            self.remove(index);
            self.insert(index, record);
        }
    }

    /// Takes element `index` out.
    pub(crate) fn remove(&mut self, index: usize) {
        Arc::make_mut(&mut self.root).remove(index);
        self.lower();
    }

    /// Takes the elements from `index` on out.
    pub(crate) fn split_off(&mut self, index: usize) -> Self {
        if index == 0 {
            return std::mem::take(self);
        }
        if index >= self.size().len {
            return Self::default();
        }
        let mut rest = Self { root: Arc::new(Arc::make_mut(&mut self.root).split_off(index)) };
        self.lower();
        rest.lower();
        rest
    }

    /// Takes the first segment out.
    pub(crate) fn take_first(&mut self) -> Option<Arc<Segment>> {
        let taken = Arc::make_mut(&mut self.root).take_first();
        self.lower();
        taken
    }

    /// While there is a single branch below the root, that is the root.
    fn lower(&mut self) {
        while let [Child { below: Below::Branch { branch, .. }, .. }] = &self.root.children[..] {
            self.root = branch.clone();
        }
    }
}

#[cfg(test)]
mod tests;
