//! INFO: sections of `name:value` lines, with the names that dashboards and exporters read.
//!
//! Each section is a function in [`INFO_SECTIONS`]; groups of sections have their own files.

mod data;
mod memory;
mod process;
mod stats;

use std::fmt::Write;

use ::process::info::InfoText;
use engine::Context;
use keyspace::Keyspace;

use crate::server::Server;

/// Which INFO requests include a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SectionVisibility {
    /// Included in every INFO request, even one without arguments.
    ByDefault,
    /// Included if named, and in `all` and `everything`.
    OnRequest,
    /// Included if named, and in `everything`.
    WithModules,
}

struct InfoSection {
    name: &'static str,
    visibility: SectionVisibility,
    source: SectionSource,
}

/// How the thread that renders INFO may read the data.
#[derive(Debug)]
pub(crate) enum DataAccess<'a, 'c> {
    /// For a command, which may hold slot locks.
    Command(&'a mut Context<'c>),
    /// For a thread that holds no slot locks and may take them.
    Unlocked(&'a Keyspace),
    /// For a thread that may hold slot locks, so the data cannot be read.
    MaybeLocked,
}

/// The function that writes a section's lines. The variants differ in the data that the section reads.
enum SectionSource {
    /// The section needs only the server.
    Server(fn(&Server, &mut InfoText)),
    /// The section reads the data, which the requesting command may have locked.
    DataAccess(fn(&mut DataAccess<'_, '_>, &mut InfoText)),
}

const fn server_section(
    name: &'static str,
    visibility: SectionVisibility,
    write: fn(&Server, &mut InfoText),
) -> InfoSection {
    InfoSection { name, visibility, source: SectionSource::Server(write) }
}

/// All sections, in the order of the output.
const INFO_SECTIONS: &[InfoSection] = &[
    server_section("Server", SectionVisibility::ByDefault, process::write_server_section),
    server_section("Clients", SectionVisibility::ByDefault, process::write_clients_section),
    server_section("Memory", SectionVisibility::ByDefault, memory::write_memory_section),
    server_section("Persistence", SectionVisibility::ByDefault, data::write_persistence_section),
    server_section("Stats", SectionVisibility::ByDefault, stats::write_stats_section),
    server_section("Replication", SectionVisibility::ByDefault, data::write_replication_section),
    server_section("CPU", SectionVisibility::ByDefault, process::write_cpu_section),
    server_section("Modules", SectionVisibility::WithModules, |_, _| {}),
    server_section("Commandstats", SectionVisibility::OnRequest, stats::write_commandstats_section),
    server_section("Errorstats", SectionVisibility::ByDefault, stats::write_errorstats_section),
    server_section("Latencystats", SectionVisibility::OnRequest, stats::write_latencystats_section),
    server_section("Cluster", SectionVisibility::ByDefault, process::write_cluster_section),
    // Client libraries parse a header as one word, so a section whose header contains a space is not included by
    // default.
    server_section(
        "Scripting Engines",
        SectionVisibility::OnRequest,
        process::write_scripting_engines_section,
    ),
    InfoSection {
        name: "Keyspace",
        visibility: SectionVisibility::ByDefault,
        source: SectionSource::DataAccess(data::write_keyspace_section),
    },
];

/// Replies to INFO [section ...].
pub(super) fn reply_info(server: &Server, context: &mut Context<'_>) {
    let words = context.args.iter().skip(1);
    let wanted: Vec<String> = words.map(|word| String::from_utf8_lossy(word).to_lowercase()).collect();
    let text = render_sections(server, &wanted, &mut DataAccess::Command(context));
    context.reply.verbatim(b"txt", text.as_bytes());
}

/// Renders the named sections. Sections about the data are left out if `data` cannot be read.
pub(crate) fn render_sections(server: &Server, names: &[String], data: &mut DataAccess<'_, '_>) -> String {
    let mut text = InfoText::default();
    for section in INFO_SECTIONS.iter().filter(|section| is_section_requested(names, section)) {
        if !text.text_mut().is_empty() {
            text.text_mut().push_str("\r\n");
        }
        let _ = write!(text.text_mut(), "# {}\r\n", section.name);
        match section.source {
            SectionSource::Server(write) => write(server, &mut text),
            SectionSource::DataAccess(write) => write(data, &mut text),
        }
    }
    std::mem::take(text.text_mut())
}

fn is_section_requested(names: &[String], section: &InfoSection) -> bool {
    let by_default = section.visibility == SectionVisibility::ByDefault;
    names.is_empty() && by_default
        || names.iter().any(|word| match word.as_str() {
            "everything" => true,
            "all" => section.visibility != SectionVisibility::WithModules,
            "default" => by_default,
            "scriptingengines" => section.name == "Scripting Engines",
            name => section.name.eq_ignore_ascii_case(name),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_selected_by_name_and_group() {
        let chosen = |words: &[&str]| {
            let wanted: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let names = INFO_SECTIONS.iter().filter(|section| is_section_requested(&wanted, section));
            names.map(|section| section.name).collect::<Vec<_>>().join(" ")
        };
        let default = "Server Clients Memory Persistence Stats Replication CPU Errorstats Cluster Keyspace";
        assert_eq!(chosen(&[]), default);
        assert_eq!(chosen(&["default"]), default);
        assert_eq!(chosen(&["cpu", "nonsense", "server"]), "Server CPU");
        assert_eq!(chosen(&["all"]), chosen(&["everything"]).replace("Modules ", ""));
        assert!(chosen(&["everything"]).contains("Cluster Scripting Engines Keyspace"));
        assert_eq!(chosen(&["scriptingengines"]), "Scripting Engines");
        let words = |section: &&InfoSection| section.name.split(' ').count();
        let by_default =
            INFO_SECTIONS.iter().filter(|section| section.visibility == SectionVisibility::ByDefault);
        assert!(by_default.clone().all(|section| words(&section) == 1), "Predis reads `^# (\\w+)$`");
        assert_eq!(
            chosen(&["default", "commandstats"]),
            default.replace("Errorstats", "Commandstats Errorstats")
        );
        assert_eq!(chosen(&["nonsense"]), "");
    }
}
