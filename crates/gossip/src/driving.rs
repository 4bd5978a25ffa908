//! Orders the inputs of the state machine and the execution of its actions.
//!
//! The node's cluster driver and the simulator share this logic: they pass in everything new ([`News`]) and execute the
//! returned actions one after the other. Three kinds of action come last in each step, in this order: becoming a
//! replica (a node that gives up slots must first redirect clients to the new owner), deleting keys of lost slots (no
//! writes reach them by then), and replies (a client may query the new state as soon as it has the reply).
//!
//! Packets and replies that depend on `nodes.conf` wait until the file is written ([`awaiting_write`]). Changes that
//! other nodes would gossip again are written with a delay.

mod awaiting_write;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use clock::{Instant, Millis};

use self::awaiting_write::{AwaitingWrite, Waiting};
use crate::wire::Packet;
use crate::{Action, CommandError, Config, Gossip, Input, LinkId, Replication, Reply};

/// Write delay for facts learned from other nodes, so that one write covers many of them. Losing them in a crash is
/// harmless because the nodes gossip them again.
const SAVE_LATER: Duration = Duration::from_millis(100);

/// Token and result of an operator command.
type Answer = (u64, Result<Reply, CommandError>);

/// Everything that is new since the last step.
#[derive(Debug, Default)]
pub struct News {
    /// The replication state. The driver must sample it before it collects `heard`, so that an offset is never reported
    /// before the stream events that it covers.
    pub facts: Replication,
    /// Events from the master's replication stream, such as [`Input::SlotChanged`](crate::Input), in stream order.
    pub heard: Vec<Input>,
    /// When this node accepted its first write after its last promotion.
    pub first_write: Option<Millis>,
    /// The new configuration, if it changed.
    pub config: Option<Box<Config>>,
}

/// The actions of one step in the order in which the machine produced them, for tests that inspect them.
#[derive(Debug)]
pub struct Decided {
    now: Instant,
    /// Whether an operator waits for the result, so that writes must not be delayed.
    asked_for: bool,
    /// In the order in which the machine produced them.
    pub actions: Vec<Action>,
}

/// The cluster driver without sockets, threads and files.
#[derive(Debug)]
pub struct Driving {
    held: AwaitingWrite<LinkId, Box<Packet>, Answer>,
    /// Replies to commands that delete the dataset, waiting for the deletion. `None` marks a deletion without a reply.
    emptying: VecDeque<Option<Answer>>,
    /// The delayed content of `nodes.conf` and when to write it.
    unsaved: Option<(String, Instant)>,
    /// The replication state that was last passed to the machine.
    facts: Replication,
}

impl Default for Driving {
    fn default() -> Self {
        Self {
            held: AwaitingWrite::new(),
            emptying: VecDeque::new(),
            unsaved: None,
            facts: Replication::default(),
        }
    }
}

impl Driving {
    /// Passes everything new and then `input` to the machine. Returns the actions to execute now, in order.
    ///
    /// Each [`Action::Persist`] is a write; writes are numbered from 1. Each [`Action::Send`] can leave at once. The
    /// driver must acknowledge each [`Action::DropEverything`] with [`Driving::emptied`].
    pub fn feed(
        &mut self,
        machine: &mut Gossip,
        times: (Instant, Millis),
        news: News,
        input: Input,
    ) -> Vec<Action> {
        let decided = self.tell(machine, times, news, input);
        self.put_in_order(decided)
    }

    /// Runs the machine without ordering its actions; [`Driving::put_in_order`] completes the step.
    pub fn tell(
        &mut self,
        machine: &mut Gossip,
        (now, wall): (Instant, Millis),
        news: News,
        input: Input,
    ) -> Decided {
        if let Input::Closed { link } | Input::ConnectFailed { link, .. } = &input {
            self.held.forget(*link);
        }
        let News { facts, heard, first_write, config } = news;
        let asked_for = !heard.is_empty() || is_asked_for(&input);
        let mut inputs: Vec<Input> = config.into_iter().map(Input::Configure).collect();
        inputs.extend(heard);
        inputs.extend(first_write.map(|at| Input::FirstWrite { at }));
        if std::mem::replace(&mut self.facts, facts) != facts {
            inputs.push(Input::Replication(facts));
        }
        inputs.push(input);
        let mut actions = Vec::new();
        inputs.into_iter().for_each(|input| machine.handle(now, wall, input, &mut actions));
        Decided { now, asked_for, actions }
    }

