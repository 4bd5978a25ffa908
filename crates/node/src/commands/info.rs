//! INFO: sections of `name:value` lines, with the names that dashboards and exporters read.
//!
//! Each section is a function in [`SECTIONS`]; groups of sections have their own files.

mod activity;
mod data;
mod memory;
mod process;

use std::fmt::Write;

use ::process::info::InfoText;
use engine::Context;
use keyspace::Keyspace;

use crate::server::Server;

/// When a section is included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Also if no section is named.
    ByDefault,
    /// If named, and with `all` and `everything`.
    OnRequest,
    /// If named, and with `everything`.
    WithModules,
}

struct Section {
    name: &'static str,
    shown: Shown,
    write: Source,
}

/// Access to the data from the requesting thread.
#[derive(Debug)]
pub(crate) enum Data<'a, 'c> {
    /// A command, which may hold slot locks.
    Of(&'a mut Context<'c>),
    /// A thread that holds no locks.
    Free(&'a Keyspace),
    /// A thread that may hold locks.
    Unknown,
}

/// The source of a section's lines.
enum Source {
    /// The server.
    Server(fn(&Server, &mut InfoText)),
    /// The data, which the requesting command may have locked.
    Data(fn(&mut Data<'_, '_>, &mut InfoText)),
}

const fn section(name: &'static str, shown: Shown, write: fn(&Server, &mut InfoText)) -> Section {
    Section { name, shown, write: Source::Server(write) }
}

/// In the order of the output.
const SECTIONS: &[Section] = &[
    section("Server", Shown::ByDefault, process::server),
    section("Clients", Shown::ByDefault, process::clients),
    section("Memory", Shown::ByDefault, memory::memory),
    section("Persistence", Shown::ByDefault, data::persistence),
    section("Stats", Shown::ByDefault, activity::stats),
    section("Replication", Shown::ByDefault, data::replication),
    section("CPU", Shown::ByDefault, process::cpu),
    section("Modules", Shown::WithModules, |_, _| {}),
    section("Commandstats", Shown::OnRequest, activity::commandstats),
    section("Errorstats", Shown::ByDefault, activity::errorstats),
    section("Latencystats", Shown::OnRequest, activity::latencystats),
    section("Cluster", Shown::ByDefault, process::cluster),
    // Client libraries parse headers as one word, so a header with a blank is not included by default.
    section("Scripting Engines", Shown::OnRequest, process::scripting_engines),
    Section { name: "Keyspace", shown: Shown::ByDefault, write: Source::Data(data::keyspace) },
];

/// INFO [section ...].
pub(super) fn info(server: &Server, context: &mut Context<'_>) {
    let words = context.args.iter().skip(1);
    let wanted: Vec<String> = words.map(|word| String::from_utf8_lossy(word).to_lowercase()).collect();
    let text = render(server, &wanted, &mut Data::Of(context));
    context.reply.verbatim(b"txt", text.as_bytes());
}

/// Renders the named sections, without those about the data where it cannot be read.
pub(crate) fn render(server: &Server, wanted: &[String], data: &mut Data<'_, '_>) -> String {
    let mut text = InfoText::default();
    for section in SECTIONS.iter().filter(|section| is_wanted(wanted, section)) {
        if !text.raw().is_empty() {
            text.raw().push_str("\r\n");
        }
        let _ = write!(text.raw(), "# {}\r\n", section.name);
        match section.write {
            Source::Server(write) => write(server, &mut text),
            Source::Data(write) => write(data, &mut text),
        }
    }
    std::mem::take(text.raw())
}

fn is_wanted(wanted: &[String], section: &Section) -> bool {
    let by_default = section.shown == Shown::ByDefault;
    wanted.is_empty() && by_default
        || wanted.iter().any(|word| match word.as_str() {
            "everything" => true,
            "all" => section.shown != Shown::WithModules,
            "default" => by_default,
            "scriptingengines" => section.name == "Scripting Engines",
            name => section.name.eq_ignore_ascii_case(name),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_chosen_by_name_and_by_group() {
        let chosen = |words: &[&str]| {
            let wanted: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let names = SECTIONS.iter().filter(|section| is_wanted(&wanted, section));
            names.map(|section| section.name).collect::<Vec<_>>().join(" ")
        };
        let default = "Server Clients Memory Persistence Stats Replication CPU Errorstats Cluster Keyspace";
        assert_eq!(chosen(&[]), default);
        assert_eq!(chosen(&["default"]), default);
        assert_eq!(chosen(&["cpu", "nonsense", "server"]), "Server CPU");
        assert_eq!(chosen(&["all"]), chosen(&["everything"]).replace("Modules ", ""));
        assert!(chosen(&["everything"]).contains("Cluster Scripting Engines Keyspace"));
        assert_eq!(chosen(&["scriptingengines"]), "Scripting Engines");
        let words = |section: &&Section| section.name.split(' ').count();
        let by_default = SECTIONS.iter().filter(|section| section.shown == Shown::ByDefault);
        assert!(by_default.clone().all(|section| words(&section) == 1), "Predis reads `^# (\\w+)$`");
        assert_eq!(
            chosen(&["default", "commandstats"]),
            default.replace("Errorstats", "Commandstats Errorstats")
        );
        assert_eq!(chosen(&["nonsense"]), "");
    }
}
