//! A server process with its own folder.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::disk::TestDisk;
use crate::faketime::FakeTime;
use crate::program::redis_cli_on;
use crate::relay::{RelayNetwork, RelayedProcess, ServerRelay};
use crate::{Connection, PortClaim, Program, Reply, TestHost, claim_port, eventually, eventually_within};

/// Number of log lines to show when a test fails.
const SHOWN_LOG_LINES: usize = 30;

/// The address of a server, which stays valid while the server is restarted.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The port for clients, without TLS.
    pub port: u16,
    host: Option<TestHost>,
}

impl Endpoint {
    /// Opens a connection to the client port.
    ///
    /// # Errors
    /// The connection failed.
    pub fn connect(&self) -> io::Result<Connection> {
        match &self.host {
            Some(host) => host.connect(self.port),
            None => Connection::open(("127.0.0.1", self.port)),
        }
    }
}

/// A server, running or not. Dropping it ends the process and removes its folder.
#[derive(Debug)]
pub struct Node {
    /// The port for clients; behind a relay, the relay's port.
    pub port: u16,
    program: Program,
    options: Vec<String>,
    child: Option<Child>,
    /// Declared before `folder`, on which it is mounted, so that it is dropped first.
    disk: Option<TestDisk>,
    fake_time: Option<FakeTime>,
    folder: TempDir,
    host: Option<TestHost>,
    relay: Option<ServerRelay>,
    _port_claim: PortClaim,
    /// The reserved TLS port, if TLS is enabled.
    tls_claim: Option<PortClaim>,
}

