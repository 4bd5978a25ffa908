//! Tests single guards in fixed scenarios, then checks a model of several owners, one server, and a network that
//! delays, reorders and loses messages.

use proptest::prelude::*;

use super::*;

const LEASE_DURATION: Duration = Duration::from_millis(3000);

impl HeldLease {
    fn is_held(&self, now: Instant) -> bool {
        self.state == LeaseState::Held && now < self.valid_until
    }
}

struct TestLease {
    started_at: Instant,
    lease: HeldLease,
}

impl TestLease {
    fn start() -> Self {
        let began = Instant::now();
        Self { started_at: began, lease: HeldLease::new(began, LEASE_DURATION, true) }
    }

    fn handle_at(&mut self, ms: u64, input: LeaseEvent) -> Vec<LeaseAction> {
        let mut out = Vec::new();
        self.lease.handle(self.started_at + Duration::from_millis(ms), input, &mut out);
        out
    }

    fn deadline(&self) -> Option<u64> {
        self.lease.next_deadline().map(|at| (at - self.started_at).as_millis() as u64)
    }
}

#[test]
fn lease_counts_from_the_request_and_is_renewed_after_a_third() {
    let mut story = TestLease::start();
    assert_eq!(story.deadline(), Some(1000));
    assert_eq!(story.handle_at(999, LeaseEvent::Deadline), []);
    assert_eq!(story.handle_at(1000, LeaseEvent::Deadline), [LeaseAction::Extend(1)]);
    assert_eq!(
        story.handle_at(1200, LeaseEvent::ExtensionEnded(RequestOutcome::Done)),
        [LeaseAction::AnswerExtension(Ok(()))]
    );
    assert_eq!(
        story.lease.valid_until(),
        lease_end(story.started_at + Duration::from_millis(1000), LEASE_DURATION)
    );
    assert_eq!(story.deadline(), Some(2000));
    assert_eq!(story.lease.renewal_count(), 1);
}

#[test]
fn without_watchdog_the_lock_ends_with_its_lease() {
    let mut story = TestLease::start();
    story.lease = HeldLease::new(story.started_at, LEASE_DURATION, false);
    assert_eq!(story.deadline(), Some(2968));
    assert_eq!(story.handle_at(2000, LeaseEvent::Deadline), []);
    assert_eq!(story.handle_at(2968, LeaseEvent::Deadline), [LeaseAction::ReportLoss(LossReason::Expired)]);
}

#[test]
fn silent_server_is_retried_until_the_lease_ends() {
    let mut story = TestLease::start();
    story.handle_at(1000, LeaseEvent::Deadline);
    assert_eq!(story.handle_at(2000, LeaseEvent::ExtensionEnded(RequestOutcome::Unknown)), []);
    assert_eq!(story.deadline(), Some(2100));
    assert_eq!(story.handle_at(2100, LeaseEvent::Deadline), [LeaseAction::Extend(1)]);
    assert_eq!(
        story.handle_at(2968, LeaseEvent::Deadline),
        [
            LeaseAction::ReportLoss(LossReason::Expired),
            LeaseAction::AnswerExtension(Err(RequestError::Lost(LossReason::Expired)))
        ]
    );
    assert_eq!(story.handle_at(2969, LeaseEvent::ExtensionEnded(RequestOutcome::Done)), []);
    assert!(!story.lease.is_held(story.started_at));
}

#[test]
fn sleeping_holder_loses_the_lock_despite_a_late_success() {
    let mut story = TestLease::start();
    story.handle_at(1000, LeaseEvent::Deadline);
    let out = story.handle_at(60_000, LeaseEvent::ExtensionEnded(RequestOutcome::Done));
    assert_eq!(out[0], LeaseAction::ReportLoss(LossReason::Expired));
    assert_eq!(story.deadline(), None);
}

