//! Which worker serves a connection.
//!
//! A connection has a home, one of the workers that serve, given in turn. Only while that is kept by one thing is it
//! served elsewhere: by the first that is free, which is the one that stands by, before the spare ones.

use super::STANDBY;

/// The workers by their numbers, the one that stands by first, and whom one thing keeps.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    /// When each turned to what keeps it, if it was relieved for that.
    kept: Vec<Option<u64>>,
    /// How many serve, besides the one that stands by.
    serving: usize,
    /// How many homes were given.
    given: usize,
}

impl Roster {
    /// So many workers in all serve from now on, the one that stands by among them.
    pub(super) fn new(workers: usize) -> Self {
        Self { kept: vec![None; workers], serving: workers - 1, given: 0 }
    }

    /// There is one more, which serves when [`Self::set_serving`] says so.
    pub(super) fn add(&mut self) {
        self.kept.push(None);
    }

    /// Those behind the first `count` have ended.
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

    /// Whether a connection with this home that is with worker number `number` is to go elsewhere some time.
    pub fn is_away(&self, home: usize, number: usize) -> bool {
        home != number || !self.serves(home)
    }

    /// Whether it can do so now.
    pub fn goes_home(&self, home: usize, number: usize) -> bool {
        self.is_away(home, number) && (self.is_free(home) || !self.serves(home))
    }

    fn serves(&self, number: usize) -> bool {
        number != STANDBY && number <= self.serving
    }

    /// The home of a connection that has just come, or whose home so far is this: as before, if that serves.
    pub(super) fn home(&mut self, so_far: Option<usize>) -> usize {
        if let Some(home) = so_far.filter(|home| self.serves(*home)) {
            return home;
        }
        self.given += 1;
        STANDBY + 1 + (self.given - 1) % self.serving.max(1)
    }

    /// The worker that serves a connection with this home now; where all are kept it waits at home. None once the server
    /// stops.
    pub(super) fn of(&self, home: usize) -> Option<usize> {
        if self.is_free(home) { Some(home) } else { self.free().or((home < self.kept.len()).then_some(home)) }
    }

    /// A worker that is free, the one that stands by before others, and those before the spare ones.
    pub(super) fn free(&self) -> Option<usize> {
        (0..self.kept.len()).find(|number| self.is_free(*number))
    }

    fn is_free(&self, number: usize) -> bool {
        self.kept.get(number).is_some_and(Option::is_none)
    }

    pub(super) fn is_any_kept(&self) -> bool {
        self.kept.iter().any(Option::is_some)
    }

    /// A worker is relieved for what it turned to then.
    pub(super) fn keep(&mut self, number: usize, since: u64) {
        if let Some(kept) = self.kept.get_mut(number) {
            *kept = Some(since);
        }
    }

    /// A worker turned then to what it is about now, 0 while it rests: what kept it is over if that is something else.
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
        // It rests already.
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
