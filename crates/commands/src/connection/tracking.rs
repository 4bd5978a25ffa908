//! Implements CLIENT TRACKING, CACHING, GETREDIR and TRACKINGINFO.

use std::collections::BTreeSet;

use engine::{ClientFlags, ClientTracking, CommandError, Context, TrackingMode, quote};

use super::client::eq_ignore_case_until_nul;

/// The parsed options of CLIENT TRACKING ON.
#[derive(Default)]
struct TrackingOptions<'a> {
    redirect: Option<u64>,
    broadcast: bool,
    optin: bool,
    optout: bool,
    noloop: bool,
    prefixes: Vec<&'a [u8]>,
}

impl<'a> TrackingOptions<'a> {
    fn parse(context: &Context<'a>) -> Result<Self, CommandError> {
        let mut options = Self::default();
        let mut index = 3;
        while let Some(word) = context.args.get(index) {
            let is_option = |name: &str| eq_ignore_case_until_nul(word, name.as_bytes());
            let value = context.args.get(index + 1);
            match value {
                Some(value) if is_option("redirect") => {
                    if options.redirect.is_some() {
                        return Err(CommandError::text(
                            "ERR A client can only redirect to a single other client",
                        ));
                    }
                    options.redirect = Some(parse_redirect_target(context, value)?);
                    index += 1;
                }
                Some(value) if is_option("prefix") => {
                    options.prefixes.push(value);
                    index += 1;
                }
                _ if is_option("bcast") => options.broadcast = true,
                _ if is_option("optin") => options.optin = true,
                _ if is_option("optout") => options.optout = true,
                _ if is_option("noloop") => options.noloop = true,
                _ => return Err(CommandError::Syntax),
            }
            index += 1;
        }
        Ok(options)
    }

    /// Checks the options against the current tracking state and returns the new mode.
    fn check_conflicts(&self, current: Option<&ClientTracking>) -> Result<TrackingMode, CommandError> {
        if !self.prefixes.is_empty() && !self.broadcast {
            return Err(CommandError::text("ERR PREFIX option requires BCAST mode to be enabled"));
        }
        if current.is_some_and(|before| (before.mode == TrackingMode::Broadcast) != self.broadcast) {
            return Err(CommandError::text(
                "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then \
                 re-enabling it with a different mode.",
            ));
        }
        if self.broadcast && (self.optin || self.optout) {
            return Err(CommandError::text("ERR OPTIN and OPTOUT are not compatible with BCAST"));
        }
        if self.optin && self.optout {
            return Err(CommandError::text("ERR You can't specify both OPTIN mode and OPTOUT mode"));
        }
        let mode = current.map(|before| before.mode);
        if self.optin && mode == Some(TrackingMode::OptOut)
            || self.optout && mode == Some(TrackingMode::OptIn)
        {
            return Err(CommandError::text(
                "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then \
                 re-enabling it with a different mode.",
            ));
        }
        self.check_prefixes(current)?;
        Ok(match self {
            Self { broadcast: true, .. } => TrackingMode::Broadcast,
            Self { optin: true, .. } => TrackingMode::OptIn,
            Self { optout: true, .. } => TrackingMode::OptOut,
            // Without an option, keep the current mode: OPTIN and OPTOUT end only with TRACKING OFF.
            _ => mode.unwrap_or(TrackingMode::Default),
        })
    }

    fn check_prefixes(&self, current: Option<&ClientTracking>) -> Result<(), CommandError> {
        let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
        let refuse = |prefix: &[u8], other: &[u8], what: &str| {
            let text = format!(
                "ERR Prefix '{}' overlaps with {what} prefix '{}'. Prefixes for a single client must not overlap.",
                quote(prefix, prefix.len()),
                quote(other, other.len())
            );
            Err(CommandError::Text(text.into()))
        };
        for (index, prefix) in self.prefixes.iter().enumerate() {
            let mut existing = current.into_iter().flat_map(|before| &before.prefixes);
            if let Some(other) = existing.find(|other| overlap(prefix, other)) {
                return refuse(prefix, other, "an existing");
            }
            if let Some(other) = self.prefixes[index + 1..].iter().find(|other| overlap(prefix, other)) {
                return refuse(prefix, other, "another provided");
            }
        }
        Ok(())
    }
}

fn parse_redirect_target(context: &Context<'_>, value: &[u8]) -> Result<u64, CommandError> {
    let id = resp::parse_i64(value).ok_or(CommandError::NotInteger)?;
    let id = u64::try_from(id).ok().filter(|id| context.engine.clients.find(*id).is_some());
    id.ok_or(CommandError::text("ERR The client ID you want redirect to does not exist"))
}

