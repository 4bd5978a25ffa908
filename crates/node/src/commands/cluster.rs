//! CLUSTER commands about the cluster: parsing, and replies from the cluster state.

mod moves;
mod parse;
mod topology;

use config::keys;
use engine::{ClusterCommand, CommandError, Context, HandlerOutcome, NodeCommand};
use gossip::{LinkId, OperatorCommand, OperatorReply};
use resp::{Args, Writer};
use slot_routing::ClientTransport;

use crate::cluster::{Cluster, Machine};
use crate::connection::Connection;
use crate::server::Server;

use moves::Move;
use parse::Change;

/// Replies to a CLUSTER command from the current state. A connection waits until everything requested before has been
/// done. A transaction or a script holds slot locks and cannot wait; it gets the present state. Changes always wait.
pub(super) fn at_once(
    server: &Server,
    command: ClusterCommand,
    context: &mut Context<'_>,
) -> Result<HandlerOutcome, CommandError> {
    let Some(cluster) = &server.cluster else { return Err(CommandError::text(DISABLED)) };
    let query = match ParsedCommand::of(command) {
        ParsedCommand::Query(query) if !context.can_block() => query,
        ParsedCommand::Query(_)
        | ParsedCommand::Links
        | ParsedCommand::Change(_)
        | ParsedCommand::Move(_) => {
            return Ok(HandlerOutcome::Defer(NodeCommand::Cluster(command)));
        }
    };
    let via = context.session.client.connection.transport;
    read(server, &cluster.machine, query, context.args, via, &mut context.reply)
        .map(|()| HandlerOutcome::Done)
        .map_err(|text| CommandError::Text(text.into()))
}

const DISABLED: &str = "ERR This instance has cluster support disabled";

/// Commands that are answered from the state.
#[derive(Debug, Clone, Copy)]
enum StateQuery {
    CountFailureReports,
    Failovers,
    Info,
    MyId,
    MyShardId,
    Nodes,
    Replicas,
    Shards,
    Slots,
}

/// A command by the component that executes it.
#[derive(Debug, Clone, Copy)]
enum ParsedCommand {
    Query(StateQuery),
    /// Answered by the driver.
    Links,
    Change(Change),
    /// An atomic slot migration.
    Move(Move),
}

impl ParsedCommand {
    fn of(command: ClusterCommand) -> Self {
        match command {
            ClusterCommand::CountFailureReports => Self::Query(StateQuery::CountFailureReports),
            ClusterCommand::Failovers => Self::Query(StateQuery::Failovers),
            ClusterCommand::Info => Self::Query(StateQuery::Info),
            ClusterCommand::MyId => Self::Query(StateQuery::MyId),
            ClusterCommand::MyShardId => Self::Query(StateQuery::MyShardId),
            ClusterCommand::Nodes => Self::Query(StateQuery::Nodes),
            ClusterCommand::Replicas => Self::Query(StateQuery::Replicas),
            ClusterCommand::Shards => Self::Query(StateQuery::Shards),
            ClusterCommand::Slots => Self::Query(StateQuery::Slots),
            ClusterCommand::Links => Self::Links,
            ClusterCommand::AddSlots => Self::Change(Change::AddSlots),
            ClusterCommand::AddSlotsRange => Self::Change(Change::AddSlotsRange),
            ClusterCommand::BumpEpoch => Self::Change(Change::BumpEpoch),
            ClusterCommand::DelSlots => Self::Change(Change::DelSlots),
            ClusterCommand::DelSlotsRange => Self::Change(Change::DelSlotsRange),
            ClusterCommand::Failover => Self::Change(Change::Failover),
            ClusterCommand::FlushSlots => Self::Change(Change::FlushSlots),
            ClusterCommand::Forget => Self::Change(Change::Forget),
            ClusterCommand::Meet => Self::Change(Change::Meet),
            ClusterCommand::Replicate => Self::Change(Change::Replicate),
            ClusterCommand::Reset => Self::Change(Change::Reset),
            ClusterCommand::SaveConfig => Self::Change(Change::SaveConfig),
            ClusterCommand::SetConfigEpoch => Self::Change(Change::SetConfigEpoch),
            ClusterCommand::SetSlot => Self::Change(Change::SetSlot),
            ClusterCommand::CancelSlotMigrations => Self::Move(Move::Cancel),
            ClusterCommand::GetSlotMigrations => Self::Move(Move::List),
            ClusterCommand::MigrateSlots => Self::Move(Move::Begin),
            ClusterCommand::Migration => Self::Move(Move::Pull),
            ClusterCommand::SyncSlots => Self::Move(Move::Sync),
        }
    }
}

/// Executes a CLUSTER command and writes its reply.
pub(crate) async fn run(connection: &mut Connection, command: ClusterCommand, args: Args<'_>) {
    let server = connection.server.clone();
    let (protocol, via) = (connection.session.protocol, connection.session.client.connection.transport);
    let Some(cluster) = server.cluster.clone() else {
        return Writer::new(connection.output(), protocol).error(DISABLED);
    };
    if let ParsedCommand::Move(Move::Sync) = ParsedCommand::of(command) {
        return moves::sync(connection, args);
    }
    let mut out = Vec::new();
    let mut reply = Writer::new(&mut out, protocol);
    // While the server stops there is no reply; the connection closes.
    let _ = answer(&server, &cluster, command, args, via, &mut reply).await;
    connection.output().extend_from_slice(&out);
}

