//! Users as the process sees to them: the ACL file, and passwords that are made up.

use std::io;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use config::{Config, keys};
use engine::Engine;
use resp::{Args, Writer};

/// Answers ACL GENPASS, whose words may have a number of bits.
///
/// # Errors
/// The error to reply.
pub fn genpass(args: Args<'_>, reply: &mut Writer<'_>) -> Result<(), String> {
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

/// Takes the users from the ACL file, if there is one.
///
/// # Errors
/// The file cannot be read or is not in order, or there are users in the configuration as well; the process should not
/// go on.
pub fn load_at_start(engine: &Engine, config: &Config) -> Result<()> {
    let Some(path) = config.get(keys::ACLFILE) else { return Ok(()) };
    if !config.users().is_empty() {
        bail!(
            "Configuring Redis with users defined in redis.conf and at the same setting an ACL file path is \
             invalid. This setup is very likely to lead to configuration errors and security holes, please define \
             either an ACL file or declare users directly in your redis.conf, but not both."
        );
    }
    load_file(engine, &path)
        .map_err(|error| anyhow!("Aborting Redoubt startup because of ACL errors: {error}"))
}

/// Puts the users of an ACL file in the place of those there are; none if the file is not in order.
///
/// # Errors
/// The text of ACL LOAD's error: the file cannot be read, or which of its lines are not in order.
pub fn load_file(engine: &Engine, path: &str) -> Result<(), String> {
    let text =
        std::fs::read(path).map_err(|error| format!("Error loading ACLs, opening file '{path}': {error}"))?;
    let parsed = engine.users.read().parse_file(&text);
    let users = parsed.map_err(|faults| {
        let faults: String = faults.iter().map(|fault| fault.text(path)).collect();
        format!(
            "{faults}WARNING: ACL errors detected, no change to the previously active ACL rules was performed"
        )
    })?;
    engine.change_users(|all| *all = users);
    Ok(())
}

/// Writes the users to the ACL file, which is the old one or the new one whatever happens, where that is possible.
///
/// # Errors
/// As [`config::replace_content`].
pub fn save_file(engine: &Engine, path: &str) -> io::Result<()> {
    let bytes = engine.users.read().file();
    config::replace_content(Path::new(path), &bytes).map(drop)
}
