//! The operator commands that assign slots: ADDSLOTS, DELSLOTS and FLUSHSLOTS.

use slot_routing::{Slot, SlotSet};

use crate::commands::OperatorError;
use crate::effect::Effect;
use crate::state::ClusterState;

/// Assigns all slots to this node or, on an error, none.
pub(crate) fn add_slots(state: &mut ClusterState, slots: &[Slot]) -> Result<Vec<Effect>, OperatorError> {
    if let Some(busy) = slots.iter().find(|slot| state.slot_owner(**slot).is_some()) {
        return Err(OperatorError::SlotBusy(*busy));
    }
    check_no_duplicates(slots)?;
    for &slot in slots {
        state.marks.end_importing(slot);
        state.slots.assign(slot, state.id());
    }
    Ok(vec![Effect::ConfigChanged])
}

/// Removes the owners of all slots or, on an error, none.
pub(crate) fn delete_slots(state: &mut ClusterState, slots: &[Slot]) -> Result<Vec<Effect>, OperatorError> {
    if let Some(free) = slots.iter().find(|slot| state.slot_owner(**slot).is_none()) {
        return Err(OperatorError::SlotUnassigned(*free));
    }
    check_no_duplicates(slots)?;
    for &slot in slots {
        state.marks.end_migrating(slot);
        state.slots.release(slot);
    }
    Ok(vec![Effect::ConfigChanged])
}

/// Removes all slots from this node.
pub(crate) fn flush_slots(state: &mut ClusterState, holds_keys: bool) -> Result<Vec<Effect>, OperatorError> {
    if holds_keys {
        return Err(OperatorError::FlushNotEmpty);
    }
    state.slots.release_all(state.id());
    state.marks.clear_migrating();
    Ok(vec![Effect::ConfigChanged])
}

fn check_no_duplicates(slots: &[Slot]) -> Result<(), OperatorError> {
    let mut seen = SlotSet::new();
    match slots.iter().find(|slot| !seen.insert(**slot)) {
        Some(twice) => Err(OperatorError::DuplicateSlot(*twice)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    #[test]
    fn all_slots_are_assigned_or_none() {
        let mut cluster = TestCluster::new(2, &[]);
        let slot = |number| Slot::new(number).unwrap();
        let (first, last) = (slot(0), slot(16_383));
        let state = &mut cluster.state;
        assert_eq!(add_slots(state, &[first]), Err(OperatorError::SlotBusy(first)));
        assert_eq!(delete_slots(state, &[first, first]), Err(OperatorError::DuplicateSlot(first)));
        assert!(delete_slots(state, &[first, last]).is_ok());
        assert_eq!(delete_slots(state, &[slot(1), last]), Err(OperatorError::SlotUnassigned(last)));
        assert_eq!(state.slot_owner(slot(1)), Some(id(0)));
        assert!(add_slots(state, &[last]).is_ok());
        assert_eq!(state.slot_owner(last), Some(id(0)));
        assert_eq!(flush_slots(state, true), Err(OperatorError::FlushNotEmpty));
        assert!(flush_slots(state, false).is_ok());
        assert_eq!(state.slots.slot_count(id(0)), 0);
    }
}
