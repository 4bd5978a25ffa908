//! Stories of one guard; then a model of several owners, one server and a network that delays, reorders and loses.

use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_millis(3000);

impl Life {
    fn is_held(&self, now: Instant) -> bool {
        self.state == State::Held && now < self.valid_until
    }
}

struct Story {
    began: Instant,
    life: Life,
}

impl Story {
    fn begin() -> Self {
        let began = Instant::now();
        Self { began, life: Life::new(began, LEASE, true) }
    }

    fn at(&mut self, ms: u64, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        self.life.handle(self.began + Duration::from_millis(ms), input, &mut out);
        out
    }

    fn deadline(&self) -> Option<u64> {
        self.life.next_deadline().map(|at| (at - self.began).as_millis() as u64)
    }
}

#[test]
fn the_lease_is_renewed_at_a_third_of_it_and_counts_from_when_that_was_asked() {
    let mut story = Story::begin();
    assert_eq!(story.deadline(), Some(1000));
    assert_eq!(story.at(999, Input::Due), []);
    assert_eq!(story.at(1000, Input::Due), [Action::Extend(1)]);
    assert_eq!(story.at(1200, Input::Extended(Outcome::Done)), [Action::AnswerExtension(Ok(()))]);
    assert_eq!(story.life.valid_until(), end_of(story.began + Duration::from_millis(1000), LEASE));
    assert_eq!(story.deadline(), Some(2000));
    assert_eq!(story.life.renewals(), 1);
}

#[test]
fn without_a_watchdog_it_ends_with_its_lease() {
    let mut story = Story::begin();
    story.life = Life::new(story.began, LEASE, false);
    assert_eq!(story.deadline(), Some(2968));
    assert_eq!(story.at(2000, Input::Due), []);
    assert_eq!(story.at(2968, Input::Due), [Action::Lose(Loss::Expired)]);
}

#[test]
fn a_server_that_does_not_answer_is_asked_until_the_lease_is_over() {
    let mut story = Story::begin();
    story.at(1000, Input::Due);
    assert_eq!(story.at(2000, Input::Extended(Outcome::Unknown)), []);
    assert_eq!(story.deadline(), Some(2100));
    assert_eq!(story.at(2100, Input::Due), [Action::Extend(1)]);
    assert_eq!(
        story.at(2968, Input::Due),
        [Action::Lose(Loss::Expired), Action::AnswerExtension(Err(Failure::Lost(Loss::Expired)))]
    );
    assert_eq!(story.at(2969, Input::Extended(Outcome::Done)), []);
    assert!(!story.life.is_held(story.began));
}

#[test]
fn one_that_slept_through_its_lease_has_lost_it_whatever_answer_lies_there() {
    let mut story = Story::begin();
    story.at(1000, Input::Due);
    let out = story.at(60_000, Input::Extended(Outcome::Done));
    assert_eq!(out[0], Action::Lose(Loss::Expired));
    assert_eq!(story.deadline(), None);
}

#[test]
fn a_server_that_forgot_it_ends_it_at_once() {
    let mut story = Story::begin();
    story.at(1000, Input::Due);
    assert_eq!(story.at(1001, Input::Extended(Outcome::NotHeld))[0], Action::Lose(Loss::Gone));
    assert_eq!(story.at(1002, Input::Leave), [Action::Release]);
    assert_eq!(
        story.at(1003, Input::Released(Outcome::NotHeld)),
        [Action::AnswerRelease(Err(Failure::Lost(Loss::Gone)))]
    );
    assert!(story.life.is_over());
}

#[test]
fn only_the_last_to_leave_releases() {
    let mut story = Story::begin();
    assert_eq!(story.at(10, Input::Enter), [Action::Extend(2)]);
    assert_eq!(story.at(20, Input::Extended(Outcome::Done)), [Action::AnswerExtension(Ok(()))]);
    assert_eq!(story.at(30, Input::Leave), [Action::Extend(1)]);
    assert_eq!(story.at(40, Input::Leave), [Action::Release]);
    assert_eq!(story.at(50, Input::Extended(Outcome::Done)), []);
    assert_eq!(story.at(60, Input::Released(Outcome::Done)), [Action::AnswerRelease(Ok(()))]);
}

