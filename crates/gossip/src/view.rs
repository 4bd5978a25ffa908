//! An immutable copy of what commands that read the cluster need.
//!
//! Clients format the texts of CLUSTER NODES, INFO and the like from a view on their own threads, so the state machine
//! needs no lock. The failover records and the failure reports, which can be large and rarely change, are shared with
//! the state machine, which copies them before it changes them.

use std::ops::Deref;
use std::sync::Arc;

use crate::commands::OperatorError;
use crate::failure_detector::FailureDetector;
use crate::state::ClusterState;
use crate::stats::{LinkTraffic, MessageStats};
use crate::timeline::FailoverTimeline;

/// The cluster after one step of the state machine. It dereferences to the node's view of the cluster.
#[derive(Debug)]
pub struct ClusterView {
    state: ClusterState,
    stats: MessageStats,
    timeline: Arc<FailoverTimeline>,
    failure_detector: FailureDetector,
}

impl Deref for ClusterView {
    type Target = ClusterState;

    fn deref(&self) -> &ClusterState {
        &self.state
    }
}

impl ClusterView {
    pub(crate) fn new(
        state: ClusterState,
        stats: MessageStats,
        timeline: Arc<FailoverTimeline>,
        failure_detector: FailureDetector,
    ) -> Self {
        Self { state, stats, timeline, failure_detector }
    }

    /// The most recent failovers that this node observed.
    #[must_use]
    pub fn timeline(&self) -> &FailoverTimeline {
        &self.timeline
    }

    /// Number of valid failure reports about a node (CLUSTER COUNT-FAILURE-REPORTS).
    ///
    /// # Errors
    /// The node is unknown.
    pub fn count_failure_reports(&self, node: &str) -> Result<usize, OperatorError> {
        let id = self.state.find_node(node)?;
        Ok(self.failure_detector.count_reports(&self.state, id))
    }

    /// Returns the text of CLUSTER INFO. `traffic` contains the driver's byte counters.
    #[must_use]
    pub fn info_text(&self, traffic: &LinkTraffic) -> String {
        self.state.info_text(traffic, &self.stats)
    }
}