async fn answer(
    server: &Server,
    cluster: &Cluster,
    command: ClusterCommand,
    args: Args<'_>,
    via: ClientTransport,
    reply: &mut Writer<'_>,
) -> Option<()> {
    match ParsedCommand::of(command) {
        ParsedCommand::Query(query) => {
            cluster.orders_carried_out().await?;
            if let Err(text) = read(server, &cluster.machine, query, args, via, reply) {
                reply.error(&text);
            }
        }
        ParsedCommand::Links => links(cluster, reply).await?,
        ParsedCommand::Move(step) => {
            cluster.orders_carried_out().await?;
            moves::answer(server, step, args, reply);
        }
        ParsedCommand::Change(Change::SetSlot) if let Some(text) = moves::keeps_from_setslot(server) => {
            reply.error(text);
        }
        ParsedCommand::Change(change) => {
            let words: Vec<String> =
                args.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            match parse::change(change, &words, &server.engine.keyspace) {
                Ok(command) => carry_out(cluster, command, reply).await?,
                Err(text) => reply.error(&text),
            }
        }
    }
    Some(())
}

/// Replies from the present state.
fn read(
    server: &Server,
    machine: &Machine,
    query: StateQuery,
    args: Args<'_>,
    via: ClientTransport,
    reply: &mut Writer<'_>,
) -> Result<(), String> {
    let mut gossip = machine.gossip.lock();
    let node = args.get(2).map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
    let preferred = server.config.get(keys::CLUSTER_PREFERRED_ENDPOINT_TYPE);
    let failed = |error: gossip::OperatorError| format!("ERR {error}");
    match query {
        StateQuery::Nodes => reply.verbatim(b"txt", gossip.nodes_text(via).as_bytes()),
        StateQuery::Info => reply.verbatim(b"txt", gossip.info_text(&machine.traffic.so_far()).as_bytes()),
        StateQuery::MyId => reply.bulk(gossip.id().as_bytes()),
        StateQuery::MyShardId => reply.bulk(gossip.shard().as_bytes()),
        StateQuery::Slots => topology::slots(preferred, via, &gossip.topology(), reply),
        StateQuery::Shards => topology::shards(preferred, via, &gossip.topology(), reply),
        StateQuery::Replicas => {
            let lines = gossip.replicas_text(&node, via).map_err(failed)?;
            reply.array(lines.len());
            lines.iter().for_each(|line| reply.bulk(line.as_bytes()));
        }
        StateQuery::Failovers => {
            let told = crate::cluster::failovers::told(&gossip, process::time::now());
            match args.get(2) {
                None => failover_history::write_reply(&told, reply),
                Some(word) if args.len() == 3 && word.eq_ignore_ascii_case(b"json") => {
                    reply.verbatim(b"txt", failover_history::to_json(&told).as_bytes());
                }
                Some(_) => return Err("ERR syntax error".to_owned()),
            }
        }
        StateQuery::CountFailureReports => {
            let count = gossip.failure_reports(&node).map_err(failed)?;
            reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}

async fn carry_out(cluster: &Cluster, command: OperatorCommand, reply: &mut Writer<'_>) -> Option<()> {
    match cluster.command(command).await? {
        Ok(OperatorReply::Ok) => reply.ok(),
        Ok(OperatorReply::Bumped(epoch)) => reply.simple(&format!("BUMPED {epoch}")),
        Ok(OperatorReply::Still(epoch)) => reply.simple(&format!("STILL {epoch}")),
        Err(error @ gossip::OperatorError::NoReplicas) => reply.error(&format!("NOREPLICAS {error}")),
        Err(error) => reply.error(&format!("ERR {error}")),
    }
    Some(())
}

/// CLUSTER LINKS.
async fn links(cluster: &Cluster, reply: &mut Writer<'_>) -> Option<()> {
    let links = cluster
        .look(|driver| {
            let reports = driver.link_reports();
            reports.into_iter().map(|report| (report, driver.queued(report.link))).collect::<Vec<_>>()
        })
        .await?;
    reply.array(links.len());
    for (link, queued) in links {
        let queued = i64::try_from(queued).unwrap_or(i64::MAX);
        reply.map(6);
        reply.bulk(b"direction");
        reply.bulk(if matches!(link.link, LinkId::Out(_)) { b"to" } else { b"from" });
        reply.bulk(b"node");
        reply.bulk(link.node.as_bytes());
        reply.bulk(b"create-time");
        reply.integer(link.created.0);
        reply.bulk(b"events");
        reply.bulk(if queued > 0 { b"rw" } else { b"r" });
        reply.bulk(b"send-buffer-allocated");
        reply.integer(queued);
        reply.bulk(b"send-buffer-used");
        reply.integer(queued);
    }
    Some(())
}
