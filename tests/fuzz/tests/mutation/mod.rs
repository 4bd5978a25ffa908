//! Creates test inputs by random mutations of seed files.

use std::path::Path;

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

/// Reads all files of a directory.
pub(crate) fn read_seeds(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = folder.read_dir().expect("the target has seeds");
    files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

/// Returns one or two concatenated seeds with up to ten random changes.
pub(crate) fn mutate_seeds(random: &mut ChaCha8Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = pick_seed(random, seeds).to_vec();
    if random.random_ratio(1, 3) {
        bytes.extend_from_slice(pick_seed(random, seeds));
    }
    for _ in 0..random.random_range(0..10) {
        if bytes.is_empty() {
            break;
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..6) {
            0 => bytes[at] = random.random(),
            1 => bytes[at] = *b"*$+-:\r\n0123456789\"'\\ ,#(!=~>%_".choose(random).expect("not empty"),
            2 => {
                bytes.remove(at);
            }
            3 => bytes.insert(at, bytes[at]),
            4 => bytes.truncate(at),
            _ => {
                let other = pick_seed(random, seeds);
                let from = random.random_range(0..other.len());
                bytes.splice(at..at, other[from..].iter().copied());
            }
        }
    }
    bytes
}

fn pick_seed<'a>(random: &mut ChaCha8Rng, seeds: &'a [Vec<u8>]) -> &'a [u8] {
    seeds.choose(random).expect("there are seeds")
}
