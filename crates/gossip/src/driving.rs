//! In which order the machine is told what has happened, and in which order and when what it decides is done.
//!
//! The driver of a node and the simulator both go by it: they hand over what is new ([`News`]), and do what they get, one
//! action after the other. Behind all others of a step come, in this order, that the node follows another (a node that gives
//! up its slots says MOVED until they are another's), that what is here of slots is deleted (when nothing is written there
//! any more), and the replies: the client that reads one may ask for the new state at once.
//!
//! Packets and replies that tell what must be in `nodes.conf` first wait for that ([`awaiting_write`]). A file that only tells
//! what other nodes would tell again is written later.

mod awaiting_write;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use clock::{Instant, Millis};

use self::awaiting_write::{AwaitingWrite, Waiting};
use crate::wire::Packet;
use crate::{Action, CommandError, Config, Gossip, Input, LinkId, Replication, Reply};

/// Facts learned from other nodes are written this much later, together with all others learned by then: the nodes
/// would tell them again.
const SAVE_LATER: Duration = Duration::from_millis(100);

/// The reply to an operator's command.
type Answer = (u64, Result<Reply, CommandError>);

/// The new things around the machine.
#[derive(Debug, Default)]
pub struct News {
    /// How replication stands. How far the stream is processed is asked before what it said: that comes with this or later.
    pub facts: Replication,
    /// The words of the stream of a master ([`Input::SlotChanged`](crate::Input) and the like), in their order.
    pub heard: Vec<Input>,
    /// When the first write was taken since the machine made a master of this node.
    pub first_write: Option<Millis>,
    /// Other parameters.
    pub config: Option<Box<Config>>,
}

/// All that the machine has decided on in a step, for who watches it.
#[derive(Debug)]
pub struct Decided {
    now: Instant,
    /// An operator waits for the outcome.
    asked_for: bool,
    /// In the machine's order.
    pub actions: Vec<Action>,
}

/// The machine's driver, without its sockets, threads and files.
#[derive(Debug)]
pub struct Driving {
    held: AwaitingWrite<LinkId, Box<Packet>, Answer>,
    /// Replies of commands that have everything deleted, each until that is done.
    emptying: VecDeque<Option<Answer>>,
    /// The text that is to be written into `nodes.conf`, and when.
    unsaved: Option<(String, Instant)>,
    /// The state of replication that the machine was last told.
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
    /// Tells the machine what is new, and then `input`; returns what is to be done now, in its order.
    ///
    /// Each [`Action::Persist`] is a write with the next number, from 1 on, and an [`Action::Send`] leaves now. Each
    /// [`Action::DropEverything`] is to be answered with [`Driving::emptied`].
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

    /// The first half of it.
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

    /// The other half.
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
                        // The machine has forgotten what it was told.
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

    /// The writes up to this one have been carried out. Returns what need not wait any more; says whether all that was to
    /// reach the disk is there with this, and the machine is to be told [`Input::Persisted`].
    pub fn written(&mut self, number: u64) -> (Vec<Action>, bool) {
        let is_all = self.held.written(number);
        let released = std::iter::from_fn(|| self.held.next()).map(|what| match what {
            Waiting::Packet(link, packet) => Action::Send { link, packet, after_persist: false },
            Waiting::Answer(answer) => reply(answer),
        });
        (released.collect(), is_all)
    }

    /// Everything is deleted. Returns what was to wait for that.
    pub fn emptied(&mut self) -> Option<Action> {
        let answer = self.emptying.pop_front().flatten()?;
        self.held.answer(answer).map(reply)
    }

    /// When [`Driving::save`] is to be asked.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.unsaved.as_ref().map(|(_, at)| *at)
    }

    /// The write that is due.
    pub fn save(&mut self, now: Instant) -> Option<Action> {
        let (text, _) = self.unsaved.take_if(|(_, at)| now >= *at)?;
        Some(self.persist(text, false))
    }

    /// The write that is still to be done, when the node stops.
    pub fn last_save(&mut self) -> Option<Action> {
        let (text, _) = self.unsaved.take()?;
        Some(self.persist(text, false))
    }
}

/// Whether an operator waits for the outcome.
fn is_asked_for(input: &Input) -> bool {
    matches!(input, Input::Command { .. } | Input::Configure(_) | Input::Start | Input::ReplicasTold { .. })
}

fn reply((token, result): Answer) -> Action {
    Action::Reply { token, result }
}
