//! Those subcommands of ACL that need files or chance.

use config::keys;
use engine::Session;
use process::access;
use resp::{Args, Writer};

use super::Outcome;
use crate::server::Server;

/// ACL GENPASS [bits]
pub(crate) fn genpass(args: Args<'_>, reply: &mut Writer<'_>) -> Outcome {
    if args.len() > 3 {
        let name = String::from_utf8_lossy(args.get(1).unwrap_or_default());
        let wrong = "ERR unknown subcommand or wrong number of arguments for";
        return Err(format!("{wrong} '{name}'. Try ACL HELP."));
    }
    let random = |bytes: &mut [u8]| {
        getrandom::fill(bytes).expect("a password cannot be made up without random numbers");
    };
    acl::genpass(args.get(2), random, reply).map_err(str::to_owned)
}

/// ACL LOAD, from a connection with this session.
pub(super) fn load(server: &Server, session: &mut Session) -> Outcome {
    let path = server.config.get(keys::ACLFILE).ok_or(acl::NO_FILE)?;
    access::load_file(&server.engine, &path).map_err(|error| format!("ERR {error}"))?;
    let others = server.engine.end_clients(Some(session));
    server.engine.await_revoked(&others);
    Ok(())
}

/// ACL SAVE
pub(super) fn save(server: &Server) -> Outcome {
    let path = server.config.get(keys::ACLFILE).ok_or(acl::NO_FILE)?;
    access::save_file(&server.engine, &path).map_err(|error| {
        tracing::warn!("Saving the ACL file '{path}': {error}");
        "ERR There was an error trying to save the ACLs. Please check the server logs for more information"
            .to_owned()
    })
}
