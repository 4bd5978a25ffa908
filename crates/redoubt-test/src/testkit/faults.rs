//! Faults that a request injects (crashes, partitions) and planned operations such as failovers.

use anyhow::{Context, Result, bail, ensure};
use harness::{MASTER_NAME, RelayNetwork};
use serde_json::{Value, json};

use super::deployment::{TestDeployment, wait_until};
use super::request::{DeploymentKind, FailoverKind, WaitCondition};

/// How long a requested failover may take, in seconds.
const FAILOVER_TIMEOUT_SECONDS: f64 = 30.0;

impl TestDeployment {
    pub(super) fn kill_node(&mut self, number: usize) -> Result<Value> {
        let node = self.find_node(number)?;
        ensure!(node.is_running(), "node {number} is not running");
        node.kill();
        self.frozen_nodes.remove(&number);
        node_answer(number)
    }

    pub(super) fn freeze_node(&mut self, number: usize) -> Result<Value> {
        let node = self.find_node(number)?;
        ensure!(node.is_running(), "node {number} is not running");
        node.freeze();
        self.frozen_nodes.insert(number);
        node_answer(number)
    }

    pub(super) fn thaw_node(&mut self, number: usize) -> Result<Value> {
        ensure!(self.frozen_nodes.remove(&number), "node {number} is not frozen");
        self.find_node(number)?.thaw();
        node_answer(number)
    }

    pub(super) fn stop_node(&mut self, number: usize) -> Result<Value> {
        if self.frozen_nodes.contains(&number) {
            self.thaw_node(number)?;
        }
        let node = self.find_node(number)?;
        ensure!(node.is_running(), "node {number} is not running");
        node.terminate();
        node_answer(number)
    }

    pub(super) fn restart_node(&mut self, number: usize, keeps_data: bool) -> Result<Value> {
        if self.find_node(number)?.is_running() {
            self.stop_node(number)?;
        }
        let node = self.find_node(number)?;
        if !keeps_data {
            node.wipe();
        }
        node.launch();
        node_answer(number)
    }

    pub(super) fn partition_network(&mut self, groups: &[Vec<usize>]) -> Result<Value> {
        for number in groups.iter().flatten() {
            self.find_node(*number)?;
        }
        self.required_relays()?.partition(groups, self.nodes.len());
        Ok(json!({"groups": groups}))
    }

    pub(super) fn drop_packets(&mut self, number: usize, receivers: &[usize]) -> Result<Value> {
        self.find_node(number)?;
        let others = (0..self.nodes.len()).filter(|other| *other != number);
        let to = if receivers.is_empty() { others.collect() } else { receivers.to_vec() };
        self.required_relays()?.block_bytes(number, &to);
        Ok(json!({"node": number, "to": to}))
    }

    pub(super) fn heal_network(&mut self) -> Result<Value> {
        self.required_relays()?.heal_partition();
        Ok(json!({}))
    }

    fn required_relays(&self) -> Result<&RelayNetwork> {
        self.relays.as_ref().context("the deployment was started without \"partitions\": true")
    }

    pub(super) fn move_slot(&mut self, slot: u16, new_owner: usize) -> Result<Value> {
        ensure!(self.kind == DeploymentKind::Cluster, "only clusters can move slots");
        ensure!(slot < harness::SLOT_COUNT, "there is no slot {slot}");
        self.find_node(new_owner)?;
        harness::move_slot(&self.nodes, slot, new_owner).map_err(anyhow::Error::msg)?;
        Ok(json!({"slot": slot, "node": new_owner}))
    }

    /// Starts a failover and waits until the new master serves.
    pub(super) fn start_failover(&mut self, number: Option<usize>, kind: FailoverKind) -> Result<Value> {
        match self.kind {
            DeploymentKind::Server => bail!("a single server has no replica"),
            DeploymentKind::Cluster => {
                let number = number.context("set \"node\" to the replica to promote")?;
                let how = match kind {
                    FailoverKind::Planned => "",
                    FailoverKind::Force => " FORCE",
                    FailoverKind::Takeover => " TAKEOVER",
                };
                self.query_node(number, &format!("CLUSTER FAILOVER{how}"))?;
                wait_until(FAILOVER_TIMEOUT_SECONDS, || {
                    let role = self.query_node(number, "ROLE")?.items()[0].text();
                    ensure!(role == "master", "node {number} is still a {role}");
                    Ok(())
                })?;
                node_answer(number)
            }
            DeploymentKind::Sentinel => {
                ensure!(
                    number.is_none() && kind == FailoverKind::Planned,
                    "sentinels choose the replica themselves"
                );
                let sentinel = self.responsive_nodes().find(|number| *number >= self.server_count());
                let sentinel = sentinel.context("no sentinel is running")?;
                let old = self.master_port(sentinel)?;
                let old = self.node_on_port(old).context("an unknown master")?;
                self.query_node(sentinel, &format!("SENTINEL FAILOVER {MASTER_NAME}"))?;
                wait_until(FAILOVER_TIMEOUT_SECONDS, || self.check_node_replaced(old))?;
                let new = self.node_on_port(self.master_port(sentinel)?);
                node_answer(new.context("an unknown master")?)
            }
        }
    }

    pub(super) fn wait_for_condition(
        &mut self,
        condition: WaitCondition,
        node: Option<usize>,
        seconds: f64,
    ) -> Result<Value> {
        let took = match condition {
            WaitCondition::Whole => wait_until(seconds, || self.check_healthy())?,
            WaitCondition::Replaced => {
                let number = node.context("set \"node\" to the node that is replaced")?;
                wait_until(seconds, || self.check_node_replaced(number))?
            }
        };
        Ok(json!({"seconds": took}))
    }
}

fn node_answer(number: usize) -> Result<Value> {
    Ok(json!({"node": number}))
}
