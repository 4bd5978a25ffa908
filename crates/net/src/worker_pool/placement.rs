//! Decides which worker serves a connection.
//!
//! Every connection has an owning worker, assigned in round-robin order. Another worker serves it only while the owner
//! is stalled: the first free one, that is, the standby worker if possible and spare threads last.

use super::STANDBY_WORKER_INDEX;

/// Which workers exist, how many are active, and which of them are stalled.
#[derive(Debug, Clone, Default)]
pub struct ConnectionPlacement {
    /// For each stalled worker, the start time of the task that stalls it.
    stalled_since: Vec<Option<u64>>,
    /// Number of active workers, not counting the standby worker.
    active_count: usize,
    /// Number of assignments so far, for round-robin.
    assigned_count: usize,
}

impl ConnectionPlacement {
    /// Creates the placement for `workers` workers, including the standby worker.
    pub(super) fn new(workers: usize) -> Self {
        Self { stalled_since: vec![None; workers], active_count: workers - 1, assigned_count: 0 }
    }

    /// Adds one worker. [`Self::set_active_count`] makes it active.
    pub(super) fn add(&mut self) {
        self.stalled_since.push(None);
    }

    /// Removes all workers after the first `count`. The removed workers have ended.
    pub(super) fn truncate(&mut self, count: usize) {
        self.stalled_since.truncate(count);
    }

    pub(super) fn len(&self) -> usize {
        self.stalled_since.len()
    }

    pub(super) fn set_active_count(&mut self, count: usize) {
        self.active_count = count;
    }

    pub(super) fn active_count(&self) -> usize {
        self.active_count
    }

    /// Returns whether a connection served by worker `number` must move sooner or later, because it has another owner
    /// or its owner is retired.
    pub fn is_misplaced(&self, owner: usize, number: usize) -> bool {
        owner != number || !self.is_active(owner)
    }

    /// Returns whether a connection of `owner` that worker `number` serves can return to its owner now.
    pub fn can_return_to_owner(&self, owner: usize, number: usize) -> bool {
        self.is_misplaced(owner, number) && (self.is_free(owner) || !self.is_active(owner))
    }

    fn is_active(&self, number: usize) -> bool {
        number != STANDBY_WORKER_INDEX && number <= self.active_count
    }

    /// Chooses the owner of a connection: `current` if that worker is still active, otherwise the next worker in
    /// round-robin order.
    pub(super) fn assign_owner(&mut self, current: Option<usize>) -> usize {
        if let Some(owner) = current.filter(|owner| self.is_active(*owner)) {
            return owner;
        }
        self.assigned_count += 1;
        STANDBY_WORKER_INDEX + 1 + (self.assigned_count - 1) % self.active_count.max(1)
    }

    /// Returns the worker that serves this owner's connections now. If all workers are stalled, the connections wait at
    /// their owner. `None` if the server is stopping.
    pub(super) fn worker_for(&self, owner: usize) -> Option<usize> {
        if self.is_free(owner) {
            Some(owner)
        } else {
            self.first_free_worker().or((owner < self.stalled_since.len()).then_some(owner))
        }
    }

    /// Returns the first worker that is not stalled. The standby worker comes first, spare workers last.
    pub(super) fn first_free_worker(&self) -> Option<usize> {
        (0..self.stalled_since.len()).find(|number| self.is_free(*number))
    }

    fn is_free(&self, number: usize) -> bool {
        self.stalled_since.get(number).is_some_and(Option::is_none)
    }

    pub(super) fn has_stalled_worker(&self) -> bool {
        self.stalled_since.iter().any(Option::is_some)
    }

    /// Marks a worker as stalled by the task it started at `since`.
    pub(super) fn mark_stalled(&mut self, number: usize, since: u64) {
        if let Some(stalled_since) = self.stalled_since.get_mut(number) {
            *stalled_since = Some(since);
        }
    }

    /// Unmarks a stalled worker if its current task, started at `since`, is not the task that stalled it. `since` is 0
    /// for an idle worker.
    pub(super) fn clear_if_recovered(&mut self, number: usize, since: u64) {
        if let Some(stalled_since) = self.stalled_since.get_mut(number)
            && stalled_since.is_some_and(|start| start != since)
        {
            *stalled_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement_with_four_workers() -> ConnectionPlacement {
        ConnectionPlacement::new(5)
    }

    #[test]
    fn owners_are_assigned_round_robin_even_if_stalled() {
        let mut placement = placement_with_four_workers();
        placement.mark_stalled(2, 70);
        let owners: Vec<_> = (0..6).map(|_| placement.assign_owner(None)).collect();
        assert_eq!(owners, [1, 2, 3, 4, 1, 2]);
    }

    #[test]
    fn standby_serves_for_a_stalled_worker_until_it_recovers() {
        let mut placement = placement_with_four_workers();
        placement.mark_stalled(2, 70);
        assert_eq!(
            [1, 2, 3].map(|owner| placement.worker_for(owner)),
            [Some(1), Some(STANDBY_WORKER_INDEX), Some(3)]
        );
        placement.clear_if_recovered(2, 70);
        assert_eq!(
            (placement.has_stalled_worker(), placement.can_return_to_owner(2, STANDBY_WORKER_INDEX)),
            (true, false)
        );
        // A start time of 0 means that the worker is idle.
        placement.clear_if_recovered(2, 0);
        assert_eq!((placement.worker_for(2), placement.has_stalled_worker()), (Some(2), false));
        assert_eq!(
            [STANDBY_WORKER_INDEX, 1, 2].map(|at| placement.can_return_to_owner(2, at)),
            [true, true, false]
        );
    }

    #[test]
    fn spare_worker_serves_when_all_others_are_stalled() {
        let mut placement = placement_with_four_workers();
        (0..5).for_each(|number| placement.mark_stalled(number, 70));
        assert_eq!((placement.worker_for(3), placement.first_free_worker()), (Some(3), None), "it waits");
        placement.add();
        assert_eq!(placement.worker_for(3), Some(5));
        assert!(placement.is_misplaced(3, 5) && !placement.can_return_to_owner(3, 5));
        placement.clear_if_recovered(0, 71);
        assert_eq!(placement.worker_for(3), Some(STANDBY_WORKER_INDEX));
    }

    #[test]
    fn stopping_server_has_no_workers() {
        assert_eq!(ConnectionPlacement::default().worker_for(1), None);
    }

    #[test]
    fn connections_of_retired_workers_are_spread_over_active_ones() {
        let mut placement = placement_with_four_workers();
        placement.set_active_count(2);
        assert_eq!([2, 3].map(|owner| placement.can_return_to_owner(owner, owner)), [false, true]);
        let owners = [3, 3, 4, 2, 3, 0].map(|owner| placement.assign_owner(Some(owner)));
        assert_eq!(owners, [1, 2, 1, 2, 2, 1]);
    }
}
