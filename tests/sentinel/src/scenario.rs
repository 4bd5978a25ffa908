//! Runs scenarios with Valkey's and Redoubt's sentinels. Both must publish, log and show what the scenario expects.
//!
//! A group of scenarios runs sequentially on the same servers, which are always Valkey's, so that only the sentinels
//! differ. All texts use short names: `S0` (the initial master), `S1` and so on for the servers, `T0` to `T2` for the
//! sentinels' addresses, `I0` to `I2` for their run ids.

use std::time::{Duration, Instant};

use harness::{Connection, MASTER_NAME, Node, Program, Reply, SentinelGroup, eventually, field_map};

use crate::catalogue;

/// A scenario: the steps applied to a group, and what its sentinels must report.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The scenario's name in failure messages.
    pub name: &'static str,
    /// The steps, which are executed in order.
    pub steps: &'static [ScenarioStep],
    /// Lines that must be in a sentinel's log (level sign, event, payload) and must be published as events.
    pub expected_lines: &'static [&'static str],
    /// Flags that the first sentinel must show at the same time.
    pub expected_flags: &'static [(GroupMember, &'static str)],
}

/// A server or sentinel of the group, as scenarios name it.
#[derive(Debug, Clone, Copy)]
pub enum GroupMember {
    /// The current master according to the sentinels.
    Master,
    /// The server with this index, in the order of their start.
    Server(usize),
    /// The sentinel with this index, in the order of their start.
    Sentinel(usize),
}

