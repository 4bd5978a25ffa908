//! `--test-memory MEGABYTES [PASSES]`: writes patterns to memory and reads them back, as redis-server does.
//!
//! Faults that depend on temperature or neighbouring cells need several passes over most of the memory. Memory that passes
//! may still be faulty; memtest86 is more thorough, since it runs without an operating system.

use std::hint::black_box;
use std::process::ExitCode;

const DEFAULT_PASSES: u32 = 50;
const BYTES_PER_MEGABYTE: usize = 1 << 20;

/// A pattern to write to the tested memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemoryPattern {
    /// Each word holds its own index, which reveals stuck address lines.
    Addresses,
    /// The words are pseudo-random numbers from this seed.
    Random(u64),
    /// The words alternate between this value and its complement.
    Alternating(u64),
}

impl MemoryPattern {
    fn patterns_of_pass(pass: u32) -> [Self; 4] {
        [
            Self::Addresses,
            Self::Random(u64::from(pass) + 1),
            Self::Alternating(0),
            Self::Alternating(0x5555_5555_5555_5555),
        ]
    }

    /// Returns the words of the pattern in the order in which they are written.
    fn pattern_words(self) -> impl Iterator<Item = u64> {
        let mut random = match self {
            Self::Random(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            Self::Addresses | Self::Alternating(_) => 1,
        };
        (0..).map(move |index: u64| match self {
            Self::Addresses => index,
            Self::Alternating(value) if index.is_multiple_of(2) => value,
            Self::Alternating(value) => !value,
            Self::Random(_) => {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            }
        })
    }
}

/// Returns the index of the first word that differs from the pattern.
fn first_difference(memory: &mut [u64], pattern: MemoryPattern) -> Option<usize> {
    for (word, value) in memory.iter_mut().zip(pattern.pattern_words()) {
        *word = value;
    }
    // This keeps the compiler from comparing known values instead of reading the memory.
    let memory = black_box(memory);
    memory.iter().zip(pattern.pattern_words()).position(|(word, value)| *word != value)
}

/// Runs the test with the arguments after `--test-memory`.
pub(crate) fn run_memory_test(arguments: &[String]) -> ExitCode {
    let number = |index: usize| arguments.get(index).and_then(|argument| argument.parse::<u32>().ok());
    let passes = if arguments.len() > 1 { number(1) } else { Some(DEFAULT_PASSES) };
    let (Some(megabytes @ 1..), Some(passes @ 1..)) = (number(0), passes) else {
        eprintln!(
            "Please specify the amount of memory to test in megabytes, and optionally the number of passes (default 50)."
        );
        eprintln!("Example: redoubt server --test-memory 4096 10");
        return ExitCode::FAILURE;
    };
    let words = megabytes as usize * BYTES_PER_MEGABYTE / size_of::<u64>();
    let mut memory: Vec<u64> = Vec::new();
    if let Err(error) = memory.try_reserve_exact(words) {
        eprintln!("{megabytes} MB cannot be allocated: {error}");
        return ExitCode::FAILURE;
    }
    memory.resize(words, 0);
    for pass in 0..passes {
        println!("Pass {} of {passes}", pass + 1);
        for pattern in MemoryPattern::patterns_of_pass(pass) {
            if let Some(index) = first_difference(&mut memory, pattern) {
                eprintln!("*** MEMORY ERROR DETECTED: {pattern:?}, word {index} of {words}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("\nYour memory passed this test.");
    println!("For a more thorough test, use memtest86, which runs without an operating system.");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_memory_passes_all_patterns() {
        let mut memory = vec![7; 1000];
        for pattern in MemoryPattern::patterns_of_pass(3) {
            assert_eq!(first_difference(&mut memory, pattern), None, "{pattern:?}");
            let expected: Vec<u64> = pattern.pattern_words().take(memory.len()).collect();
            assert_eq!(memory, expected, "{pattern:?}");
        }
        assert_ne!(
            MemoryPattern::Random(1).pattern_words().nth(5),
            MemoryPattern::Random(2).pattern_words().nth(5)
        );
    }
}