#[test]
fn lock_missing_on_the_server_is_lost_at_once() {
    let mut story = TestLease::start();
    story.handle_at(1000, LeaseEvent::Deadline);
    assert_eq!(
        story.handle_at(1001, LeaseEvent::ExtensionEnded(RequestOutcome::NotHeld))[0],
        LeaseAction::ReportLoss(LossReason::Gone)
    );
    assert_eq!(story.handle_at(1002, LeaseEvent::GuardDropped), [LeaseAction::Release]);
    assert_eq!(
        story.handle_at(1003, LeaseEvent::ReleaseEnded(RequestOutcome::NotHeld)),
        [LeaseAction::AnswerRelease(Err(RequestError::Lost(LossReason::Gone)))]
    );
    assert!(story.lease.is_released());
}

#[test]
fn only_the_last_guard_releases_the_lock() {
    let mut story = TestLease::start();
    assert_eq!(story.handle_at(10, LeaseEvent::GuardCreated), [LeaseAction::Extend(2)]);
    assert_eq!(
        story.handle_at(20, LeaseEvent::ExtensionEnded(RequestOutcome::Done)),
        [LeaseAction::AnswerExtension(Ok(()))]
    );
    assert_eq!(story.handle_at(30, LeaseEvent::GuardDropped), [LeaseAction::Extend(1)]);
    assert_eq!(story.handle_at(40, LeaseEvent::GuardDropped), [LeaseAction::Release]);
    assert_eq!(story.handle_at(50, LeaseEvent::ExtensionEnded(RequestOutcome::Done)), []);
    assert_eq!(
        story.handle_at(60, LeaseEvent::ReleaseEnded(RequestOutcome::Done)),
        [LeaseAction::AnswerRelease(Ok(()))]
    );
}

#[test]
fn new_guard_waits_for_the_next_extension() {
    let mut story = TestLease::start();
    story.handle_at(1000, LeaseEvent::Deadline);
    assert_eq!(story.handle_at(1001, LeaseEvent::GuardCreated), []);
    assert_eq!(
        story.handle_at(1002, LeaseEvent::ExtensionEnded(RequestOutcome::Done)),
        [LeaseAction::AnswerExtension(Ok(())), LeaseAction::Extend(2)]
    );
}

#[test]
fn not_held_after_a_repeated_release_means_success() {
    let mut story = TestLease::start();
    assert_eq!(story.handle_at(10, LeaseEvent::GuardDropped), [LeaseAction::Release]);
    assert_eq!(story.handle_at(20, LeaseEvent::ReleaseEnded(RequestOutcome::Unknown)), []);
    assert_eq!(story.handle_at(120, LeaseEvent::Deadline), [LeaseAction::Release]);
    assert_eq!(
        story.handle_at(130, LeaseEvent::ReleaseEnded(RequestOutcome::NotHeld)),
        [LeaseAction::AnswerRelease(Ok(()))]
    );
}

#[test]
fn releasing_a_lock_taken_by_others_fails() {
    let mut story = TestLease::start();
    story.handle_at(10, LeaseEvent::GuardDropped);
    assert_eq!(
        story.handle_at(20, LeaseEvent::ReleaseEnded(RequestOutcome::NotHeld)),
        [LeaseAction::AnswerRelease(Err(RequestError::NotHeld))]
    );
}

/// A random event in the model.
#[derive(Debug, Clone)]
enum RandomEvent {
    /// Time passes without an event.
    PassTime(u64),
    /// An owner that is not paused checks its clock.
    CheckLease(usize),
    /// The server executes one of the pending requests.
    ServeRequest(usize),
    /// A reply arrives at the owner that waits for it.
    DeliverReply(usize),
    /// A request or reply is lost, and the sender of the request times out.
    LoseMessage(usize),
    Acquire(usize),
    Enter(usize),
    Leave(usize),
}

