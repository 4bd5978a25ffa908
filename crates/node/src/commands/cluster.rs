//! CLUSTER commands about the cluster: parsing, and replies from the cluster state.

mod migrations;
mod parse;
mod topology;

use config::keys;
use engine::{ClusterCommand, CommandError, CommandOutcome, Context, NodeCommand};
use gossip::{ClusterView, LinkId, OperatorCommand, OperatorReply};
use resp::{Args, Writer};
use slot_routing::ClientTransport;

use crate::cluster::ClusterHandle;
use crate::connection::Connection;
use crate::server::Server;

use migrations::MigrationCommand;
use parse::ClusterChange;

/// Replies to a CLUSTER query from the current state if the client runs a transaction or a script, which holds slot
/// locks and must not wait. All other queries are deferred until earlier requests have been processed, and changes are
/// always deferred.
pub(super) fn reply_without_waiting(
    server: &Server,
    command: ClusterCommand,
    context: &mut Context<'_>,
) -> Result<CommandOutcome, CommandError> {
    let Some(cluster) = &server.cluster else { return Err(CommandError::text(CLUSTER_DISABLED_ERROR)) };
    let query = match ParsedCommand::from_command(command) {
        ParsedCommand::Query(query) if !context.can_block() => query,
        ParsedCommand::Query(_)
        | ParsedCommand::Links
        | ParsedCommand::Change(_)
        | ParsedCommand::Migration(_) => {
            return Ok(CommandOutcome::Defer(NodeCommand::Cluster(command)));
        }
    };
    let via = context.session.client().connection.transport;
    QueryContext { server, cluster, view: &cluster.view() }
        .reply(query, context.args, via, &mut context.reply)
        .map(|()| CommandOutcome::Done)
        .map_err(|text| CommandError::Text(text.into()))
}

const CLUSTER_DISABLED_ERROR: &str = "ERR This instance has cluster support disabled";

/// A command that is answered from the topology and the cluster state, without a request to the driver.
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

/// A CLUSTER command, grouped by the component that executes it.
#[derive(Debug, Clone, Copy)]
enum ParsedCommand {
    Query(StateQuery),
    /// CLUSTER LINKS, which the driver answers because it owns the links.
    Links,
    Change(ClusterChange),
    /// A command of atomic slot migration.
    Migration(MigrationCommand),
}

impl ParsedCommand {
    fn from_command(command: ClusterCommand) -> Self {
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
            ClusterCommand::AddSlots => Self::Change(ClusterChange::AddSlots),
            ClusterCommand::AddSlotsRange => Self::Change(ClusterChange::AddSlotsRange),
            ClusterCommand::BumpEpoch => Self::Change(ClusterChange::BumpEpoch),
            ClusterCommand::DelSlots => Self::Change(ClusterChange::DelSlots),
            ClusterCommand::DelSlotsRange => Self::Change(ClusterChange::DelSlotsRange),
            ClusterCommand::Failover => Self::Change(ClusterChange::Failover),
            ClusterCommand::FlushSlots => Self::Change(ClusterChange::FlushSlots),
            ClusterCommand::Forget => Self::Change(ClusterChange::Forget),
            ClusterCommand::Meet => Self::Change(ClusterChange::Meet),
            ClusterCommand::Replicate => Self::Change(ClusterChange::Replicate),
            ClusterCommand::Reset => Self::Change(ClusterChange::Reset),
            ClusterCommand::SaveConfig => Self::Change(ClusterChange::SaveConfig),
            ClusterCommand::SetConfigEpoch => Self::Change(ClusterChange::SetConfigEpoch),
            ClusterCommand::SetSlot => Self::Change(ClusterChange::SetSlot),
            ClusterCommand::CancelSlotMigrations => Self::Migration(MigrationCommand::Cancel),
            ClusterCommand::GetSlotMigrations => Self::Migration(MigrationCommand::List),
            ClusterCommand::MigrateSlots => Self::Migration(MigrationCommand::Begin),
            ClusterCommand::Migration => Self::Migration(MigrationCommand::Pull),
            ClusterCommand::SyncSlots => Self::Migration(MigrationCommand::Sync),
        }
    }
}

/// Executes a CLUSTER command and writes its reply.
pub(crate) async fn run_cluster_command(
    connection: &mut Connection,
    command: ClusterCommand,
    args: Args<'_>,
) {
    let server = connection.server.clone();
    let (protocol, via) = (connection.session.protocol(), connection.session.client().connection.transport);
    let Some(cluster) = server.cluster.clone() else {
        return Writer::new(connection.output(), protocol).error(CLUSTER_DISABLED_ERROR);
    };
    if let ParsedCommand::Migration(MigrationCommand::Sync) = ParsedCommand::from_command(command) {
        return migrations::execute_syncslots(connection, args);
    }
    let mut out = Vec::new();
    let mut reply = Writer::new(&mut out, protocol);
    // The result is `None` while the server stops: no reply is written, and the connection closes.
    let _ = execute_cluster_command(&server, &cluster, command, args, via, &mut reply).await;
    connection.output().extend_from_slice(&out);
}

