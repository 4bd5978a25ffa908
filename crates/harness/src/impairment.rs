//! Impairs the link of a host: delays, reorders, duplicates and drops packets.
//!
//! Many kernels lack netem. Therefore the host's port is moved to a separate bridge, and this process forwards frames
//! between that bridge and the common bridge through two TAP devices. The kernels handle the rest: TCP retransmits lost
//! packets and drops duplicates.

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

use crate::namespace::enter_namespace;

/// Size of the read buffer in bytes; larger than any Ethernet frame.
const MAX_FRAME_SIZE: usize = 4096;
/// Maximum number of queued frames. Further frames are dropped, as in a full network queue.
const MAX_QUEUED_FRAMES: usize = 10_000;
/// Interval at which an idle forwarder checks whether its [`ImpairedLink`] has been dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Faults applied to the packets in each direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkImpairment {
    /// Minimum delay of a packet.
    pub delay: Duration,
    /// Maximum random additional delay, which reorders packets.
    pub jitter: Duration,
    /// Percentage of lost packets.
    pub loss_percent: u32,
    /// Percentage of duplicated packets.
    pub duplication_percent: u32,
}

/// A running forwarder of frames with faults. Dropping this value stops the forwarder.
#[derive(Debug)]
pub(crate) struct ImpairedLink {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ImpairedLink {
    /// Creates two TAP devices in a network namespace and starts to forward frames between them.
    pub(crate) fn start(
        namespace: PathBuf,
        [near, far]: [String; 2],
        impairment: LinkImpairment,
        seed: u64,
    ) -> io::Result<Self> {
        // A network namespace is a property of a thread, so a new thread enters it. The devices remain in the namespace
        // after the thread has ended.
        let making = thread::spawn(move || {
            enter_namespace(&namespace)?;
            let tap = |name: &str| {
                let mut tap = Tap::new_named(Interface::new(name)?)?;
                tap.set_nonblocking(true)?;
                Ok::<Tap, io::Error>(tap)
            };
            Ok::<[Tap; 2], io::Error>([tap(&near)?, tap(&far)?])
        });
        let taps = making.join().expect("a thread that only makes devices")?;
        let ended = Arc::new(AtomicBool::new(false));
        let mut carrier = FrameForwarder {
            taps,
            impairment,
            rng: ChaCha8Rng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            frame_count: 0,
        };
        let until = ended.clone();
        let carrying = thread::spawn(move || carrier.forward(&until));
        Ok(Self { is_stopped: ended, thread: Some(carrying) })
    }
}

impl Drop for ImpairedLink {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(carrying) = self.thread.take() {
            let _ = carrying.join();
        }
    }
}

/// A frame that waits for delivery. Frames are ordered by due time, then by arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueuedFrame {
    due_at: Instant,
    sequence: u64,
    target_tap: usize,
    bytes: Vec<u8>,
}

struct FrameForwarder {
    taps: [Tap; 2],
    impairment: LinkImpairment,
    rng: ChaCha8Rng,
    queue: BinaryHeap<Reverse<QueuedFrame>>,
    frame_count: u64,
}

impl FrameForwarder {
    fn forward(&mut self, is_stopped: &AtomicBool) {
        let mut buffer = vec![0; MAX_FRAME_SIZE];
        while !is_stopped.load(Ordering::Relaxed) {
            for from in 0..self.taps.len() {
                while let Ok(length) = self.taps[from].recv(&mut buffer) {
                    self.enqueue(&buffer[..length], 1 - from);
                }
            }
            self.deliver_due_frames();
            self.wait_for_frame();
        }
    }

    /// Queues a received frame, applying random faults.
    fn enqueue(&mut self, bytes: &[u8], target_tap: usize) {
        let LinkImpairment { delay, jitter, loss_percent: loss, duplication_percent: duplication } =
            self.impairment;
        if self.rng.random_range(0..100) < loss {
            return;
        }
        let copies = if self.rng.random_range(0..100) < duplication { 2 } else { 1 };
        for _ in 0..copies {
            if self.queue.len() >= MAX_QUEUED_FRAMES {
                return;
            }
            let late = jitter.mul_f64(self.rng.random());
            self.frame_count += 1;
            let (due, number) = (Instant::now() + delay + late, self.frame_count);
            self.queue.push(Reverse(QueuedFrame {
                due_at: due,
                sequence: number,
                target_tap,
                bytes: bytes.to_vec(),
            }));
        }
    }

    fn deliver_due_frames(&mut self) {
        let now = Instant::now();
        while self.queue.peek().is_some_and(|Reverse(frame)| frame.due_at <= now) {
            if let Some(Reverse(frame)) = self.queue.pop() {
                // If the device cannot accept the frame now, the frame is lost, as on a real network.
                let _ = self.taps[frame.target_tap].send(&frame.bytes);
            }
        }
    }

    /// Waits until a frame arrives or is due.
    fn wait_for_frame(&self) {
        let due =
            self.queue.peek().map(|Reverse(frame)| frame.due_at.saturating_duration_since(Instant::now()));
        let timeout = due.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let mut polled = self.taps.each_ref().map(|tap| PollFd::new(tap, PollFlags::IN));
        // The result is not needed, because both devices are checked again anyway.
        let _ = poll(&mut polled, Some(&timeout));
    }
}

#[cfg(test)]
mod tests;
