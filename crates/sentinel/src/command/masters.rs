//! Commands that query masters, replicas and sentinels.

use super::{CommandCall, describe};
use crate::machine::Sentinel;
use crate::master::Master;
use crate::master::known_sentinels::Peer;

pub(super) fn all(call: &mut CommandCall<'_>) {
    let Sentinel { masters, shared, .. } = &*call.sentinel;
    let all: Vec<_> = masters.values().map(|master| describe::master(shared, call.now, master)).collect();
    call.reply.array(all.len());
    for fields in all {
        call.fields(&fields);
    }
}

pub(super) fn one(call: &mut CommandCall<'_>) {
    let now = call.now;
    if call.master(0).is_none() {
        return;
    }
    let fields = describe::master(&call.sentinel.shared, now, &call.sentinel.masters[call.text(0)]);
    call.fields(&fields);
}

pub(super) fn replicas(call: &mut CommandCall<'_>) {
    list(call, |sentinel, now, master| {
        let shown = |replica| describe::replica(&sentinel.shared, now, master, replica);
        master.servers().replicas().filter(|replica| replica.reported().is_announced()).map(shown).collect()
    });
}

pub(super) fn sentinels(call: &mut CommandCall<'_>) {
    list(call, |sentinel, now, master| {
        let shown = |peer: &Peer| {
            let sharing =
                sentinel.masters.values().filter(|one| one.sentinels().get(peer.run_id()).is_some()).count();
            describe::peer(&sentinel.shared, now, master, peer, sharing)
        };
        master.sentinels().iter().map(shown).collect()
    });
}

fn list(
    call: &mut CommandCall<'_>,
    describe: fn(&Sentinel, clock::Instant, &Master) -> Vec<describe::Fields>,
) {
    let now = call.now;
    if call.master(0).is_none() {
        return;
    }
    let all = describe(call.sentinel, now, &call.sentinel.masters[call.text(0)]);
    call.reply.array(all.len());
    for fields in all {
        call.fields(&fields);
    }
}

pub(super) fn address(call: &mut CommandCall<'_>) {
    let Some(master) = call.sentinel.masters.get(call.text(0)) else {
        call.reply.null_array();
        return;
    };
    let addr = master.current_addr();
    let (host, port) = (call.sentinel.shared.display_host(&addr.host), addr.port);
    call.reply.array(2);
    call.reply.bulk(host.as_bytes());
    call.reply.bulk(port.to_string().as_bytes());
}

pub(super) fn info_cache(call: &mut CommandCall<'_>) {
    let now = call.now;
    let named = |name: &[u8]| call.sentinel.masters.get(std::str::from_utf8(name).ok()?);
    let masters: Vec<&Master> = call.args.iter().filter_map(|name| named(name)).collect();
    call.reply.map(masters.len());
    for master in masters {
        call.reply.bulk(master.name().as_bytes());
        call.reply.array(1 + master.servers().replica_count());
        for instance in master.servers().iter() {
            call.reply.array(2);
            let age = instance.reported().received_at().map_or(0, |at| now.since(at).as_millis());
            call.reply.integer(age as i64);
            if instance.reported().text().is_empty() {
                call.reply.null();
            } else {
                call.reply.bulk(instance.reported().text().as_bytes());
            }
        }
    }
}

/// SENTINEL FAILOVERS: the recorded failovers, newest last.
pub(super) fn failovers(call: &mut CommandCall<'_>) {
    let mut words: Vec<&str> = (0..call.args.len()).map(|at| call.text(at)).collect();
    let json = words.last().is_some_and(|word| word.eq_ignore_ascii_case("json"));
    if json {
        words.pop();
    }
    if words.len() > 1 {
        call.reply.error("ERR syntax error");
        return;
    }
    let told = call.sentinel.shared.recorder.failovers(call.now, words.first().copied());
    if json {
        call.reply.verbatim(b"txt", failover_history::to_json(&told).as_bytes());
    } else {
        failover_history::write_reply(&told, &mut call.reply);
    }
}
