//! All that a sentinel says and shows outside the steps of a failover: each story is told under Valkey's sentinels and under
//! ours, and both publish, log and show what the table has.

use std::time::{Duration, Instant};

use harness::{Connection, Group, MASTER, Node, Program, Value, eventually, field_map};

/// A story: its name, what is done, the lines that a sentinel's log then has (the level's sign, the event, its payload with
/// names for addresses and identities) and the same events published, and what the first sentinel then shows.
struct Story {
    name: &'static str,
    deed: fn(&mut Group),
    said: &'static [&'static str],
    shown: &'static [(Question, &'static str)],
}

/// The instance whose flags are looked at.
#[derive(Debug, Clone, Copy)]
enum Question {
    Master,
    Replica(usize),
    Sentinel(usize),
}

/// How long a step may take: the machine has other work.
const BOUND: Duration = Duration::from_secs(30);

const STORIES: &[Story] = &[
    Story {
        name: "a setting",
        deed: |group| settings(group, "parallel-syncs 2"),
        said: &["# +set master mymaster S0 parallel-syncs 2"],
        shown: &[
            (Question::Master, "master"),
            (Question::Replica(1), "slave"),
            (Question::Sentinel(1), "sentinel"),
        ],
    },
    Story {
        name: "a replica is killed",
        deed: |group| group.servers[2].kill(),
        said: &["# +sdown slave S2 @ mymaster S0"],
        shown: &[(Question::Replica(2), "s_down,slave,disconnected")],
    },
    Story {
        name: "it comes back",
        deed: |group| group.servers[2].launch(),
        said: &["* +reboot slave S2 @ mymaster S0", "# -sdown slave S2 @ mymaster S0"],
        shown: &[(Question::Replica(2), "slave")],
    },
    Story {
        name: "a replica is frozen",
        deed: |group| group.servers[2].freeze(),
        said: &["# +sdown slave S2 @ mymaster S0"],
        shown: &[],
    },
    Story {
        name: "it goes on",
        deed: |group| group.servers[2].thaw(),
        said: &["# -sdown slave S2 @ mymaster S0"],
        shown: &[(Question::Replica(2), "slave")],
    },
    Story {
        name: "a replica takes itself for a master",
        deed: |group| group.servers[2].run("REPLICAOF NO ONE").expect_ok(),
        said: &[
            "- -role-change slave S2 @ mymaster S0 new reported role is master",
            "* +convert-to-slave slave S2 @ mymaster S0",
            "- +role-change slave S2 @ mymaster S0 new reported role is slave",
        ],
        shown: &[(Question::Replica(2), "slave")],
    },
    Story {
        name: "a replica follows another",
        deed: |group| {
            let port = group.servers[1].port;
            group.servers[2].run(&format!("REPLICAOF 127.0.0.1 {port}")).expect_ok();
        },
        said: &["* +fix-slave-config slave S2 @ mymaster S0"],
        shown: &[(Question::Replica(2), "slave")],
    },
    Story {
        name: "too few can agree that the master is down",
        deed: |group| {
            everywhere(group, "quorum 4");
            group.servers[0].freeze();
        },
        said: &["# +set master mymaster S0 quorum 4", "# +sdown master mymaster S0"],
        shown: &[
            (Question::Sentinel(1), "sentinel,master_down"),
            (Question::Sentinel(2), "sentinel,master_down"),
        ],
    },
    Story {
        name: "it was only slow",
        deed: |group| group.servers[0].thaw(),
        said: &["# -sdown master mymaster S0"],
        shown: &[(Question::Master, "master")],
    },
    Story {
        name: "the master is started again",
        deed: |group| {
            group.servers[0].kill();
            group.servers[0].launch();
        },
        said: &["* +reboot master mymaster S0"],
        shown: &[
            (Question::Master, "master"),
            (Question::Replica(1), "slave"),
            (Question::Replica(2), "slave"),
        ],
    },
    Story {
        name: "the master wants a password",
        deed: |group| {
            group.servers[0].run("CONFIG SET requirepass secret").expect_ok();
            settings(group, "auth-pass wrong");
        },
        said: &["# +set master mymaster S0 auth-pass ******", "# +sdown master mymaster S0"],
        shown: &[(Question::Master, "s_down,master,disconnected")],
    },
    Story {
        name: "and gets it",
        deed: |group| {
            let mut operator = group.servers[0].connect();
            operator.run("AUTH secret").expect_ok();
            operator.run("CONFIG SET requirepass ").expect_ok();
        },
        said: &["# -sdown master mymaster S0"],
        shown: &[(Question::Master, "master")],
    },
    Story {
        name: "a sentinel is killed",
        deed: |group| group.sentinels[2].kill(),
        said: &["# +sdown sentinel I2 T2 @ mymaster S0"],
        shown: &[(Question::Sentinel(2), "s_down,sentinel,disconnected")],
    },
    Story {
        name: "and comes back",
        deed: |group| group.sentinels[2].launch(),
        said: &["# -sdown sentinel I2 T2 @ mymaster S0"],
        shown: &[(Question::Sentinel(2), "sentinel")],
    },
    Story {
        name: "a sentinel has another address",
        deed: |group| greet(group, "127.0.0.1,1,I2,0,mymaster,127.0.0.1,S0,0"),
        said: &["* +sentinel-address-switch master mymaster S0 ip 127.0.0.1 port 1 for I2"],
        shown: &[(Question::Sentinel(2), "sentinel")],
    },
    Story {
        name: "a greeting has a newer epoch",
        deed: |group| greet(group, "127.0.0.1,T1,I1,5,mymaster,127.0.0.1,S0,0"),
        said: &["# +new-epoch 5"],
        shown: &[],
    },
    Story {
        name: "the sentinel itself stands still",
        deed: |group| {
            group.sentinels[0].run("SENTINEL DEBUG tilt-trigger 1000 tilt-period 1500").expect_ok();
            group.sentinels[0].freeze();
            std::thread::sleep(Duration::from_millis(1500));
            group.sentinels[0].thaw();
        },
        said: &["# +tilt #tilt mode entered", "# -tilt #tilt mode exited"],
        shown: &[(Question::Master, "master")],
    },
    Story {
        name: "nobody is fit to be promoted",
        deed: |group| {
            for replica in &group.servers[1..] {
                replica.run("CONFIG SET replica-priority 0").expect_ok();
            }
            everywhere(group, "quorum 2");
            for node in &group.sentinels {
                eventually("the replicas' priority is known", || {
                    let reply = node.run(&format!("SENTINEL REPLICAS {MASTER}"));
                    let unfit = |replica: &Value| field_map(replica)["slave-priority"] == "0";
                    reply.items().iter().all(unfit).then_some(())
                });
            }
            group.servers[0].freeze();
        },
        said: &["# +sdown master mymaster S0", "# +odown master mymaster S0 #quorum"],
        shown: &[],
    },
    Story {
        name: "and the master comes back",
        deed: |group| group.servers[0].thaw(),
        said: &["# -sdown master mymaster S0", "# -odown master mymaster S0"],
        shown: &[(Question::Master, "master")],
    },
    Story {
        name: "all is forgotten and found again",
        deed: |group| assert_eq!(group.sentinels[0].run("SENTINEL RESET *"), Value::Int(1)),
        said: &[
            "# +reset-master master mymaster S0",
            "* +slave slave S1 @ mymaster S0",
            "* +slave slave S2 @ mymaster S0",
            "* +sentinel sentinel I1 T1 @ mymaster S0",
            "* +sentinel sentinel I2 T2 @ mymaster S0",
        ],
        shown: &[(Question::Master, "master")],
    },
    Story {
        name: "the master is watched no more, and again",
        deed: |group| {
            group.sentinels[0].run("SENTINEL REMOVE mymaster").expect_ok();
            let port = group.servers[0].port;
            group.sentinels[0].run(&format!("SENTINEL MONITOR mymaster 127.0.0.1 {port} 2")).expect_ok();
        },
        said: &["# -monitor master mymaster S0", "# +monitor master mymaster S0 quorum 2"],
        shown: &[(Question::Master, "master")],
    },
    Story {
        name: "another sentinel tells of a newer configuration",
        deed: |group| greet(group, "127.0.0.1,T1,I1,9,mymaster,127.0.0.1,S1,9"),
        said: &[
            "# +new-epoch 9",
            "# +config-update-from sentinel I1 T1 @ mymaster S0",
            "# +switch-master mymaster S0 S1",
            "* +slave slave S0 @ mymaster S1",
            "* +slave slave S2 @ mymaster S1",
        ],
        shown: &[],
    },
];

