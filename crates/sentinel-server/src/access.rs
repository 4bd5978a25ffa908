//! Users of a sentinel: what of them the engine does not know, files, chance and the subscribers of each channel.

use acl::Channel;

use super::center::Center;
use super::client::Client;

/// Users have changed: the file is to have them, and a client that listens to what it may no longer hear must go.
pub(super) fn on_changed_users(center: &mut Center, own: &mut Client) {
    center.users_changed = true;
    for client in center.clients.values().filter(|client| hears_too_much(center, client)) {
        client.session.client.kill();
    }
    own.session.closing |= hears_too_much(center, own);
}

/// Whether a client listens to what its user may no longer hear.
fn hears_too_much(center: &Center, client: &Client) -> bool {
    let users = center.engine.users.read();
    let Some(user) = users.find(&client.session.client.user.lock()) else { return true };
    let hears = |names: &std::collections::BTreeSet<Vec<u8>>, is_pattern| {
        names.iter().any(|name| !user.may_hear(Channel { name, is_pattern }))
    };
    hears(&client.channels, false) || hears(&client.patterns, true)
}

/// The users' lines for the configuration file, each the words after `user`.
pub(super) fn lines(engine: &engine::Engine, required: &str, had_default: bool) -> Vec<Vec<Vec<u8>>> {
    engine.users.read().lines(required.as_bytes(), had_default)
}

/// Makes the users that the configuration describes; the line, and what is wrong with it.
pub(super) fn load(
    engine: &engine::Engine,
    required: &str,
    lines: &[Vec<Vec<u8>>],
) -> Result<(), (usize, String)> {
    engine.change_users(|users| {
        users.set_default_password(required.as_bytes());
        users.load_lines(lines)
    })
}
