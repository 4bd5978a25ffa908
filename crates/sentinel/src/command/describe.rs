//! Formats instances for SENTINEL MASTER and similar commands, with the fields of Redis.

use std::time::Duration;

use clock::Instant;

use crate::link::{Link, LinkId};
use crate::machine::Sentinel;
use crate::master::Master;
use crate::master::failovers::FailoverCause;
use crate::master::instance::{Instance, ReconfigurationState};
use crate::master::known_sentinels::KnownSentinel;
use crate::shared::SharedState;

pub(super) type Fields = Vec<(&'static str, String)>;

fn millis_since(now: Instant, at: Instant) -> String {
    now.since(at).as_millis().to_string()
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

fn push(fields: &mut Fields, name: &'static str, value: impl std::fmt::Display) {
    fields.push((name, value.to_string()));
}

/// The fields that all kinds of instances have in common.
fn common_fields(
    name: &str,
    ip: &str,
    port: u16,
    run_id: &str,
    flags: &[&str],
    link: Option<&Link>,
) -> Fields {
    let mut fields = Fields::new();
    push(&mut fields, "name", name);
    push(&mut fields, "ip", ip);
    push(&mut fields, "port", port);
    push(&mut fields, "runid", run_id);
    push(&mut fields, "flags", flags.join(","));
    push(&mut fields, "link-pending-commands", link.map_or(0, |link| link.pending.len()));
    fields
}

fn push_health(fields: &mut Fields, now: Instant, link: Option<&Link>, down_after: Duration) {
    let sent =
        link.and_then(|link| link.unanswered_since).map_or_else(|| "0".into(), |at| millis_since(now, at));
    push(fields, "last-ping-sent", sent);
    push(
        fields,
        "last-ok-ping-reply",
        link.map_or_else(|| "0".into(), |link| millis_since(now, link.last_correct_reply)),
    );
    push(
        fields,
        "last-ping-reply",
        link.map_or_else(|| "0".into(), |link| millis_since(now, link.last_ping_reply)),
    );
    push(fields, "down-after-milliseconds", millis(down_after));
}

fn insert_down_times(fields: &mut Fields, now: Instant, sdown: Option<Instant>, odown: Option<Instant>) {
    let place = fields.len() - 1;
    let times = [("s-down-time", sdown), ("o-down-time", odown)];
    let times = times.into_iter().filter_map(|(name, at)| Some((name, millis_since(now, at?))));
    // Redis lists these fields before down-after-milliseconds.
    let tail = fields.split_off(place);
    fields.extend(times);
    fields.extend(tail);
}

fn push_server_fields(fields: &mut Fields, now: Instant, instance: &Instance) {
    let refresh = instance.reported().received_at().map_or_else(|| "0".into(), |at| millis_since(now, at));
    push(fields, "info-refresh", refresh);
    push(fields, "role-reported", instance.reported().role().name());
    push(fields, "role-reported-time", millis_since(now, instance.reported().role_since()));
}

fn is_disconnected(shared: &SharedState, instance: &Instance) -> bool {
    let up = |link: LinkId| shared.links.at(link).is_authenticated();
    !up(instance.command_link()) || !up(instance.hello_link())
}

/// Returns the flag names whose condition holds.
fn active_flags<'a>(words: &[(&'a str, bool)]) -> Vec<&'a str> {
    words.iter().filter(|(_, holds)| *holds).map(|(word, _)| *word).collect()
}

pub(super) fn master_fields(shared: &SharedState, now: Instant, master: &Master) -> Fields {
    let (instance, settings) = (master.servers().master(), master.settings());
    let link = shared.links.at(instance.command_link());
    let failover = master.failover();
    let flags = active_flags(&[
        ("s_down", instance.sdown().is_some()),
        ("o_down", master.odown().is_some()),
        ("master", true),
        ("disconnected", is_disconnected(shared, instance)),
        ("failover_in_progress", failover.is_some()),
        ("force_failover", failover.is_some_and(|failover| failover.cause() == FailoverCause::Operator)),
        (
            "coordinated_failover",
            failover.is_some_and(|failover| failover.cause() == FailoverCause::Coordinated),
        ),
        ("script_kill_sent", instance.is_script_kill_sent()),
        ("master_reboot", instance.loading_since(link).is_some()),
    ]);
    let addr = master.current_addr();
    let mut fields = common_fields(
        master.name(),
        shared.display_host(&addr.host),
        addr.port,
        instance.reported().run_id(),
        &flags,
        Some(link),
    );
    push(&mut fields, "link-refcount", 1);
    if let Some(failover) = failover {
        push(&mut fields, "failover-state", failover.phase().state_name());
    }
    push_health(&mut fields, now, Some(link), settings.down_after);
    insert_down_times(&mut fields, now, instance.sdown(), master.odown());
    push_server_fields(&mut fields, now, instance);
    push(&mut fields, "config-epoch", master.config_epoch());
    push(&mut fields, "num-slaves", master.servers().replica_count());
    push(&mut fields, "num-other-sentinels", master.sentinels().len());
    push(&mut fields, "quorum", settings.quorum);
    push(&mut fields, "failover-timeout", millis(settings.failover_timeout));
    push(&mut fields, "parallel-syncs", settings.parallel_syncs);
    let scripts = [
        ("notification-script", &settings.notification_script),
        ("client-reconfig-script", &settings.client_reconfig_script),
    ];
    for (name, script) in scripts {
        if let Some(path) = script {
            push(&mut fields, name, path);
        }
    }
    fields
}

