//! Reads effects of commands: as a replica that discards its data, and from the files of an append-only folder.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use harness::Node;

/// A command as its arguments.
pub(crate) type CommandWords = Vec<String>;

/// How long a read may wait for data in the stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that receives a master's stream like a replica.
pub(crate) struct FakeReplica {
    link: BufReader<TcpStream>,
}

impl FakeReplica {
    /// Requests a full synchronisation and discards the snapshot.
    pub(crate) fn connect(node: &Node) -> Self {
        let stream = TcpStream::connect(node.address()).expect("it listens");
        stream.set_read_timeout(Some(STREAM_TIMEOUT)).expect("a timeout can be set");
        let mut replica = Self { link: BufReader::new(stream) };
        for line in ["REPLCONF listening-port 1", "REPLCONF capa psync2", "REPLCONF version 9.1.0"] {
            replica.send_line(line);
            assert_eq!(replica.read_line(), "+OK", "{line}");
        }
        replica.send_line("PSYNC ? -1");
        let answer = replica.read_line();
        assert!(answer.starts_with("+FULLRESYNC "), "{answer}");
        let length = replica.read_line();
        let length = length.strip_prefix('$').and_then(|length| length.parse().ok()).expect("a length");
        let mut snapshot = vec![0; length];
        replica.link.read_exact(&mut snapshot).expect("the snapshot comes");
        replica
    }

    fn send_line(&mut self, line: &str) {
        self.link.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("it is read");
    }

    /// Reads the next line, skipping the newlines that are sent as keepalives.
    fn read_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.link.read_line(&mut line).expect("it answers");
            if line != "\n" {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Reads commands up to `end`. The result excludes `end` and commands without effects, such as PING.
    pub(crate) fn read_until(&mut self, end: &[&str]) -> Vec<CommandWords> {
        let mut effects = Vec::new();
        loop {
            let words = read_command(&mut self.link).expect("the stream goes on");
            if words == end {
                return effects;
            }
            if !["PING", "REPLCONF"].contains(&words[0].as_str()) {
                effects.push(words);
            }
        }
    }
}

/// Reads one command and converts its name to upper case; `None` at the end of the input.
fn read_command(from: &mut impl BufRead) -> Option<CommandWords> {
    let number = |from: &mut dyn BufRead, kind: char| -> Option<usize> {
        let mut line = "#".to_owned();
        // AOF files have annotations between commands.
        while line.starts_with('#') {
            line.clear();
            from.read_line(&mut line).ok().filter(|read| *read > 0)?;
        }
        Some(line.trim_end().strip_prefix(kind).and_then(|text| text.parse().ok()).expect("RESP"))
    };
    let mut words = CommandWords::new();
    for _ in 0..number(from, '*')? {
        let mut word = vec![0; number(from, '$').expect("a word") + 2];
        from.read_exact(&mut word).expect("a whole word");
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    words[0] = words[0].to_uppercase();
    Some(words)
}

/// Reads all commands of the incremental files in an append-only folder, in order.
pub(crate) fn read_files(folder: &Path) -> Vec<CommandWords> {
    let files = std::fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<_> = files.map(|file| file.expect("it can be listed").path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(".incr.aof"));
    files.sort();
    let read = |file| BufReader::new(std::fs::File::open(file).expect("it can be read"));
    files
        .into_iter()
        .flat_map(|file| {
            let mut file = read(file);
            std::iter::from_fn(move || read_command(&mut file)).collect::<Vec<_>>()
        })
        .collect()
}
