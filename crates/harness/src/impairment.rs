//! A bad line between a host and all others: packets that come late, out of order, twice or never.
//!
//! The kernel's own means for this (tc's netem) is often left out of it. So a host's port is moved to a bridge of its
//! own, and this process carries the frames between that bridge and the common one, through a TAP device in each. Both
//! ends speak TCP as ever: their kernels send lost packets again and drop those that come twice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tappers::{Interface, Tap};

use crate::network::enter;

/// More than a frame of Ethernet.
const FRAME: usize = 4096;
/// So many frames wait; later ones are lost, as in a real queue.
const QUEUE: usize = 10_000;
/// How often a line that carries nothing looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The faults that a line adds to the packets that it carries, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Impairment {
    /// How long a packet takes at least.
    pub delay: Duration,
    /// Up to so much longer; packets overtake each other then.
    pub jitter: Duration,
    /// How many of a hundred packets are lost.
    pub loss: u32,
    /// How many of a hundred packets come twice.
    pub duplication: u32,
}

/// A line that stands until it is dropped.
#[derive(Debug)]
pub(crate) struct Line {
    ended: Arc<AtomicBool>,
    carrying: Option<JoinHandle<()>>,
}

impl Line {
    /// Makes the two TAP devices within a network namespace, and carries frames between them.
    pub(crate) fn lay(
        namespace: PathBuf,
        [near, far]: [String; 2],
        impairment: Impairment,
        seed: u64,
    ) -> io::Result<Self> {
        // A namespace is entered by a thread; the devices stay where they were made.
        let making = thread::spawn(move || {
            enter(&namespace)?;
            let tap = |name: &str| {
                let mut tap = Tap::new_named(Interface::new(name)?)?;
                tap.set_nonblocking(true)?;
                Ok::<Tap, io::Error>(tap)
            };
            Ok::<[Tap; 2], io::Error>([tap(&near)?, tap(&far)?])
        });
        let taps = making.join().expect("a thread that only makes devices")?;
        let ended = Arc::new(AtomicBool::new(false));
        let mut carrier = Carrier {
            taps,
            impairment,
            chance: ChaCha8Rng::seed_from_u64(seed),
            waiting: BinaryHeap::new(),
            taken: 0,
        };
        let until = ended.clone();
        let carrying = thread::spawn(move || carrier.carry(&until));
        Ok(Self { ended, carrying: Some(carrying) })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(carrying) = self.carrying.take() {
            let _ = carrying.join();
        }
    }
}

/// A frame under way, by when it arrives; those of one moment in the order in which they came.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    due: Instant,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

struct Carrier {
    taps: [Tap; 2],
    impairment: Impairment,
    chance: ChaCha8Rng,
    waiting: BinaryHeap<Reverse<Frame>>,
    taken: u64,
}

impl Carrier {
    fn carry(&mut self, ended: &AtomicBool) {
        let mut buffer = vec![0; FRAME];
        while !ended.load(Ordering::Relaxed) {
            for from in 0..self.taps.len() {
                while let Ok(length) = self.taps[from].recv(&mut buffer) {
                    self.take(&buffer[..length], 1 - from);
                }
            }
            self.deliver();
            self.rest();
        }
    }

    /// A frame has come; what becomes of it is drawn.
    fn take(&mut self, bytes: &[u8], to: usize) {
        let Impairment { delay, jitter, loss, duplication } = self.impairment;
        if self.chance.random_range(0..100) < loss {
            return;
        }
        let copies = if self.chance.random_range(0..100) < duplication { 2 } else { 1 };
        for _ in 0..copies {
            if self.waiting.len() >= QUEUE {
                return;
            }
            let late = jitter.mul_f64(self.chance.random());
            self.taken += 1;
            let (due, number) = (Instant::now() + delay + late, self.taken);
            self.waiting.push(Reverse(Frame { due, number, to, bytes: bytes.to_vec() }));
        }
    }

    fn deliver(&mut self) {
        let now = Instant::now();
        while self.waiting.peek().is_some_and(|Reverse(frame)| frame.due <= now) {
            if let Some(Reverse(frame)) = self.waiting.pop() {
                // A device that takes nothing now loses it.
                let _ = self.taps[frame.to].send(&frame.bytes);
            }
        }
    }

    /// Until a frame comes or is due.
    fn rest(&self) {
        let due =
            self.waiting.peek().map(|Reverse(frame)| frame.due.saturating_duration_since(Instant::now()));
        let timeout = due.unwrap_or(LOOK).min(LOOK);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let mut polled = self.taps.each_ref().map(|tap| PollFd::new(tap, PollFlags::IN));
        // Interrupted or not, both are looked at again.
        let _ = poll(&mut polled, Some(&timeout));
    }
}

#[cfg(test)]
mod tests;
