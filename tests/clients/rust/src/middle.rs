//! Where several that run at the same time wait for each other, so that one event falls into the middle of all of them.
//!
//! Each holds a [`Middle`]. It has come when it is there, and it no longer counts when it is dropped: one that ends
//! before its middle keeps no other waiting.

use std::cell::RefCell;
use std::convert::Infallible;

use tokio::sync::{mpsc, watch};

/// One's own middle.
#[derive(Debug)]
pub(crate) struct Middle {
    /// Nothing is ever sent: all have come or ended when no sender is left.
    coming: RefCell<Option<mpsc::Sender<Infallible>>>,
    over: watch::Receiver<bool>,
}

impl Middle {
    /// Says that one has come, and waits until the event is over.
    pub(crate) async fn reached(&self) {
        drop(self.coming.take());
        // If the sender is gone, there is nothing to wait for.
        let _ = self.over.clone().wait_for(|over| *over).await;
    }

    /// Whether one has come.
    pub(crate) fn is_reached(&self) -> bool {
        self.coming.borrow().is_none()
    }
}

/// The event in the middle of a feature's test.
#[derive(Debug)]
pub(crate) struct Event {
    coming: mpsc::Receiver<Infallible>,
    over: watch::Sender<bool>,
}

impl Event {
    /// One in the middle of so many.
    pub(crate) fn amid(count: usize) -> (Self, Vec<Middle>) {
        let (sender, coming) = mpsc::channel(1);
        let (over, told) = watch::channel(false);
        let middle = |sender| Middle { coming: RefCell::new(Some(sender)), over: told.clone() };
        let middles = (0..count).map(|_| middle(sender.clone())).collect();
        (Self { coming, over }, middles)
    }

    /// Waits until all have come or ended.
    pub(crate) async fn all_there(&mut self) {
        let None = self.coming.recv().await;
    }

    /// It has happened: all go on.
    pub(crate) fn end(self) {
        self.over.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt;
    use futures_util::future::{join, join_all};

    use super::*;

    #[test]
    fn the_event_waits_for_all_but_those_who_have_ended() {
        let (mut event, mut middles) = Event::amid(3);
        assert_eq!(event.all_there().now_or_never(), None);
        let ended = middles.pop();
        drop(ended);
        let first = middles.pop().expect("the second");
        assert_eq!(first.reached().now_or_never(), None);
        assert!(first.is_reached());
        assert_eq!(event.all_there().now_or_never(), None);
        assert_eq!(middles[0].reached().now_or_never(), None);
        assert_eq!(event.all_there().now_or_never(), Some(()));
    }

    #[test]
    fn nobody_goes_on_before_the_event_and_all_do_afterwards() {
        let (mut event, middles) = Event::amid(2);
        let happened = Cell::new(false);
        let stories = middles.into_iter().map(async |middle| {
            middle.reached().await;
            assert!(happened.get());
        });
        let happens = async {
            event.all_there().await;
            happened.set(true);
            event.end();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(join(join_all(stories), happens));
    }
}