/// Handles `CLIENT TRACKING ON | OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`.
pub(super) fn tracking(context: &mut Context<'_>) -> Result<(), CommandError> {
    let options = TrackingOptions::parse(context)?;
    let client = context.session.client().clone();
    match context.arg(2) {
        word if eq_ignore_case_until_nul(word, b"on") => {
            let before = client.tracking.lock().clone();
            let mode = options.check_conflicts(before.as_ref())?;
            let mut prefixes: BTreeSet<Vec<u8>> =
                options.prefixes.iter().map(|prefix| prefix.to_vec()).collect();
            prefixes.extend(before.iter().flat_map(|before| before.prefixes.iter().cloned()));
            if mode == TrackingMode::Broadcast && prefixes.is_empty() {
                prefixes.insert(Vec::new());
            }
            let caching = before.is_some_and(|before| before.caching_exception);
            let (noloop, redirect) = (options.noloop, options.redirect);
            let tracking = ClientTracking {
                mode,
                no_loop: noloop,
                redirect_to: redirect,
                prefixes,
                caching_exception: caching,
            };
            context.engine.notifications.start_tracking(context.session, tracking);
        }
        word if eq_ignore_case_until_nul(word, b"off") => {
            context.engine.notifications.stop_tracking(context.session);
        }
        _ => return Err(CommandError::Syntax),
    }
    context.reply.ok();
    Ok(())
}

/// Handles `CLIENT CACHING YES | NO`.
pub(super) fn caching(context: &mut Context<'_>) -> Result<(), CommandError> {
    let client = context.session.client().clone();
    let mut tracking = client.tracking.lock();
    let Some(tracking) = &mut *tracking else {
        return Err(CommandError::text(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT \
             mode enabled",
        ));
    };
    match context.arg(2) {
        word if eq_ignore_case_until_nul(word, b"yes") && tracking.mode != TrackingMode::OptIn => {
            return Err(CommandError::text(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
        word if eq_ignore_case_until_nul(word, b"no") && tracking.mode != TrackingMode::OptOut => {
            return Err(CommandError::text(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
        word if eq_ignore_case_until_nul(word, b"yes") || eq_ignore_case_until_nul(word, b"no") => {
            tracking.caching_exception = true;
        }
        _ => return Err(CommandError::Syntax),
    }
    context.reply.ok();
    Ok(())
}

/// Handles `CLIENT GETREDIR`.
pub(super) fn getredir(context: &mut Context<'_>) -> Result<(), CommandError> {
    let redirect = context.session.client().redirect_target();
    context.reply.integer(redirect);
    Ok(())
}

/// Handles `CLIENT TRACKINGINFO`.
pub(super) fn trackinginfo(context: &mut Context<'_>) -> Result<(), CommandError> {
    let client = context.session.client().clone();
    let tracking = client.tracking.lock().clone();
    let mut flags: Vec<&str> = Vec::new();
    match &tracking {
        None => flags.push("off"),
        Some(tracking) => {
            flags.push("on");
            match (tracking.mode, tracking.caching_exception) {
                (TrackingMode::Broadcast, _) => flags.push("bcast"),
                (TrackingMode::OptIn, false) => flags.push("optin"),
                (TrackingMode::OptIn, true) => flags.extend(["optin", "caching-yes"]),
                (TrackingMode::OptOut, false) => flags.push("optout"),
                (TrackingMode::OptOut, true) => flags.extend(["optout", "caching-no"]),
                (TrackingMode::Default, _) => {}
            }
            if tracking.no_loop {
                flags.push("noloop");
            }
            if client.flags().contains(ClientFlags::BROKEN_REDIRECT) {
                flags.push("broken_redirect");
            }
        }
    }
    let prefixes = tracking.map(|tracking| tracking.prefixes).unwrap_or_default();
    let reply = &mut context.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(client.redirect_target());
    reply.bulk(b"prefixes");
    reply.array(prefixes.len());
    prefixes.iter().for_each(|prefix| reply.bulk(prefix));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    /// As in Valkey, tracking records the keys that the script's commands read, not the keys that the script declares.
    #[test]
    fn read_only_script_tracks_keys_it_reads() {
        let mut client = Client::new();
        client.run_to_text("hello 3");
        client.run_to_text("client tracking on");
        let library = "#!lua name=l\nserver.register_function{function_name='f', callback=function(keys) \
                       return redis.call('get', keys[2]) end, flags={'no-writes'}}";
        client.call(&["function", "load", library]);
        for (words, tracked) in [
            (&["eval_ro", "return 1", "2", "{k}1", "{k}2"][..], 0),
            (&["eval_ro", "return redis.call('get', KEYS[2])", "2", "{k}1", "{k}2"], 1),
            (&["fcall_ro", "f", "2", "{j}1", "{j}2"], 2),
            (&["get", "other"], 3),
        ] {
            client.call(words);
            assert_eq!(client.engine.notifications.tracking.key_count(), tracked, "{words:?}");
        }
    }
}
