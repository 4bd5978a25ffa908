//! Runs the fuzz targets on the stable toolchain: first the seeds, truncated and modified at every position, then
//! random mutations of them. The keyspace and its twin get random bytes. `FUZZ_SECONDS` sets the duration, `FUZZ_SEED`
//! the first random seed.

mod mutation;

use std::time::{Duration, Instant};

use mutation::{mutate_seeds, read_seeds};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn aof_target_accepts_any_bytes() {
    run_target(fuzz::aof::fuzz_aof, "seeds/aof");
}

#[test]
fn bus_target_accepts_any_bytes() {
    run_target(fuzz::bus::fuzz_bus, "seeds/bus");
}

#[test]
fn keys_target_accepts_any_bytes() {
    run_target(fuzz::keys::fuzz_keys, "seeds/keys");
}

#[test]
fn rdb_target_accepts_any_bytes() {
    run_target(fuzz::rdb::fuzz_rdb, "../../crates/persistence/testdata");
}

#[test]
fn requests_target_accepts_any_bytes() {
    run_target(fuzz::requests::fuzz_requests, "seeds/requests");
}

#[test]
fn restore_target_accepts_any_bytes() {
    run_target(fuzz::restore::fuzz_restore, "seeds/restore");
}

#[test]
fn scripts_target_accepts_any_bytes() {
    run_target(fuzz::scripts::fuzz_scripts, "seeds/scripts");
}

#[test]
fn twin_target_accepts_any_bytes() {
    repeat_with_seeds(|random| {
        let bytes: Vec<u8> = (0..random.random_range(0..40_000)).map(|_| random.random()).collect();
        fuzz::twin::run(&bytes);
    });
}

fn run_target(target: fn(&[u8]), folder: &str) {
    let seeds = read_seeds(folder);
    seeds.iter().for_each(|seed| run_mutated_variants(target, seed));
    repeat_with_seeds(|random| (0..1000).for_each(|_| target(&mutate_seeds(random, &seeds))));
}

fn repeat_with_seeds(mut round: impl FnMut(&mut ChaCha8Rng)) {
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

/// Runs the target on the input, on each of its prefixes, and with each byte changed.
fn run_mutated_variants(target: fn(&[u8]), input: &[u8]) {
    target(input);
    for at in 0..input.len() {
        target(&input[..at]);
        let mut changed = input.to_vec();
        changed[at] ^= 0x55;
        target(&changed);
    }
}
