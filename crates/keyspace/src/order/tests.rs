use std::cell::RefCell;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The score and name of each element, indexed by reference.
#[derive(Default)]
struct TestStore(RefCell<Vec<(u64, Vec<u8>)>>);

struct StoredElements<'a>(&'a [(u64, Vec<u8>)]);

impl ElementSource for StoredElements<'_> {
    fn score_bits(&self, reference: u32) -> u64 {
        self.0[reference as usize].0
    }

    fn name(&self, reference: u32) -> &[u8] {
        &self.0[reference as usize].1
    }

    fn prefetch(&self, _: u32) {}
}

/// A test step: sets or removes a member, or moves entries.
#[derive(Debug, Clone)]
enum Step {
    Set(u64, u16),
    Remove(u16),
    Pop { first: bool },
    Move(u16),
}

/// Generates few distinct, many distinct, ascending or extreme scores, depending on `kind`.
fn score_strategy(kind: u8) -> BoxedStrategy<u64> {
    match kind {
        0 => (0u64..3).boxed(),
        1 => any::<u64>().boxed(),
        2 => (1u64 << 62..(1 << 62) + 5000).boxed(),
        _ => prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), 0u64..100].boxed(),
    }
}

fn steps(kind: u8) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (score_strategy(kind), 0u16..4000).prop_map(|(score, name)| Step::Set(score, name)),
        2 => (0u16..4000).prop_map(Step::Remove),
        1 => any::<bool>().prop_map(|first| Step::Pop { first }),
        1 => (0u16..4000).prop_map(Step::Move),
    ];
    proptest::collection::vec(step, 1..4000)
}

#[derive(Default)]
struct TreeAndReference {
    tree: Tree,
    store: TestStore,
    reference: BTreeSet<(u64, Vec<u8>)>,
    references: std::collections::BTreeMap<Vec<u8>, u32>,
}

impl TreeAndReference {
    fn set(&mut self, bits: u64, name: &[u8]) {
        self.remove(name);
        let reference = self.put(bits, name);
        self.tree.insert(reference, &StoredElements(&self.store.0.borrow()));
        self.reference.insert((bits, name.to_vec()));
    }

    fn put(&mut self, bits: u64, name: &[u8]) -> u32 {
        let mut store = self.store.0.borrow_mut();
        store.push((bits, name.to_vec()));
        let reference = store.len() as u32 - 1;
        self.references.insert(name.to_vec(), reference);
        reference
    }

    fn remove(&mut self, name: &[u8]) {
        let Some(reference) = self.references.remove(name) else { return };
        let store = self.store.0.borrow();
        self.tree.remove_element(reference, &StoredElements(&store));
        self.reference.remove(&store[reference as usize]);
    }

    /// Changes the reference of an element, as compacting its page does.
    fn change_reference(&mut self, name: &[u8]) {
        let Some(&from) = self.references.get(name) else { return };
        let (bits, position) = {
            let store = self.store.0.borrow();
            (store[from as usize].0, self.tree.position(from, &StoredElements(&store)))
        };
        let to = self.put(bits, name);
        self.tree.replace_reference(&position, from, to);
        // Make reading the old reference an error.
        self.store.0.borrow_mut()[from as usize] = (u64::MAX / 2, b"gone".to_vec());
    }

    fn apply_step(&mut self, step: &Step) {
        match step {
            Step::Set(bits, name) => self.set(*bits, &name.to_be_bytes()),
            Step::Remove(name) => self.remove(&name.to_be_bytes()),
            Step::Move(name) => self.change_reference(&name.to_be_bytes()),
            Step::Pop { first } => {
                let next = if *first { self.reference.first() } else { self.reference.last() };
                if let Some((_, name)) = next.cloned() {
                    self.remove(&name);
                }
            }
        }
    }