fn settings(group: &Group, option: &str) {
    group.sentinels[0].run(&format!("SENTINEL SET {MASTER} {option}")).expect_ok();
}

fn everywhere(group: &Group, option: &str) {
    for node in &group.sentinels {
        node.run(&format!("SENTINEL SET {MASTER} {option}")).expect_ok();
    }
}

/// Has the first sentinel hear this greeting, with ports and identities in the place of names.
fn greet(group: &Group, greeting: &str) {
    let mut text = greeting.to_owned();
    for place in 0..3 {
        text = text.replace(&format!("I{place}"), &group.sentinels[place].run("SENTINEL MYID").text());
        text = text.replace(&format!("T{place}"), &group.sentinels[place].port.to_string());
        text = text.replace(&format!("S{place}"), &group.servers[place].port.to_string());
    }
    assert_eq!(group.sentinels[0].connect().call(&["PUBLISH", "__sentinel__:hello", &text]), Value::Int(1));
}

/// The names of the group's members, and what stands for each in an event's payload.
fn names(group: &Group) -> Vec<(String, String)> {
    let mut names = vec![(group.sentinels[0].folder().display().to_string(), "FOLDER".to_owned())];
    for place in 0..3 {
        let (server, sentinel) = (group.servers[place].port, group.sentinels[place].port);
        let id = group.sentinels[place].run("SENTINEL MYID").text();
        for (name, port) in [(format!("S{place}"), server), (format!("T{place}"), sentinel)] {
            names.push((format!("127.0.0.1:{port} 127.0.0.1 {port}"), name.clone()));
            names.push((format!("127.0.0.1 {port}"), name));
        }
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

fn flags(asker: &mut Connection, group: &Group, question: Question) -> Option<String> {
    let (what, port) = match question {
        Question::Master => {
            return Some(field_map(&asker.run(&format!("SENTINEL MASTER {MASTER}")))["flags"].clone());
        }
        Question::Replica(place) => ("REPLICAS", group.servers[place].port),
        Question::Sentinel(place) => ("SENTINELS", group.sentinels[place].port),
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

/// Tells all stories, one after the other; gives what was missing.
fn tell(sentinels: &Program) -> Vec<String> {
    let valkey = Program::valkey().expect("asked for by the caller");
    let mut group = Group::start(&valkey, &std::array::from_fn::<_, 3, _>(|_| sentinels.clone()));
    group.hurry();
    for node in &group.sentinels {
        node.run("SENTINEL DEBUG info-period 1000").expect_ok();
        node.run("SENTINEL CONFIG SET loglevel verbose").expect_ok();
    }
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
    for story in STORIES {
        let before: Vec<usize> = logs(&group).iter().map(Vec::len).collect();
        let mut heard = Vec::new();
        (story.deed)(&mut group);
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
                break left;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        missing.extend(left.into_iter().map(|text| format!("{}: {}: {text}", sentinels.name(), story.name)));
    }
    missing
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
    for (question, expected) in story.shown {
        let shown = flags(asker, group, *question);
        if shown.as_deref() != Some(*expected) {
            left.push(format!("{question:?}: {expected}, and not {shown:?}"));
        }
    }
    left
}

#[test]
fn the_same_events_log_lines_and_flags() {
    let Some(valkey) = Program::valkey() else { return };
    let mut missing = tell(&valkey);
    missing.extend(tell(&Program::redoubt()));
    assert!(missing.is_empty(), "{missing:#?}");
}
