//! Commands that query masters, replicas and sentinels.

use super::{CommandCall, describe};
use crate::machine::Sentinel;
use crate::master::Master;
use crate::master::known_sentinels::KnownSentinel;

pub(super) fn list_masters(call: &mut CommandCall<'_>) {
    let Sentinel { masters, shared, .. } = &*call.sentinel;
    let all: Vec<_> =
        masters.values().map(|master| describe::master_fields(shared, call.now, master)).collect();
    call.reply.array(all.len());
    for fields in all {
        call.reply_fields(&fields);
    }
}

pub(super) fn show_master(call: &mut CommandCall<'_>) {
    let now = call.now;
    if call.find_master(0).is_none() {
        return;
    }
    let fields =
        describe::master_fields(&call.sentinel.shared, now, &call.sentinel.masters[call.text_arg(0)]);
    call.reply_fields(&fields);
}

pub(super) fn list_replicas(call: &mut CommandCall<'_>) {
    reply_list(call, |sentinel, now, master| {
        let shown = |replica| describe::replica_fields(&sentinel.shared, now, master, replica);
        master.servers().replicas().filter(|replica| replica.reported().is_announced()).map(shown).collect()
    });
}

pub(super) fn list_sentinels(call: &mut CommandCall<'_>) {
    reply_list(call, |sentinel, now, master| {
        let shown = |peer: &KnownSentinel| {
            let sharing =
                sentinel.masters.values().filter(|one| one.sentinels().get(peer.run_id()).is_some()).count();
            describe::sentinel_fields(&sentinel.shared, now, master, peer, sharing)
        };
        master.sentinels().iter().map(shown).collect()
    });
}

fn reply_list(
    call: &mut CommandCall<'_>,
    describe: fn(&Sentinel, clock::Instant, &Master) -> Vec<describe::Fields>,
) {
    let now = call.now;
    if call.find_master(0).is_none() {
        return;
    }
    let all = describe(call.sentinel, now, &call.sentinel.masters[call.text_arg(0)]);
    call.reply.array(all.len());
    for fields in all {
        call.reply_fields(&fields);
    }
}

pub(super) fn show_master_addr(call: &mut CommandCall<'_>) {
    let Some(master) = call.sentinel.masters.get(call.text_arg(0)) else {
        call.reply.null_array();
        return;
    };
    let addr = master.current_addr();
    let (host, port) = (call.sentinel.shared.display_host(&addr.host), addr.port);
    call.reply.array(2);
    call.reply.bulk(host.as_bytes());
    call.reply.bulk(port.to_string().as_bytes());
}

pub(super) fn show_info_cache(call: &mut CommandCall<'_>) {
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
pub(super) fn list_failovers(call: &mut CommandCall<'_>) {
    let mut words: Vec<&str> = (0..call.args.len()).map(|at| call.text_arg(at)).collect();
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
