//! Decides which worker serves a connection.
//!
//! Every connection has an owning worker, assigned in round-robin order. Another worker serves it only while the owner
//! is stalled: the first free one, that is, the standby worker if possible and spare threads last.

use super::STANDBY;

/// The pool's workers by number, and which of them are stalled.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    /// For each stalled worker, the start time of the task that stalls it.
    kept: Vec<Option<u64>>,
    /// Number of active workers, not counting the standby worker.
    serving: usize,
    /// Number of assignments so far, for round-robin.
    given: usize,
}

impl Roster {
    /// Creates the placement for `workers` workers, including the standby worker.
    pub(super) fn new(workers: usize) -> Self {
        Self { kept: vec![None; workers], serving: workers - 1, given: 0 }
    }

    /// Adds one worker. It becomes active by [`Self::set_serving`].
    pub(super) fn add(&mut self) {
        self.kept.push(None);
    }

    /// Forgets the workers after the first `count`, which have ended.
    pub(super) fn keep_first(&mut self, count: usize) {
        self.kept.truncate(count);
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn set_serving(&mut self, count: usize) {
        self.serving = count;
    }

    pub(super) fn serving(&self) -> usize {
        self.serving
    }

    /// Whether a connection served by worker `number` must move at some time: it has another owner, or its owner is
    /// retired.
    pub fn is_away(&self, home: usize, number: usize) -> bool {
        home != number || !self.serves(home)
    }

    /// Whether such a connection can move now.
    pub fn goes_home(&self, home: usize, number: usize) -> bool {
        self.is_away(home, number) && (self.is_free(home) || !self.serves(home))
    }

    fn serves(&self, number: usize) -> bool {
        number != STANDBY && number <= self.serving
    }

    /// Chooses the owner of a connection: the current owner if it is still active, otherwise the next worker in turn.
    pub(super) fn home(&mut self, so_far: Option<usize>) -> usize {
        if let Some(home) = so_far.filter(|home| self.serves(*home)) {
            return home;
        }
        self.given += 1;
        STANDBY + 1 + (self.given - 1) % self.serving.max(1)
    }

    /// The worker that serves this owner's connections now. If all workers are stalled, the connections wait at their
    /// owner. `None` if the server is stopping.
    pub(super) fn of(&self, home: usize) -> Option<usize> {
        if self.is_free(home) { Some(home) } else { self.free().or((home < self.kept.len()).then_some(home)) }
    }

    /// The first worker that is not stalled. The standby worker comes first, spare workers last.
    pub(super) fn free(&self) -> Option<usize> {
        (0..self.kept.len()).find(|number| self.is_free(*number))
    }

    fn is_free(&self, number: usize) -> bool {
        self.kept.get(number).is_some_and(Option::is_none)
    }

    pub(super) fn is_any_kept(&self) -> bool {
        self.kept.iter().any(Option::is_some)
    }

    /// Marks a worker as stalled by the task it started at `since`.
    pub(super) fn keep(&mut self, number: usize, since: u64) {
        if let Some(kept) = self.kept.get_mut(number) {
            *kept = Some(since);
        }
    }

    /// Clears the stalled mark if the worker's current task, started at `since`, is another one. `since` is 0 for an
    /// idle worker.
    pub(super) fn notice(&mut self, number: usize, since: u64) {
        if let Some(kept) = self.kept.get_mut(number)
            && kept.is_some_and(|thing| thing != since)
        {
            *kept = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_four() -> Roster {
        Roster::new(5)
    }

    #[test]
    fn homes_are_given_in_turn_whoever_is_kept() {
        let mut roster = of_four();
        roster.keep(2, 70);
        let homes: Vec<_> = (0..6).map(|_| roster.home(None)).collect();
        assert_eq!(homes, [1, 2, 3, 4, 1, 2]);
    }

    #[test]
    fn who_is_kept_is_stood_in_for_until_it_is_about_something_else() {
        let mut roster = of_four();
        roster.keep(2, 70);
        assert_eq!([1, 2, 3].map(|home| roster.of(home)), [Some(1), Some(STANDBY), Some(3)]);
        roster.notice(2, 70);
        assert_eq!((roster.is_any_kept(), roster.goes_home(2, STANDBY)), (true, false));
        // The worker is idle now.
        roster.notice(2, 0);
        assert_eq!((roster.of(2), roster.is_any_kept()), (Some(2), false));
        assert_eq!([STANDBY, 1, 2].map(|at| roster.goes_home(2, at)), [true, true, false]);
    }

    #[test]
    fn where_all_are_kept_a_spare_one_stands_in() {
        let mut roster = of_four();
        (0..5).for_each(|number| roster.keep(number, 70));
        assert_eq!((roster.of(3), roster.free()), (Some(3), None), "it waits");
        roster.add();
        assert_eq!(roster.of(3), Some(5));
        assert!(roster.is_away(3, 5) && !roster.goes_home(3, 5));
        roster.notice(0, 71);
        assert_eq!(roster.of(3), Some(STANDBY));
    }

    #[test]
    fn a_server_that_stops_has_nobody() {
        assert_eq!(Roster::default().of(1), None);
    }

    #[test]
    fn connections_of_the_retired_are_spread_over_those_that_are_left() {
        let mut roster = of_four();
        roster.set_serving(2);
        assert_eq!([2, 3].map(|home| roster.goes_home(home, home)), [false, true]);
        let homes = [3, 3, 4, 2, 3, 0].map(|home| roster.home(Some(home)));
        assert_eq!(homes, [1, 2, 1, 2, 2, 1]);
    }
}
