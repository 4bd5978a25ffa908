//! Faults and planned operations.

use anyhow::{Context, Result, bail, ensure};
use harness::{MASTER, Relays};
use serde_json::{Value, json};

use super::deployment::{Deployment, wait_until};
use super::request::{How, Kind, Until};

/// Timeout of a requested failover.
const FAILOVER_TIMEOUT_SECONDS: f64 = 30.0;

impl Deployment {
    pub(super) fn kill(&mut self, number: usize) -> Result<Value> {
        let node = self.node(number)?;
        ensure!(node.is_running(), "node {number} is not running");
        node.kill();
        self.frozen.remove(&number);
        node_answer(number)
    }

    pub(super) fn freeze(&mut self, number: usize) -> Result<Value> {
        let node = self.node(number)?;
        ensure!(node.is_running(), "node {number} is not running");
        node.freeze();
        self.frozen.insert(number);
        node_answer(number)
    }

    pub(super) fn thaw(&mut self, number: usize) -> Result<Value> {
        ensure!(self.frozen.remove(&number), "node {number} is not frozen");
        self.node(number)?.thaw();
        node_answer(number)
    }

    pub(super) fn stop(&mut self, number: usize) -> Result<Value> {
        if self.frozen.contains(&number) {
            self.thaw(number)?;
        }
        let node = self.node(number)?;
        ensure!(node.is_running(), "node {number} is not running");
        node.terminate();
        node_answer(number)
    }

    pub(super) fn restart(&mut self, number: usize, with_data: bool) -> Result<Value> {
        if self.node(number)?.is_running() {
            self.stop(number)?;
        }
        let node = self.node(number)?;
        if !with_data {
            node.wipe();
        }
        node.launch();
        node_answer(number)
    }

    pub(super) fn partition(&mut self, groups: &[Vec<usize>]) -> Result<Value> {
        for number in groups.iter().flatten() {
            self.node(*number)?;
        }
        self.relays()?.split(groups, self.nodes.len());
        Ok(json!({"groups": groups}))
    }

    pub(super) fn lose(&mut self, number: usize, to: &[usize]) -> Result<Value> {
        self.node(number)?;
        let others = (0..self.nodes.len()).filter(|other| *other != number);
        let to = if to.is_empty() { others.collect() } else { to.to_vec() };
        self.relays()?.lose(number, &to);
        Ok(json!({"node": number, "to": to}))
    }

    pub(super) fn heal(&mut self) -> Result<Value> {
        self.relays()?.heal();
        Ok(json!({}))
    }

    fn relays(&self) -> Result<&Relays> {
        self.relays.as_ref().context("the deployment was started without \"partitions\": true")
    }

    pub(super) fn move_slot(&mut self, slot: u16, to: usize) -> Result<Value> {
        ensure!(self.kind == Kind::Cluster, "only clusters can move slots");
        ensure!(slot < harness::SLOTS, "there is no slot {slot}");
        self.node(to)?;
        harness::move_slot(&self.nodes, slot, to).map_err(anyhow::Error::msg)?;
        Ok(json!({"slot": slot, "node": to}))
    }

    /// Starts a failover and waits until the new master serves.
    pub(super) fn failover(&mut self, number: Option<usize>, how: How) -> Result<Value> {
        match self.kind {
            Kind::Server => bail!("a single server has no replica"),
            Kind::Cluster => {
                let number = number.context("set \"node\" to the replica to promote")?;
                let how = match how {
                    How::Planned => "",
                    How::Force => " FORCE",
                    How::Takeover => " TAKEOVER",
                };
                self.ask(number, &format!("CLUSTER FAILOVER{how}"))?;
                wait_until(FAILOVER_TIMEOUT_SECONDS, || {
                    let role = self.ask(number, "ROLE")?.items()[0].text();
                    ensure!(role == "master", "node {number} is still a {role}");
                    Ok(())
                })?;
                node_answer(number)
            }
            Kind::Sentinel => {
                ensure!(number.is_none() && how == How::Planned, "sentinels choose the replica themselves");
                let sentinel = self.responsive_nodes().find(|number| *number >= self.servers());
                let sentinel = sentinel.context("no sentinel is running")?;
                let old = self.master_port(sentinel)?;
                let old = self.on_port(old).context("an unknown master")?;
                self.ask(sentinel, &format!("SENTINEL FAILOVER {MASTER}"))?;
                wait_until(FAILOVER_TIMEOUT_SECONDS, || self.check_replaced(old))?;
                let new = self.on_port(self.master_port(sentinel)?);
                node_answer(new.context("an unknown master")?)
            }
        }
    }

    pub(super) fn wait(&mut self, until: Until, node: Option<usize>, seconds: f64) -> Result<Value> {
        let took = match until {
            Until::Whole => wait_until(seconds, || self.check_whole())?,
            Until::Replaced => {
                let number = node.context("set \"node\" to the node that is replaced")?;
                wait_until(seconds, || self.check_replaced(number))?
            }
        };
        Ok(json!({"seconds": took}))
    }
}

fn node_answer(number: usize) -> Result<Value> {
    Ok(json!({"node": number}))
}