#[test]
fn who_enters_while_an_extension_is_under_way_waits_for_the_next() {
    let mut story = Story::begin();
    story.at(1000, Input::Due);
    assert_eq!(story.at(1001, Input::Enter), []);
    assert_eq!(
        story.at(1002, Input::Extended(Outcome::Done)),
        [Action::AnswerExtension(Ok(())), Action::Extend(2)]
    );
}

#[test]
fn a_release_is_repeated_and_not_held_then_means_done() {
    let mut story = Story::begin();
    assert_eq!(story.at(10, Input::Leave), [Action::Release]);
    assert_eq!(story.at(20, Input::Released(Outcome::Unknown)), []);
    assert_eq!(story.at(120, Input::Due), [Action::Release]);
    assert_eq!(story.at(130, Input::Released(Outcome::NotHeld)), [Action::AnswerRelease(Ok(()))]);
}

#[test]
fn a_release_of_what_others_took_is_no_success() {
    let mut story = Story::begin();
    story.at(10, Input::Leave);
    assert_eq!(
        story.at(20, Input::Released(Outcome::NotHeld)),
        [Action::AnswerRelease(Err(Failure::NotHeld))]
    );
}

/// A random event.
#[derive(Debug, Clone)]
enum Chance {
    /// Time passes without an input.
    Pass(u64),
    /// An owner that was not paused looks at the clock.
    Look(usize),
    /// The server does what one of the messages asks.
    Serve(usize),
    /// An answer arrives.
    Answer(usize),
    /// A message or an answer is lost, and its sender gives up waiting.
    Lose(usize),
    Acquire(usize),
    Enter(usize),
    Leave(usize),
}

fn chance() -> impl Strategy<Value = Chance> {
    let owner = 0..OWNERS;
    prop_oneof![
        4 => (1..500u64).prop_map(Chance::Pass),
        4 => owner.clone().prop_map(Chance::Look),
        6 => any::<usize>().prop_map(Chance::Serve),
        6 => any::<usize>().prop_map(Chance::Answer),
        1 => any::<usize>().prop_map(Chance::Lose),
        3 => owner.clone().prop_map(Chance::Acquire),
        1 => owner.clone().prop_map(Chance::Enter),
        2 => owner.prop_map(Chance::Leave),
    ]
}

const OWNERS: usize = 3;
/// How many stories a planted fault may stay hidden in.
const STORIES: usize = 50_000;
/// How fast each owner's clock runs, in thousandths of the server's.
const SPEEDS: [u64; OWNERS] = [1000, 993, 1007];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ask {
    Acquire,
    Extend,
    Release,
}

#[derive(Debug)]
struct Message {
    /// None: its sender no longer waits.
    from: Option<usize>,
    /// Each acquisition is an owner of its own.
    owner: u64,
    ask: Ask,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
enum Actor {
    Idle,
    Asking { sent: Instant },
    Holding(Life),
}

/// A fault in every holder, for the model to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plant {
    /// The lease counts from when the answer came, not from when it was asked for.
    CountsFromTheAnswer,
    /// A late success brings back a lost lock.
    TakesALateSuccess,
    /// Clocks are taken to run alike.
    AllowsForNoDrift,
}

struct World {
    plant: Option<Plant>,
    began: Instant,
    now: Duration,
    holder: Option<(u64, Duration)>,
    messages: Vec<Message>,
    actors: Vec<(u64, Actor)>,
    next_owner: u64,
    taken: usize,
}

impl World {
    fn new() -> Self {
        Self {
            plant: None,
            began: Instant::now(),
            now: Duration::ZERO,
            holder: None,
            messages: Vec::new(),
            actors: (0..OWNERS).map(|_| (0, Actor::Idle)).collect(),
            next_owner: 0,
            taken: 0,
        }
    }

