//! A story is told under Valkey's sentinels and under ours, and both publish, log and show what its table has.
//!
//! A chapter is some stories, one after the other, about one group: its servers are always Valkey's, so that only the
//! sentinels differ. Members have short names in all texts: the servers `S0` (the master at the start), `S1` and so on,
//! the sentinels' addresses `T0` to `T2`, their identities `I0` to `I2`.

use std::time::{Duration, Instant};

use harness::{Connection, Group, MASTER, Node, Program, Value, eventually, field_map};

use crate::catalogue;

/// One story.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// As a report of what is missing names it.
    pub name: &'static str,
    /// One after the other.
    pub deeds: &'static [Deed],
    /// Lines that a sentinel's log then has (the level's sign, the event, its payload), and the same events published.
    pub said: &'static [&'static str],
    /// The flags that the first sentinel then shows, all at one time.
    pub shown: &'static [(Member, &'static str)],
}

/// A member of the group.
#[derive(Debug, Clone, Copy)]
pub enum Member {
    /// Whichever server the sentinels take for the master.
    Master,
    /// In the order in which they were started.
    Server(usize),
    /// The same.
    Sentinel(usize),
}

/// A step of a story.
#[derive(Debug, Clone, Copy)]
pub enum Deed {
    /// A command to the first sentinel, which does not refuse it.
    Ask(&'static str),
    /// The same to all of them.
    AskAll(&'static str),
    /// The first sentinel hears this greeting of another.
    Greet(&'static str),
    /// A command to a server, which does not refuse it.
    Order(usize, &'static str),
    /// A script that a server runs to its end.
    Script(usize, &'static str),
    /// A script that a server does not come to the end of.
    EndlessScript(usize, &'static str),
    /// Ended without a word.
    Kill(Member),
    /// A server's data is gone from the disk.
    Lose(usize),
    /// Started, and it answers.
    Launch(Member),
    /// Started with these options more, and it does not answer yet.
    Spawn(usize, &'static str),
    /// Stopped, its connections stand.
    Freeze(Member),
    /// The end of that.
    Thaw(Member),
    /// Frozen for longer than a sentinel may stand still without noticing it: the freeze is the deed.
    Stall(Member),
    /// Waits until every sentinel shows this value of this field of that replica.
    Known(usize, &'static str, &'static str),
}

/// How long a step may take: the machine has other work.
const BOUND: Duration = Duration::from_secs(30);

/// Tells a chapter under Valkey's sentinels and under ours at once, in groups of so many servers.
///
/// # Panics
/// If one of them does not say or show what a story has.
pub fn told_by_both(servers: usize, chapter: &[Story]) {
    let Some(valkey) = Program::valkey() else { return };
    let redoubt = Program::redoubt();
    let missing = std::thread::scope(|scope| {
        let tellers =
            [&valkey, &redoubt].map(|sentinels| scope.spawn(|| tell(&valkey, sentinels, servers, chapter)));
        tellers.map(|teller| teller.join().expect("a chapter is told to its end")).concat()
    });
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Tells the stories, one after the other; gives what was missing.
fn tell(server: &Program, sentinels: &Program, servers: usize, chapter: &[Story]) -> Vec<String> {
    let mut group = assemble(server, sentinels, servers);
    let names = names(&group);
    let mut events: Vec<Connection> = group.sentinels.iter().map(Node::connect).collect();
    for subscriber in &mut events {
        subscriber.call(&["PSUBSCRIBE", "*"]);
    }
    let mut asker = group.sentinels[0].connect();
    let logs = |group: &Group| -> Vec<Vec<String>> {
        group.sentinels.iter().map(|node| lines(&node.log())).collect()
    };
    let mut missing = Vec::new();
    for story in chapter {
        let before: Vec<usize> = logs(&group).iter().map(Vec::len).collect();
        let mut heard = Vec::new();
        story.deeds.iter().for_each(|deed| act(&mut group, deed));
        let began = Instant::now();
        let left = loop {
            // One that was killed is subscribed to no more.
            events.iter_mut().for_each(|subscriber| take_events(subscriber, &mut heard, &names));
            let logs = logs(&group);
            let new = logs.iter().zip(&before).flat_map(|(log, from)| &log[*from..]);
            let logged: Vec<String> = new.map(|line| named(&names, line)).collect();
            let mut left = unsaid(story, &logged, &heard);
            left.extend(unseen(story, &mut asker, &group));
            if left.is_empty() || began.elapsed() > BOUND {
                if !left.is_empty() {
                    eprintln!("{} has logged:\n{}", sentinels.name(), logged.join("\n"));
                }
                break left;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        eprintln!("{} has told {:?} in {:?}", sentinels.name(), story.name, began.elapsed());
        let left = left.into_iter().chain(unlisted(&heard));
        missing.extend(left.map(|text| format!("{}: {}: {text}", sentinels.name(), story.name)));
    }
    missing
}

/// A group of so many servers, whose sentinels notice failures soon and log all that they publish.
fn assemble(server: &Program, sentinels: &Program, servers: usize) -> Group {
    let mut group = Group::start(server, &std::array::from_fn::<_, 3, _>(|_| sentinels.clone()));
    group.hurry();
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
        let of = |node: &Node| node.run(&format!("SENTINEL REPLICAS {MASTER}"));
        let follows = |replica: &Value| field_map(replica)["master-link-status"] == "ok";
        let knows =
            |node: &Node| of(node).items().iter().filter(|replica| follows(replica)).count() == servers - 1;
        group.sentinels.iter().all(knows).then_some(())
    });
    group
}

fn member(group: &mut Group, member: Member) -> &mut Node {
    match member {
        Member::Master => {
            let place = group.master();
            &mut group.servers[place]
        }
        Member::Server(place) => &mut group.servers[place],
        Member::Sentinel(place) => &mut group.sentinels[place],
    }
}

/// Does what a story has.
fn act(group: &mut Group, deed: &Deed) {
    match *deed {
        Deed::Ask(command) => ask(&group.sentinels[0], &filled(group, command)),
        Deed::AskAll(command) => group.sentinels.iter().for_each(|node| ask(node, command)),
        Deed::Greet(greeting) => {
            let text = filled(group, greeting);
            let mut friend = group.sentinels[0].connect();
            assert_eq!(friend.call(&["PUBLISH", "__sentinel__:hello", &text]), Value::Int(1));
        }
        Deed::Order(place, command) => ask(&group.servers[place], &filled(group, command)),
        Deed::Script(place, script) => {
            let reply = group.servers[place].connect().call(&["EVAL", script, "0"]);
            assert!(!reply.is_error(""), "{script}: {reply:?}");
        }
        Deed::EndlessScript(place, script) => {
            let mut client = group.servers[place].connect();
            client.send(&["EVAL", script, "0"]).expect("the server takes it");
        }
        Deed::Kill(who) => member(group, who).kill(),
        Deed::Lose(place) => {
            let file = group.servers[place].folder().join("dump.rdb");
            std::fs::remove_file(file).expect("it has saved, or keeps the copy that it got");
        }
        Deed::Launch(who) => member(group, who).launch(),
        Deed::Spawn(place, options) => {
            group.servers[place].add_options(options);
            group.servers[place].spawn();
        }
        Deed::Freeze(who) => member(group, who).freeze(),
        Deed::Thaw(who) => member(group, who).thaw(),
        Deed::Stall(who) => {
            member(group, who).freeze();
            std::thread::sleep(Duration::from_millis(1500));
            member(group, who).thaw();
        }
        Deed::Known(place, field, value) => {
            let port = group.servers[place].port.to_string();
            for node in &group.sentinels {
                eventually(&format!("{field} of a replica is {value}"), || {
                    let reply = node.run(&format!("SENTINEL REPLICAS {MASTER}"));
                    let is_known =
                        |fields| field_map(fields)["port"] == port && field_map(fields)[field] == value;
                    reply.items().iter().any(is_known).then_some(())
                });
            }
        }
    }
}

/// Has a node do this, and it does.
fn ask(node: &Node, command: &str) {
    let reply = node.run(command);
    assert!(!reply.is_error(""), "{command}: {reply:?}");
}

/// A text with ports and identities in the place of names.
fn filled(group: &Group, text: &str) -> String {
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

/// The names of the group's members, and what stands for each in an event's payload.
fn names(group: &Group) -> Vec<(String, String)> {
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

fn named(names: &[(String, String)], text: &str) -> String {
    let text = names.iter().fold(text.to_owned(), |text, (name, short)| text.replace(name, short));
    // How many of them agree at that moment is chance.
    text.find(" #quorum").map_or(text.clone(), |place| format!("{} #quorum", &text[..place]))
}

/// The lines of a log without process and time.
fn lines(log: &str) -> Vec<String> {
    let said = log.lines().filter_map(|line| {
        let (_, said) = line.split_once(":X ")?;
        said.splitn(5, ' ').last().map(str::to_owned)
    });
    said.collect()
}

fn flags(asker: &mut Connection, group: &Group, of: Member) -> Option<String> {
    let (what, port) = match of {
        Member::Master => {
            return Some(field_map(&asker.run(&format!("SENTINEL MASTER {MASTER}")))["flags"].clone());
        }
        Member::Server(place) => ("REPLICAS", group.servers[place].port),
        Member::Sentinel(place) => ("SENTINELS", group.sentinels[place].port),
    };
    let reply = asker.run(&format!("SENTINEL {what} {MASTER}"));
    let mut all = reply.items().iter().map(field_map);
    all.find(|fields| fields["port"] == port.to_string()).map(|fields| fields["flags"].clone())
}

/// The events that have come so far.
fn take_events(events: &mut Connection, heard: &mut Vec<String>, names: &[(String, String)]) {
    while events.has_come() {
        let Ok(message) = events.read() else { return };
        if let [_, _, name, payload] = message.items() {
            heard.push(named(names, &format!("{} {}", name.text(), payload.text())));
        }
    }
}

/// The lines of a story that no log has, and its events that nobody published.
fn unsaid(story: &Story, logged: &[String], heard: &[String]) -> Vec<String> {
    let in_logs = story.said.iter().filter(|line| !logged.iter().any(|said| said == *line));
    let event = |line: &str| line.split_once(' ').map_or(String::new(), |(_, event)| event.to_owned());
    let published = story.said.iter().filter(|line| !heard.contains(&event(line)));
    let in_logs = in_logs.map(|line| format!("in no log: {line}"));
    in_logs.chain(published.map(|line| format!("not published: {line}"))).collect()
}

/// The flags of a story that the first sentinel does not show.
fn unseen(story: &Story, asker: &mut Connection, group: &Group) -> Vec<String> {
    let mut left = Vec::new();
    for (of, expected) in story.shown {
        let shown = flags(asker, group, *of);
        if shown.as_deref() != Some(*expected) {
            left.push(format!("{of:?}: {expected}, and not {shown:?}"));
        }
    }
    left
}

/// Events that were published and that the catalogue does not have.
fn unlisted(heard: &[String]) -> Vec<String> {
    let name = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    let unknown = heard.iter().map(name).filter(|name| !catalogue::is_known(name));
    unknown.map(|name| format!("not in the list of events: {name}")).collect()
}