impl Node {
    /// Starts a server with these options (`"--name value ..."`) and waits until it replies.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    pub fn start(program: &Program, options: &str) -> Self {
        let mut node = Self::prepare(program, options);
        node.launch();
        node
    }

    /// Starts a cluster node that has not joined any cluster.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    pub fn start_clustered(program: &Program) -> Self {
        Self::start(program, "--cluster-enabled yes --cluster-node-timeout 2000")
    }

    /// Reserves a port and a folder without starting the server.
    ///
    /// # Panics
    /// The folder cannot be created.
    #[must_use]
    pub fn prepare(program: &Program, options: &str) -> Self {
        let claim = claim_port();
        let folder = crate::folders::create_temporary_folder("redoubt-node-");
        let mut options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        options.extend(["--port".into(), claim.port.to_string(), "--bind".into(), "127.0.0.1".into()]);
        Self {
            port: claim.port,
            program: program.clone(),
            options,
            child: None,
            disk: None,
            fake_time: None,
            folder,
            host: None,
            relay: None,
            _port_claim: claim,
            tls_claim: None,
        }
    }

    /// Like [`Self::prepare`], but behind a relay, which identifies the server by `number`. [`port`](Self::port) is
    /// then the port of the relay.
    ///
    /// # Panics
    /// The folder cannot be created.
    #[must_use]
    pub fn prepare_behind_relay(
        relays: &RelayNetwork,
        number: usize,
        kind: RelayedProcess,
        program: &Program,
    ) -> Self {
        let mut node = Self::prepare(program, "");
        let relay = relays.create_relay(number);
        node.add_options(&relay.announce_options(node.port, kind));
        node.relay = Some(relay);
        node
    }

    /// Like [`Self::prepare`], but on a host of a test network.
    ///
    /// # Panics
    /// The folder cannot be created.
    #[must_use]
    pub fn prepare_on(host: &TestHost, program: &Program, options: &str) -> Self {
        let mut node = Self::prepare(program, options);
        node.add_options(&format!("--bind {} 127.0.0.1 --protected-mode no", host.ip));
        node.host = Some(host.clone());
        node
    }

    /// Starts the process and waits until it replies.
    ///
    /// # Panics
    /// The server is already running, or does not start.
    pub fn launch(&mut self) {
        self.spawn();
        eventually(&format!("{} on {} answers", self.program.name(), self.port), || {
            if let Some(status) = self.exit_status() {
                panic!(
                    "{} on {} ended at its start: {status}\n{}",
                    self.program.name(),
                    self.port,
                    self.log()
                );
            }
            let mut connection = self.try_connect().ok()?;
            let reply = connection.try_call(&["PING"]).ok()?;
            (reply == Reply::Simple("PONG".into()) || reply.is_error("NOAUTH")).then_some(())
        });
    }

    /// Starts the process without waiting until it replies.
    ///
    /// # Panics
    /// The server is already running.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the node on {} runs already", self.port);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder().join("log"))
            .expect("the folder can be written to");
        let mut command = self.program.command_on(self.host.as_ref());
        if let Some(clock) = &self.fake_time {
            clock.apply_to(&mut command);
        }
        let child = command
            .args(&self.options)
            .current_dir(self.folder())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program.name()));
        self.child = Some(child);
        if let Some(relay) = &mut self.relay {
            relay.start_listening(self.port);
        }
    }

    /// Sets the configuration file. Command line options override its settings.
    ///
    /// # Panics
    /// The path is not valid UTF-8.
    pub fn set_configuration(&mut self, file: &Path) {
        self.options.insert(0, file.to_str().expect("a path of text").to_owned());
    }

    /// Adds command line options, which take effect at the next start.
    pub fn add_options(&mut self, options: &str) {
        self.options.extend(options.split_whitespace().map(str::to_owned));
    }

    /// Enables TLS on a second port, from the next start on. Uses `server.crt`, `server.key` and `ca.crt` from the
    /// folder `certificates`; clients need no certificates.
    ///
    /// # Panics
    /// The folder does not exist, or its path is not valid UTF-8.
    pub fn enable_tls(&mut self, certificates: &Path) {
        let folder = certificates.canonicalize().expect("a folder with certificates");
        let claim = claim_port();
        self.add_options(&format!("--tls-port {} --tls-auth-clients no", claim.port));
        for (option, file) in [("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")] {
            let path = folder.join(file).into_os_string().into_string().expect("a path of text");
            self.options.extend([format!("--tls-{option}-file"), path]);
        }
        self.tls_claim = Some(claim);
    }

    /// Returns the TLS port; `None` if TLS is not enabled.
    #[must_use]
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_claim.as_ref().map(|claim| claim.port)
    }

    /// Mounts a small disk of `bytes` bytes over the node's folder, which must be empty.
    ///
    /// # Errors
    /// This machine does not permit mounting.
    pub fn limit_disk(&mut self, bytes: u64) -> Result<(), String> {
        self.disk = Some(TestDisk::mount(self.folder(), bytes)?);
        Ok(())
    }

    /// Fills up the small disk, if the node has one.
    ///
    /// # Panics
    /// A write fails for another reason than a full disk.
    pub fn fill_disk(&self) {
        if let Some(disk) = &self.disk {
            disk.fill_up().expect("a disk can be filled");
        }
    }

    /// Frees the space that [`Self::fill_disk`] took.
    pub fn free_disk(&self) {
        if let Some(disk) = &self.disk {
            disk.free_space();
        }
    }

    /// Gives the server a separate wall clock, from the next start on.
    ///
    /// # Errors
    /// libfaketime is not installed.
    pub fn fake_clock(&mut self) -> Result<(), String> {
        self.fake_time = Some(FakeTime::new()?);
        Ok(())
    }

    /// Sets the server's wall clock ahead of real time by `seconds_ahead`, which may be negative. The server notices
    /// within a second.
    ///
    /// # Panics
    /// The clock's file cannot be written.
    pub fn set_clock(&self, seconds_ahead: i64) {
        if let Some(clock) = &self.fake_time {
            clock.shift(seconds_ahead);
        }
    }

    /// Returns whether the server is behind a relay.
    pub(crate) fn is_behind_relay(&self) -> bool {
        self.relay.is_some()
    }

    /// Returns the server's working folder, which contains its log and data.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the IP address at which other nodes reach the server.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.host.as_ref().map_or(Ipv4Addr::LOCALHOST.into(), |host| host.ip)
    }

    /// Returns the address as `ip:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", self.ip(), self.port)
    }

    /// Returns the process id of the running server.
    ///
    /// # Panics
    /// The server is not running.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the node runs").id()
    }

    /// Returns whether the test has started the process and has not stopped it since.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Opens a connection to the client port.
    ///
    /// # Panics
    /// The connection failed.
    #[must_use]
    pub fn connect(&self) -> Connection {
        self.try_connect().unwrap_or_else(|error| panic!("connecting to {}: {error}", self.port))
    }

    /// Opens a connection to the client port.
    ///
    /// # Errors
    /// The connection failed.
    pub fn try_connect(&self) -> io::Result<Connection> {
        self.endpoint().connect()
    }

    /// Returns the server's address, for clients that reconnect when the server is restarted.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { port: self.port, host: self.host.clone() }
    }

    /// Removes the data, but not `nodes.conf`, the configuration and the log.
    ///
    /// # Panics
    /// The server is running, or a file cannot be removed.
    pub fn wipe(&self) {
        assert!(self.child.is_none(), "the node on {} runs", self.port);
        for entry in fs::read_dir(self.folder()).expect("the folder can be read").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.ends_with(".conf") || name == "log" {
                continue;
            }
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.expect("data can be removed");
        }
    }

    /// Runs one command, given as words separated by blanks, on a new connection.
    ///
    /// # Panics
    /// No reply arrives.
    pub fn run(&self, line: &str) -> Reply {
        self.connect().call_line(line)
    }

    /// Runs redis-cli on this node's host and returns its output.
    ///
    /// # Errors
    /// redis-cli failed; the error is its output.
    pub fn redis_cli(&self, arguments: &[&str]) -> Result<String, String> {
        redis_cli_on(self.host.as_ref(), arguments)
    }

    /// Sends SIGKILL and waits until the process has ended.
    ///
    /// # Panics
    /// The server is not running.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the node runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
        self.close_relay();
    }

    /// Closes the relay, because the port of a dead server must refuse connections.
    fn close_relay(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.stop_listening();
        }
    }

    /// Sends SIGTERM and returns the exit status.
    ///
    /// # Panics
    /// The server is not running, or does not end in time.
    pub fn terminate(&mut self) -> ExitStatus {
        self.send_signal(Signal::TERM);
        self.wait_for_exit_before_relaunch()
    }

    /// Returns whether the process has ended by itself.
    pub fn has_exited(&mut self) -> bool {
        self.exit_status().is_some()
    }

    /// Waits until the process has ended by itself. Afterwards it can be launched again.
    ///
    /// # Panics
    /// The process does not end.
    pub fn wait_for_exit_before_relaunch(&mut self) -> ExitStatus {
        let status = self.wait_for_exit();
        self.child = None;
        self.close_relay();
        status
    }

    /// Sends SIGSTOP and waits until all threads have stopped.
    ///
    /// # Panics
    /// A thread does not stop.
    pub fn freeze(&self) {
        self.send_signal(Signal::STOP);
        eventually_within(Duration::from_secs(10), "the process stands still", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
            let stands = |thread: std::fs::DirEntry| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
            };
            threads.filter_map(Result::ok).all(stands).then_some(())
        });
    }

    /// Sends SIGCONT, which undoes [`Self::freeze`].
    pub fn thaw(&self) {
        self.send_signal(Signal::CONT);
    }

    /// Waits until the process ends by itself.
    ///
    /// # Panics
    /// The process does not end.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let what = format!("the process on {} ends", self.port);
        eventually_within(Duration::from_secs(30), &what, || self.exit_status())
    }

    /// Returns what the process has printed so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.folder().join("log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Reads one field of an INFO section. `None` if the section lacks the field.
    ///
    /// # Panics
    /// The server does not reply.
    #[must_use]
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        crate::info_field(&mut self.connect(), section, field)
    }

    /// Returns the resident memory of the process in bytes.
    ///
    /// # Panics
    /// The server is not running.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the process is there");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux tells VmRSS");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number of kB") * 1024
    }

    /// Opens a TCP connection to the cluster bus.
    ///
    /// # Errors
    /// The connection failed.
    pub fn connect_to_bus(&self) -> io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.port + 10_000))
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().expect("a child can be waited for")
    }

    fn send_signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().expect("the node runs"));
        kill_process(pid, signal).expect("a child can be signalled");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A frozen process ends as well. Errors are ignored, because nothing can be done about them.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..];
            eprintln!("--- {} on {}, end of its log:\n{}", self.program.name(), self.port, tail.join("\n"));
        }
    }
}