/// An action of the test on a server or sentinel, or a wait for its result.
#[derive(Debug, Clone, Copy)]
pub enum ScenarioStep {
    /// Sends a command to the first sentinel, which must succeed.
    CommandSentinel(&'static str),
    /// Sends a command to all sentinels; it must succeed on each of them.
    CommandAllSentinels(&'static str),
    /// Sends the first sentinel this hello message of another sentinel.
    SendHello(&'static str),
    /// Sends a command to a server, which must succeed.
    CommandServer(usize, &'static str),
    /// Runs a script on a server to its end.
    RunScript(usize, &'static str),
    /// Starts a script that never ends on a server.
    StartEndlessScript(usize, &'static str),
    /// Kills a process with SIGKILL.
    Kill(GroupMember),
    /// Deletes the data of a server from the disk.
    DeleteData(usize),
    /// Starts a process and waits until it replies.
    StartProcess(GroupMember),
    /// Starts a server with additional options, without waiting until it replies.
    StartServerWithOptions(usize, &'static str),
    /// Stops a process with SIGSTOP, which keeps its connections open.
    Freeze(GroupMember),
    /// Resumes a stopped process.
    Thaw(GroupMember),
    /// Stops a process for longer than a sentinel can be paused without noticing it, and then resumes the process.
    Stall(GroupMember),
    /// Waits until all sentinels show this value for a field of this replica.
    WaitForField(usize, &'static str, &'static str),
}

/// Time limit of a step, which is generous because the machine may be busy.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a group of scenarios with Valkey's and with Redoubt's sentinels at the same time, on `servers` servers each.
///
/// # Panics
/// The sentinels of one program do not publish, log or show what a scenario expects.
pub fn run_with_both_sentinels(servers: usize, scenarios: &[Scenario]) {
    let Some(valkey) = Program::valkey() else { return };
    let redoubt = Program::redoubt();
    let missing = std::thread::scope(|scope| {
        let tellers = [&valkey, &redoubt]
            .map(|sentinels| scope.spawn(|| run_scenarios(&valkey, sentinels, servers, scenarios)));
        tellers.map(|teller| teller.join().expect("a chapter is told to its end")).concat()
    });
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Runs the scenarios one after the other and returns the expectations that were not met.
fn run_scenarios(
    server: &Program,
    sentinels: &Program,
    servers: usize,
    scenarios: &[Scenario],
) -> Vec<String> {
    let mut group = start_group(server, sentinels, servers);
    let names = member_names(&group);
    let mut events: Vec<Connection> = group.sentinels.iter().map(Node::connect).collect();
    for subscriber in &mut events {
        subscriber.call(&["PSUBSCRIBE", "*"]);
    }
    let mut asker = group.sentinels[0].connect();
    let logs = |group: &SentinelGroup| -> Vec<Vec<String>> {
        group.sentinels.iter().map(|node| log_lines(&node.log())).collect()
    };
    let mut missing = Vec::new();
    for scenario in scenarios {
        let before: Vec<usize> = logs(&group).iter().map(Vec::len).collect();
        let mut heard = Vec::new();
        scenario.steps.iter().for_each(|step| execute_step(&mut group, step));
        let began = Instant::now();
        let left = loop {
            // A sentinel that was killed and restarted needs a new subscription.
            events.iter_mut().for_each(|subscriber| read_new_events(subscriber, &mut heard, &names));
            let logs = logs(&group);
            let new = logs.iter().zip(&before).flat_map(|(log, from)| &log[*from..]);
            let logged: Vec<String> = new.map(|line| abbreviate_members(&names, line)).collect();
            let mut left = missing_lines(scenario, &logged, &heard);
            left.extend(missing_flags(scenario, &mut asker, &group));
            if left.is_empty() || began.elapsed() > STEP_TIMEOUT {
                if !left.is_empty() {
                    eprintln!("{} has logged:\n{}", sentinels.name(), logged.join("\n"));
                }
                break left;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        eprintln!("{} has told {:?} in {:?}", sentinels.name(), scenario.name, began.elapsed());
        let left = left.into_iter().chain(unknown_events(&heard));
        missing.extend(left.map(|text| format!("{}: {}: {text}", sentinels.name(), scenario.name)));
    }
    missing
}

/// Starts a group whose sentinels detect failures quickly and log everything that they publish.
fn start_group(server: &Program, sentinels: &Program, servers: usize) -> SentinelGroup {
    let mut group = SentinelGroup::start(server, &std::array::from_fn::<_, 3, _>(|_| sentinels.clone()));
    group.shorten_timeouts();
    for node in &group.sentinels {
        node.run("SENTINEL DEBUG info-period 1000").expect_ok();
        node.run("SENTINEL CONFIG SET loglevel verbose").expect_ok();
    }
    while group.servers.len() < servers {
        let master = group.servers[0].port;
        let options = format!("--repl-diskless-sync-delay 0 --replicaof 127.0.0.1 {master}");
        group.servers.push(Node::start(server, &options));
    }
    eventually("every sentinel has heard from all replicas", || {
        let of = |node: &Node| node.run(&format!("SENTINEL REPLICAS {MASTER_NAME}"));
        let follows = |replica: &Reply| field_map(replica)["master-link-status"] == "ok";
        let knows =
            |node: &Node| of(node).items().iter().filter(|replica| follows(replica)).count() == servers - 1;
        group.sentinels.iter().all(knows).then_some(())
    });
    group
}

fn group_member(group: &mut SentinelGroup, member: GroupMember) -> &mut Node {
    match member {
        GroupMember::Master => {
            let place = group.wait_for_master();
            &mut group.servers[place]
        }
        GroupMember::Server(place) => &mut group.servers[place],
        GroupMember::Sentinel(place) => &mut group.sentinels[place],
    }
}

fn execute_step(group: &mut SentinelGroup, step: &ScenarioStep) {
    match *step {
        ScenarioStep::CommandSentinel(command) => {
            expect_success(&group.sentinels[0], &expand_names(group, command));
        }
        ScenarioStep::CommandAllSentinels(command) => {
            group.sentinels.iter().for_each(|node| expect_success(node, command));
        }
        ScenarioStep::SendHello(greeting) => {
            let text = expand_names(group, greeting);
            let mut friend = group.sentinels[0].connect();
            assert_eq!(friend.call(&["PUBLISH", "__sentinel__:hello", &text]), Reply::Int(1));
        }
        ScenarioStep::CommandServer(place, command) => {
            expect_success(&group.servers[place], &expand_names(group, command));
        }
        ScenarioStep::RunScript(place, script) => {
            let reply = group.servers[place].connect().call(&["EVAL", script, "0"]);
            assert!(!reply.is_error(""), "{script}: {reply:?}");
        }
        ScenarioStep::StartEndlessScript(place, script) => {
            let mut client = group.servers[place].connect();
            client.send(&["EVAL", script, "0"]).expect("the server takes it");
        }
        ScenarioStep::Kill(who) => group_member(group, who).kill(),
        ScenarioStep::DeleteData(place) => {
            let file = group.servers[place].folder().join("dump.rdb");
            std::fs::remove_file(file).expect("it has saved, or keeps the copy that it got");
        }
        ScenarioStep::StartProcess(who) => group_member(group, who).launch(),
        ScenarioStep::StartServerWithOptions(place, options) => {
            group.servers[place].add_options(options);
            group.servers[place].spawn();
        }
        ScenarioStep::Freeze(who) => group_member(group, who).freeze(),
        ScenarioStep::Thaw(who) => group_member(group, who).thaw(),
        ScenarioStep::Stall(who) => {
            group_member(group, who).freeze();
            std::thread::sleep(Duration::from_millis(1500));
            group_member(group, who).thaw();
        }
        ScenarioStep::WaitForField(place, field, value) => {
            let port = group.servers[place].port.to_string();
            for node in &group.sentinels {
                eventually(&format!("{field} of a replica is {value}"), || {
                    let reply = node.run(&format!("SENTINEL REPLICAS {MASTER_NAME}"));
                    let is_known =
                        |fields| field_map(fields)["port"] == port && field_map(fields)[field] == value;
                    reply.items().iter().any(is_known).then_some(())
                });
            }
        }
    }
}

/// Sends a command to a node and checks that it succeeds.
fn expect_success(node: &Node, command: &str) {
    let reply = node.run(command);
    assert!(!reply.is_error(""), "{command}: {reply:?}");
}

/// Replaces the short names in a text by ports and run ids.
fn expand_names(group: &SentinelGroup, text: &str) -> String {
    let mut text = text.to_owned();
    for (place, server) in group.servers.iter().enumerate() {
        text = text.replace(&format!("S{place}"), &server.port.to_string());
    }
    for (place, sentinel) in group.sentinels.iter().enumerate() {
        let name = format!("I{place}");
        if text.contains(&name) {
            text = text.replace(&name, &sentinel.run("SENTINEL MYID").text());
        }
        text = text.replace(&format!("T{place}"), &sentinel.port.to_string());
    }
    text
}

/// Returns the short names of the group's members, each with the text that it replaces in event payloads.
fn member_names(group: &SentinelGroup) -> Vec<(String, String)> {
    let mut names = vec![(group.sentinels[0].folder().display().to_string(), "FOLDER".to_owned())];
    let mut add = |name: String, port: u16| {
        names.push((format!("127.0.0.1:{port} 127.0.0.1 {port}"), name.clone()));
        names.push((format!("127.0.0.1 {port}"), name));
    };
    for (place, server) in group.servers.iter().enumerate() {
        add(format!("S{place}"), server.port);
    }
    for (place, sentinel) in group.sentinels.iter().enumerate() {
        add(format!("T{place}"), sentinel.port);
    }
    for (place, sentinel) in group.sentinels.iter().enumerate() {
        let id = sentinel.run("SENTINEL MYID").text();
        names.push((format!("{id} {id}"), format!("I{place}")));
        names.push((id, format!("I{place}")));
    }
    names
}

fn abbreviate_members(names: &[(String, String)], text: &str) -> String {
    let text = names.iter().fold(text.to_owned(), |text, (name, short)| text.replace(name, short));
    // The number of sentinels that agree when the event is published depends on timing.
    text.find(" #quorum").map_or(text.clone(), |place| format!("{} #quorum", &text[..place]))
}

/// Returns the lines of a log without process id and time.
fn log_lines(log: &str) -> Vec<String> {
    let said = log.lines().filter_map(|line| {
        let (_, said) = line.split_once(":X ")?;
        said.splitn(5, ' ').last().map(str::to_owned)
    });
    said.collect()
}

fn read_flags(sentinel: &mut Connection, group: &SentinelGroup, member: GroupMember) -> Option<String> {
    let (what, port) = match member {
        GroupMember::Master => {
            return Some(
                field_map(&sentinel.call_line(&format!("SENTINEL MASTER {MASTER_NAME}")))["flags"].clone(),
            );
        }
        GroupMember::Server(place) => ("REPLICAS", group.servers[place].port),
        GroupMember::Sentinel(place) => ("SENTINELS", group.sentinels[place].port),
    };
    let reply = sentinel.call_line(&format!("SENTINEL {what} {MASTER_NAME}"));
    let mut all = reply.items().iter().map(field_map);
    all.find(|fields| fields["port"] == port.to_string()).map(|fields| fields["flags"].clone())
}

/// Reads the events that have arrived so far.
fn read_new_events(subscriber: &mut Connection, events_seen: &mut Vec<String>, names: &[(String, String)]) {
    while subscriber.has_unread_data() {
        let Ok(message) = subscriber.read() else { return };
        if let [_, _, name, payload] = message.items() {
            events_seen.push(abbreviate_members(names, &format!("{} {}", name.text(), payload.text())));
        }
    }
}

/// Returns expected lines that are in no log, and expected events that were not published.
fn missing_lines(scenario: &Scenario, logged_lines: &[String], events: &[String]) -> Vec<String> {
    let in_logs =
        scenario.expected_lines.iter().filter(|line| !logged_lines.iter().any(|said| said == *line));
    let event = |line: &str| line.split_once(' ').map_or(String::new(), |(_, event)| event.to_owned());
    let published = scenario.expected_lines.iter().filter(|line| !events.contains(&event(line)));
    let in_logs = in_logs.map(|line| format!("in no log: {line}"));
    in_logs.chain(published.map(|line| format!("not published: {line}"))).collect()
}

/// Returns expected flags that the first sentinel does not show.
fn missing_flags(scenario: &Scenario, sentinel: &mut Connection, group: &SentinelGroup) -> Vec<String> {
    let mut left = Vec::new();
    for (of, expected) in scenario.expected_flags {
        let shown = read_flags(sentinel, group, *of);
        if shown.as_deref() != Some(*expected) {
            left.push(format!("{of:?}: {expected}, and not {shown:?}"));
        }
    }
    left
}

/// Returns published events that are not in the catalogue.
fn unknown_events(received_events: &[String]) -> Vec<String> {
    let name = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    let unknown = received_events.iter().map(name).filter(|name| !catalogue::is_known_event(name));
    unknown.map(|name| format!("not in the list of events: {name}")).collect()
}
