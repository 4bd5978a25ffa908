//! ACL users of a sentinel: storage in the configuration file and effects on subscribers.

use acl::AccessedChannel;

use super::client::Client;
use super::server_state::ServerState;

/// Handles changed users: writes them to the configuration file and disconnects clients whose subscriptions are no
/// longer permitted.
pub(super) fn on_changed_users(state: &mut ServerState, own: &mut Client) {
    state.users_changed = true;
    for client in state.clients.values().filter(|client| has_forbidden_subscription(state, client)) {
        client.session.client().kill();
    }
    if has_forbidden_subscription(state, own) {
        own.session.close_after_reply();
    }
}

/// Returns whether a client is subscribed to a channel that its user may no longer access.
fn has_forbidden_subscription(state: &ServerState, client: &Client) -> bool {
    let users = state.engine.access.users.read();
    let Some(user) = users.find(&client.session.client().user.lock()) else { return true };
    let hears = |names: &std::collections::BTreeSet<Vec<u8>>, is_pattern| {
        names.iter().any(|name| !user.may_subscribe(AccessedChannel { name, is_pattern }))
    };
    hears(&client.channels, false) || hears(&client.patterns, true)
}

/// Returns the `user` lines for the configuration file. Each line consists of the words after `user`.
pub(super) fn user_lines(engine: &engine::Engine, required: &str, had_default: bool) -> Vec<Vec<Vec<u8>>> {
    engine.access.users.read().to_config_lines(required.as_bytes(), had_default)
}

/// Creates the users that the configuration file describes. An error contains the rejected line and the reason.
pub(super) fn create_users(
    engine: &engine::Engine,
    required: &str,
    lines: &[Vec<Vec<u8>>],
) -> Result<(), (usize, String)> {
    engine.access.change_users(|users| {
        users.set_default_password(required.as_bytes());
        users.load_config_lines(lines)
    })
}
