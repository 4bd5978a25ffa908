//! REPLICAOF, FAILOVER, and the commands that replicas send to their masters.

use std::sync::Arc;

use config::{MasterAddress, keys};
use engine::{Client, NodeFlags, SentinelState};
use replication::{PsyncRequest, ReplconfAction};
use resp::{Args, Writer};

use super::ShellResult;
use crate::connection::Connection;
use crate::replication::failover;
use crate::replication::{JoiningReplica, ReplicationEvent};
use crate::server::Server;

/// Executes PSYNC and SYNC: the connection moves to the replication thread.
pub(super) fn run_psync(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let protocol = connection.session.protocol();
    // A replica that received its snapshot from this node over a second connection has this node's data.
    let fetched = connection.profile.as_ref().is_some_and(|profile| profile.snapshot_connection.is_some());
    let served = connection.profile.as_ref().is_none_or(|profile| profile.is_servable());
    let client = connection.session.client().clone();
    let mut refuse = |text: &str| Writer::new(connection.output(), protocol).error(text);
    let request = match args.len() {
        1 => None,
        _ => match PsyncRequest::parse(args) {
            Ok(request) => Some(request),
            Err(error) => return refuse(&error.to_string()),
        },
    };
    if let Some(request) = request.as_ref().filter(|request| request.is_failover)
        && let Err(text) = take_over(&server, &client, request)
    {
        return refuse(text);
    }
    if !server.replication.can_serve_replica(request.as_ref().filter(|_| !fetched)) {
        return refuse("NOMASTERLINK Can't SYNC while not connected with my master");
    }
    if !served {
        return refuse("ERR Filtered replica requires EOF capability");
    }
    let told = connection.profile.as_deref();
    if let (Some(request), Some(profile)) = (&request, told)
        && server.replication.needs_rdb_channel(request, profile)
    {
        return Writer::new(connection.output(), protocol).simple("DUALCHANNELSYNC");
    }
    let profile = connection.profile.take().map(|profile| *profile).unwrap_or_default();
    let id = connection.session.id();
    match connection.detach() {
        Ok(given) => {
            let newcomer = JoiningReplica {
                connection_info: connection.session.client().connection.clone(),
                id,
                socket: given.socket,
                source_address: given.address,
                unprocessed_input: given.unprocessed_input,
                unsent_output: given.unsent_replies,
                profile,
                psync_request: request,
            };
            server.replication.send_event(ReplicationEvent::ReplicaJoined(Box::new(newcomer)));
        }
        Err(error) => {
            tracing::warn!("A replica was lost before it was served: {error}");
            connection.session.close_after_reply();
        }
    }
}

/// Executes PSYNC FAILOVER, with which a master asks this replica to take over.
fn take_over(server: &Server, client: &Client, request: &PsyncRequest) -> Result<(), &'static str> {
    if !server.replication.is_replica() {
        return Err("ERR PSYNC FAILOVER can't be sent to a master.");
    }
    if server.replication.log.lock().position().id.as_str().as_bytes() != request.repl_id.as_slice() {
        return Err("ERR PSYNC FAILOVER replid must match my replid.");
    }
    let unapplied = server.replication.unapplied_commands();
    if unapplied > 0 {
        tracing::error!(
            "== CRITICAL == Failover request was refused: {unapplied} changes of the master are missing"
        );
        return Err("ERR PSYNC FAILOVER to a replica whose data differs from its master's.");
    }
    server.replication.become_master();
    tracing::info!("PRIMARY MODE enabled (failover request from '{}')", describe_client(server, client));
    server.config.set_value(keys::REPLICAOF, None);
    Ok(())
}

/// Executes FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds].
pub(super) fn run_failover(server: &Arc<Server>, args: Args<'_>) -> ShellResult {
    let words: Vec<&[u8]> = args.iter().skip(1).collect();
    failover::start_failover(&server.failover, failover::parse_failover(&words)?)
}

/// Executes REPLCONF option value [option value ...].
pub(super) fn run_replconf(connection: &mut Connection, args: Args<'_>) {
    let replication = connection.server.replication.clone();
    let profile = connection.profile.get_or_insert_default();
    let outcome = match profile.apply_replconf(args) {
        Ok(ReplconfAction::UseSnapshotConnection(rdb)) => {
            replication.link_channels(profile, rdb).map(|()| ReplconfAction::Ok)
        }
        outcome => outcome,
    };
    let protocol = connection.session.protocol();
    let mut reply = Writer::new(connection.output(), protocol);
    match outcome {
        Ok(ReplconfAction::Ok) => reply.ok(),
        // These are sent between master and replica, and Redis does not reply to them.
        Ok(ReplconfAction::Ack(_) | ReplconfAction::GetAck | ReplconfAction::UseSnapshotConnection(_)) => {}
        Err(error) => reply.error(&error.to_string()),
    }
}

/// Executes REPLICAOF host port and REPLICAOF NO ONE.
pub(super) fn run_replicaof(server: &Server, client: &Client, args: Args<'_>, reply: &mut Writer<'_>) {
    if server.engine.topology.is_some() {
        return reply.error("ERR REPLICAOF not allowed in cluster mode.");
    }
    if server.failover.is_running() {
        return reply.error("ERR REPLICAOF not allowed while failing over.");
    }
    let (host, port) = (&args[1], &args[2]);
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        if SentinelState::is_sentinel(client)
            && server.engine.settings.node_flags().contains(NodeFlags::EMPTY_MASTER)
        {
            // If a sentinel promoted this empty master, it would replace a server that has the data and is only
            // unreachable.
            return reply
                .error("EMPTYMASTER This master started without its data and has nothing to lead with.");
        }
        if server.replication.become_master() {
            tracing::info!("PRIMARY MODE enabled (user request from '{}')", describe_client(server, client));
        }
        server.replication.serve_as_empty_master();
        server.config.set_value(keys::REPLICAOF, None);
        return reply.ok();
    }
    let Some(port) = resp::parse_i64(port).and_then(|port| u16::try_from(port).ok()) else {
        return reply.error("ERR Invalid master port");
    };
    let master = MasterAddress { host: String::from_utf8_lossy(host).into_owned(), port };
    let host = master.host.clone();
    server.config.set_value(keys::REPLICAOF, Some(master.clone()));
    if server.replication.become_replica_of(master) {
        let from = describe_client(server, client);
        tracing::info!("REPLICAOF {host}:{port} enabled (user request from '{from}')");
        reply.ok();
    } else {
        tracing::info!(
            "REPLICAOF would result into synchronization with the primary we are already connected with. No operation \
             performed."
        );
        reply.simple("OK Already connected to specified master");
    }
}

/// Describes a client for the log, as CLIENT LIST does.
fn describe_client(server: &Server, client: &Client) -> String {
    let line = client.format_line(process::time::now(), &server.engine.access.catalogue);
    String::from_utf8_lossy(&line).into_owned()
}
