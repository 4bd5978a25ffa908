//! Tests of keyspace notifications.

use engine::EventClass;

use crate::testing::Client;

#[test]
fn new_key_and_miss_events_are_opt_in() {
    let mut client = Client::new();
    client.check_events(&[("get a", ""), ("set a 1", "set a")]);
    client.engine.settings.set_notified_event_classes(EventClass::NEW | EventClass::MISS);
    client.check_events(&[
        ("get a", ""),
        ("get b", "keymiss b"),
        ("mget b a c", "keymiss b, keymiss c"),
        ("copy b d", "keymiss b"),
        ("xack b g 1-1", "keymiss b"),
        ("mset twice 1 twice 2", "new twice, set twice, set twice"),
        ("set a 2", "set a"),
        ("set b 1", "new b, set b"),
        ("mset a 3 c 1 d 1", "set a, new c, set c, new d, set d"),
        ("hset h f v", "new h, hset h"),
        ("rename h i", "new i, rename_from h, rename_to i"),
        ("copy i j db 2", "new@2 j, copy_to@2 j"),
        ("object encoding nosuch", ""),
        ("ttl nosuch", "keymiss nosuch"),
    ]);
}

#[test]
fn expired_event_is_sent_on_deletion() {
    let mut client = Client::new();
    client.check_replies(&[("set a 1 px 10", "+OK"), ("set b 1 px 10", "+OK"), ("set c 1 px 10", "+OK")]);
    client.now.0 += 10;
    client.check_events(&[("get a", "expired a"), ("set b 2", "expired b, set b"), ("get b", "")]);
    client
        .engine
        .settings
        .set_notified_event_classes(EventClass::KEYEVENT | EventClass::EXPIRED | EventClass::MISS);
    client.check_events(&[("get c", "expired c, keymiss c")]);
}