    fn members_in_range(&self, ranks: Range<usize>, reversed: bool) -> Vec<(u64, Vec<u8>)> {
        let (store, mut listed) = (self.store.0.borrow(), Vec::new());
        self.tree.visit(ranks, reversed, &StoredElements(&store), &mut |reference| {
            listed.push(store[reference as usize].clone());
            true
        });
        listed
    }

    fn compare(&self, random: usize) {
        let expected: Vec<_> = self.reference.iter().cloned().collect();
        assert_eq!(self.members_in_range(0..usize::MAX, false), expected);
        assert_eq!(
            self.members_in_range(0..usize::MAX, true),
            expected.iter().rev().cloned().collect::<Vec<_>>()
        );
        let len = expected.len();
        let (start, end) = (random % (len + 1), random / 7 % (len + 3));
        if start < end {
            assert_eq!(self.members_in_range(start..end, false), expected[start..end.min(len)]);
            let backwards: Vec<_> = expected[start..end.min(len)].iter().rev().cloned().collect();
            assert_eq!(self.members_in_range(start..end, true), backwards);
        }
        let store = self.store.0.borrow();
        let of = StoredElements(&store);
        for (rank, (bits, name)) in expected.iter().enumerate().skip(random % 17).step_by(17) {
            assert_eq!(self.tree.rank(&ElementBoundary::before_element(*bits, name), &of), rank);
            assert_eq!(self.tree.rank(&ElementBoundary::after_element(*bits, name), &of), rank + 1);
            let before = self.reference.range(..(*bits, Vec::new())).count();
            assert_eq!(
                self.tree.rank(&ElementBoundary::Score { score_bits: *bits, is_after: false }, &of),
                before
            );
            let upto = expected.iter().filter(|(other, _)| other <= bits).count();
            assert_eq!(
                self.tree.rank(&ElementBoundary::Score { score_bits: *bits, is_after: true }, &of),
                upto
            );
        }
    }
}

use std::ops::Range;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn order_tree_matches_btree_set(
        (kind, steps) in (0u8..4).prop_flat_map(|kind| (Just(kind), steps(kind))),
        random in any::<usize>(),
    ) {
        let mut both = TreeAndReference::default();
        for (number, step) in steps.iter().enumerate() {
            both.apply_step(step);
            if number % 1000 == 999 {
                both.compare(random);
            }
        }
        both.compare(random);
        prop_assert!(kind < 4);
        while let Some((_, name)) = both.reference.first().cloned() {
            both.remove(&name);
        }
        both.compare(random);
        both.set(5, b"again");
        both.compare(random);
    }

    #[test]
    fn name_boundaries_split_equal_scores(names in proptest::collection::btree_set(0u16..5000, 0..900), at: u16) {
        let mut both = TreeAndReference::default();
        names.iter().for_each(|name| both.set(7, &name.to_be_bytes()));
        let store = both.store.0.borrow();
        let (at, of) = (at % 5000, StoredElements(&store));
        let name = &at.to_be_bytes()[..];
        let before = names.iter().filter(|name| **name < at).count();
        prop_assert_eq!(both.tree.rank(&ElementBoundary::Name { name, is_after: false }, &of), before);
        let upto = names.iter().filter(|name| **name <= at).count();
        prop_assert_eq!(both.tree.rank(&ElementBoundary::Name { name, is_after: true }, &of), upto);
    }
}

/// If elements are inserted in ascending or descending order, the leaves must be full.
#[test]
fn ordered_inserts_fill_leaves() {
    for rising in [true, false] {
        let mut both = TreeAndReference::default();
        for number in 0..20_000u32 {
            let score = if rising { number } else { 20_000 - number };
            both.set(u64::from(score) * 1_000_003, &number.to_be_bytes());
        }
        both.compare(3);
        let bytes = SecondaryOrder::<ScoreBytes>::heap_bytes(&both.tree);
        assert!(bytes < 20_000 * 8, "{bytes} bytes");
    }
}
