use super::super::finding::Severity;
use super::*;

const GB: u64 = 1 << 30;

/// Returns the facts of a machine that passes all checks.
fn healthy_host() -> HostFacts {
    HostFacts {
        overcommit: Some(1),
        huge_pages: Some("madvise".to_owned()),
        max_backlog: Some(4096),
        swap_total: Some(0),
        swappiness: Some(60),
        max_open_files: Some(1 << 20),
        memory_total: Some(16 * GB),
        memory_limit: None,
        folder: "/data".to_owned(),
        folder_error: None,
        disk_free: Some(100 * GB),
        files_size: 4 * GB,
        clock_source: Some("tsc".to_owned()),
        is_clock_synchronised: Some(true),
    }
}

fn test_requirements() -> HostRequirements {
    HostRequirements { backlog: 511, max_clients: 10_000, max_memory: Some(8 * GB), persists_data: true }
}

/// Returns the severity and subject of each finding that is not fine.
fn list_problems(facts: &HostFacts, requirements: &HostRequirements) -> Vec<(Severity, String)> {
    let findings = check_host(facts, requirements);
    let bad = findings.iter().filter(|finding| finding.verdict != Severity::Fine);
    bad.map(|finding| {
        assert!(finding.fix.is_some(), "{finding:?}: a finding needs a fix");
        (finding.verdict, finding.about.clone())
    })
    .collect()
}

#[test]
fn healthy_machine_passes_all_checks() {
    assert_eq!(list_problems(&healthy_host(), &test_requirements()), []);
    assert_eq!(check_host(&healthy_host(), &test_requirements()).len(), 10);
}

#[test]
fn each_host_problem_is_reported_alone() {
    use Severity::{Fault, Warning};
    type HostChange = fn(&mut HostFacts, &mut HostRequirements);
    let table: &[(HostChange, Severity, &str)] = &[
        (|facts, _| facts.overcommit = Some(2), Warning, "overcommit"),
        (|facts, _| facts.huge_pages = Some("always".to_owned()), Warning, "huge pages"),
        (|facts, _| facts.max_backlog = Some(128), Warning, "backlog"),
        (|facts, _| facts.swap_total = Some(GB), Warning, "swap"),
        (|facts, _| facts.max_open_files = Some(1024), Warning, "open files"),
        (|_, wanted| wanted.max_memory = None, Warning, "memory"),
        (|_, wanted| wanted.max_memory = Some(13 * GB), Warning, "memory"),
        (|_, wanted| wanted.max_memory = Some(17 * GB), Fault, "memory"),
        (|facts, _| facts.memory_limit = Some(4 * GB), Fault, "memory"),
        (|facts, _| facts.folder_error = Some("no".to_owned()), Fault, "directory"),
        (|facts, _| facts.disk_free = Some(3 * GB), Fault, "disk"),
        (|facts, _| facts.disk_free = Some(5 * GB), Warning, "disk"),
        (|facts, _| facts.clock_source = Some("hpet".to_owned()), Warning, "clock"),
        (|facts, _| facts.is_clock_synchronised = Some(false), Warning, "time"),
    ];
    for (change, verdict, about) in table {
        let (mut facts, mut wanted) = (healthy_host(), test_requirements());
        change(&mut facts, &mut wanted);
        assert_eq!(list_problems(&facts, &wanted), [(*verdict, (*about).to_owned())]);
    }
}

#[test]
fn unknown_facts_are_not_reported() {
    let facts = HostFacts { folder: "/data".to_owned(), ..HostFacts::default() };
    assert_eq!(list_problems(&facts, &test_requirements()), []);
    let (mut facts, mut wanted) = (healthy_host(), test_requirements());
    (facts.swap_total, facts.swappiness) = (Some(GB), Some(1));
    (facts.disk_free, wanted.persists_data) = (Some(0), false);
    assert_eq!(list_problems(&facts, &wanted), []);
}

#[test]
fn kernel_files_are_parsed() {
    assert_eq!(facts::bracketed_word("always [madvise] never").as_deref(), Some("madvise"));
    assert_eq!(facts::bracketed_word("none"), None);
    let memory = "MemTotal:       16 kB\nSwapTotal:      0 kB\n";
    assert_eq!(facts::parse_kilobytes(memory, "MemTotal"), Some(16384));
    assert_eq!(facts::parse_kilobytes(memory, "SwapTotal"), Some(0));
    assert_eq!(facts::parse_kilobytes(memory, "Mem"), None);
    let here = HostFacts::gather_host_facts(&Config::default());
    assert!(
        here.memory_total.is_some_and(|bytes| bytes > 0) && here.max_open_files.is_some_and(|most| most > 0)
    );
    assert_eq!(here.folder_error, None);
}
