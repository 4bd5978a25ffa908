//! The replication parts of INFO and ROLE.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use config::keys;
use replication::replica::LinkState;
use replication::{ReplId, Replica};
use resp::Writer;

use super::Replication;
use super::failover::Failover;

/// Replies to ROLE: the role and the offset, with the replicas of a master or the master of a replica.
pub(crate) fn write_role(replication: &Replication, reply: &mut Writer<'_>) {
    let offset = replication.current_offset();
    if let Some((master, machine)) = replication.role.lock().followed_master() {
        let link = machine.link_state();
        reply.array(5);
        reply.bulk(b"slave");
        reply.bulk(master.host.as_bytes());
        reply.integer(i64::from(master.port));
        reply.bulk(link.name().as_bytes());
        return reply.integer(if link == LinkState::Connected { offset.0 as i64 } else { -1 });
    }
    let addresses = replication.replica_addresses.lock();
    let serving = replication.master_driver.lock();
    let machine = serving.master();
    let online: Vec<_> = machine.peers().filter(|(_, peer)| peer.is_online()).collect();
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(offset.0 as i64);
    reply.array(online.len());
    for (id, peer) in online {
        let address = peer.profile.ip_address.as_ref().or(addresses.get(&id));
        reply.array(3);
        reply.bulk(address.map_or(&b""[..], |address| address.as_bytes()));
        reply.bulk_integer(i64::from(peer.profile.listening_port));
        reply.bulk_integer(peer.acknowledged_offset.unwrap_or_default().0 as i64);
    }
}

pub(crate) fn write_replication_info(replication: &Replication, failover: &Failover, text: &mut String) {
    let offset = replication.current_offset().0;
    let reach = replication.failover_offset().0;
    match replication.role.lock().followed_master() {
        None => write_field(text, "role", "master"),
        Some((master, machine)) => {
            write_field(text, "role", "slave");
            write_field(text, "master_host", &master.host);
            write_field(text, "master_port", master.port);
            write_master_link(
                machine,
                reach,
                replication.stats.peak_buffered_bytes.load(Ordering::Relaxed),
                text,
            );
            let unapplied = replication.unapplied_commands();
            // A replica whose data differs from its master's reports priority 0, because sentinels never promote such a
            // replica.
            let priority = if unapplied > 0 { 0 } else { replication.config.get(keys::REPLICA_PRIORITY) };
            write_field(text, "slave_priority", priority);
            if unapplied > 0 {
                write_field(text, "slave_unapplied_changes", unapplied);
            }
            write_field(text, "slave_read_only", u8::from(replication.config.get(keys::REPLICA_READ_ONLY)));
            write_field(text, "replica_announced", u8::from(replication.config.get(keys::REPLICA_ANNOUNCED)));
        }
    }
    write_replicas(replication, text);
    write_field(text, "master_failover_state", failover.state_name());
    let log = replication.log.lock();
    write_field(text, "master_replid", log.position().id);
    write_field(text, "master_replid2", log.second_history().map_or(ReplId::NONE, |second| second.id));
    write_field(text, "master_repl_offset", offset);
    let second = log.second_history().map_or(-1, |second| second.offset.0 as i64 + 1);
    write_field(text, "second_repl_offset", second);
    let (first, len) = log.retained_range().unwrap_or((0, 0));
    write_field(text, "repl_backlog_active", u8::from(log.is_open()));
    write_field(text, "repl_backlog_size", log.capacity());
    write_field(text, "repl_backlog_first_byte_offset", first);
    write_field(text, "repl_backlog_histlen", len);
}

/// Writes the fields about the link to the master. `offset` is the offset up to which this replica has applied the
/// stream.
fn write_master_link(replica: &Replica, offset: u64, peak_buffered: u64, text: &mut String) {
    let now = process::time::monotonic_now();
    let up = replica.link_state() == LinkState::Connected;
    let since_heard = now.since(replica.last_heard_at()).as_secs();
    write_field(text, "master_link_status", if up { "up" } else { "down" });
    write_field(text, "master_last_io_seconds_ago", if up { since_heard as i64 } else { -1 });
    write_field(text, "master_sync_in_progress", u8::from(replica.link_state() == LinkState::Sync));
    write_field(text, "slave_read_repl_offset", offset);
    write_field(text, "slave_repl_offset", offset);
    write_field(text, "replicas_repl_buffer_size", replica.buffered_bytes());
    write_field(text, "replicas_repl_buffer_peak", peak_buffered);
    if let Some((len, received)) = replica.transfer_progress() {
        let total = len.unwrap_or(0);
        let percent = if total == 0 { 0.0 } else { received as f64 / total as f64 * 100.0 };
        write_field(text, "master_sync_total_bytes", total);
        write_field(text, "master_sync_read_bytes", received);
        write_field(text, "master_sync_left_bytes", total as i64 - received as i64);
        write_field(text, "master_sync_perc", format_args!("{percent:.2}"));
        write_field(text, "master_sync_last_io_seconds_ago", since_heard);
    }
    if let Some(since) = replica.down_since() {
        write_field(text, "master_link_down_since_seconds", now.since(since).as_secs());
    }
}

/// Writes one field for each connected replica.
fn write_replicas(replication: &Replication, text: &mut String) {
    let now = process::time::monotonic_now();
    let addresses = replication.replica_addresses.lock();
    let serving = replication.master_driver.lock();
    let machine = serving.master();
    write_field(text, "connected_slaves", machine.peers().len());
    write_field(text, "replicas_waiting_psync", machine.awaiting_psync_count());
    if replication.config.get(keys::MIN_REPLICAS_TO_WRITE) > 0
        && !replication.config.get(keys::MIN_REPLICAS_MAX_LAG).is_zero()
    {
        write_field(text, "min_slaves_good_slaves", machine.good_replica_count(now));
    }
    for (number, (id, peer)) in machine.peers().enumerate() {
        let address = peer.profile.ip_address.as_ref().or(addresses.get(&id));
        let value = format!(
            "ip={},port={},state={},offset={},lag={},type={}",
            address.map_or("", String::as_str),
            peer.profile.listening_port,
            peer.state().name(),
            peer.acknowledged_offset.unwrap_or_default(),
            peer.lag_seconds(now),
            peer.channel_name()
        );
        write_field(text, &format!("slave{number}"), value);
    }
}

/// Writes the replication fields of the Stats section.
pub(crate) fn write_sync_stats(replication: &Replication, text: &mut String) {
    let stats = &replication.stats;
    write_field(text, "sync_full", stats.full_syncs.load(Ordering::Relaxed));
    write_field(text, "sync_partial_ok", stats.partial_syncs_accepted.load(Ordering::Relaxed));
    write_field(text, "sync_partial_err", stats.partial_syncs_refused.load(Ordering::Relaxed));
}

fn write_field(text: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = write!(text, "{name}:{value}\r\n");
}
