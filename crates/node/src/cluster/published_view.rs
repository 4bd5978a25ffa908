//! The view of the cluster from which commands, metrics and the web page read.
//!
//! A view is a copy, and copying a thousand nodes takes some hundred microseconds, so the driver does not publish one per
//! packet. It publishes the changes of its state machine when a client requests a current view, before it sends an
//! operator's result or applies a topology, and otherwise once per [`PUBLICATION_PERIOD`].

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use clock::Instant;
use gossip::{ClusterView, Gossip};

/// How long after a publication the next changes are published if no client requests them earlier.
pub(crate) const PUBLICATION_PERIOD: Duration = Duration::from_millis(100);

/// The view that was published last.
#[derive(Debug)]
pub(super) struct PublishedView(ArcSwap<ClusterView>);

impl PublishedView {
    pub(super) fn new(view: ClusterView) -> Self {
        Self(ArcSwap::from_pointee(view))
    }

    pub(super) fn load(&self) -> Arc<ClusterView> {
        self.0.load_full()
    }
}

/// Publishes the state machine's changes; owned by the driver.
#[derive(Debug)]
pub(super) struct ViewPublisher {
    published: Arc<PublishedView>,
    last_publication: Instant,
    has_changes: bool,
}

impl ViewPublisher {
    pub(super) fn new(published: Arc<PublishedView>, now: Instant) -> Self {
        Self { published, last_publication: now, has_changes: false }
    }

    /// Records that the state machine may differ from the published view.
    pub(super) fn mark_changed(&mut self) {
        self.has_changes = true;
    }

    /// Publishes the state of `gossip` if it may have changed since the last publication.
    pub(super) fn publish(&mut self, gossip: &Gossip, now: Instant) {
        if std::mem::take(&mut self.has_changes) {
            self.published.0.store(Arc::new(gossip.view()));
            self.last_publication = now;
        }
    }

    /// Publishes changes for which no client has asked, if the period is over.
    pub(super) fn publish_if_due(&mut self, gossip: &Gossip, now: Instant) {
        if self.next_deadline().is_some_and(|at| now >= at) {
            self.publish(gossip, now);
        }
    }

    /// Returns when [`Self::publish_if_due`] must be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.has_changes.then(|| self.last_publication + PUBLICATION_PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use gossip::{ClusterInput, OperatorCommand};
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn step(gossip: &mut Gossip, now: Instant, input: ClusterInput) {
        gossip.handle(now, clock::Millis(1_790_000_000_000), input, &mut Vec::new());
    }

    #[test]
    fn changes_are_published_on_request_or_after_the_period() {
        let options = crate::cluster::options::read_cluster_config(&config::Values::default()).unwrap();
        let mut gossip = Gossip::new(options, ChaCha8Rng::seed_from_u64(1));
        let now = Instant::ORIGIN + Duration::from_secs(1);
        step(&mut gossip, now, ClusterInput::NodeStarted);
        let published = Arc::new(PublishedView::new(gossip.view()));
        let mut publisher = ViewPublisher::new(published.clone(), now);
        assert_eq!(publisher.next_deadline(), None);

        let before = published.load();
        let meet = OperatorCommand::Meet { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 7001, bus_port: 17001 };
        step(&mut gossip, now, ClusterInput::Command { token: 1, command: meet });
        publisher.mark_changed();
        assert_eq!(publisher.next_deadline(), Some(now + PUBLICATION_PERIOD));
        publisher.publish_if_due(&gossip, now);
        assert_eq!(published.load().nodes().count(), 1);

        publisher.publish_if_due(&gossip, now + PUBLICATION_PERIOD);
        assert_eq!(published.load().nodes().count(), 2);
        assert_eq!(before.nodes().count(), 1, "a published view does not change");
        assert_eq!(publisher.next_deadline(), None);

        let unchanged = published.load();
        publisher.publish(&gossip, now);
        assert!(Arc::ptr_eq(&unchanged, &published.load()));
        publisher.mark_changed();
        publisher.publish(&gossip, now);
        assert!(!Arc::ptr_eq(&unchanged, &published.load()));
    }
}
