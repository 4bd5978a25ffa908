//! SAVE, BGSAVE, BGREWRITEAOF and SHUTDOWN.

use std::sync::atomic::Ordering;

use durability::append_only;
use durability::saving::{self, SaveError};
use engine::ClientFlags;
use resp::{Args, Writer};

use super::ShellResult;
use crate::connection::Connection;
use crate::server::Server;
use crate::server::shutdown::{self, ShutdownCommand};

/// Executes SAVE. Unlike in Redis, it blocks only the client that sent it.
pub(super) async fn run_save(connection: &mut Connection) {
    let server = connection.server.clone();
    let outcome = tokio::task::spawn_blocking(move || saving::save(&server.durability)).await;
    let protocol = connection.session.protocol();
    let mut reply = Writer::new(connection.output(), protocol);
    match outcome {
        Ok(Ok(())) => reply.ok(),
        Ok(Err(SaveError::Running)) => reply.error("ERR Background save already in progress"),
        Ok(Err(SaveError::Failed(error))) => {
            tracing::warn!("Error saving the DB: {error:#}");
            reply.error("ERR");
        }
        Err(_) => reply.error("ERR"),
    }
}

/// Executes BGSAVE [SCHEDULE | CANCEL].
pub(super) fn run_bgsave(server: &Server, args: Args<'_>, reply: &mut Writer<'_>) -> ShellResult {
    let option = args.get(1).map(<[u8]>::to_ascii_lowercase);
    match option.as_deref() {
        Some(b"cancel") if args.len() == 2 => {
            if !server.durability.rdb_saves.cancel() {
                return Err("ERR Background saving is currently not in progress or scheduled".to_owned());
            }
            reply.simple("Background saving cancelled");
        }
        // SCHEDULE makes no difference, since a save can run during an AOF rewrite.
        None | Some(b"schedule") if args.len() <= 2 => {
            saving::save_in_background(&server.durability).map_err(|error| format!("ERR {error}"))?;
            reply.simple("Background saving started");
        }
        _ => return Err("ERR syntax error".to_owned()),
    }
    Ok(())
}

pub(super) fn run_bgrewriteaof(server: &Server, reply: &mut Writer<'_>) -> ShellResult {
    append_only::rewrite_in_background(&server.durability).map_err(|error| format!("ERR {error}"))?;
    reply.simple("Background append only file rewriting started");
    Ok(())
}

/// Executes SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT]. On success the connection closes without a reply.
pub(super) async fn run_shutdown(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let outcome = match ShutdownCommand::parse(args.iter().skip(1)) {
        None => Err("ERR syntax error"),
        Some(ShutdownCommand::Abort) => match shutdown::abort_shutdowns(&server.shutdown).await {
            true => Ok(true),
            false => Err("ERR No shutdown in progress."),
        },
        Some(ShutdownCommand::Stop(plan))
            if server.engine.scripting.scripts.has_busy_script() && !plan.skips_save() =>
        {
            match server.engine.settings.extended_redis_compatibility.load(Ordering::Relaxed) {
                true => Err(
                    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                ),
                false => Err(
                    "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                ),
            }
        }
        Some(ShutdownCommand::Stop(plan)) => {
            let client = connection.session.client().clone();
            client.set_flag(ClientFlags::BLOCKED, true);
            let stopped = shutdown::run_shutdown(&server, plan).await;
            client.set_flag(ClientFlags::BLOCKED, false);
            match stopped {
                Ok(()) => Ok(false),
                Err(_) => Err("ERR Errors trying to SHUTDOWN. Check logs."),
            }
        }
    };
    match outcome {
        Ok(true) => connection.reply().ok(),
        Ok(false) => {}
        Err(text) => connection.reply().error(text),
    }
}
