//! The server's sections of the crash report ([`crash`]).

use std::sync::Arc;

use clock::Millis;
use engine::{PauseMode, PausePurpose};
use process::{crash, daemon, time};

use crate::commands::info;
use crate::server::Server;

pub(super) struct CrashReport(pub(super) Arc<Server>);

impl crash::CrashReportSource for CrashReport {
    /// Pauses all clients without waiting for running commands, because the crashing thread may hold locks.
    fn stop_serving(&self) {
        let engine = &self.0.engine;
        engine.scheduling.pauses.pause(
            &engine.settings,
            PausePurpose::Client,
            PauseMode::All,
            Millis(i64::MAX),
        );
    }

    fn write_sections(&self, write_section: &mut dyn FnMut(&str, &str)) {
        let server = &self.0;
        let text =
            info::render_sections(server, &["everything".to_owned()], &mut info::DataAccess::MaybeLocked);
        write_section("INFO OUTPUT", &text.replace('\r', ""));
        let (now, clients) = (time::now(), server.engine.clients.list());
        let lines = clients.iter().map(|client| client.format_line(now, &server.engine.access.catalogue));
        let lines: Vec<String> = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect();
        write_section("CLIENT LIST OUTPUT", &lines.join("\n"));
        daemon::remove_pid_file_and_socket(&server.config);
    }
}
