//! The faults that a place can be given.

use anyhow::{Context, Result, bail, ensure};
use harness::{MASTER, Relays};
use serde_json::{Value, json};

use super::deployment::{Deployment, wait_until};
use super::request::{How, Kind, Until};

/// For how long a failover on request is given to come about.
const PATIENCE_SECONDS: f64 = 30.0;

impl Deployment {
    pub(super) fn kill(&mut self, number: usize) -> Result<Value> {
        let node = self.node(number)?;
        ensure!(node.is_running(), "node {number} does not run");
        node.kill();
        self.frozen.remove(&number);
        done(number)
    }

    pub(super) fn freeze(&mut self, number: usize) -> Result<Value> {
        let node = self.node(number)?;
        ensure!(node.is_running(), "node {number} does not run");
        node.freeze();
        self.frozen.insert(number);
        done(number)
    }

    pub(super) fn thaw(&mut self, number: usize) -> Result<Value> {
        ensure!(self.frozen.remove(&number), "node {number} is not frozen");
        self.node(number)?.thaw();
        done(number)
    }

    pub(super) fn stop(&mut self, number: usize) -> Result<Value> {
        if self.frozen.contains(&number) {
            self.thaw(number)?;
        }
        let node = self.node(number)?;
        ensure!(node.is_running(), "node {number} does not run");
        node.terminate();
        done(number)
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
        done(number)
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
        self.relays.as_ref().context("it was started without \"partitions\": true")
    }

    pub(super) fn move_slot(&mut self, slot: u16, to: usize) -> Result<Value> {
        ensure!(self.kind == Kind::Cluster, "only a cluster's slots move");
        ensure!(slot < harness::SLOTS, "there is no slot {slot}");
        self.node(to)?;
        harness::move_slot(&self.nodes, slot, to).map_err(anyhow::Error::msg)?;
        Ok(json!({"slot": slot, "node": to}))
    }

    /// Returns when the new master serves.
    pub(super) fn failover(&mut self, number: Option<usize>, how: How) -> Result<Value> {
        match self.kind {
            Kind::Server => bail!("a single server has nobody to replace it"),
            Kind::Cluster => {
                let number = number.context("say which replica takes over: \"node\"")?;
                let how = match how {
                    How::Planned => "",
                    How::Force => " FORCE",
                    How::Takeover => " TAKEOVER",
                };
                self.ask(number, &format!("CLUSTER FAILOVER{how}"))?;
                wait_until(PATIENCE_SECONDS, || {
                    let role = self.ask(number, "ROLE")?.items()[0].text();
                    ensure!(role == "master", "node {number} is still a {role}");
                    Ok(())
                })?;
                done(number)
            }
            Kind::Sentinel => {
                ensure!(
                    number.is_none() && how == How::Planned,
                    "the sentinels choose who takes over, and how"
                );
                let sentinel = self.answering().find(|number| *number >= self.servers());
                let sentinel = sentinel.context("no sentinel runs")?;
                let old = self.master_port(sentinel)?;
                let old = self.on_port(old).context("an unknown master")?;
                self.ask(sentinel, &format!("SENTINEL FAILOVER {MASTER}"))?;
                wait_until(PATIENCE_SECONDS, || self.replaced(old))?;
                let new = self.on_port(self.master_port(sentinel)?);
                done(new.context("an unknown master")?)
            }
        }
    }

    pub(super) fn wait(&mut self, until: Until, node: Option<usize>, seconds: f64) -> Result<Value> {
        let took = match until {
            Until::Whole => wait_until(seconds, || self.wrong())?,
            Until::Replaced => {
                let number = node.context("say who is replaced: \"node\"")?;
                wait_until(seconds, || self.replaced(number))?
            }
        };
        Ok(json!({"seconds": took}))
    }
}

fn done(number: usize) -> Result<Value> {
    Ok(json!({"node": number}))
}
