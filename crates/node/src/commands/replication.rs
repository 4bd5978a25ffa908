//! REPLICAOF, WAIT, and what replicas say to their masters.

use std::sync::Arc;
use std::time::Duration;

use config::{MasterAddress, keys};
use engine::{Client, Context, Gate, Unblock, Watched};
use process::time;
use replication::{PsyncRequest, Replconf};
use resp::{Args, Writer};
use slot_routing::ReplOffset;

use super::Outcome;
use crate::connection::{Connection, Waited};
use crate::replication::failover;
use crate::replication::{Event, Newcomer, Replication};
use crate::server::Server;

/// PSYNC id offset, SYNC: the connection leaves for the replication thread.
pub(super) fn psync(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let protocol = connection.session.protocol;
    // A replica that has fetched its snapshot here has our data.
    let fetched = connection.profile.as_ref().is_some_and(|profile| profile.snapshot_over.is_some());
    let served = connection.profile.as_ref().is_none_or(|profile| profile.can_be_served());
    let mut refuse = |text: &str| Writer::new(connection.output(), protocol).error(text);
    let request = match args.len() {
        1 => None,
        _ => match PsyncRequest::parse(args) {
            Ok(request) => Some(request),
            Err(error) => return refuse(&error.to_string()),
        },
    };
    if let Some(request) = request.as_ref().filter(|request| request.failover)
        && let Err(text) = take_over(&server, request)
    {
        return refuse(text);
    }
    if !server.replication.can_serve(request.as_ref().filter(|_| !fetched)) {
        return refuse("NOMASTERLINK Can't SYNC while not connected with my master");
    }
    if !served {
        return refuse("ERR Filtered replica requires EOF capability");
    }
    let told = connection.profile.as_deref();
    if let (Some(request), Some(profile)) = (&request, told)
        && server.replication.sends_apart(request, profile)
    {
        return Writer::new(connection.output(), protocol).simple("DUALCHANNELSYNC");
    }
    let profile = connection.profile.take().map(|profile| *profile).unwrap_or_default();
    let id = connection.session.id;
    match connection.hand_over() {
        Ok(given) => {
            let newcomer = Newcomer {
                link: connection.session.client.link.clone(),
                id,
                socket: given.socket,
                address: given.address,
                input: given.input,
                unsent: given.unsent,
                profile,
                request,
            };
            server.replication.tell(Event::Joined(Box::new(newcomer)));
        }
        Err(error) => {
            tracing::warn!("A replica was lost before it was served: {error}");
            connection.session.closing = true;
        }
    }
}

/// A master that hands its place over asks this replica to take it.
fn take_over(server: &Server, request: &PsyncRequest) -> Result<(), &'static str> {
    if !server.replication.is_replica() {
        return Err("ERR PSYNC FAILOVER can't be sent to a master.");
    }
    if server.replication.log.lock().position().id.as_str().as_bytes() != request.id.as_slice() {
        return Err("ERR PSYNC FAILOVER replid must match my replid.");
    }
    let unapplied = server.replication.unapplied();
    if unapplied > 0 {
        tracing::error!(
            "== CRITICAL == Failover request was refused: {unapplied} changes of the master are missing"
        );
        return Err("ERR PSYNC FAILOVER to a replica whose data differs from its master's.");
    }
    tracing::info!("Failover request was accepted: this node is the master now.");
    server.replication.become_master();
    server.config.put(keys::REPLICAOF, None);
    Ok(())
}

/// FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]
pub(super) fn failover(server: &Arc<Server>, args: Args<'_>) -> Outcome {
    let words: Vec<&[u8]> = args.iter().skip(1).collect();
    failover::run(&server.failover, failover::parse(&words)?)
}

