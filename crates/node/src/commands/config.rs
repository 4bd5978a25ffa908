//! CONFIG GET, SET and REWRITE.

use std::path::Path;
use std::sync::Arc;

use engine::{CommandError, NodeFlags};
use resp::{Args, Writer};

use crate::server::Server;
use crate::server::settings;
use config::{Config, ReplaceMethod, RewriteExtent, SetError, keys};

/// Replies to CONFIG GET pattern [pattern ...].
pub(crate) fn get_parameters(config: &Config, args: Args<'_>, reply: &mut Writer<'_>) {
    let patterns = args.skip(2);
    let matched = |name: &str| {
        patterns.iter().find(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let mut all = config.visible_parameters();
    let hidden = |pattern: &[u8]| config.find_hidden_parameter(std::str::from_utf8(pattern).ok()?);
    all.extend(patterns.iter().filter_map(hidden));
    let mut found: Vec<_> =
        all.iter().filter_map(|(name, value)| Some((*name, value, matched(name)?))).collect();
    found.sort_by_key(|(name, ..)| *name);
    reply.map(found.len());
    for (name, value, pattern) in found {
        // If the pattern is a name without wildcards, the reply contains the client's spelling of the name.
        let spelt = if pattern.eq_ignore_ascii_case(name.as_bytes()) { pattern } else { name.as_bytes() };
        reply.bulk(spelt);
        reply.bulk(value.as_bytes());
    }
}

/// Executes CONFIG SET name value [name value ...]. `is_local_client` says whether the client is on this host.
pub(crate) async fn set_parameters(
    server: &Arc<Server>,
    args: Args<'_>,
    is_local_client: bool,
) -> Result<(), String> {
    let words: Vec<String> =
        args.iter().skip(2).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    if !words.len().is_multiple_of(2) {
        return Err("ERR syntax error".to_owned());
    }
    let changes: Vec<_> = words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    // Changes must not overlap, since a failed change restores the values that it found.
    let _turn = server.config_set_lock.lock().await;
    let is_bound_to_data = |(name, _): &(String, String)| {
        [keys::DIR.name(), keys::APPENDONLY.name()].iter().any(|fixed| fixed.eq_ignore_ascii_case(name))
    };
    if server.engine.settings.node_flags().contains(NodeFlags::LOADING)
        && changes.iter().any(is_bound_to_data)
    {
        return Err(CommandError::Loading.to_string());
    }
    let trusted = server.engine.settings.permissions.protected_configs.allows(is_local_client);
    let changed = server.config.set(&changes, trusted).map_err(|(name, error)| match error {
        SetError::UnknownParameter => {
            let shown = name.split('\0').next().unwrap_or_default();
            format!("ERR Unknown option or number of arguments for CONFIG SET - '{shown}'")
        }
        SetError::Immutable => config_set_error(&name, "can't set immutable config"),
        SetError::Protected => config_set_error(&name, "can't set protected config"),
        SetError::Invalid(reason) => config_set_error(&name, &reason),
    })?;
    settings::apply_changes(server, &changed)
        .await
        .map_err(|refusal| config_set_error(refusal.parameter, &refusal.reason))
}

/// Rewrites the configuration file (CONFIG REWRITE and DEBUG CONFIG-REWRITE-FORCE-ALL).
pub(crate) fn rewrite_config(server: &Server, extent: RewriteExtent) -> Result<(), String> {
    let Some(path) = &server.identity.config_file else {
        return Err("ERR The server is running without a config file".to_owned());
    };
    let replaced =
        server.config.rewrite(Path::new(path), &format_users(server), extent).map_err(|error| {
            tracing::warn!("CONFIG REWRITE failed: {error}");
            format!("ERR Rewriting config file: {error}")
        })?;
    if replaced == ReplaceMethod::InPlace {
        tracing::warn!("{path} cannot be replaced by a rename: it was written in place");
    }
    tracing::info!("CONFIG REWRITE executed with success.");
    Ok(())
}

/// Formats the users for the configuration file. There are none if users are stored in an ACL file.
fn format_users(server: &Server) -> Vec<Vec<String>> {
    let config = &server.config;
    if config.get(keys::ACLFILE).is_some() {
        return Vec::new();
    }
    let names_default = config.user_lines().iter().any(|line| line.arguments()[0] == acl::DEFAULT_USER_NAME);
    let password = config.get(keys::REQUIREPASS).unwrap_or_default();
    let lines = server.engine.access.users.read().to_config_lines(password.as_bytes(), names_default);
    let text =
        |words: &Vec<Vec<u8>>| words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    lines.iter().map(text).collect()
}

fn config_set_error(name: &str, reason: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
}
