//! Tests of `redoubt doctor` on a group of real sentinels.

use std::fs;
use std::process::Command;

use harness::{Program, SentinelGroup, eventually, run_to_end};

/// Runs `redoubt doctor` and returns its exit status, and one line per finding.
fn run_doctor(url: &str) -> (i32, String) {
    let mut doctor = Command::new(Program::redoubt().binary());
    doctor.args(["doctor", "--no-host", "--quiet", "--from", url]);
    let (status, printed) = run_to_end(&mut doctor);
    (status.code().expect("it ends by itself"), printed)
}

/// A healthy group is discovered completely from one of its sentinels. Then two sentinels die, and the third cannot
/// reach a majority.
#[test]
fn doctor_reports_missing_sentinels_and_quorum() {
    let mut group = SentinelGroup::start(&Program::redoubt(), &[(); 3].map(|()| Program::redoubt()));
    let url = format!("redis://{}", group.sentinels[0].address());
    let well = eventually("nothing is to be mended", || Some(run_doctor(&url)).filter(|found| found.0 == 0));
    assert_eq!(well.1, "5 ok, 0 warnings, 0 faults\n");
    group.shorten_timeouts();
    for sentinel in &mut group.sentinels[1..] {
        sentinel.kill();
    }
    eventually("the two are missed, and the majority with them", || {
        let (status, printed) = run_doctor(&url);
        let is_missed = |address: String| printed.contains(&format!("FAULT    {address:<16} cannot connect"));
        let missed = group.sentinels[1..].iter().all(|sentinel| is_missed(sentinel.address()));
        (status == 2 && missed && printed.contains("no failover is possible")).then_some(())
    });
}

/// Root ignores directory permissions, so a directory in the place of the file makes writing fail.
#[test]
fn doctor_reports_an_unwritable_configuration_file() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let group = SentinelGroup::start(&Program::redoubt(), &[(); 3].map(|()| program.clone()));
        let file = group.sentinels[1].folder().join("sentinel.conf");
        fs::remove_file(&file).expect("it is there");
        fs::create_dir_all(file.join("inside")).expect("the folder can be made");
        let (status, printed) = run_doctor(&format!("redis://{}", group.sentinels[0].address()));
        let blamed =
            format!("FAULT    {:<16} cannot write its configuration file", group.sentinels[1].address());
        assert!(status == 2 && printed.contains(&blamed), "{}: {printed}", program.name());
    }
}
