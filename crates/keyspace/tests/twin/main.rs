//! The keyspace beside a naive twin: the same random operations on both, the same answers from both.
//!
//! A run is decided by its seed. `KEYSPACE_SEEDS=1000 cargo test -p keyspace --test twin --release` runs
//! more seeds than CI does. The fuzz target goes on with seeds and shapes of its own for `FUZZ_SECONDS` from
//! `FUZZ_SEED` on, on the stable toolchain.
mod driver;
mod model;

use std::time::{Duration, Instant};

use driver::{Driver, Shape};

fn seeds(few: u64) -> std::ops::Range<u64> {
    let wanted = std::env::var("KEYSPACE_SEEDS").ok().and_then(|count| count.parse().ok());
    0..wanted.unwrap_or(few)
}

fn run(shape: Shape, few: u64) {
    for seed in seeds(few) {
        let mut driver = Driver::new(seed, shape);
        for step in 0..shape.steps {
            driver.step(step);
        }
        driver.finish();
    }
}

#[test]
fn a_few_slots_with_small_values() {
    run(Shape { slots: 3, keys: 300, longest: 40, fields: 100, steps: 4000 }, 20);
}

#[test]
fn one_slot_that_grows_and_shrinks() {
    run(Shape { slots: 1, keys: 6000, longest: 60, fields: 10, steps: 40_000 }, 4);
}

#[test]
fn values_of_all_sizes() {
    run(Shape { slots: 2, keys: 200, longest: 9000, fields: 40, steps: 4000 }, 8);
}

#[test]
fn hardly_any_keys() {
    run(Shape { slots: 2, keys: 4, longest: 300, fields: 1500, steps: 3000 }, 20);
}

#[test]
fn shapes_by_chance() {
    let setting = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (time, start) = (Duration::from_secs(setting("FUZZ_SECONDS", 2)), Instant::now());
    let mut seed = setting("FUZZ_SEED", 1_000_000);
    while start.elapsed() < time {
        println!("FUZZ_SEED={seed}");
        let choose = |shift: u32, few: u64, many: u64| {
            few + (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) % (many - few)
        };
        let shape = Shape {
            slots: choose(40, 1, 6),
            keys: choose(30, 3, 2000),
            longest: choose(20, 10, 10_000),
            fields: choose(10, 5, 1500),
            steps: 2000,
        };
        let mut driver = Driver::new(seed, shape);
        (0..shape.steps).for_each(|step| driver.step(step));
        driver.finish();
        seed += 1;
    }
}
