//! Compares two workers with one, in process and without sockets. The workloads are GET and SET on uniform keys, SET of
//! varying sizes with DEL, INCR on one hot key, and SET while replication is active.
//!
//! Prints lines of `workload threads by_the_clock by_the_processor`, in millions of commands per second. The first
//! figure uses wall-clock time and needs idle cores. The second sums the throughput per CPU time of each thread and
//! does not need them (`scripts/bench-threads`).
//!
//! Runs with one and two workers alternate in short rounds, so that other load on the machine affects both equally.
//!
//! Usage: `threads KEYS SECONDS ROUNDS`, where SECONDS is the length of a round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use clock::Millis;
use engine::{CommandOrigin, CommandSet, Dispatcher, EffectLog, Engine, PipelinedRequests, Session};
use keyspace::Keyspace;
use parking_lot::Mutex;
use replication::{Log, ReplId};
use resp::{Batch, ParseLimits, Parser, encode_request};
use slot_routing::ReplOffset;

const PIPELINE_LEN: usize = 16;
/// Number of batches that each thread encodes before the measurement, so that encoding is not measured.
const PREPARED_BATCHES: usize = 4096;
const NOW: Millis = Millis(1_700_000_000_000);

/// The replication log behind a mutex, as in the server, with a backlog of the default size.
#[derive(Debug)]
struct SharedLog {
    log: Mutex<Log>,
    is_open: AtomicBool,
}

/// The engine's handle to the shared log.
#[derive(Debug)]
struct LogHandle(Arc<SharedLog>);

impl EffectLog for LogHandle {
    fn has_readers(&self) -> bool {
        self.0.is_open.load(Ordering::Acquire)
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        self.0.log.lock().append(db, commands)
    }
}

/// One thread's connection to the engine.
struct Client<'e> {
    dispatcher: Dispatcher<'e>,
    worker: engine::Worker,
    session: Session,
    batch: Batch,
    parser: Parser,
    out: Vec<u8>,
}

impl<'e> Client<'e> {
    fn new(engine: &'e Engine, commands: &'e CommandSet, id: u64) -> Self {
        Self {
            dispatcher: commands.dispatcher(engine),
            worker: engine.new_worker(|| 0),
            session: Session::new(id, CommandOrigin::Client, true),
            batch: Batch::default(),
            parser: Parser::new(),
            out: Vec::new(),
        }
    }

    fn run(&mut self, buffer: &mut [u8]) {
        self.batch.clear();
        self.out.clear();
        let parsed = self.parser.parse(buffer, &mut self.batch, &ParseLimits::default());
        assert_eq!(parsed.consumed_bytes, buffer.len());
        let (worker, session) = (&mut self.worker, &mut self.session);
        self.dispatcher.run(
            worker,
            session,
            NOW,
            PipelinedRequests { buffer, batch: &self.batch, first_pending: 0 },
            &mut self.out,
        );
        assert_ne!(self.out.first(), Some(&b'-'));
    }
}

fn encode_batch(workload: &str, keys: usize, random: &mut usize) -> Vec<u8> {
    let mut wire = Vec::new();
    for _ in 0..PIPELINE_LEN {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("key:{:012}", (*random >> 33) % keys);
        match workload {
            "GET" => encode_request(&mut wire, ["get", &key].map(str::as_bytes)),
            // This workload constantly allocates and frees pages and index lines.
            "sizes" if *random >> 20 & 3 == 0 => encode_request(&mut wire, ["del", &key].map(str::as_bytes)),
            "sizes" => {
                let value = "w".repeat(*random >> 22 & 511);
                encode_request(&mut wire, ["set", &key, &value].map(str::as_bytes));
            }
            "SET" | "logged" => encode_request(&mut wire, ["set", &key, &"w".repeat(32)].map(str::as_bytes)),
            _ => encode_request(&mut wire, ["incr", "hot"].map(str::as_bytes)),
        }
    }
    wire
}

/// CPU time that this thread has used.
fn thread_cpu_time() -> Duration {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says");
    let nanos = said.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number first");
    Duration::from_nanos(nanos)
}

/// Throughput in millions of commands per second, by wall-clock time and by CPU time.
fn measure_throughput(
    (engine, commands): (&Engine, &CommandSet),
    workload: &str,
    threads: usize,
    keys: usize,
    duration: Duration,
) -> (f64, f64) {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(threads + 1));
    std::thread::scope(|scope| {
        let work = |id: usize| {
            let (stop, start) = (&stop, &start);
            scope.spawn(move || {
                let mut client = Client::new(engine, commands, id as u64 + 1);
                let mut random = id + 1;
                let mut prepared: Vec<_> =
                    (0..PREPARED_BATCHES).map(|_| encode_batch(workload, keys, &mut random)).collect();
                start.wait();
                let (mut done, began) = (0, thread_cpu_time());
                while !stop.load(Ordering::Relaxed) {
                    client.run(&mut prepared[done % PREPARED_BATCHES]);
                    done += 1;
                }
                (done * PIPELINE_LEN, thread_cpu_time() - began)
            })
        };
        let workers: Vec<_> = (0..threads).map(work).collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        let took = began.elapsed();
        let rate = |done: usize, time: Duration| done as f64 / time.as_micros() as f64;
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
        let by_clock = rate(done.iter().map(|(done, _)| done).sum(), took);
        (by_clock, done.iter().map(|&(done, time)| rate(done, time)).sum())
    })
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<f64>().ok());
    let (keys, seconds) = (numbers.next().unwrap_or(2e6) as usize, numbers.next().unwrap_or(0.5));
    let rounds = numbers.next().unwrap_or(20.0) as usize;
    let log = Log::new(ReplId::from_random([1; 20]), 1 << 20);
    let log = Arc::new(SharedLog { log: Mutex::new(log), is_open: AtomicBool::new(false) });
    let commands = CommandSet::new(commands::server_registry());
    let catalogue = commands.registry().catalogue();
    let engine = Engine::new(catalogue, Keyspace::new(1, 16), None, Box::new(LogHandle(log.clone())));
    let mut client = Client::new(&engine, &commands, 0);
    for number in 0..keys {
        let mut wire = Vec::new();
        let words = ["set", &format!("key:{number:012}"), &"v".repeat(32)];
        encode_request(&mut wire, words.map(str::as_bytes));
        client.run(&mut wire);
    }
    for workload in ["GET", "SET", "sizes", "hot", "logged"] {
        if workload == "logged" {
            log.log.lock().open(ReplId::from_random([2; 20]));
            log.is_open.store(true, Ordering::Release);
        }
        for _ in 0..rounds {
            for threads in [1, 2] {
                let time = Duration::from_secs_f64(seconds);
                let (by_clock, by_processor) =
                    measure_throughput((&engine, &commands), workload, threads, keys, time);
                println!("{workload} {threads} {by_clock:.3} {by_processor:.3}");
            }
        }
    }
}
