//! The targets on the stable toolchain: their seeds, whole, cut and changed anywhere, and then with bytes changed,
//! dropped, doubled and spliced by chance; the keyspace and its twin get any bytes. `FUZZ_SECONDS` says for how
//! long, `FUZZ_SEED` from where.

mod mutation;

use std::time::{Duration, Instant};

use mutation::{mutated, seeds};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn aof() {
    check(fuzz::aof::run, "seeds/aof");
}

#[test]
fn bus() {
    check(fuzz::bus::run, "seeds/bus");
}

#[test]
fn keys() {
    check(fuzz::keys::run, "seeds/keys");
}

#[test]
fn rdb() {
    check(fuzz::rdb::run, "../../crates/persistence/testdata");
}

#[test]
fn requests() {
    check(fuzz::requests::run, "seeds/requests");
}

#[test]
fn restore() {
    check(fuzz::restore::run, "seeds/restore");
}

#[test]
fn scripts() {
    check(fuzz::scripts::run, "seeds/scripts");
}

#[test]
fn twin() {
    for_a_while(|random| {
        let bytes: Vec<u8> = (0..random.random_range(0..40_000)).map(|_| random.random()).collect();
        fuzz::twin::run(&bytes);
    });
}

fn check(target: fn(&[u8]), folder: &str) {
    let seeds = seeds(folder);
    seeds.iter().for_each(|seed| near(target, seed));
    for_a_while(|random| (0..1000).for_each(|_| target(&mutated(random, &seeds))));
}

fn for_a_while(mut round: impl FnMut(&mut ChaCha8Rng)) {
    let setting = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (time, start) = (Duration::from_secs(setting("FUZZ_SECONDS", 2)), Instant::now());
    let mut seed = setting("FUZZ_SEED", 1);
    while start.elapsed() < time {
        println!("FUZZ_SEED={seed}");
        round(&mut ChaCha8Rng::seed_from_u64(seed));
        seed += 1;
    }
}

/// The input, cut at every place and with every byte changed.
fn near(target: fn(&[u8]), input: &[u8]) {
    target(input);
    for at in 0..input.len() {
        target(&input[..at]);
        let mut changed = input.to_vec();
        changed[at] ^= 0x55;
        target(&changed);
    }
}