    fn clock(&self, actor: usize) -> Instant {
        self.began + self.now * SPEEDS[actor] as u32 / 1000
    }

    fn ask(&mut self, from: usize, ask: Ask) {
        let owner = self.actors[from].0;
        self.messages.push(Message { from: Some(from), owner, ask, outcome: None });
    }

    fn handle(&mut self, actor: usize, input: Input) {
        let now = self.clock(actor);
        let mut out = Vec::new();
        let Actor::Holding(life) = &mut self.actors[actor].1 else { return };
        let extending_since = life.extending_since;
        let was_lost = matches!(life.state, State::Lost(_));
        life.handle(now, input, &mut out);
        if input == Input::Extended(Outcome::Done) {
            match self.plant {
                Some(Plant::CountsFromTheAnswer) if life.state == State::Held => {
                    life.valid_until = end_of(now, LEASE);
                }
                Some(Plant::TakesALateSuccess) if was_lost => {
                    life.state = State::Held;
                    life.valid_until = end_of(now, LEASE);
                }
                Some(Plant::AllowsForNoDrift) if life.state == State::Held => {
                    life.valid_until = extending_since.map_or(life.valid_until, |sent| sent + LEASE);
                }
                Some(_) | None => {}
            }
        }
        let over = life.is_over();
        for action in out {
            match action {
                Action::Extend(_) => self.ask(actor, Ask::Extend),
                Action::Release => self.ask(actor, Ask::Release),
                Action::Lose(_) | Action::AnswerExtension(_) | Action::AnswerRelease(_) => {}
            }
        }
        if over {
            self.actors[actor].1 = Actor::Idle;
        }
    }

    fn serve(&mut self, index: usize) {
        let now = self.now;
        let Some(message) = self.messages.get_mut(index).filter(|message| message.outcome.is_none()) else {
            return;
        };
        self.holder = self.holder.filter(|(_, until)| now < *until);
        let is_holder = self.holder.is_some_and(|(owner, _)| owner == message.owner);
        let free_or_own = self.holder.is_none() || is_holder;
        let granted = match message.ask {
            Ask::Acquire => free_or_own,
            Ask::Extend | Ask::Release => is_holder,
        };
        if granted {
            self.holder = (message.ask != Ask::Release).then_some((message.owner, now + LEASE));
        }
        message.outcome = Some(if granted { Outcome::Done } else { Outcome::NotHeld });
    }

    fn deliver(&mut self, index: usize, lost: bool) {
        let Some(message) = self.messages.get(index).filter(|message| lost || message.outcome.is_some())
        else {
            return;
        };
        let outcome = message.outcome.filter(|_| !lost).unwrap_or(Outcome::Unknown);
        let message = self.messages.remove(index);
        // It may still arrive.
        if lost && message.outcome.is_none() && self.now.as_millis().is_multiple_of(2) {
            self.messages.push(Message { from: None, ..message });
        }
        let Some(from) = message.from.filter(|from| self.actors[*from].0 == message.owner) else { return };
        let now = self.clock(from);
        match (&self.actors[from].1, message.ask) {
            (Actor::Asking { sent }, Ask::Acquire) => {
                let taken = outcome == Outcome::Done && now < end_of(*sent, LEASE);
                self.taken += usize::from(taken);
                self.actors[from].1 =
                    if taken { Actor::Holding(Life::new(*sent, LEASE, true)) } else { Actor::Idle };
            }
            (Actor::Holding(_), Ask::Extend) => self.handle(from, Input::Extended(outcome)),
            (Actor::Holding(_), Ask::Release) => self.handle(from, Input::Released(outcome)),
            (Actor::Idle | Actor::Asking { .. } | Actor::Holding(_), _) => {}
        }
    }

