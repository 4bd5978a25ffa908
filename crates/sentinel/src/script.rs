//! The operator's notification and reconfiguration scripts.
//!
//! As in Redis, up to 16 scripts run at a time and 256 are queued. A script that exits with code 1 or is killed by a
//! signal is retried up to ten times, with a delay that doubles each time. A script that runs for more than a minute is
//! killed.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;

use crate::machine::SentinelAction;
use crate::settings::Timing;
use crate::writes::StepOutput;

const MAX_QUEUED_SCRIPTS: usize = 256;
const MAX_RUNNING_SCRIPTS: usize = 16;
const MAX_RETRIES: u32 = 10;

/// The id of a script run, chosen by the sentinel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// How a script run ended, as reported by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// The script exited with this status.
    Exited(i32),
    /// The script was killed by a signal, or could not be started.
    Died,
}

#[derive(Debug, Clone)]
pub(crate) struct ScriptJob {
    id: JobId,
    pub(crate) argv: Vec<String>,
    /// When the script was started; `None` while it is queued.
    pub(crate) started: Option<Instant>,
    /// The earliest start of the script, which is delayed after a failed run.
    earliest_start: Instant,
    pub(crate) retries: u32,
    is_killed: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Scripts {
    pub(crate) jobs: VecDeque<ScriptJob>,
    next_id: u64,
}

impl Scripts {
    pub(crate) fn running(&self) -> usize {
        self.jobs.iter().filter(|job| job.started.is_some()).count()
    }

    /// Queues a script. If the queue is full, the oldest script that is not running is dropped.
    pub(crate) fn queue(&mut self, now: Instant, argv: Vec<String>) {
        self.next_id += 1;
        self.jobs.push_back(ScriptJob {
            id: JobId(self.next_id),
            argv,
            started: None,
            earliest_start: now,
            retries: 0,
            is_killed: false,
        });
        if self.jobs.len() > MAX_QUEUED_SCRIPTS {
            let oldest = self.jobs.iter().position(|job| job.started.is_none());
            oldest.and_then(|place| self.jobs.remove(place));
        }
    }

    pub(crate) fn start_due(&mut self, now: Instant, timing: &Timing, out: &mut StepOutput) {
        let mut running = self.running();
        for job in &mut self.jobs {
            match job.started {
                Some(started) if !job.is_killed && now.since(started) > timing.script_max_runtime => {
                    job.is_killed = true;
                    out.push(SentinelAction::KillScript(job.id));
                }
                None if running < MAX_RUNNING_SCRIPTS && now >= job.earliest_start => {
                    running += 1;
                    job.started = Some(now);
                    job.is_killed = false;
                    out.push(SentinelAction::RunScript { job: job.id, argv: job.argv.clone() });
                }
                _ => {}
            }
        }
    }

    pub(crate) fn on_done(&mut self, now: Instant, timing: &Timing, id: JobId, outcome: ScriptOutcome) {
        let Some(place) = self.jobs.iter().position(|job| job.id == id && job.started.is_some()) else {
            return;
        };
        let job = &mut self.jobs[place];
        let again = !matches!(outcome, ScriptOutcome::Exited(code) if code != 1);
        if again && job.retries < MAX_RETRIES {
            job.earliest_start = now + retry_delay(timing.script_retry_delay, job.retries);
            job.retries += 1;
            job.started = None;
        } else {
            self.jobs.remove(place);
        }
    }
}

fn retry_delay(first: Duration, retries: u32) -> Duration {
    first * 2u32.pow(retries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(scripts: &mut Scripts, now: Instant) -> Vec<SentinelAction> {
        let mut out = StepOutput::default();
        scripts.start_due(now, &Timing::default(), &mut out);
        out.actions.into_iter().map(|(_, action)| action).collect()
    }

    #[test]
    fn failed_script_is_retried_with_growing_delays() {
        let mut scripts = Scripts::default();
        let timing = Timing::default();
        let mut now = Instant::from_millis(1);
        scripts.queue(now, vec!["/bin/notify".into()]);
        for retry in 0..3 {
            let started = SentinelAction::RunScript { job: JobId(1), argv: vec!["/bin/notify".into()] };
            assert_eq!(run(&mut scripts, now), [started]);
            scripts.on_done(now, &timing, JobId(1), ScriptOutcome::Exited(1));
            let wait = Duration::from_secs(30 << retry);
            assert_eq!(run(&mut scripts, now + (wait - Duration::from_millis(1))), []);
            now += wait;
        }
        run(&mut scripts, now);
        scripts.on_done(now, &timing, JobId(1), ScriptOutcome::Exited(2));
        assert!(scripts.jobs.is_empty(), "an exit code above 1 is final");
    }

    #[test]
    fn sixteen_scripts_run_and_a_slow_one_is_killed_once() {
        let mut scripts = Scripts::default();
        let now = Instant::from_millis(1);
        for number in 0..300 {
            scripts.queue(now, vec![number.to_string()]);
        }
        assert_eq!(scripts.jobs.len(), MAX_QUEUED_SCRIPTS);
        assert_eq!(run(&mut scripts, now).len(), MAX_RUNNING_SCRIPTS);
        assert_eq!(run(&mut scripts, now).len(), 0);
        let late = now + Duration::from_secs(61);
        assert_eq!(run(&mut scripts, late).len(), MAX_RUNNING_SCRIPTS);
        assert_eq!(run(&mut scripts, late).len(), 0);
    }
}