async fn execute_cluster_command(
    server: &Server,
    cluster: &ClusterHandle,
    command: ClusterCommand,
    args: Args<'_>,
    transport: ClientTransport,
    reply: &mut Writer<'_>,
) -> Option<()> {
    match ParsedCommand::from_command(command) {
        ParsedCommand::Query(query) => {
            let view = &*cluster.current_view().await?;
            let context = QueryContext { server, cluster, view };
            if let Err(text) = context.reply(query, args, transport, reply) {
                reply.error(&text);
            }
        }
        ParsedCommand::Links => reply_links(cluster, reply).await?,
        ParsedCommand::Migration(step) => {
            cluster.wait_for_pending_requests().await?;
            migrations::execute_migration_command(server, step, args, reply);
        }
        ParsedCommand::Change(ClusterChange::SetSlot)
            if let Some(text) = migrations::setslot_conflict(server) =>
        {
            reply.error(text);
        }
        ParsedCommand::Change(change) => {
            let words: Vec<String> =
                args.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            match parse::parse_change(change, &words, &server.engine.keyspace) {
                Ok(command) => execute_operator_command(cluster, command, reply).await?,
                Err(text) => reply.error(&text),
            }
        }
    }
    Some(())
}

/// What queries about the cluster read.
#[derive(Clone, Copy)]
struct QueryContext<'a> {
    server: &'a Server,
    cluster: &'a ClusterHandle,
    view: &'a ClusterView,
}

impl QueryContext<'_> {
    /// Replies to a query, or returns the text of the error.
    fn reply(
        &self,
        query: StateQuery,
        args: Args<'_>,
        transport: ClientTransport,
        reply: &mut Writer<'_>,
    ) -> Result<(), String> {
        let Self { server, cluster, view } = *self;
        let node = args.get(2).map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
        let preferred = server.config.get(keys::CLUSTER_PREFERRED_ENDPOINT_TYPE);
        let failed = |error: gossip::OperatorError| format!("ERR {error}");
        match query {
            StateQuery::Nodes => reply.verbatim(b"txt", view.nodes_text(transport).as_bytes()),
            StateQuery::Info => reply.verbatim(b"txt", cluster.info_text(view).as_bytes()),
            StateQuery::MyId => reply.bulk(view.id().as_bytes()),
            StateQuery::MyShardId => reply.bulk(view.shard().as_bytes()),
            StateQuery::Slots => topology::write_slots(preferred, transport, &view.topology(), reply),
            StateQuery::Shards => topology::write_shards(preferred, transport, &view.topology(), reply),
            StateQuery::Replicas => {
                let lines = view.replicas_text(&node, transport).map_err(failed)?;
                reply.array(lines.len());
                lines.iter().for_each(|line| reply.bulk(line.as_bytes()));
            }
            StateQuery::Failovers => {
                let told = crate::cluster::failovers::list_failovers(view, process::time::now());
                match args.get(2) {
                    None => failover_history::write_reply(&told, reply),
                    Some(word) if args.len() == 3 && word.eq_ignore_ascii_case(b"json") => {
                        reply.verbatim(b"txt", failover_history::to_json(&told).as_bytes());
                    }
                    Some(_) => return Err("ERR syntax error".to_owned()),
                }
            }
            StateQuery::CountFailureReports => {
                let count = view.count_failure_reports(&node).map_err(failed)?;
                reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        Ok(())
    }
}

async fn execute_operator_command(
    cluster: &ClusterHandle,
    command: OperatorCommand,
    reply: &mut Writer<'_>,
) -> Option<()> {
    match cluster.execute(command).await? {
        Ok(OperatorReply::Ok) => reply.ok(),
        Ok(OperatorReply::EpochBumped(epoch)) => reply.simple(&format!("BUMPED {epoch}")),
        Ok(OperatorReply::EpochUnchanged(epoch)) => reply.simple(&format!("STILL {epoch}")),
        Err(error @ gossip::OperatorError::NoReplicas) => reply.error(&format!("NOREPLICAS {error}")),
        Err(error) => reply.error(&format!("ERR {error}")),
    }
    Some(())
}

/// Replies to CLUSTER LINKS. Returns `None` while the server stops.
async fn reply_links(cluster: &ClusterHandle, reply: &mut Writer<'_>) -> Option<()> {
    let links = cluster
        .run_query(|driver| {
            let reports = driver.link_reports();
            reports.into_iter().map(|report| (report, driver.queued_bytes(report.link))).collect::<Vec<_>>()
        })
        .await?;
    reply.array(links.len());
    for (link, queued) in links {
        let queued = i64::try_from(queued).unwrap_or(i64::MAX);
        reply.map(6);
        reply.bulk(b"direction");
        reply.bulk(if matches!(link.link, LinkId::Outbound(_)) { b"to" } else { b"from" });
        reply.bulk(b"node");
        reply.bulk(link.node.as_bytes());
        reply.bulk(b"create-time");
        reply.integer(link.created_at.0);
        reply.bulk(b"events");
        reply.bulk(if queued > 0 { b"rw" } else { b"r" });
        reply.bulk(b"send-buffer-allocated");
        reply.integer(queued);
        reply.bulk(b"send-buffer-used");
        reply.integer(queued);
    }
    Some(())
}
