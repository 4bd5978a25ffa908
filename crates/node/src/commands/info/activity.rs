//! INFO about what was done: the sections Stats, Commandstats and Errorstats.

use super::Text;
use crate::rates::Rate;
use crate::server::Server;
use crate::totals::Count;

pub(super) fn stats(server: &Server, text: &mut Text) {
    let totals = server.totals();
    let rate = |rate| server.rates.per_second(rate);
    text.line("total_connections_received", totals[Count::Connections]);
    text.line("total_commands_processed", totals[Count::Commands]);
    text.line("instantaneous_ops_per_sec", rate(Rate::Commands).round());
    text.line("total_net_input_bytes", totals[Count::InputBytes]);
    text.line("total_net_output_bytes", totals[Count::OutputBytes]);
    text.line("instantaneous_input_kbps", format!("{:.2}", rate(Rate::InputBytes) / 1024.0));
    text.line("instantaneous_output_kbps", format!("{:.2}", rate(Rate::OutputBytes) / 1024.0));
    crate::replication::info_stats(server, text.raw());
    text.line("rejected_connections", totals[Count::RejectedConnections]);
    text.line("expired_keys", totals[Count::ExpiredKeys]);
    text.line("expired_fields", totals[Count::ExpiredFields]);
    text.line("keyspace_hits", totals[Count::KeyspaceHits]);
    text.line("keyspace_misses", totals[Count::KeyspaceMisses]);
    let (cuts, micros) = server.saving.cuts();
    text.line("latest_fork_usec", micros);
    text.line("total_forks", cuts);
    text.line("total_error_replies", totals[Count::ErrorReplies]);
    text.line("total_reads_processed", totals[Count::Reads]);
    text.line("total_writes_processed", totals[Count::Writes]);
    text.line("client_query_buffer_limit_disconnections", totals[Count::QueryLimitDisconnections]);
    text.line("client_output_buffer_limit_disconnections", totals[Count::OutputLimitDisconnections]);
}

pub(super) fn commandstats(server: &Server, text: &mut Text) {
    let totals = server.totals();
    for (entry, command) in engine::Registry::the().all().iter().zip(&totals.commands) {
        if command.calls + command.rejected > 0 {
            let micros = command.nanos / 1000;
            let each =
                if command.calls == 0 { 0.0 } else { command.nanos as f64 / 1000.0 / command.calls as f64 };
            let (calls, rejected, failed) = (command.calls, command.rejected, command.failed);
            let value = format!(
                "calls={calls},usec={micros},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
            );
            text.line(&format!("cmdstat_{}", entry.full_name), value);
        }
    }
}

pub(super) fn errorstats(server: &Server, text: &mut Text) {
    for (code, count) in &server.totals().errors {
        text.line(&format!("errorstat_{code}"), format!("count={count}"));
    }
}
