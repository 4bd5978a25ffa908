//! Tests of the packaged files: systemd accepts the units, the server accepts the configuration, and both packages
//! contain the same files. `make packages` builds the packages, installs one and removes it again.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{Program, claim_port, report_skipped, run_to_end};
use serde_json::Value;

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read_file(path: &str) -> String {
    std::fs::read_to_string(repository_root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const UNIT_FILES: &[&str] = &["redoubt.service", "redoubt@.service", "redoubt-sentinel.service"];

/// systemd checks the units, in which the program's path is replaced by the one on this machine.
#[test]
fn systemd_accepts_packaged_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        report_skipped("systemd's look at the units", "systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let binary = Program::redoubt().binary().display().to_string();
    for unit in UNIT_FILES {
        let text = read_file(&format!("packaging/systemd/{unit}")).replace("/usr/bin/redoubt", &binary);
        std::fs::write(folder.path().join(unit), text).expect("a file");
    }
    for unit in ["redoubt.service", "redoubt@shop.service", "redoubt-sentinel.service"] {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(folder.path().join(unit));
        let (status, printed) = run_to_end(&mut command);
        // systemd also reports problems of other installed units.
        let ours: Vec<_> = printed.lines().filter(|line| line.contains("redoubt")).collect();
        assert!(status.success() && ours.is_empty(), "{unit}: {printed}");
    }
}

/// A child process that is killed when this guard is dropped.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("it was running");
    }
}

/// Each unit waits for the readiness notification that its program sends. The test uses the packaged configurations
/// with other folders.
#[test]
fn systemd_units_receive_readiness_notification() {
    for (unit, configuration) in
        [("redoubt.service", "redoubt.conf"), ("redoubt-sentinel.service", "sentinel.conf")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, conf) = (folder.path().join("notify"), folder.path().join(configuration));
        let ears = UnixDatagram::bind(&socket).expect("a socket");
        ears.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let here = folder.path().display().to_string();
        let claim = claim_port();
        let text = read_file(&format!("packaging/{configuration}"));
        let text = text.replace("/var/lib/redoubt", &here).replace("/var/log/redoubt", &here);
        let text = text.replace("port 6379\n", &format!("port {}\n", claim.port));
        std::fs::write(&conf, text.replace("port 26379", &format!("port {}", claim.port))).expect("a file");
        let file = read_file(&format!("packaging/systemd/{unit}"));
        let line = file.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
        let words = line.split(' ').skip(1).map(|word| match word.strip_prefix("/etc/redoubt/") {
            Some(name) => folder.path().join(name).display().to_string(),
            None => word.to_owned(),
        });
        let mut command = Command::new(Program::redoubt().binary());
        command.args(words).env("NOTIFY_SOCKET", &socket).stdout(Stdio::null());
        let _started = ChildGuard(command.spawn().expect("it starts"));
        let mut word = [0; 256];
        let len = ears.recv(&mut word).unwrap_or_else(|error| panic!("{unit}: {error}"));
        assert!(String::from_utf8_lossy(&word[..len]).contains("READY=1"), "{unit}");
    }
}

#[test]
fn packaged_configuration_has_only_effective_lines() {
    let conf = repository_root().join("packaging/redoubt.conf");
    let (status, printed) =
        run_to_end(Command::new(Program::redoubt().binary()).args(["convert", "--quiet"]).arg(conf));
    assert!(status.success() && printed.ends_with(" ok\n") && !printed.contains("NO EFFECT"), "{printed}");
}

/// The package metadata that cargo-deb and cargo-generate-rpm read.
fn package_metadata() -> Value {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(repository_root());
    let output = cargo.output().expect("cargo is there");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = all["packages"].as_array().expect("packages");
    packages.iter().find(|package| package["name"] == "redoubt").expect("ours")["metadata"].clone()
}

fn string_value(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}: no text")).to_owned()
}

/// Returns the files that match a source pattern. All but build artifacts must exist.
fn expand_sources(source: &str) -> Vec<String> {
    let source = source.trim_start_matches("../");
    if source.starts_with("target/") {
        return vec![source.rsplit('/').next().expect("a name").to_owned()];
    }
    let path = repository_root().join(source);
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    let Some(end) = name.strip_prefix('*') else {
        assert!(path.is_file(), "{source} is not there");
        return vec![name];
    };
    let entries = std::fs::read_dir(path.parent().expect("a folder")).expect("the folder is there");
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(end)).collect()
}

