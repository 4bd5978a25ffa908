//! CLUSTER, as far as it is about the cluster: words to commands, the machine's answers to replies.

mod parse;
mod topology;

use engine::ClusterCommand;
use gossip::{Command, CommandError, LinkId, Reply};
use resp::{Args, Writer};

use crate::cluster::Cluster;
use crate::net::connection::Connection;
use crate::server::Server;

/// Carries out a CLUSTER command and writes its reply.
pub(crate) async fn run(connection: &mut Connection, command: ClusterCommand, args: Args<'_>) {
    let server = connection.server.clone();
    let (protocol, tls) = (connection.session.protocol, connection.session.client.link.tls);
    let Some(cluster) = server.cluster.get().cloned() else {
        let mut reply = Writer::new(connection.output(), protocol);
        return reply.error("ERR This instance has cluster support disabled");
    };
    let mut out = Vec::new();
    let mut reply = Writer::new(&mut out, protocol);
    // While the server stops there is nobody to answer; the connection closes.
    let _ = answer(&server, &cluster, command, args, tls, &mut reply).await;
    connection.output().extend_from_slice(&out);
}

async fn answer(
    server: &Server,
    cluster: &Cluster,
    command: ClusterCommand,
    args: Args<'_>,
    tls: bool,
    reply: &mut Writer<'_>,
) -> Option<()> {
    let words: Vec<String> = args.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let node = words.get(2).cloned().unwrap_or_default();
    match command {
        ClusterCommand::Nodes => {
            let text = cluster.look(|driver| driver.gossip.nodes_text()).await?;
            reply.verbatim(b"txt", text.as_bytes());
        }
        ClusterCommand::Info => {
            let text = cluster.look(|driver| driver.gossip.info_text(&driver.traffic())).await?;
            reply.verbatim(b"txt", text.as_bytes());
        }
        ClusterCommand::MyId => {
            let id = cluster.look(|driver| driver.gossip.id()).await?;
            reply.bulk(id.as_bytes());
        }
        ClusterCommand::MyShardId => {
            let shard = cluster.look(|driver| driver.gossip.shard()).await?;
            reply.bulk(shard.as_bytes());
        }
        ClusterCommand::Links => links(cluster, reply).await?,
        ClusterCommand::Slots => {
            let view = cluster.look(|driver| driver.gossip.topology()).await?;
            topology::slots(&server.config.text("cluster-preferred-endpoint-type"), tls, &view, reply);
        }
        ClusterCommand::Shards => {
            let view = cluster.look(|driver| driver.gossip.topology()).await?;
            topology::shards(&server.config.text("cluster-preferred-endpoint-type"), &view, reply);
        }
        ClusterCommand::Replicas => {
            match cluster.look(move |driver| driver.gossip.replicas_text(&node)).await? {
                Ok(lines) => {
                    reply.array(lines.len());
                    lines.iter().for_each(|line| reply.bulk(line.as_bytes()));
                }
                Err(error) => reply.error(&format!("ERR {error}")),
            }
        }
        ClusterCommand::CountFailureReports => {
            match cluster.look(move |driver| driver.gossip.failure_reports(&node)).await? {
                Ok(count) => reply.integer(i64::try_from(count).unwrap_or(i64::MAX)),
                Err(error) => reply.error(&format!("ERR {error}")),
            }
        }
        change => match parse::change(change, &words, &server.engine.keyspace) {
            Ok(command) => carry_out(cluster, command, reply).await?,
            Err(text) => reply.error(&text),
        },
    }
    Some(())
}

async fn carry_out(cluster: &Cluster, command: Command, reply: &mut Writer<'_>) -> Option<()> {
    match cluster.command(command).await? {
        Ok(Reply::Ok) => reply.ok(),
        Ok(Reply::Bumped(epoch)) => reply.simple(&format!("BUMPED {epoch}")),
        Ok(Reply::Still(epoch)) => reply.simple(&format!("STILL {epoch}")),
        Err(error @ CommandError::NoReplicas) => reply.error(&format!("NOREPLICAS {error}")),
        Err(error) => reply.error(&format!("ERR {error}")),
    }
    Some(())
}

/// CLUSTER LINKS
async fn links(cluster: &Cluster, reply: &mut Writer<'_>) -> Option<()> {
    let links = cluster
        .look(|driver| {
            let reports = driver.gossip.link_reports();
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
