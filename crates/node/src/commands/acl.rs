//! The ACL subcommands that access files.

use config::keys;
use engine::Session;
use process::access;

use super::Outcome;
use crate::server::Server;

/// ACL LOAD, from a connection with this session.
pub(super) fn load(server: &Server, session: &mut Session) -> Outcome {
    let path = server.config.get(keys::ACLFILE).ok_or(acl::NO_FILE)?;
    access::load_acl_file(&server.engine, &path).map_err(|error| format!("ERR {error}"))?;
    let others = server.engine.close_unauthorized_clients(Some(session));
    server.engine.await_revoked(&others);
    Ok(())
}

/// ACL SAVE.
pub(super) fn save(server: &Server) -> Outcome {
    let path = server.config.get(keys::ACLFILE).ok_or(acl::NO_FILE)?;
    access::save_acl_file(&server.engine, &path).map_err(|error| {
        tracing::warn!("Saving the ACL file '{path}': {error}");
        "ERR There was an error trying to save the ACLs. Please check the server logs for more information"
            .to_owned()
    })
}
