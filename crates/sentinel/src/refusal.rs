//! Logs access errors of servers once per link, so that an operator can distinguish a missing right or a wrong password
//! from a master that is down.

use std::time::Duration;

use resp::Value;

use crate::event::EventLevel;
use crate::link::{LinkId, LinkKind, LinkState};
use crate::shared::Context;

/// How long a link stays closed after the server rejected its credentials. The server's password may change.
const REAUTHENTICATE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of logged lines per link.
const MAX_LOGGED_ERRORS: usize = 32;

impl Context<'_> {
    /// Handles an error about authentication or access rights. Returns false if the link has been closed because of it.
    pub(crate) fn handle_access_error(&mut self, link: LinkId, value: &Value) -> bool {
        let Some(state) = self.shared.links.find(link) else { return false };
        let Value::Error(text) = value else {
            // A reply other than an authentication error shows that the credentials were accepted.
            if std::mem::take(&mut state.has_rejected_credentials) {
                state.logged_errors.clear();
            }
            return true;
        };
        let code = text.split(' ').next().unwrap_or_default();
        if code != "EXECABORT" {
            state.last_error.get_or_insert_with(|| text.clone());
        }
        let user = if state.user.is_empty() { "default" } else { &state.user };
        // The command link reports the same errors as the hello link. After a rejected password, NOAUTH adds nothing.
        let is_said = state.kind == LinkKind::Hello || (code == "NOAUTH" && !state.logged_errors.is_empty());
        let line = match code {
            "NOPERM" => {
                let rule = missing_acl_rule(text);
                format!(
                    "Permission denied by {}: the user '{user}' needs the rule {rule}. It says: {text}",
                    state.addr
                )
            }
            "WRONGPASS" | "NOAUTH" if !is_said => {
                format!("Authentication of the user '{user}' failed at {}. It says: {text}", state.addr)
            }
            _ => String::new(),
        };
        if !line.is_empty()
            && state.logged_errors.len() < MAX_LOGGED_ERRORS
            && state.logged_errors.insert(line.clone())
        {
            self.log(EventLevel::Warning, line);
        }
        if code == "NOAUTH" {
            self.retry_authentication_later(link);
        }
        code != "NOAUTH"
    }

    /// Closes a link whose credentials were rejected, and schedules its next connection.
    fn retry_authentication_later(&mut self, link: LinkId) {
        self.reconnect(link);
        if let Some(state) = self.shared.links.find(link) {
            state.has_rejected_credentials = true;
            state.state = LinkState::Down { retry: self.now + REAUTHENTICATE_INTERVAL };
        }
    }
}

/// The ACL rule that the user lacks, derived from a NOPERM error, which names either the command or a channel.
fn missing_acl_rule(text: &str) -> String {
    match text.split('\'').nth(1) {
        Some(command) => format!("+{command}"),
        None if text.contains("channel") => "allchannels".to_owned(),
        None => "for what it asked for".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of the errors in Redis 7.0, Redis 8 and Valkey 9.1.
    #[test]
    fn missing_acl_rule_is_derived_from_the_error() {
        for (text, rule) in [
            ("NOPERM this user has no permissions to run the 'slaveof' command", "+slaveof"),
            ("NOPERM User watcher has no permissions to run the 'config|rewrite' command", "+config|rewrite"),
            ("NOPERM No permissions to access a channel", "allchannels"),
        ] {
            assert_eq!(missing_acl_rule(text), rule);
        }
    }
}