/// REPLCONF option value [option value ...]
pub(super) fn replconf(connection: &mut Connection, args: Args<'_>) {
    let replication = connection.server.replication.clone();
    let profile = connection.profile.get_or_insert_default();
    let outcome = match profile.replconf(args) {
        Ok(Replconf::SnapshotOver(rdb)) => replication.link_channels(profile, rdb).map(|()| Replconf::Ok),
        outcome => outcome,
    };
    let protocol = connection.session.protocol;
    let mut reply = Writer::new(connection.output(), protocol);
    match outcome {
        Ok(Replconf::Ok) => reply.ok(),
        // Only a replica says so, and only a master asks so; Redis answers neither.
        Ok(Replconf::Ack(_) | Replconf::GetAck | Replconf::SnapshotOver(_)) => {}
        Err(error) => reply.error(&error.to_string()),
    }
}

/// REPLICAOF host port, REPLICAOF NO ONE
pub(super) fn replicaof(server: &Server, client: &Client, args: Args<'_>, reply: &mut Writer<'_>) {
    if server.engine.topology.is_some() {
        return reply.error("ERR REPLICAOF not allowed in cluster mode.");
    }
    if server.failover.is_under_way() {
        return reply.error("ERR REPLICAOF not allowed while failing over.");
    }
    let (host, port) = (&args[1], &args[2]);
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        if Watched::is_sentinel(client) && server.engine.settings.gate().contains(Gate::EMPTY_MASTER) {
            // It would be elected in the place of one that has data and cannot be reached just now.
            return reply
                .error("EMPTYMASTER This master started without its data and has nothing to lead with.");
        }
        if server.replication.become_master() {
            tracing::info!("MASTER MODE enabled (user request)");
        }
        server.replication.serve_empty();
        server.config.put(keys::REPLICAOF, None);
        return reply.ok();
    }
    let Some(port) = resp::parse_i64(port).and_then(|port| u16::try_from(port).ok()) else {
        return reply.error("ERR Invalid master port");
    };
    let master = MasterAddress { host: String::from_utf8_lossy(host).into_owned(), port };
    tracing::info!("REPLICAOF {}:{port} enabled (user request)", master.host);
    server.config.put(keys::REPLICAOF, Some(master.clone()));
    if server.replication.become_replica_of(master) {
        reply.ok();
    } else {
        reply.simple("OK Already connected to specified master");
    }
}

/// WAIT numreplicas timeout
pub(super) async fn wait(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let protocol = connection.session.protocol;
    let (needed, timeout) = match wait_arguments(&server.replication, args) {
        Ok(arguments) => arguments,
        Err(error) => return Writer::new(connection.output(), protocol).error(error),
    };
    let offset = connection.session.last_write;
    let (count, woken) = server.replication.wait_for(offset, needed);
    let Some((token, woken)) = woken else {
        return Writer::new(connection.output(), protocol).integer(count as i64);
    };
    let reached = async {
        match timeout {
            Some(timeout) => tokio::time::timeout(timeout, woken).await.ok().and_then(Result::ok),
            None => woken.await.ok(),
        }
    };
    connection.session.client.set_blocked(true);
    if server.replication.is_replica() {
        // Since it was asked; the change of role that ended all waits then may have passed by this one.
        connection.session.client.unblock(Unblock::RoleChanged);
    }
    let waited = connection.wait(reached).await;
    server.replication.stop_waiting(token, offset);
    let how = match waited {
        Waited::Done(Some(count)) => return connection.reply().integer(count as i64),
        Waited::Done(None) | Waited::Gone => Unblock::Timeout,
        Waited::Unblocked(how) => how,
    };
    connection.session.closing |= how == Unblock::RoleChanged;
    match how.error() {
        Some(text) => connection.reply().error(text),
        None => connection.reply().integer(server.replication.acknowledged(offset) as i64),
    }
}

/// WAIT where nothing can wait: how many replicas there are that have the client's writes.
pub(super) fn acknowledged(server: &Server, context: &mut Context<'_>) -> Outcome {
    wait_arguments(&server.replication, context.args)?;
    let count = server.replication.acknowledged(context.session.last_write);
    context.reply.integer(count as i64);
    Ok(())
}

/// WAITAOF where nothing can wait.
pub(super) fn synced(server: &Server, context: &mut Context<'_>) -> Outcome {
    wait_aof_arguments(server, context.args)?;
    let (here, there) = synced_to(server, context.session.last_write);
    context.reply.array(2);
    context.reply.integer(here as i64);
    context.reply.integer(there as i64);
    Ok(())
}

