//! Decodes logged commands with the command table, for slot migrations.

use std::sync::Arc;

use engine::{CommandSet, LogRole};
use migration::{LoggedCommandDecoder, LoggedCommandKind};

/// Returns a decoder that looks commands up in the command table by their original names.
#[must_use]
pub fn logged_command_decoder(commands: &Arc<CommandSet>) -> LoggedCommandDecoder {
    let commands = commands.clone();
    LoggedCommandDecoder::new(move |args, visit| {
        let Some((role, slots)) = commands.decode_logged(args) else { return LoggedCommandKind::Other };
        slots.into_iter().for_each(visit);
        match role {
            LogRole::SelectDb => LoggedCommandKind::SelectDb,
            LogRole::BeginTransaction => LoggedCommandKind::BeginTransaction,
            LogRole::EndTransaction => LoggedCommandKind::EndTransaction,
            LogRole::ChangesUnnamedKeys => LoggedCommandKind::ChangesUnnamedKeys,
            LogRole::KeepAlive => LoggedCommandKind::KeepAlive,
            LogRole::Other => LoggedCommandKind::Other,
        }
    })
}
