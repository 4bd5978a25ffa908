use std::collections::VecDeque;

use super::*;
use crate::list::records::ItemDigits;

/// A pseudo-random generator that is good enough to choose test steps.
struct RandomChoices(u64);

impl RandomChoices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

type ReferenceList = VecDeque<Vec<u8>>;

fn all_elements(tree: &Tree) -> ReferenceList {
    let (mut seen, mut digits) = (ReferenceList::new(), ItemDigits::default());
    if tree.size().len > 0 {
        tree.visit(0, &mut |item| {
            seen.push_back(item.bytes(&mut digits).to_vec());
            true
        });
    }
    seen
}

/// Checks the sizes recorded in all nodes, and returns the height of the tree.
fn check_sizes(tree: &Tree) -> usize {
    for held in tree.tree.iter() {
        let segment = &*held.segment;
        assert_eq!(records::items(segment.records()).count(), segment.len());
        assert_eq!((held.len, held.bytes), (segment.len(), segment.bytes()));
        assert!(segment.len() == 1 || segment.bytes() <= crate::list::segment::MAX_SEGMENT_BYTES);
        assert!(held.len > 0);
    }
    tree.tree.check(&|label, below| *label == below.summary())
}

fn check_tree(tree: &Tree, model: &ReferenceList) {
    check_sizes(tree);
    assert_eq!(tree.size().len, model.len());
    assert_eq!(&all_elements(tree), model);
}

fn random_element(choices: &mut RandomChoices) -> Vec<u8> {
    match choices.below(40) {
        0 => vec![b'l'; 3000 + choices.below(3000)],
        1..15 => choices.below(1 << 20).to_string().into_bytes(),
        _ => vec![b'a' + choices.below(20) as u8; choices.below(400)],
    }
}

fn random_step(choices: &mut RandomChoices, tree: &mut Tree, model: &mut ReferenceList, is_growing: bool) {
    let len = model.len();
    let record_of = |element: &[u8]| records::encode_record(element.into());
    match choices.below(if is_growing { 12 } else { 24 }) {
        0..4 => {
            let element = random_element(choices);
            tree.insert(len, &record_of(&element));
            model.push_back(element);
        }
        4..7 => {
            let element = random_element(choices);
            tree.insert(0, &record_of(&element));
            model.push_front(element);
        }
        7..10 => {
            let (index, element) = (choices.below(len + 1), random_element(choices));
            tree.insert(index, &record_of(&element));
            model.insert(index, element);
        }
        10 if len > 0 => {
            let (index, element) = (choices.below(len), random_element(choices));
            tree.replace(index, &record_of(&element));
            model[index] = element;
        }
        11 if len > 0 && choices.below(40) == 0 => {
            let index = choices.below(len + 1);
            let (rest, other) = (tree.split_off(index), model.split_off(index));
            check_tree(&rest, &other);
            if choices.below(2) == 0 {
                (*tree, *model) = (rest, other);
            }
        }
        12..15 if len > 0 => {
            tree.remove(0);
            model.pop_front();
        }
        15..18 if len > 0 => {
            tree.remove(len - 1);
            model.pop_back();
        }
        18.. if len > 0 => {
            let index = choices.below(len);
            tree.remove(index);
            model.remove(index);
        }
        _ if len > 0 => {
            let index = choices.below(len);
            let mut digits = ItemDigits::default();
            assert_eq!(tree.item(index).bytes(&mut digits), model[index]);
            let (mut seen, most) = (Vec::new(), choices.below(50));
            let went_on = tree.visit_backward(index, &mut |item| {
                seen.push(item.bytes(&mut digits).to_vec());
                seen.len() < most
            });
            let expected: Vec<_> = model.iter().take(index + 1).rev().take(most.max(1)).cloned().collect();
            assert_eq!(seen, expected);
            assert_eq!(went_on, index + 1 < most);
        }
        _ => {}
    }
}

/// Applies the same operations to the tree and to a deque. Copies of the tree taken in between must not change.
#[test]
fn list_tree_matches_deque_and_copies_are_unaffected() {
    for seed in 1..12u64 {
        let mut choices = RandomChoices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut tree, mut twin) = (Tree::default(), ReferenceList::new());
        let mut copies: Vec<(Tree, ReferenceList)> = Vec::new();
        let mut grows = true;
        for number in 0..6000 {
            random_step(&mut choices, &mut tree, &mut twin, grows);
            if number % 500 == 0 {
                check_tree(&tree, &twin);
                grows = number < 3000 && choices.below(4) > 0;
                copies.push((tree.clone(), twin.clone()));
            }
        }
        check_tree(&tree, &twin);
        for (mut copy, twin) in copies {
            check_tree(&copy, &twin);
            let (mut segments, mut len) = (0, 0);
            let size = copy.size();
            while let Some(segment) = copy.take_first() {
                segments += 1;
                len += segment.len();
            }
            assert_eq!((segments, len), (size.segments, size.len));
        }
    }
}

/// If all elements are inserted at the same position, the tree must stay low and its nodes filled.
#[test]
fn list_tree_stays_balanced_wherever_it_grows() {
    for end in [0usize, 1, 500, usize::MAX] {
        let mut tree = Tree::default();
        let record = records::encode_record(ListItem::Bytes(&[b'x'; 3000]));
        for len in 0..20_000usize {
            tree.insert(end.min(len), &record);
        }
        let (height, size) = (check_sizes(&tree), tree.size());
        assert_eq!(size.len, 20_000);
        assert!(height <= 4, "{height} nodes on each other for {} segments", size.segments);
        while tree.size().len > 1 {
            tree.remove(0);
        }
        assert_eq!(check_sizes(&tree), 1);
    }
}
