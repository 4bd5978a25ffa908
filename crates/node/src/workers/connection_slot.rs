//! Connection slots: where a connection stays between requests, so that another thread can take it over.
//!
//! A slow command blocks its worker and the tasks of all the worker's other connections. A connection is therefore not
//! owned by its task. It is stored in a connection slot in its thread's mailbox. While the connection is idle or
//! blocked on keys, any thread may take it out ([`ConnectionSlots::take_idle_connections`]) and register its socket with another
//! event loop. The task then finds the slot empty and ends. A connection that executes a node command or waits for the
//! end of a pause stays.
//!
//! A locked slot is skipped, so that no thread waits for a command.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use engine::BackgroundMode;
use net::transport::Socket;
use parking_lot::Mutex;

use crate::commands;
use crate::connection::turn::count_work;
use crate::connection::{Connection, ConnectionEvent};

/// Holds a connection while its task is not running.
struct ConnectionSlot(Mutex<Option<Box<Connection>>>);

/// The connection slots of a thread by client id, each with the number of the worker that owns the connection.
#[derive(Default)]
pub(crate) struct ConnectionSlots(Mutex<HashMap<u64, (usize, Weak<ConnectionSlot>)>>);

impl ConnectionSlot {
    /// Serves the connection until an event takes it out of the slot. Ready with `None` if another thread serves it
    /// now.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<(Box<Connection>, ConnectionEvent)>> {
        let mut slot = self.0.lock();
        let Some(connection) = slot.as_mut() else { return Poll::Ready(None) };
        let event = ready!(connection.poll(context));
        Poll::Ready(slot.take().map(|connection| (connection, event)))
    }
}

impl ConnectionSlots {
    /// Serves a client on the calling thread, which owns these slots, until the client disconnects or moves to another
    /// thread. Stopping the server drops the event loops and their connections.
    pub(crate) fn serve(
        self: &Arc<Self>,
        connection: Box<Connection>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (id, owner) = (connection.session.id(), connection.owner());
        let slot = Arc::new(ConnectionSlot(Mutex::new(Some(connection))));
        // Registered here rather than in the task, since a script may run before the task does.
        self.0.lock().insert(id, (owner, Arc::downgrade(&slot)));
        run_connection(self.clone(), id, slot)
    }

    /// Returns whether `is_selected` holds for the owner of any connection.
    pub(super) fn has_owner(&self, is_selected: impl Fn(usize) -> bool) -> bool {
        self.0.lock().values().any(|(owner, _)| is_selected(*owner))
    }

    /// Takes out the idle connections whose owners satisfy `is_selected`, and removes them from their event loop.
    pub(super) fn take_idle_connections(
        &self,
        is_selected: impl Fn(usize) -> bool,
    ) -> Vec<(Box<Connection>, Socket)> {
        let slots = self.0.lock();
        let slots = slots.values().filter(|(owner, _)| is_selected(*owner));
        let slots: Vec<_> = slots.filter_map(|(_, slot)| slot.upgrade()).collect();
        let leave = |slot: Arc<ConnectionSlot>| {
            // The slot whose connection's command blocks the thread is locked, so it is skipped.
            let mut connection = slot.0.try_lock()?.take()?;
            let socket = connection.leave_event_loop().ok()?;
            Some((connection, socket))
        };
        slots.into_iter().filter_map(leave).collect()
    }

    fn remove_slot(&self, id: u64, slot: &Arc<ConnectionSlot>) {
        let mut slots = self.0.lock();
        // In the meantime the connection may have returned in a new slot, which must stay.
        if slots.get(&id).is_some_and(|(_, other)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(slot))) {
            slots.remove(&id);
        }
    }
}

/// The task that serves the connection in `slot`. `slots` contains this slot.
async fn run_connection(slots: Arc<ConnectionSlots>, id: u64, slot: Arc<ConnectionSlot>) {
    while let Some((mut connection, event)) = poll_fn(|context| slot.poll(context)).await {
        match event {
            // A command whose slots are still locked waits behind the other connections of this worker.
            ConnectionEvent::Offload(reason)
                if connection.session.background() == BackgroundMode::Offloaded(reason) =>
            {
                connection.restart_time_slice();
                // Other threads can take the connection meanwhile.
                *slot.0.lock() = Some(connection);
                tokio::task::yield_now().await;
                continue;
            }
            ConnectionEvent::Offload(reason) => {
                super::move_to_background(connection, reason);
                break;
            }
            ConnectionEvent::ReturnToOwner => {
                super::return_to_owner(connection);
                break;
            }
            _ => {}
        }
        let client = connection.session.client().clone();
        if !count_work(&client, connection.handle_event(event, commands::run_command)).await {
            connection.close();
            break;
        }
        *slot.0.lock() = Some(connection);
    }
    slots.remove_slot(id, &slot);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The task takes most of the memory of an idle connection. State of a blocking command is boxed when the command
    /// starts.
    #[test]
    fn idle_connection_task_is_small() {
        fn future_size<F>(_: impl Fn(Arc<ConnectionSlots>, u64, Arc<ConnectionSlot>) -> F) -> usize {
            size_of::<F>()
        }
        let (task, connection) = (future_size(run_connection), size_of::<Connection>());
        assert!(task + connection <= 1500, "{task} and {connection} bytes");
    }
}