fn random_event() -> impl Strategy<Value = RandomEvent> {
    let owner = 0..OWNER_COUNT;
    prop_oneof![
        4 => (1..500u64).prop_map(RandomEvent::PassTime),
        4 => owner.clone().prop_map(RandomEvent::CheckLease),
        6 => any::<usize>().prop_map(RandomEvent::ServeRequest),
        6 => any::<usize>().prop_map(RandomEvent::DeliverReply),
        1 => any::<usize>().prop_map(RandomEvent::LoseMessage),
        3 => owner.clone().prop_map(RandomEvent::Acquire),
        1 => owner.clone().prop_map(RandomEvent::Enter),
        2 => owner.prop_map(RandomEvent::Leave),
    ]
}

const OWNER_COUNT: usize = 3;
/// The maximum number of random runs until an injected bug must be detected.
const MAX_MODEL_RUNS: usize = 50_000;
/// The speed of each owner's clock, in thousandths of the server's speed.
const CLOCK_SPEEDS: [u64; OWNER_COUNT] = [1000, 993, 1007];

#[derive(Debug, Clone, Copy, PartialEq)]
enum RequestKind {
    Acquire,
    Extend,
    Release,
}

#[derive(Debug)]
struct RequestMessage {
    /// The owner that waits for the reply; `None` if no owner waits for it any more.
    waiting_owner: Option<usize>,
    /// The name of the owner on the server. Each acquisition has a new one.
    owner: u64,
    request: RequestKind,
    outcome: Option<RequestOutcome>,
}

#[derive(Debug)]
enum OwnerState {
    Idle,
    Acquiring { sent_at: Instant },
    Holding(HeldLease),
}

/// A bug injected into every holder. The model must detect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InjectedBug {
    /// Counts the lease from the reply instead of the request.
    CountsLeaseFromReply,
    /// Restores a lost lock after a late success.
    AcceptsLateSuccess,
    /// Assumes that all clocks run at the same speed.
    IgnoresClockDrift,
}

struct LockModel {
    bug: Option<InjectedBug>,
    started_at: Instant,
    now: Duration,
    holder: Option<(u64, Duration)>,
    messages: Vec<RequestMessage>,
    owners: Vec<(u64, OwnerState)>,
    next_owner: u64,
    acquisition_count: usize,
}

impl LockModel {
    fn new() -> Self {
        Self {
            bug: None,
            started_at: Instant::now(),
            now: Duration::ZERO,
            holder: None,
            messages: Vec::new(),
            owners: (0..OWNER_COUNT).map(|_| (0, OwnerState::Idle)).collect(),
            next_owner: 0,
            acquisition_count: 0,
        }
    }

    fn clock_of(&self, owner: usize) -> Instant {
        self.started_at + self.now * CLOCK_SPEEDS[owner] as u32 / 1000
    }

    fn send_request(&mut self, from: usize, request: RequestKind) {
        let owner = self.owners[from].0;
        self.messages.push(RequestMessage { waiting_owner: Some(from), owner, request, outcome: None });
    }

    fn handle(&mut self, owner: usize, input: LeaseEvent) {
        let now = self.clock_of(owner);
        let mut out = Vec::new();
        let OwnerState::Holding(life) = &mut self.owners[owner].1 else { return };
        let extending_since = life.extending_since;
        let was_lost = matches!(life.state, LeaseState::Lost(_));
        life.handle(now, input, &mut out);
        if input == LeaseEvent::ExtensionEnded(RequestOutcome::Done) {
            match self.bug {
                Some(InjectedBug::CountsLeaseFromReply) if life.state == LeaseState::Held => {
                    life.valid_until = lease_end(now, LEASE_DURATION);
                }
                Some(InjectedBug::AcceptsLateSuccess) if was_lost => {
                    life.state = LeaseState::Held;
                    life.valid_until = lease_end(now, LEASE_DURATION);
                }
                Some(InjectedBug::IgnoresClockDrift) if life.state == LeaseState::Held => {
                    life.valid_until = extending_since.map_or(life.valid_until, |sent| sent + LEASE_DURATION);
                }
                Some(_) | None => {}
            }
        }
        let over = life.is_released();
        for action in out {
            match action {
                LeaseAction::Extend(_) => self.send_request(owner, RequestKind::Extend),
                LeaseAction::Release => self.send_request(owner, RequestKind::Release),
                LeaseAction::ReportLoss(_)
                | LeaseAction::AnswerExtension(_)
                | LeaseAction::AnswerRelease(_) => {}
            }
        }
        if over {
            self.owners[owner].1 = OwnerState::Idle;
        }
    }