pub(super) fn replica_fields(
    shared: &SharedState,
    now: Instant,
    master: &Master,
    instance: &Instance,
) -> Fields {
    let link = shared.links.at(instance.command_link());
    let target = master.failover().and_then(|failover| failover.phase().target());
    let flags = active_flags(&[
        ("s_down", instance.sdown().is_some()),
        ("slave", true),
        ("disconnected", is_disconnected(shared, instance)),
        ("promoted", target == Some(instance.addr())),
        ("reconf_sent", instance.reconfiguration() == ReconfigurationState::Sent),
        ("reconf_inprog", instance.reconfiguration() == ReconfigurationState::InProgress),
        ("reconf_done", instance.reconfiguration() == ReconfigurationState::Done),
        ("script_kill_sent", instance.is_script_kill_sent()),
    ]);
    let ip = shared.display_host(&instance.addr().host);
    let port = instance.addr().port;
    let name = format!("{ip}:{port}");
    let mut fields = common_fields(&name, ip, port, instance.reported().run_id(), &flags, Some(link));
    push(&mut fields, "link-refcount", 1);
    push_health(&mut fields, now, Some(link), master.settings().down_after);
    insert_down_times(&mut fields, now, instance.sdown(), None);
    push_server_fields(&mut fields, now, instance);
    push(&mut fields, "master-link-down-time", millis(instance.reported().master_link_down_for()));
    push(
        &mut fields,
        "master-link-status",
        if instance.reported().is_master_link_up() { "ok" } else { "err" },
    );
    let of = instance.reported().master();
    push(&mut fields, "master-host", of.map_or("?", |addr| shared.display_host(&addr.host)));
    push(&mut fields, "master-port", of.map_or(0, |addr| addr.port));
    push(&mut fields, "slave-priority", instance.reported().priority());
    push(&mut fields, "slave-repl-offset", instance.reported().offset());
    push(&mut fields, "replica-announced", u8::from(instance.reported().is_announced()));
    fields
}

/// Describes another sentinel. `sharing` is the number of masters that share the link to it.
pub(super) fn sentinel_fields(
    shared: &SharedState,
    now: Instant,
    master: &Master,
    peer: &KnownSentinel,
    sharing: usize,
) -> Fields {
    let link = peer.link().map(|link| shared.links.at(link));
    let flags = active_flags(&[
        ("s_down", peer.sdown().is_some()),
        ("sentinel", true),
        ("disconnected", link.is_none_or(|link| !link.is_authenticated())),
        ("master_down", peer.reports_master_down()),
    ]);
    let ip = shared.display_host(&peer.addr().host);
    let id = peer.run_id().as_str();
    let mut fields = common_fields(id, ip, peer.addr().port, id, &flags, link);
    push(&mut fields, "link-refcount", sharing);
    push_health(&mut fields, now, link, master.settings().down_after);
    insert_down_times(&mut fields, now, peer.sdown(), None);
    push(&mut fields, "last-hello-message", millis_since(now, peer.last_hello()));
    let (leader, epoch) = peer.vote().cloned().unwrap_or_else(|| ("?".into(), 0));
    push(&mut fields, "voted-leader", leader);
    push(&mut fields, "voted-leader-epoch", epoch);
    fields
}

pub(super) fn info(sentinel: &Sentinel, now: Instant) -> String {
    let shared = &sentinel.shared;
    let tilt = shared.tilt_since.map_or(-1, |at| now.since(at).as_secs() as i64);
    let simulated = u8::from(shared.crash_after_election) + 2 * u8::from(shared.crash_after_promotion);
    let mut text = format!(
        "# Sentinel\r\nsentinel_masters:{}\r\nsentinel_tilt:{}\r\nsentinel_tilt_since_seconds:{tilt}\r\n\
         sentinel_total_tilt:{}\r\nsentinel_running_scripts:{}\r\nsentinel_scripts_queue_length:{}\r\n\
         sentinel_simulate_failure_flags:{simulated}\r\n",
        sentinel.masters.len(),
        u8::from(shared.tilt_since.is_some()),
        shared.tilt_count,
        shared.scripts.running(),
        shared.scripts.jobs.len(),
    );
    for (number, (name, master)) in sentinel.masters.iter().enumerate() {
        let status = match (master.odown(), master.servers().master().sdown()) {
            (Some(_), _) => "odown",
            (None, Some(_)) => "sdown",
            (None, None) => "ok",
        };
        let addr = master.current_addr();
        let line = format!(
            "master{number}:name={name},status={status},address={}:{},slaves={},sentinels={}\r\n",
            shared.display_host(&addr.host),
            addr.port,
            master.servers().replica_count(),
            master.sentinels().total()
        );
        text.push_str(&line);
    }
    text
}