#[test]
fn deb_and_rpm_packages_contain_same_existing_files() {
    let metadata = package_metadata();
    let deb = metadata["deb"]["assets"].as_array().expect("assets");
    let deb: BTreeSet<String> = deb
        .iter()
        .flat_map(|asset| {
            let (source, place) = (string_value(&asset[0]), format!("/{}", string_value(&asset[1])));
            let join =
                move |name| if place.ends_with('/') { format!("{place}{name}") } else { place.clone() };
            expand_sources(&source).into_iter().map(join)
        })
        .collect();
    let rpm = metadata["generate-rpm"]["assets"].as_array().expect("assets");
    let rpm: BTreeSet<String> = rpm
        .iter()
        .flat_map(|asset| {
            let (source, place) = (string_value(&asset["source"]), string_value(&asset["dest"]));
            let join =
                move |name| if place.ends_with('/') { format!("{place}{name}") } else { place.clone() };
            expand_sources(&source).into_iter().map(join)
        })
        .collect();
    // The folders of documents and completions differ between Debian and RPM systems.
    let shared = |files: &BTreeSet<String>| -> BTreeSet<String> {
        let differs = ["/usr/share/doc/", "/usr/share/licenses/", "/usr/share/zsh/"];
        files.iter().filter(|file| differs.iter().all(|start| !file.starts_with(start))).cloned().collect()
    };
    assert_eq!(shared(&deb), shared(&rpm));
    for unit in UNIT_FILES {
        assert!(deb.contains(&format!("/usr/lib/systemd/system/{unit}")), "{unit}");
    }
    for file in metadata["deb"]["conf-files"].as_array().expect("files") {
        assert!(deb.contains(&string_value(file)), "{file} is not in the package");
    }
}

/// The image is not built in this test. Instead, its Dockerfile is checked against the program: files copied from the
/// first stage are built there, that stage has the Rust version that the workspace requires, and the program knows the
/// start command.
#[test]
fn container_image_copies_built_files_and_starts_known_program() {
    let file = read_file("packaging/docker/Dockerfile").replace("\\\n", " ");
    let lines = |word: &str| -> Vec<String> {
        file.lines().filter_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_owned()).collect()
    };
    let manifest = read_file("Cargo.toml");
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).expect("a version");
    assert!(lines("FROM ")[0].starts_with(&format!("rust:{}-alpine", rust.trim_matches('"'))));
    let made = lines("RUN ").join(" ");
    for copy in lines("COPY --from=build ") {
        let source = copy.split(' ').find(|word| word.starts_with('/')).expect("a source");
        let made_of = source.strip_prefix("/source/").unwrap_or(source);
        assert!(made.contains(made_of), "{source} is copied and was never made");
    }
    let words = |line: &str| -> Vec<String> { serde_json::from_str(line).expect("a list of words") };
    let entry = words(&lines("ENTRYPOINT ")[0]);
    assert!(lines("COPY --from=build ").iter().any(|copy| copy.ends_with(&entry[0])), "{entry:?}");
    let health = lines("HEALTHCHECK ")[0].split_once("CMD ").map(|(_, list)| words(list)).expect("a command");
    let start = [entry, words(&lines("CMD ")[0])].concat();
    for command in [health, start] {
        let (status, printed) =
            run_to_end(Command::new(Program::redoubt().binary()).args([&command[1], "--help"]));
        assert!(status.success(), "{command:?}: {printed}");
    }
}

/// The lock library can be packed for a registry: it depends on no other crate of this repository and contains the
/// documents that its readers need.
#[test]
fn lock_library_can_be_published() {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["package", "--list", "--offline", "--allow-dirty", "--package", "redoubt-lock"])
        .current_dir(repository_root());
    let (status, listed) = run_to_end(&mut cargo);
    assert!(status.success(), "{listed}");
    for file in ["README.md", "LICENSE", "examples/shop.rs", "examples/resource.rs", "src/scripts/lock.lua"] {
        assert!(listed.lines().any(|line| line == file), "{file} is not packed: {listed}");
    }
    let manifest = read_file("crates/lock/Cargo.toml");
    for field in ["description", "license", "readme", "keywords", "categories"] {
        assert!(manifest.lines().any(|line| line.starts_with(field)), "{field}");
    }
    assert!(!read_file("crates/lock/README.md").is_empty() && !manifest.contains("path ="));
}