    /// Orders the actions of [`Driving::tell`] and holds back those that must wait for a write.
    pub fn put_in_order(&mut self, decided: Decided) -> Vec<Action> {
        let Decided { now, asked_for, mut actions } = decided;
        let late = |action: &Action| match action {
            Action::BecomeReplica { .. } => 1,
            Action::DropSlots(_) => 2,
            Action::DropEverything => 3,
            Action::Reply { .. } => 4,
            _ => 0,
        };
        actions.sort_by_key(late);
        let (mut out, mut empties) = (Vec::with_capacity(actions.len()), false);
        for action in actions {
            match action {
                Action::Send { link, packet, after_persist } => {
                    let packet = self.held.packet(link, packet, after_persist);
                    out.extend(packet.map(|packet| Action::Send { link, packet, after_persist }));
                }
                Action::Close { link } => {
                    self.held.forget(link);
                    out.push(action);
                }
                Action::Persist { text, sync } if sync || asked_for => {
                    self.unsaved = None;
                    out.push(self.persist(text, sync));
                }
                Action::Persist { text, .. } => {
                    let at = self.unsaved.take().map_or(now + SAVE_LATER, |(_, at)| at);
                    self.unsaved = Some((text, at));
                }
                Action::BecomeReplica { foreign, .. } => {
                    if foreign {
                        // The machine has reset its replication state as well.
                        self.facts = Replication::default();
                    }
                    out.push(action);
                }
                Action::DropEverything => empties = true,
                Action::Reply { token, result } if empties => {
                    self.emptying.push_back(Some((token, result)));
                    out.push(Action::DropEverything);
                    empties = false;
                }
                Action::Reply { token, result } => out.extend(self.held.answer((token, result)).map(reply)),
                other => out.push(other),
            }
        }
        if empties {
            self.emptying.push_back(None);
            out.push(Action::DropEverything);
        }
        out
    }

    fn persist(&mut self, text: String, sync: bool) -> Action {
        self.held.order(sync);
        Action::Persist { text, sync }
    }

    /// Notes that all writes up to `number` are complete. Returns the released actions, and whether this completes all
    /// `sync` writes so that the caller must feed [`Input::Persisted`].
    pub fn written(&mut self, number: u64) -> (Vec<Action>, bool) {
        let is_all = self.held.written(number);
        let released = std::iter::from_fn(|| self.held.next()).map(|what| match what {
            Waiting::Packet(link, packet) => Action::Send { link, packet, after_persist: false },
            Waiting::Answer(answer) => reply(answer),
        });
        (released.collect(), is_all)
    }

    /// Notes that the dataset is deleted. Returns the reply that waited for it.
    pub fn emptied(&mut self) -> Option<Action> {
        let answer = self.emptying.pop_front().flatten()?;
        self.held.answer(answer).map(reply)
    }

    /// When to call [`Driving::save`] next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.unsaved.as_ref().map(|(_, at)| *at)
    }

    /// Returns the delayed write if it is due.
    pub fn save(&mut self, now: Instant) -> Option<Action> {
        let (text, _) = self.unsaved.take_if(|(_, at)| now >= *at)?;
        Some(self.persist(text, false))
    }

    /// Returns the delayed write at shutdown, whether it is due or not.
    pub fn last_save(&mut self) -> Option<Action> {
        let (text, _) = self.unsaved.take()?;
        Some(self.persist(text, false))
    }
}

fn is_asked_for(input: &Input) -> bool {
    matches!(input, Input::Command { .. } | Input::Configure(_) | Input::Start | Input::ReplicasTold { .. })
}

fn reply((token, result): Answer) -> Action {
    Action::Reply { token, result }
}