/// Whether the log up to `offset` is on disk here, and at how many replicas.
fn synced_to(server: &Server, offset: ReplOffset) -> (usize, usize) {
    let here = server.durability.append_only.synced().is_some_and(|synced| synced >= offset);
    (usize::from(here), server.replication.synced_at(offset))
}

/// How many replicas, and how long; no time is for ever.
fn wait_arguments(
    replication: &Replication,
    args: Args<'_>,
) -> Result<(usize, Option<Duration>), &'static str> {
    if replication.is_replica() {
        return Err("ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 \
                    if a replica is configured to be writable (which is not the default) writes to replicas \
                    are just local and are not propagated.");
    }
    let needed = resp::parse_i64(&args[1]).ok_or("ERR value is not an integer or out of range")?;
    Ok((usize::try_from(needed).unwrap_or(0), wait_timeout(&args[2])?))
}

fn wait_timeout(text: &[u8]) -> Result<Option<Duration>, &'static str> {
    let timeout = resp::parse_i64(text).ok_or("ERR timeout is not an integer or out of range")?;
    let timeout = u64::try_from(timeout).map_err(|_| "ERR timeout is negative")?;
    let now = u64::try_from(time::now().0).unwrap_or(0);
    if timeout > i64::MAX.unsigned_abs() - now {
        return Err("ERR timeout is out of range");
    }
    Ok((timeout > 0).then(|| Duration::from_millis(timeout)))
}

/// WAITAOF numlocal numreplicas timeout
pub(super) async fn wait_aof(connection: &mut Connection, args: Args<'_>) {
    let server = connection.server.clone();
    let protocol = connection.session.protocol;
    let (local, replicas, timeout) = match wait_aof_arguments(&server, args) {
        Ok(arguments) => arguments,
        Err(error) => return Writer::new(connection.output(), protocol).error(error),
    };
    let offset = connection.session.last_write;
    let reached = || synced_to(&server, offset);
    let enough = |(here, there): (usize, usize)| here >= local && there >= replicas;
    let mut how = Unblock::Timeout;
    if !enough(reached()) {
        server.replication.ask_for_acknowledgements();
        let wait = async {
            loop {
                let further = server.replication.synced_further.notified();
                tokio::pin!(further);
                // From here on a wake-up is not lost.
                further.as_mut().enable();
                if enough(reached()) {
                    return;
                }
                further.await;
            }
        };
        let wait = async {
            match timeout {
                Some(timeout) => drop(tokio::time::timeout(timeout, wait).await),
                None => wait.await,
            }
        };
        connection.session.client.set_blocked(true);
        if server.replication.is_replica() {
            connection.session.client.unblock(Unblock::RoleChanged);
        }
        if let Waited::Unblocked(unblocked) = connection.wait(wait).await {
            how = unblocked;
        }
        connection.session.closing |= how == Unblock::RoleChanged;
    }
    match how.error() {
        Some(text) => connection.reply().error(text),
        None => {
            let (here, there) = reached();
            let mut reply = connection.reply();
            reply.array(2);
            reply.integer(here as i64);
            reply.integer(there as i64);
        }
    }
}

/// Whether here, at how many replicas, and how long.
fn wait_aof_arguments(
    server: &Server,
    args: Args<'_>,
) -> Result<(usize, usize, Option<Duration>), &'static str> {
    let local = resp::parse_i64(&args[1]).ok_or("ERR value is not an integer or out of range")?;
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, value must between 0 and 1");
    }
    let replicas = resp::parse_i64(&args[2]).and_then(|number| usize::try_from(number).ok());
    let replicas = replicas.ok_or("ERR value is out of range, must be positive")?;
    let timeout = wait_timeout(&args[3])?;
    if server.replication.is_replica() {
        return Err(
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas \
                    are just local and are not propagated.",
        );
    }
    if local > 0 && !server.durability.append_only.is_on() {
        return Err("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.");
    }
    Ok((local as usize, replicas, timeout))
}
