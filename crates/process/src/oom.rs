//! Adjusts the kernel's OOM score of this process (`oom-score-adj`).

use config::{Config, OomScoreMode, keys};
use parking_lot::Mutex;

const FILE: &str = "/proc/self/oom_score_adj";
/// Range accepted by the kernel.
const SCORES: std::ops::RangeInclusive<i64> = -1000..=1000;

/// Sets the `oom_score_adj` of this process by role.
#[derive(Debug, Default)]
pub struct Score(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// The score before the first change.
    first: Option<i64>,
    last: Option<i64>,
}

impl Score {
    /// Writes the score for the current role, if it differs from the last one written.
    pub fn apply(&self, config: &Config, replica: bool) {
        let mut told = self.0.lock();
        let mode = config.get(keys::OOM_SCORE_ADJ);
        if mode == OomScoreMode::No && told.first.is_none() {
            return;
        }
        let read =
            || std::fs::read_to_string(FILE).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let first = *told.first.get_or_insert_with(read);
        let [master, as_replica, _] = config.get(keys::OOM_SCORE_ADJ_VALUES);
        let wanted = score(mode, first, i64::from(if replica { as_replica } else { master }));
        if told.last == Some(wanted) {
            return;
        }
        told.last = Some(wanted);
        if let Err(error) = std::fs::write(FILE, wanted.to_string()) {
            tracing::warn!("Unable to write to {FILE}: {error}");
        }
    }
}

fn score(mode: OomScoreMode, first: i64, value: i64) -> i64 {
    let wanted = match mode {
        OomScoreMode::Absolute => value,
        OomScoreMode::No => first,
        OomScoreMode::Yes | OomScoreMode::Relative => first.saturating_add(value),
    };
    wanted.clamp(*SCORES.start(), *SCORES.end())
}

#[cfg(test)]
mod tests {
    use super::{OomScoreMode, score};

    #[test]
    fn a_score_is_added_or_taken_as_it_is() {
        assert_eq!(score(OomScoreMode::Yes, 100, 200), 300);
        assert_eq!(score(OomScoreMode::Relative, 900, 200), 1000);
        assert_eq!(score(OomScoreMode::Absolute, 100, 200), 200);
        assert_eq!(score(OomScoreMode::No, 100, 200), 100);
    }
}
