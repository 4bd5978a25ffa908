//! Connection slots: the places of connections between their requests, from which they can go on elsewhere.
//!
//! A command that runs for long keeps its worker, and with it the tasks of all the worker's connections. So a connection
//! is not its task's own: it lies in a connection slot on its thread's desk, from where any thread may take it while it
//! is at rest or waits for keys ([`Slots::vacate`]): it leaves that event loop and is opened in another thread's. Its task
//! finds the slot empty and ends. A connection that is within a command of the shell, or waits for a pause's end, stays.
//!
//! A slot that is locked is left alone, so no thread waits for a command in it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use net::transport::Socket;
use parking_lot::Mutex;

use crate::commands;
use crate::connection::turn::count_work;
use crate::connection::{Connection, Event};

/// A connection slot: the place of a connection while it is at rest.
struct ConnectionSlot(Mutex<Option<Box<Connection>>>);

/// The connection slots of a thread, by their clients' numbers, each with its connection's home.
#[derive(Default)]
pub(crate) struct Slots(Mutex<HashMap<u64, (usize, Weak<ConnectionSlot>)>>);

impl ConnectionSlot {
    /// Serves until the connection needs more than that, and has risen; `None` once it is served elsewhere.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<(Box<Connection>, Event)>> {
        let mut slot = self.0.lock();
        let Some(connection) = slot.as_mut() else { return Poll::Ready(None) };
        let event = ready!(connection.poll(context));
        Poll::Ready(slot.take().map(|connection| (connection, event)))
    }
}

impl Slots {
    /// Serves a client on the calling thread, whose slots these are, until it leaves or is served elsewhere. When the
    /// server stops, its threads' event loops end and their connections with them.
    pub(crate) fn serve(
        self: &Arc<Self>,
        connection: Box<Connection>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (id, owner) = (connection.session.id, connection.owner());
        let slot = Arc::new(ConnectionSlot(Mutex::new(Some(connection))));
        // At once and not when the task first runs: a script may run before that.
        self.0.lock().insert(id, (owner, Arc::downgrade(&slot)));
        occupy(self.clone(), id, slot)
    }

    /// Whether there is any with such a home.
    pub(super) fn any(&self, is_such: impl Fn(usize) -> bool) -> bool {
        self.0.lock().values().any(|(owner, _)| is_such(*owner))
    }

    /// Takes the connections with such homes that are at rest out of their event loop.
    pub(super) fn vacate(&self, is_such: impl Fn(usize) -> bool) -> Vec<(Box<Connection>, Socket)> {
        let slots = self.0.lock();
        let slots = slots.values().filter(|(owner, _)| is_such(*owner));
        let slots: Vec<_> = slots.filter_map(|(_, slot)| slot.upgrade()).collect();
        let leave = |slot: Arc<ConnectionSlot>| {
            // The one whose command keeps the thread is not free.
            let mut connection = slot.0.try_lock()?.take()?;
            let socket = connection.leave_event_loop().ok()?;
            Some((connection, socket))
        };
        slots.into_iter().filter_map(leave).collect()
    }

    fn leave(&self, id: u64, slot: &Arc<ConnectionSlot>) {
        let mut slots = self.0.lock();
        // It may have come back meanwhile.
        if slots.get(&id).is_some_and(|(_, other)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(slot))) {
            slots.remove(&id);
        }
    }
}

/// The task of a connection that lies in `slot`, which is one of `slots`.
async fn occupy(slots: Arc<Slots>, id: u64, slot: Arc<ConnectionSlot>) {
    while let Some((mut connection, event)) = poll_fn(|context| slot.poll(context)).await {
        match event {
            Event::Long | Event::Held => {
                super::go_to_background(connection, matches!(event, Event::Held));
                break;
            }
            Event::Return => {
                super::come_back(connection);
                break;
            }
            _ => {}
        }
        let client = connection.session.client.clone();
        if !count_work(&client, connection.attend(event, commands::run)).await {
            connection.end();
            break;
        }
        *slot.0.lock() = Some(connection);
    }
    slots.leave(id, &slot);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The task is most of what an idle connection costs. The state of a client's wait is boxed where the wait begins.
    #[test]
    fn an_idle_connections_task_is_small() {
        fn size<F>(_: impl Fn(Arc<Slots>, u64, Arc<ConnectionSlot>) -> F) -> usize {
            size_of::<F>()
        }
        let (task, connection) = (size(occupy), size_of::<Connection>());
        assert!(task + connection <= 1500, "{task} and {connection} bytes");
    }
}
