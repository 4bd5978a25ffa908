//! Checks liveness: from every state, a fair schedule without faults must lead to a shard that serves clients.

use crate::NODE_COUNT;
use crate::copy::Role;
use crate::model::{ModelAction, ModelState, ShardModel, is_alive};

/// The number of rounds after which a shard without faults must serve clients.
const MAX_HEALING_ROUNDS: usize = 12;

impl ShardModel {
    /// Whether the shard serves reads after some rounds without faults. States in which no node that may be promoted is
    /// alive are exempt.
    pub(crate) fn serves_again_after_faults(&self, state: &ModelState) -> bool {
        let mut state = state.clone();
        // The limits of the search do not apply to the fair schedule.
        let mut unlimited = self.clone();
        unlimited.bounds.max_versions = u8::MAX;
        unlimited.bounds.max_epoch = u8::MAX;
        unlimited.bounds.max_rounds = u8::MAX;
        for _ in 0..MAX_HEALING_ROUNDS {
            let decided = *state.current_set_state();
            let mut candidates = decided.members.iter().chain([decided.master]);
            // Without a member to promote, the shard correctly stays down until its data is back. This can happen if
            // the master died while a node was being removed.
            let is_lost = !candidates.any(|member| is_alive(&state, member));
            if is_lost || state.nodes.iter().any(|copy| copy.serves_reads(self.omitted)) {
                return true;
            }
            state = unlimited.run_fair_round(state);
        }
        false
    }

    fn step(&self, state: &mut ModelState, action: &ModelAction) {
        *state = self.state_after(state, action);
    }

    /// Delivers all messages in transit, and lets every node do what its timers require.
    fn run_fair_round(&self, mut state: ModelState) -> ModelState {
        for request in state.requests.clone() {
            self.step(&mut state, &ModelAction::Decide(request));
        }
        for index in (0..NODE_COUNT).filter(|index| state.nodes[*index].is_up).collect::<Vec<_>>() {
            for decided in state.replica_set_states.clone() {
                self.step(&mut state, &ModelAction::Learn(index, decided));
            }
        }
        let newest = state.current_set_state().epoch;
        for index in 0..NODE_COUNT {
            if state.nodes[index].leadership().is_some() && state.nodes[index].epoch == newest {
                self.run_master_round(&mut state, index);
            }
        }
        let has_master = state.nodes.iter().any(|copy| copy.leadership().is_some() && copy.epoch == newest);
        if !has_master {
            self.step(&mut state, &ModelAction::Tick);
            self.promote_member(&mut state);
        }
        state
    }

    /// The master gets replies from all running nodes, and removes the others from its set.
    fn run_master_round(&self, state: &mut ModelState, master: usize) {
        self.step(state, &ModelAction::BeginLeaseRound(master));
        // A full synchronisation takes two messages.
        for _ in 0..2 {
            let Some(message) = state.nodes[master].append_message() else { return };
            for index in (0..NODE_COUNT).filter(|index| *index != master) {
                // The bound on dropped data still applies: a node that has reached it counts as dead.
                let may_drop = state.nodes[index].incarnation.generation < self.bounds.max_generations;
                if state.nodes[index].is_up && may_drop {
                    self.step(state, &ModelAction::Append(index, message.clone()));
                }
            }
        }
        for message in state.acknowledgements.clone() {
            self.step(state, &ModelAction::Acknowledge(master, message));
        }
        let Some(leadership) = state.nodes[master].leadership() else { return };
        let silent =
            leadership.decided_members.iter().find(|member| !leadership.promised_members.contains(*member));
        if leadership.proposed_members.is_none()
            && let Some(silent) = silent
        {
            let members = leadership.decided_members.without_member(silent);
            self.step(state, &ModelAction::Propose(master, members));
        }
    }

    /// Promotes a member of the set whose promise has ended.
    fn promote_member(&self, state: &mut ModelState) {
        let decided = *state.current_set_state();
        for index in 0..NODE_COUNT {
            let copy = &state.nodes[index];
            let may_win = decided.members.contains(copy.incarnation) || decided.master == copy.incarnation;
            if copy.is_up && copy.role == Role::Replica && may_win && copy.ticks_until_promise_end == 0 {
                self.step(state, &ModelAction::RequestPromotion(index));
                return;
            }
        }
    }
}
