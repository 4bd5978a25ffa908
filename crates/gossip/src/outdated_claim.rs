//! Answers an outdated slot claim with UPDATE, which informs its sender about the actual owner.

use slot_routing::{NodeId, Slot};

use crate::effect::Effect;
use crate::state::ClusterState;
use crate::wire::{ConfigUpdate, Header, MessageBody};

/// Sends an UPDATE if the header claims a slot that another node owns under a higher epoch.
pub(crate) fn correct_outdated_claim(
    state: &ClusterState,
    sender: NodeId,
    header: &Header,
) -> Option<Effect> {
    let newer_owner = |slot: Slot| {
        let owner = state.node(state.slots.claimant(slot)?)?;
        (owner.id != sender && owner.config_epoch > header.config_epoch).then_some(owner)
    };
    let owner = header.slots.iter().find_map(newer_owner)?;
    let slots = state.slots.slots_of(owner.id);
    let update = ConfigUpdate { config_epoch: owner.config_epoch, id: owner.id, slots };
    Some(Effect::Send { to: sender, body: MessageBody::Update(update) })
}
