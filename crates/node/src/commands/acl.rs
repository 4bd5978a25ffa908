//! The ACL subcommands that access files.

use config::keys;
use engine::Session;
use process::access;

use super::ShellResult;
use crate::server::Server;

/// Executes ACL LOAD for the client with this session.
pub(super) fn load_acl_file(server: &Server, session: &mut Session) -> ShellResult {
    let path = server.config.get(keys::ACLFILE).ok_or(acl::NO_FILE_ERROR)?;
    access::load_acl_file(&server.engine, &path).map_err(|error| format!("ERR {error}"))?;
    let others = server.engine.close_unauthorized_clients(Some(session));
    server.engine.await_revoked_clients(&others);
    Ok(())
}

pub(super) fn save_acl_file(server: &Server) -> ShellResult {
    let path = server.config.get(keys::ACLFILE).ok_or(acl::NO_FILE_ERROR)?;
    access::save_acl_file(&server.engine, &path).map_err(|error| {
        tracing::warn!("Saving the ACL file '{path}': {error}");
        "ERR There was an error trying to save the ACLs. Please check the server logs for more information"
            .to_owned()
    })
}
