//! Checks that a seed gives the same run in different processes.

use std::process::Command;

fn trace(machine: &str, seed: u64) -> Vec<String> {
    let seed = seed.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--machine", machine, "--seed", &seed])
        .output()
        .expect("the simulator runs");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn traces_are_equal_across_processes() {
    for (machine, seed) in [("node", 1), ("node", 2), ("cluster", 1), ("cluster", 2), ("sentinel", 1)] {
        let (first, second) = (trace(machine, seed), trace(machine, seed));
        assert!(first.len() > 50, "{first:?}");
        for (number, (one, other)) in first.iter().zip(&second).enumerate() {
            assert_eq!(one, other, "line {number} of seed {seed} of {machine}");
        }
        assert_eq!(first.len(), second.len());
    }
}
