//! CONFIG.

use resp::{Args, Writer};

use crate::config::SetError;
use crate::server::Server;
use crate::settings;

/// CONFIG GET pattern [pattern ...]
pub(crate) fn get(server: &Server, args: Args<'_>, reply: &mut Writer<'_>) {
    let patterns = args.from(2);
    let matches = |name: &str| {
        patterns.iter().any(|pattern| engine::glob_matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let found: Vec<_> = server.config.all().into_iter().filter(|(name, _)| matches(name)).collect();
    reply.map(found.len());
    for (name, value) in found {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

/// CONFIG SET name value [name value ...]
pub(crate) fn set(server: &Server, args: Args<'_>, reply: &mut Writer<'_>) {
    let words: Vec<String> =
        args.iter().skip(2).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    if !words.len().is_multiple_of(2) {
        return reply.error("ERR wrong number of arguments for 'config|set' command");
    }
    let changes: Vec<_> = words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    for (index, (name, _)) in changes.iter().enumerate() {
        if changes[..index].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return reply.error(&format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - duplicate parameter"
            ));
        }
    }
    match server.config.set(&changes) {
        Ok(()) => {
            settings::apply(server);
            reply.ok();
        }
        Err((name, error)) => reply.error(&match error {
            SetError::Unknown => {
                format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
            }
            SetError::Immutable => failed(&name, "can't set immutable config"),
            SetError::Invalid(reason) => failed(&name, &reason),
        }),
    }
}

fn failed(name: &str, reason: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
}