    fn serve_request(&mut self, index: usize) {
        let now = self.now;
        let Some(message) = self.messages.get_mut(index).filter(|message| message.outcome.is_none()) else {
            return;
        };
        self.holder = self.holder.filter(|(_, until)| now < *until);
        let is_holder = self.holder.is_some_and(|(owner, _)| owner == message.owner);
        let free_or_own = self.holder.is_none() || is_holder;
        let granted = match message.request {
            RequestKind::Acquire => free_or_own,
            RequestKind::Extend | RequestKind::Release => is_holder,
        };
        if granted {
            self.holder =
                (message.request != RequestKind::Release).then_some((message.owner, now + LEASE_DURATION));
        }
        message.outcome = Some(if granted { RequestOutcome::Done } else { RequestOutcome::NotHeld });
    }

    fn deliver_reply(&mut self, index: usize, is_lost: bool) {
        let Some(message) = self.messages.get(index).filter(|message| is_lost || message.outcome.is_some())
        else {
            return;
        };
        let outcome = message.outcome.filter(|_| !is_lost).unwrap_or(RequestOutcome::Unknown);
        let message = self.messages.remove(index);
        // The sender times out, but its request may still arrive.
        if is_lost && message.outcome.is_none() && self.now.as_millis().is_multiple_of(2) {
            self.messages.push(RequestMessage { waiting_owner: None, ..message });
        }
        let Some(from) = message.waiting_owner.filter(|from| self.owners[*from].0 == message.owner) else {
            return;
        };
        let now = self.clock_of(from);
        match (&self.owners[from].1, message.request) {
            (OwnerState::Acquiring { sent_at: sent }, RequestKind::Acquire) => {
                let taken = outcome == RequestOutcome::Done && now < lease_end(*sent, LEASE_DURATION);
                self.acquisition_count += usize::from(taken);
                self.owners[from].1 = if taken {
                    OwnerState::Holding(HeldLease::new(*sent, LEASE_DURATION, true))
                } else {
                    OwnerState::Idle
                };
            }
            (OwnerState::Holding(_), RequestKind::Extend) => {
                self.handle(from, LeaseEvent::ExtensionEnded(outcome));
            }
            (OwnerState::Holding(_), RequestKind::Release) => {
                self.handle(from, LeaseEvent::ReleaseEnded(outcome));
            }
            (OwnerState::Idle | OwnerState::Acquiring { .. } | OwnerState::Holding(_), _) => {}
        }
    }

    fn apply_actions(&mut self, event: &RandomEvent) {
        let pick = |index: usize| index.checked_rem(self.messages.len()).unwrap_or(0);
        match *event {
            RandomEvent::PassTime(ms) => self.now += Duration::from_millis(ms),
            RandomEvent::CheckLease(actor) => self.handle(actor, LeaseEvent::Deadline),
            RandomEvent::ServeRequest(index) => self.serve_request(pick(index)),
            RandomEvent::DeliverReply(index) => self.deliver_reply(pick(index), false),
            RandomEvent::LoseMessage(index) => self.deliver_reply(pick(index), true),
            RandomEvent::Acquire(actor) => {
                if matches!(self.owners[actor].1, OwnerState::Idle) {
                    self.next_owner += 1;
                    self.owners[actor] =
                        (self.next_owner, OwnerState::Acquiring { sent_at: self.clock_of(actor) });
                    self.send_request(actor, RequestKind::Acquire);
                }
            }
            RandomEvent::Enter(actor) => self.handle(actor, LeaseEvent::GuardCreated),
            RandomEvent::Leave(actor) => self.handle(actor, LeaseEvent::GuardDropped),
        }
    }