    fn happen(&mut self, chance: &Chance) {
        let pick = |index: usize| index.checked_rem(self.messages.len()).unwrap_or(0);
        match *chance {
            Chance::Pass(ms) => self.now += Duration::from_millis(ms),
            Chance::Look(actor) => self.handle(actor, Input::Due),
            Chance::Serve(index) => self.serve(pick(index)),
            Chance::Answer(index) => self.deliver(pick(index), false),
            Chance::Lose(index) => self.deliver(pick(index), true),
            Chance::Acquire(actor) => {
                if matches!(self.actors[actor].1, Actor::Idle) {
                    self.next_owner += 1;
                    self.actors[actor] = (self.next_owner, Actor::Asking { sent: self.clock(actor) });
                    self.ask(actor, Ask::Acquire);
                }
            }
            Chance::Enter(actor) => self.handle(actor, Input::Enter),
            Chance::Leave(actor) => self.handle(actor, Input::Leave),
        }
    }

    /// An owner that believes to hold the lock while the server has it for another one or for none.
    fn deceived(&self) -> Option<u64> {
        let holder = self.holder.filter(|(_, until)| self.now < *until).map(|(owner, _)| owner);
        self.believers().into_iter().find(|believer| Some(*believer) != holder)
    }

    fn believers(&self) -> Vec<u64> {
        let believes = |actor: &usize| match &self.actors[*actor].1 {
            Actor::Holding(life) => life.is_held(self.clock(*actor)),
            Actor::Idle | Actor::Asking { .. } => false,
        };
        (0..OWNERS).filter(believes).map(|actor| self.actors[actor].0).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is delayed, lost or paused, and though clocks differ: an owner that believes to hold the lock does hold
    /// it, on the server.
    #[test]
    fn nobody_believes_to_hold_what_the_server_may_give_to_another(
        story in prop::collection::vec(chance(), 1..120)
    ) {
        let mut world = World::new();
        for chance in &story {
            world.happen(chance);
            prop_assert_eq!(world.deceived(), None, "after {:?}", chance);
        }
    }

    /// A holder that looks in time, on a network that answers within a third of the lease, loses nothing, and gives
    /// it back when it leaves.
    #[test]
    fn a_lease_that_can_be_renewed_is_kept(delays in prop::collection::vec(1..900u64, 1..60)) {
        let mut world = World::new();
        world.happen(&Chance::Acquire(0));
        world.happen(&Chance::Serve(0));
        world.happen(&Chance::Answer(0));
        for delay in delays {
            let Actor::Holding(life) = &world.actors[0].1 else { panic!("lost") };
            world.now = life.next_deadline().expect("a holder renews") - world.began;
            world.happen(&Chance::Look(0));
            world.happen(&Chance::Serve(0));
            world.happen(&Chance::Pass(delay));
            world.happen(&Chance::Answer(0));
            prop_assert_eq!(world.believers(), vec![1]);
        }
        world.happen(&Chance::Leave(0));
        world.happen(&Chance::Serve(0));
        world.happen(&Chance::Answer(0));
        prop_assert!(world.holder.is_none());
        prop_assert!(matches!(world.actors[0].1, Actor::Idle));
    }
}

/// The model finds each fault that is planted in the holders.
#[test]
fn the_model_finds_planted_faults() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    for plant in [Plant::CountsFromTheAnswer, Plant::TakesALateSuccess, Plant::AllowsForNoDrift] {
        let mut runner = TestRunner::deterministic();
        let stories = prop::collection::vec(chance(), 120);
        let found = (0..STORIES).any(|_| {
            let mut world = World { plant: Some(plant), ..World::new() };
            let story = stories.new_tree(&mut runner).unwrap().current();
            story.iter().any(|chance| {
                world.happen(chance);
                world.deceived().is_some()
            })
        });
        assert!(found, "{plant:?} was not found");
    }
}

/// The model is worth something only if acquisitions come about in it.
#[test]
fn in_the_model_locks_change_hands() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let stories = prop::collection::vec(chance(), 120);
    let taken: usize = (0..100)
        .map(|_| {
            let mut world = World::new();
            stories.new_tree(&mut runner).unwrap().current().iter().for_each(|chance| world.happen(chance));
            world.taken
        })
        .sum();
    assert!(taken > 100, "{taken}");
}
