//! Compares the keyspace with a naive reference model under random operations.
//!
//! Each run is determined by its seed. `KEYSPACE_SEEDS=1000 cargo test -p keyspace --test twin --release` runs more
//! seeds than CI does. `tests/fuzz` also chooses the size of a run, at random or by libFuzzer.
mod choices;
mod driver;
mod model;

use choices::RandomChoices;
use driver::{TestDriver, TestLimits};

/// Makes a run in which `bytes` determine every decision, starting with the size of the run. It ends when the bytes are
/// used up.
pub(crate) fn run_with_choices(bytes: &[u8]) {
    let mut choices = RandomChoices::new(Vec::from(bytes).into_iter());
    let mut between = |few: u64, many: u64| few + choices.below(many - few);
    let shape = TestLimits {
        slots: between(1, 6),
        keys: between(3, 2000),
        max_len: between(10, 10_000),
        fields: between(5, 1500),
        steps: 4000,
    };
    TestDriver::new(1, choices, shape).run();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_choices(seed: u64) -> RandomChoices {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
        RandomChoices::new(std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
        }))
    }

    fn seeds(default_count: u64) -> std::ops::Range<u64> {
        let wanted = std::env::var("KEYSPACE_SEEDS").ok().and_then(|count| count.parse().ok());
        0..wanted.unwrap_or(default_count)
    }

    fn run_seeds(limits: TestLimits, default_seeds: u64) {
        for seed in seeds(default_seeds) {
            TestDriver::new(seed, random_choices(seed), limits).run();
        }
    }

    #[test]
    fn small_values_in_a_few_slots_match_model() {
        run_seeds(TestLimits { slots: 3, keys: 300, max_len: 40, fields: 100, steps: 4000 }, 20);
    }

    #[test]
    fn growing_and_shrinking_slot_matches_model() {
        run_seeds(TestLimits { slots: 1, keys: 6000, max_len: 60, fields: 10, steps: 40_000 }, 4);
    }

    #[test]
    fn values_of_all_sizes_match_model() {
        run_seeds(TestLimits { slots: 2, keys: 200, max_len: 9000, fields: 40, steps: 4000 }, 8);
    }

    #[test]
    fn keyspace_with_very_few_keys_matches_model() {
        run_seeds(TestLimits { slots: 2, keys: 4, max_len: 300, fields: 1500, steps: 3000 }, 20);
    }

    #[test]
    fn same_choices_give_the_same_run() {
        let mut random = random_choices(7);
        for len in [0, 1, 100, 10_000] {
            let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            run_with_choices(&bytes);
        }
    }
}