    /// Returns an owner that relies on the lock although the server has not granted the lock to it.
    fn owner_without_lock(&self) -> Option<u64> {
        let holder = self.holder.filter(|(_, until)| self.now < *until).map(|(owner, _)| owner);
        self.owners_relying_on_lock().into_iter().find(|believer| Some(*believer) != holder)
    }

    fn owners_relying_on_lock(&self) -> Vec<u64> {
        let believes = |actor: &usize| match &self.owners[*actor].1 {
            OwnerState::Holding(life) => life.is_held(self.clock_of(*actor)),
            OwnerState::Idle | OwnerState::Acquiring { .. } => false,
        };
        (0..OWNER_COUNT).filter(believes).map(|actor| self.owners[actor].0).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Despite delays, losses, pauses and different clock speeds, only the owner that holds the lock on the server
    /// relies on it.
    #[test]
    fn no_owner_relies_on_a_lock_that_another_may_get(
        story in prop::collection::vec(random_event(), 1..120)
    ) {
        let mut world = LockModel::new();
        for chance in &story {
            world.apply_actions(chance);
            prop_assert_eq!(world.owner_without_lock(), None, "after {:?}", chance);
        }
    }

    /// A holder that checks its lease in time never loses the lock if the network replies within a third of the lease.
    /// In the end the lock is released.
    #[test]
    fn renewable_lease_is_never_lost(delays in prop::collection::vec(1..900u64, 1..60)) {
        let mut world = LockModel::new();
        world.apply_actions(&RandomEvent::Acquire(0));
        world.apply_actions(&RandomEvent::ServeRequest(0));
        world.apply_actions(&RandomEvent::DeliverReply(0));
        for delay in delays {
            let OwnerState::Holding(life) = &world.owners[0].1 else { panic!("lost") };
            world.now = life.next_deadline().expect("a holder renews") - world.started_at;
            world.apply_actions(&RandomEvent::CheckLease(0));
            world.apply_actions(&RandomEvent::ServeRequest(0));
            world.apply_actions(&RandomEvent::PassTime(delay));
            world.apply_actions(&RandomEvent::DeliverReply(0));
            prop_assert_eq!(world.owners_relying_on_lock(), vec![1]);
        }
        world.apply_actions(&RandomEvent::Leave(0));
        world.apply_actions(&RandomEvent::ServeRequest(0));
        world.apply_actions(&RandomEvent::DeliverReply(0));
        prop_assert!(world.holder.is_none());
        prop_assert!(matches!(world.owners[0].1, OwnerState::Idle));
    }
}

#[test]
fn model_detects_injected_bugs() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    for bug in
        [InjectedBug::CountsLeaseFromReply, InjectedBug::AcceptsLateSuccess, InjectedBug::IgnoresClockDrift]
    {
        let mut runner = TestRunner::deterministic();
        let stories = prop::collection::vec(random_event(), 120);
        let mut drawn = std::iter::repeat_with(|| stories.new_tree(&mut runner).unwrap().current());
        let found = drawn.by_ref().take(MAX_MODEL_RUNS).any(|story| {
            let mut world = LockModel { bug: Some(bug), ..LockModel::new() };
            story.iter().any(|chance| {
                world.apply_actions(chance);
                world.owner_without_lock().is_some()
            })
        });
        assert!(found, "{bug:?} was not found");
    }
}

/// The model is only meaningful if acquisitions succeed often.
#[test]
fn random_events_acquire_the_lock_in_the_model() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let stories = prop::collection::vec(random_event(), 120);
    let taken: usize = (0..100)
        .map(|_| {
            let mut world = LockModel::new();
            stories
                .new_tree(&mut runner)
                .unwrap()
                .current()
                .iter()
                .for_each(|chance| world.apply_actions(chance));
            world.acquisition_count
        })
        .sum();
    assert!(taken > 100, "{taken}");
}
