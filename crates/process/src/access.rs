//! The ACL file and ACL GENPASS, which need files and randomness.

use std::io;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use config::{Config, keys};
use engine::Engine;
use resp::{Args, Writer};

/// Executes ACL GENPASS and writes the random password as reply.
///
/// # Errors
/// The text of the error reply.
pub fn run_acl_genpass(args: Args<'_>, reply: &mut Writer<'_>) -> Result<(), String> {
    if args.len() > 3 {
        let name = String::from_utf8_lossy(args.get(1).unwrap_or_default());
        let wrong = "ERR unknown subcommand or wrong number of arguments for";
        return Err(format!("{wrong} '{name}'. Try ACL HELP."));
    }
    let random = |bytes: &mut [u8]| {
        getrandom::fill(bytes).expect("the system must provide random numbers for a password");
    };
    acl::run_genpass(args.get(2), random, reply).map_err(str::to_owned)
}

/// Loads the ACL file at startup, if one is configured.
///
/// # Errors
/// The file cannot be read or has invalid lines, or the configuration also defines users. In these cases the server
/// should not start.
pub fn load_acl_file_at_startup(engine: &Engine, config: &Config) -> Result<()> {
    let Some(path) = config.get(keys::ACLFILE) else { return Ok(()) };
    if !config.user_lines().is_empty() {
        bail!(
            "Configuring Redis with users defined in redis.conf and at the same setting an ACL file path is \
             invalid. This setup is very likely to lead to configuration errors and security holes, please define \
             either an ACL file or declare users directly in your redis.conf, but not both."
        );
    }
    load_acl_file(engine, &path)
        .map_err(|error| anyhow!("Aborting Redoubt startup because of ACL errors: {error}"))
}

/// Replaces all users by those of the ACL file. An invalid file changes nothing.
///
/// # Errors
/// The error reply to ACL LOAD, which says why the file cannot be read or which lines are invalid.
pub fn load_acl_file(engine: &Engine, path: &str) -> Result<(), String> {
    let text =
        std::fs::read(path).map_err(|error| format!("Error loading ACLs, opening file '{path}': {error}"))?;
    let parsed = engine.access.users.read().parse_file(&text);
    let users = parsed.map_err(|faults| {
        let faults: String = faults.iter().map(|fault| fault.error_text(path)).collect();
        format!(
            "{faults}WARNING: ACL errors detected, no change to the previously active ACL rules was performed"
        )
    })?;
    engine.access.change_users(|all| *all = users);
    Ok(())
}

/// Writes all users to the ACL file, atomically if possible.
///
/// # Errors
/// As [`config::replace_content`].
pub fn save_acl_file(engine: &Engine, path: &str) -> io::Result<()> {
    let bytes = engine.access.users.read().format_file();
    config::replace_content(Path::new(path), &bytes).map(drop)
}
